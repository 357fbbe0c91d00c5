"""Shapes for inference engines: optimization profiles for TensorRT, partial shapes for OpenVINO.

TensorRT tunes kernels for an optimum shape and rejects sizes outside a range; see
``IOptimizationProfile`` in its documentation. OpenVINO takes a size, a range or -1 for each
dimension; see "Dynamic Shapes" in its documentation.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from calltape_analyzer.errors import UsageError
from calltape_analyzer.limits import bounded
from calltape_analyzer.observing.size_table import Column, SizeTable
from calltape_analyzer.tape import Tape, check_tape
from calltape_analyzer.text import some_of
from calltape_analyzer.variant import Variant
from calltape_analyzer.variants.facts import VariantFacts
from calltape_analyzer.variants.variant_findings import DimensionFinding, TensorFinding

__all__ = [
    "InputRange",
    "OptimizationProfile",
    "PartialDimension",
    "as_text",
    "openvino_shapes",
    "optimization_profile",
    "partial_shapes",
    "polygraphy_flags",
    "trtexec_flags",
]

_MAX_NAMED = 8
_MAX_COMMON = 1024

Shape = tuple[int, ...]


def only_variant(source: Tape | Variant) -> Variant:
    """The variant itself, or the only variant of a tape.

    Raises:
        UsageError: the tape has several variants, or no calls.
    """
    if isinstance(source, Variant):
        return source
    check_tape(source, "a target")
    variants = source.variants()
    if len(variants) == 1:
        return variants[0]
    if not variants:
        raise UsageError("the tape has no calls", advice="record at least one call")
    names = some_of([repr(variant.name) for variant in variants], _MAX_NAMED)
    raise UsageError(
        f"the calls of this tape are {len(variants)} variants: {names}",
        advice="pass one of tape.variants(), or tape.only(variant=...)",
    )


def input_tensors(variant: Variant) -> list[tuple[int, TensorFinding]]:
    """The tensors that are inputs of a program, with their numbers among all tensors of the
    variant. Tensors that a cache derives from others are not."""
    from calltape_analyzer.arguments.plan import derived_tensors

    derived = derived_tensors(variant.facts.group.layout)
    return [(i, tensor) for i, tensor in enumerate(variant.findings.tensors) if i not in derived]


def most_common_shapes(rows: SizeTable) -> tuple[Shape, ...]:
    """The combination of shapes that most calls had.

    A growing cache leaves many equally common ones. Then combinations with the fewest empty tensors
    are preferred, and of these the median by number of elements. Of thousands, only a sample is
    considered.

    Args:
        rows: the sizes of the calls, such as ``variant.facts.all_rows``.
    """

    def empty_tensors(shapes: Sequence[Shape]) -> int:
        return sum(0 in shape for shape in shapes)

    numbers = rows.most_common()
    common = [rows.row(i).shapes for i in numbers[:: -(-len(numbers) // _MAX_COMMON)]]
    fewest = min(map(empty_tensors, common))
    candidates = sorted(
        (shapes for shapes in common if empty_tensors(shapes) == fewest),
        key=lambda shapes: (sum(map(math.prod, shapes)), shapes),
    )
    return candidates[(len(candidates) - 1) // 2]


class InputRange(BaseModel):
    """The smallest shape of an input, the one to tune for, and the largest."""

    model_config = ConfigDict(frozen=True)

    min: Shape
    opt: Shape
    max: Shape


class OptimizationProfile(BaseModel):
    """An optimization profile for TensorRT.

    Attributes:
        variant: the name of the variant.
        calls: how many recorded calls are within the profile.
        inputs: the inputs with a dynamic dimension, by their names in an export with calltape.
            TensorRT takes the sizes of other inputs from the model.
        notes: what you should know before you use it.
    """

    model_config = ConfigDict(frozen=True)

    variant: str
    calls: int
    inputs: dict[str, InputRange]
    notes: tuple[str, ...] = ()

    def trtexec_flags(self) -> list[str]:
        """``--minShapes=ids:1x2,mask:1x2 --optShapes=... --maxShapes=...`` for ``trtexec``."""
        flags = []
        for which in ("min", "opt", "max") if self.inputs else ():
            shapes = [
                f"{name}:{'x'.join(map(str, getattr(shapes, which)))}"
                for name, shapes in self.inputs.items()
            ]
            flags.append(f"--{which}Shapes={','.join(shapes)}")
        return flags

    def polygraphy_flags(self) -> list[str]:
        """Words for Polygraphy's command line: ``--trt-min-shapes ids:[1,2] mask:[1,2]
        --trt-opt-shapes ...``."""
        words: list[str] = []
        for which in ("min", "opt", "max") if self.inputs else ():
            words.append(f"--trt-{which}-shapes")
            for name, shapes in self.inputs.items():
                words.append(f"{name}:[{','.join(map(str, getattr(shapes, which)))}]")
        return words

    def polygraphy(self) -> dict[str, dict[str, list[int]]]:
        """The shapes as ``{name: {"min": [...], "opt": [...], "max": [...]}}``, ready for JSON.

        Polygraphy's ``Profile.add`` takes them as they are::

            profile = polygraphy.backend.trt.Profile()
            for name, shapes in targets.optimization_profile(tape).polygraphy().items():
                profile.add(name, **shapes)
        """
        return {
            name: {"min": list(shapes.min), "opt": list(shapes.opt), "max": list(shapes.max)}
            for name, shapes in self.inputs.items()
        }


@bounded()
def optimization_profile(source: Tape | Variant, *, empty: bool = True) -> OptimizationProfile:
    """The optimization profile of a variant.

    The optimum is the combination of sizes that most recorded calls had, so the sizes of different
    inputs agree. Minimum and maximum cover the recorded sizes, and those of calls that were counted
    but not kept, if the tape has counters of all traffic. A size that was always a sum or multiple
    of others is computed from *their* minimum and maximum, because the builder rejects shapes that
    the model cannot take together (seen for the optimum in NVIDIA/TensorRT#1808).

    Args:
        source: a variant, or a tape with one variant.
        empty: whether sizes of 0 are allowed. TensorRT's guide describes empty tensors, but
            releases differ: 7.0 rejects a profile with a 0 (NVIDIA/TensorRT#337), 11.1 builds and
            runs one (pytorch/TensorRT#4665). If False, calls with empty tensors are left out.

    Raises:
        UsageError: the tape has several variants; or with ``empty=False``, every call has a tensor
            of size 0.
    """
    variant = only_variant(source)
    facts = variant.facts
    inputs = [
        (i, tensor)
        for i, tensor in input_tensors(variant)
        if any(dimension.dynamic for dimension in tensor.dimensions)
    ]
    rows = facts.all_rows
    columns = [column for i, _ in inputs for column in facts.group.dimensions(i)]
    if columns and not empty:
        lines = {rows.line(column): rows.values(column) for column in columns}
        rows = rows.where([all(values) for values in zip(*lines.values(), strict=True)])
    if not len(rows):
        raise UsageError(
            f"every call of variant {variant.name} has a tensor of size 0",
            advice="record calls without one, or allow them with empty=True",
        )
    opt = most_common_shapes(rows)
    low, high = _bounds(facts, rows, min, empty), _bounds(facts, rows, max, empty)
    ranges = {}
    for i, tensor in inputs:
        axes = facts.group.dimensions(i)
        ranges[tensor.name] = InputRange(
            min=tuple(low.get(c, size) for c, size in zip(axes, opt[i], strict=True)),
            opt=opt[i],
            max=tuple(high.get(c, size) for c, size in zip(axes, opt[i], strict=True)),
        )
    return OptimizationProfile(
        variant=variant.name, calls=rows.calls, inputs=ranges,
        notes=tuple(_notes(variant, ranges, facts.calls - rows.calls)),
    )  # fmt: skip


def _bounds(
    facts: VariantFacts, rows: SizeTable, extreme: Callable[[Iterable[int]], int], empty: bool
) -> dict[Column, int]:
    """The smallest or largest value of each dynamic column, such that relations hold."""
    values = [extreme(rows.distinct(symbol.columns[0])) for symbol in facts.symbols]
    # Counters of all traffic do not say which sizes belong to calls that are left out here.
    for i, symbol in enumerate(facts.symbols if rows is facts.all_rows else ()):
        traffic = facts.span(*symbol.columns)
        sizes = [size for size in (traffic.min, traffic.max) if empty or size]
        values[i] = extreme([values[i], *sizes])
    # Factors are positive and relations do not depend on each other, so bounds remain bounds.
    for i, symbol in enumerate(facts.symbols):
        if symbol.relation is not None:
            # Another value exceeds this one only if a relation does not hold for all traffic.
            values[i] = extreme([values[i], symbol.relation.value(values)])
    return {c: values[i] for i, symbol in enumerate(facts.symbols) for c in symbol.columns}


def _notes(variant: Variant, ranges: Mapping[str, InputRange], left_out: int) -> Iterator[str]:
    zeros = [name for name, shapes in ranges.items() if 0 in shapes.min]
    if zeros:
        yield (
            f"{', '.join(zeros)}: a size of 0 is in the range, which not every release of TensorRT "
            "takes; empty=False leaves such calls out"
        )
    if any(0 in shapes.opt for shapes in ranges.values()):
        yield "the most common sizes, which kernels are tuned for, have an empty tensor"
    if left_out:
        yield f"{left_out} calls with an empty tensor are outside the range"
    for number in variant.findings.ints:
        if number.dynamic:
            yield (
                f"{number.name} is an int that varies: TensorRT wants its values "
                f"({number.min} to {number.max}), which shapes do not give"
            )
    all_calls, calls = variant.findings.all_calls, variant.facts.calls
    if all_calls is not None and all_calls > calls:
        yield (
            f"kept {calls:,} of {all_calls:,} calls: the sizes that kernels are tuned for are "
            "those that most of the kept ones had"
        )
    yield from variant.findings.warnings()


def trtexec_flags(profiles: Sequence[OptimizationProfile]) -> list[str]:
    """Flags for ``trtexec`` and an engine with several profiles, each after ``--profile=N``.

    All profiles of an engine have the same inputs, so they belong to variants that were exported as
    one program, or to several tapes of one variant.

    Raises:
        UsageError: the profiles have different inputs.
    """
    if len({tuple(profile.inputs) for profile in profiles}) > 1:
        raise UsageError(
            "profiles with different inputs cannot be in one engine",
            advice="build an engine per variant",
        )
    if len(profiles) == 1:
        return profiles[0].trtexec_flags()
    return [
        flag
        for n, profile in enumerate(profiles)
        for flag in (f"--profile={n}", *profile.trtexec_flags())
    ]


def polygraphy_flags(profiles: Sequence[OptimizationProfile]) -> list[str]:
    """Words for Polygraphy's command line, with each option once per profile."""
    return [word for profile in profiles for word in profile.polygraphy_flags()]


PartialDimension = int | tuple[int, int]

_ANY: Literal[-1] = -1


@bounded()
def partial_shapes(
    source: Tape | Variant, *, bounded: bool = True
) -> dict[str, list[PartialDimension]]:
    """The partial shape of each input for OpenVINO: a list of sizes, bounds and -1.

    The bounds of a dimension that varied are the smallest and largest size seen, including calls
    that were not kept if the tape has counters of all traffic. OpenVINO allocates memory by the
    bounds, and rejects tensors outside them. A dynamic dimension with one recorded size is -1.

    Args:
        source: a variant, or a tape with one variant.
        bounded: whether to use bounds; if False, all dynamic dimensions are -1.

    Returns:
        Partial shapes by the names of inputs in an export with calltape.

    Raises:
        UsageError: the tape has several variants.
    """

    def partial_dimension(dimension: DimensionFinding) -> PartialDimension:
        if not dimension.dynamic:
            return dimension.min
        return (dimension.min, dimension.max) if bounded and dimension.min < dimension.max else _ANY

    return {
        tensor.name: [*map(partial_dimension, tensor.dimensions)]
        for _, tensor in input_tensors(only_variant(source))
    }


def as_text(shape: Sequence[PartialDimension]) -> str:
    """A partial shape as text, such as ``[1..8,?,64]``, for ``ovc --input`` (after the name) and
    ``openvino.PartialShape``."""

    def text(dimension: PartialDimension) -> str:
        if isinstance(dimension, tuple):
            return f"{dimension[0]}..{dimension[1]}"
        return "?" if dimension == _ANY else str(dimension)

    return f"[{','.join(map(text, shape))}]"


def openvino_shapes(shapes: Mapping[str, Sequence[PartialDimension]]) -> dict[str, Any]:
    """Partial shapes as ``openvino.PartialShape`` objects for ``model.reshape``. Needs openvino."""
    openvino: Any = importlib.import_module("openvino")
    return {name: openvino.PartialShape(list(shape)) for name, shape in shapes.items()}
