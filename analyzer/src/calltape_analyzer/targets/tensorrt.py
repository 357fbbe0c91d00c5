"""Optimization profiles for TensorRT: the range of sizes of each input, and those to tune for.

The rules are those of ``IOptimizationProfile`` in TensorRT's documentation: every input with a
runtime dimension has a minimum, an optimum and a maximum shape, min <= opt <= max on each axis;
kernels are tuned for the optimum, and sizes outside the range are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from pydantic import BaseModel, ConfigDict

from calltape_analyzer.errors import UsageError
from calltape_analyzer.limits import bounded
from calltape_analyzer.observing.size_table import Column, SizeTable
from calltape_analyzer.tape import Tape
from calltape_analyzer.targets.inputs import Shape, input_tensors, most_common_shapes, variant_of
from calltape_analyzer.variant import Variant
from calltape_analyzer.variants.facts import VariantFacts

__all__ = [
    "InputRange",
    "OptimizationProfile",
    "optimization_profile",
    "polygraphy_flags",
    "trtexec_flags",
]


class InputRange(BaseModel):
    """The shapes of one input: the smallest, the one to tune for, the largest."""

    model_config = ConfigDict(frozen=True)

    min: Shape
    opt: Shape
    max: Shape


class OptimizationProfile(BaseModel):
    """One optimization profile.

    Attributes:
        variant: the name of the variant that it is for.
        calls: the recorded calls that are within it.
        inputs: those that have a dynamic dimension, by the name that an export with calltape gives
            them. TensorRT takes the others' sizes from the model.
        notes: what to know before use.
    """

    model_config = ConfigDict(frozen=True)

    variant: str
    calls: int
    inputs: dict[str, InputRange]
    notes: tuple[str, ...] = ()

    def trtexec_flags(self) -> list[str]:
        """``--minShapes=ids:1x2,mask:1x2 --optShapes=... --maxShapes=...`` for ``trtexec``, whose
        help states the form."""
        flags = []
        for which in ("min", "opt", "max") if self.inputs else ():
            shapes = [
                f"{name}:{'x'.join(map(str, getattr(found, which)))}"
                for name, found in self.inputs.items()
            ]
            flags.append(f"--{which}Shapes={','.join(shapes)}")
        return flags

    def polygraphy_flags(self) -> list[str]:
        """``--trt-min-shapes ids:[1,2] mask:[1,2] --trt-opt-shapes ...`` for Polygraphy's command
        line, as separate words (its help for these options states the form)."""
        words: list[str] = []
        for which in ("min", "opt", "max") if self.inputs else ():
            words.append(f"--trt-{which}-shapes")
            for name, found in self.inputs.items():
                words.append(f"{name}:[{','.join(map(str, getattr(found, which)))}]")
        return words

    def polygraphy(self) -> dict[str, dict[str, list[int]]]:
        """The shapes as ``{name: {"min": [...], "opt": [...], "max": [...]}}``, ready for JSON.

        Polygraphy cannot read a profile from JSON, but its ``Profile.add`` takes each entry::

            profile = polygraphy.backend.trt.Profile()
            for name, shapes in made.polygraphy().items():
                profile.add(name, **shapes)
        """
        return {
            name: {"min": list(found.min), "opt": list(found.opt), "max": list(found.max)}
            for name, found in self.inputs.items()
        }


@bounded()
def optimization_profile(source: Tape | Variant, *, empty: bool = True) -> OptimizationProfile:
    """The optimization profile of a variant.

    The optimum is the combination of sizes that most calls on the tape had, so that the sizes of
    different inputs agree; if few calls were kept, a note says so. Minimum and maximum are those
    of the recorded sizes, and of calls that were counted but not kept, if the tape has counters
    of the whole traffic; one that always was a sum or a multiple of others is what that makes of
    *their* minimum and maximum, so that these shapes agree as well: the builder refuses shapes that
    the model cannot take together (seen for the optimum in NVIDIA/TensorRT#1808).

    Args:
        source: a variant, or a tape whose calls are one.
        empty: whether sizes of 0 are allowed. TensorRT's guide describes empty tensors, but
            releases differ: 7.0 refuses a profile with a 0 (NVIDIA/TensorRT#337), 11.1 builds and
            runs one (pytorch/TensorRT#4665). With False the calls that had one are left out.

    Raises:
        UsageError: the tape has several variants; or with ``empty=False``, every call has a tensor
            of size 0.
    """
    variant = variant_of(source)
    facts = variant.facts
    inputs = [
        (i, found)
        for i, found in input_tensors(variant)
        if any(one.dynamic for one in found.dimensions)
    ]
    sizes = [column for i, _ in inputs for column in facts.group.dimensions(i)]
    rows = facts.all_rows if empty else _without_zeros(facts.all_rows, sizes)
    if not len(rows):
        raise UsageError(
            f"every call of variant {variant.name} has a tensor of size 0",
            advice="record calls without one, or allow them with empty=True",
        )
    opt = most_common_shapes(rows)
    low, high = _bounds(facts, rows, min, empty), _bounds(facts, rows, max, empty)
    ranges = {}
    for i, found in inputs:
        axes = facts.group.dimensions(i)
        ranges[found.name] = InputRange(
            min=tuple(low.get(c, size) for c, size in zip(axes, opt[i], strict=True)),
            opt=opt[i],
            max=tuple(high.get(c, size) for c, size in zip(axes, opt[i], strict=True)),
        )
    notes = [*_notes_on_sizes(ranges, facts.calls - rows.calls), *_notes_on_evidence(variant)]
    return OptimizationProfile(
        variant=variant.name, calls=rows.calls, inputs=ranges, notes=tuple(notes)
    )


def _without_zeros(rows: SizeTable, columns: Sequence[Column]) -> SizeTable:
    every = {rows.line(column): rows.values(column) for column in columns}
    wanted = [all(values) for values in zip(*every.values(), strict=True)]
    return rows.where(wanted) if columns else rows


def _bounds(
    facts: VariantFacts, rows: SizeTable, extreme: Callable[[Iterable[int]], int], empty: bool
) -> dict[Column, int]:
    """The smallest (or largest) value of each dynamic column, in which relations hold."""
    values = [extreme(rows.distinct(symbol.columns[0])) for symbol in facts.symbols]
    # Which sizes of the whole traffic were those of calls that are left out here, nobody knows.
    for i, symbol in enumerate(facts.symbols if rows is facts.all_rows else ()):
        whole = facts.span(*symbol.columns)
        more = [size for size in (whole.min, whole.max) if empty or size]
        values[i] = extreme([values[i], *more])
    # Relations are over symbols that have none, with positive factors: bounds stay bounds.
    for i, symbol in enumerate(facts.symbols):
        if symbol.relation is not None:
            # Beyond that only if the whole traffic shows that the relation does not always hold.
            values[i] = extreme([values[i], symbol.relation.value(values)])
    return {c: values[i] for i, symbol in enumerate(facts.symbols) for c in symbol.columns}


def _notes_on_sizes(ranges: Mapping[str, InputRange], left_out: int) -> Iterator[str]:
    zeros = [name for name, found in ranges.items() if 0 in found.min]
    if zeros:
        yield (
            f"{', '.join(zeros)}: a size of 0 is in the range, which not every release of TensorRT "
            "takes; empty=False leaves such calls out"
        )
    if any(0 in found.opt for found in ranges.values()):
        yield "the most common sizes, which kernels are tuned for, have an empty tensor"
    if left_out:
        yield f"{left_out} calls with an empty tensor are outside the range"


def _notes_on_evidence(variant: Variant) -> Iterator[str]:
    for found in variant.findings.ints:
        if found.dynamic:
            yield (
                f"{found.name} is an int that varies: TensorRT wants its values "
                f"({found.min} to {found.max}), which shapes do not give"
            )
    whole, calls = variant.findings.all_calls, variant.facts.calls
    if whole is not None and whole > calls:
        yield (
            f"kept {calls:,} of {whole:,} calls: the sizes that kernels are tuned for are those "
            "that most of the kept ones had"
        )
    yield from variant.findings.warnings()


def trtexec_flags(profiles: Sequence[OptimizationProfile]) -> list[str]:
    """The flags for an engine with several profiles, each behind its ``--profile=N``.

    The profiles of one engine have the same inputs, so they are for variants that were exported
    as one program, or for tapes of the same one.

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
    """The words for Polygraphy's command line, which takes each option once per profile."""
    return [word for profile in profiles for word in profile.polygraphy_flags()]
