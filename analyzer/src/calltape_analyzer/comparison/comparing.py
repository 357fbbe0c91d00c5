"""Whether two results are the same: leaf by leaf, within a tolerance for each dtype.

The tolerances are the documented ones of ``torch.testing.assert_close``, or a multiple of them: a
program in another runtime adds and fuses in another order.

Two results are the same only if something was compared. What cannot be described, or has no value
on the tape, is named with its path and is not the same as anything
(docs/decisions/guards-and-verdicts.md).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from calltape_analyzer.comparison.reports import (
    Against,
    ElementDifference,
    Incomparable,
    LeafDifference,
    NotVerified,
    OtherOutputs,
    Verdict,
    output_path,
)
from calltape_analyzer.facts import Fact
from calltape_analyzer.pytree.description import describe_result
from calltape_analyzer.pytree.nodes import Constant, Unknown, values_in
from calltape_analyzer.pytree.placeholder import Placeholder

__all__ = [
    "ONNX_TOLERANCES",
    "Tolerances",
    "compared",
    "has_values",
    "is_described",
    "leaves_of",
    "paths_without_value",
    "recorded_leaves",
    "what_to_compare",
]

_MAX_PATHS, _MAX_LEAVES = 3, 3
_SCALARS = ("int", "float", "complex", "str", "bytes")
# rtol and atol by dtype; other dtypes must be equal.
_DEFAULTS = {
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float32": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7),
    "complex32": (1e-3, 1e-5),
    "complex64": (1.3e-6, 1e-5),
    "complex128": (1e-7, 1e-7),
}


@dataclass(frozen=True)
class Tolerances:
    """How far two values of a dtype may be apart: ``|a - b| <= atol + rtol * |b|``.

    Attributes:
        factor: multiplies the defaults of ``torch.testing``.
        rtol, atol: for all inexact dtypes instead.
        by_dtype: (rtol, atol) for single dtypes instead, by torch's name.
    """

    factor: float = 1.0
    rtol: float | None = None
    atol: float | None = None
    by_dtype: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def of(self, dtype: str) -> tuple[float, float]:
        """``(rtol, atol)`` for a dtype."""
        if dtype in self.by_dtype:
            return self.by_dtype[dtype]
        if dtype not in _DEFAULTS:
            return 0.0, 0.0
        rtol, atol = _DEFAULTS[dtype]
        return (
            rtol * self.factor if self.rtol is None else self.rtol,
            atol * self.factor if self.atol is None else self.atol,
        )


ONNX_TOLERANCES = Tolerances(
    by_dtype={
        "float16": (1e-2, 1e-3),
        "bfloat16": (5e-2, 1e-2),
        "float32": (1e-3, 1e-4),
        "float64": (1e-5, 1e-6),
    }
)
"""For another runtime, which adds and fuses in another order: the bounds that torch.onnx documents
for its own verification of float32, and similar ones for other dtypes."""


class Distances(NamedTuple):
    """How far two tensors are apart.

    Attributes:
        max_abs, max_rel: the largest absolute and relative difference.
        differing, compared: how many elements differ, and how many were compared.
        elements: the first that differ.
    """

    max_abs: float = 0.0
    max_rel: float = 0.0
    differing: int = 0
    compared: int = 0
    elements: tuple[ElementDifference, ...] = ()


class _LeafResult(NamedTuple):
    """The result of comparing one leaf: the difference, if there is one, and how far apart the
    values are."""

    difference: LeafDifference | None = None
    apart: Distances = Distances()
    has_value: bool = True


_WITHOUT_VALUE = _LeafResult(has_value=False)


def leaves_of(value: Any) -> dict[str, Any]:
    """The values of a result by path (:func:`calltape_analyzer.pytree.nodes.values_in`)."""
    described = describe_result(value)
    return values_in(described.node, described.tensors.__getitem__, described.scalars.__getitem__)


def compared(
    expected: Mapping[str, Any],
    got: Mapping[str, Any],
    tolerances: Tolerances,
    omitted: Collection[str] = (),
    against: Against = "tape",
) -> Verdict:
    """Compares leaves by path.

    Args:
        expected: what should come out. A meta tensor stands for any tensor of its shape and dtype;
            no value of it is verified.
        got: what came out.
        tolerances: how far apart they may be.
        omitted: paths of ``expected`` that the model does not return; they are left out.
        against: ``"part"`` compares dtypes, shapes and types where ``expected`` has no value, and
            ``"shapes"`` does so everywhere. Otherwise a leaf without value is not verified.
    """
    renamed = as_recorded(expected, got)
    expected, got = (
        {p: v for p, v in side.items() if p not in omitted} for side in (expected, renamed)
    )
    by_form = expected.keys() if against == "shapes" else frozenset[str]()
    if against == "part":
        by_form = paths_without_value(expected)
    # Of a value that the policy kept off the tape nobody knows what is in it.
    hidden = {p: v for p, v in expected.items() if p in by_form and is_withheld(v)}
    unknown = {
        path: value
        for side in (got, expected)
        for path, value in side.items()
        if isinstance(value, Unknown | Placeholder) and not is_within(path, hidden)
    }
    apart = {*hidden, *unknown}
    expected_leaves, got_leaves = (
        {p: v for p, v in side.items() if not is_within(p, apart)} for side in (expected, got)
    )
    missing = sorted(expected_leaves.keys() - got_leaves.keys())[:_MAX_PATHS]
    unexpected = sorted(got_leaves.keys() - expected_leaves.keys())[:_MAX_PATHS]
    if missing or unexpected:
        other_outputs = OtherOutputs(
            tuple(map(output_path, missing)), tuple(map(output_path, unexpected))
        )
        return Verdict(error=other_outputs, against=against, max_abs=math.inf, max_rel=math.inf)
    results: dict[str, _LeafResult] = {}
    for path, leaf in expected_leaves.items():
        if path in by_form:
            forms = _form(leaf), _form(got_leaves[path])
            results[path] = _LeafResult() if forms[0] == forms[1] else _other_kind(path, *forms)
        else:
            results[path] = _leaf(path, leaf, got_leaves[path], tolerances)
    for path, leaf in hidden.items():  # only their types are on the tape
        name, now = leaf.type_name.rpartition(":")[2], type(got.get(path)).__name__
        is_same = name not in _SCALARS or name == now
        results[path] = _LeafResult() if is_same else _other_kind(path, f"a {name}", f"a {now}")
    unverified = [Incomparable.of(path, value) for path, value in unknown.items()]
    unverified += [Incomparable(output_path(p)) for p, r in results.items() if not r.has_value]
    return _verdict_on(results, unverified, against, is_omitted=bool(omitted))


def _verdict_on(
    results: Mapping[str, _LeafResult],
    unverified: Sequence[Incomparable],
    against: Against,
    *,
    is_omitted: bool,
) -> Verdict:
    """The verdict on all leaves of a result: it fails if one differs, or if none was verified."""
    differing = [result.difference for result in results.values() if result.difference]
    error: Fact | None = None
    if differing:
        error = replace(differing[0], elements=())
    elif unverified or not results:
        is_any = any(result.has_value for result in results.values())
        error = NotVerified.of(unverified, is_any=is_any, is_omitted=is_omitted)
    return Verdict(
        error=error,
        against=against,
        max_abs=max((result.apart.max_abs for result in results.values()), default=0.0),
        max_rel=max((result.apart.max_rel for result in results.values()), default=0.0),
        compared=sum(result.apart.compared for result in results.values()),
        differences=tuple(differing[:_MAX_LEAVES]),
    )


def is_within(path: str, paths: Collection[str]) -> bool:
    """Whether a path is among others, or below one of them."""
    end = 0 if paths else -1
    while end >= 0:
        if path[:end] in paths:
            return True
        end = path.find(".", end + 1)
    return path in paths


def _form(leaf: Any) -> str:
    """What is compared of a leaf without its value: ``float32[2, 3]``, ``str``."""
    if isinstance(leaf, Constant):
        return leaf.kind
    if not hasattr(leaf, "untyped_storage"):
        return type(leaf).__name__
    layout = str(leaf.layout).removeprefix("torch.")
    is_usual = layout == "strided"
    return f"{_dtype(leaf)}{list(leaf.shape)}" + ("" if is_usual else f" ({layout})")


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _other_kind(path: str, recorded: str, got: str, compared: int = 0) -> _LeafResult:
    apart = Distances(math.inf, math.inf, compared=compared)
    return _LeafResult(LeafDifference(output_path(path), recorded, got), apart)


def _leaf(path: str, expected: Any, got: Any, tolerances: Tolerances) -> _LeafResult:
    import torch

    if isinstance(expected, torch.Tensor) and isinstance(got, torch.Tensor):
        return _tensors(path, expected, got, tolerances)
    for leaf in (expected, got):
        if isinstance(leaf, torch.Tensor) and leaf.device.type == "meta":
            return _WITHOUT_VALUE
    # A number for a tensor may be an int instead of a float; two numbers must have one type.
    numbers = (
        (int, float)
        if isinstance(expected, torch.Tensor) or isinstance(got, torch.Tensor)
        else (float,)
    )
    if isinstance(expected, torch.Tensor) and expected.numel() == 1:
        expected = expected.item()  # an ONNX model has no ints, only tensors
    elif isinstance(got, torch.Tensor) and got.numel() == 1:
        got = got.item()
    if type(expected) is float and type(got) in numbers:
        rtol, atol = tolerances.of("float32")
        both_nan = math.isnan(expected) and math.isnan(got)
        is_close = both_nan or math.isclose(expected, got, rel_tol=rtol, abs_tol=atol)
    else:
        both_nan = False
        is_close = type(expected) is type(got) and bool(expected == got)
    if is_close:
        return _LeafResult(apart=Distances(compared=0 if both_nan else 1))
    return _other_kind(path, _shown_value(expected), _shown_value(got), 1)


def _shown_value(value: Any) -> str:
    return f"{value.kind} {value.name:.60}" if isinstance(value, Constant) else f"{value!r:.60}"


def _tensors(path: str, expected: Any, got: Any, tolerances: Tolerances) -> _LeafResult:
    is_meta = "meta" in (expected.device.type, got.device.type)
    same_layout = is_meta or expected.layout == got.layout
    if (expected.shape, expected.dtype) != (got.shape, got.dtype) or not same_layout:
        return _other_kind(path, _form(expected), _form(got), 1)
    if is_meta:
        return _WITHOUT_VALUE
    if expected.numel() == 0:
        return _LeafResult()  # it has only a dtype and a shape
    apart = distances(expected, got, tolerances.of(_dtype(expected)))
    difference = LeafDifference(
        output_path(path),
        differing=apart.differing,
        total=expected.numel(),
        max_abs=apart.max_abs,
        max_rel=apart.max_rel,
        elements=apart.elements,
    )
    return _LeafResult(difference if apart.differing else None, apart)


def paths_without_value(leaves: Mapping[str, Any]) -> frozenset[str]:
    """The paths of leaves for which the tape has dtype and shape, or a type, but no value."""
    return frozenset(
        path
        for path, leaf in leaves.items()
        if is_withheld(leaf) or getattr(getattr(leaf, "device", None), "type", "") == "meta"
    )


def what_to_compare(expected: Mapping[str, Any], synthetic: bool) -> Against:
    """What a result can be compared with.

    Args:
        expected: what was recorded.
        synthetic: whether some of the arguments are not the recorded ones. Then no value that comes
            out need be the recorded one.
    """
    withheld = paths_without_value(expected)
    if synthetic or (withheld and len(withheld) == len(expected)):
        return "shapes"
    return "part" if withheld else "tape"


def is_withheld(leaf: Any) -> bool:
    """Whether the recorder's policy kept the value off the tape, so that only its type is there."""
    return isinstance(leaf, Unknown) and leaf.is_withheld


def has_values(leaves: Mapping[str, Any]) -> bool:
    """Whether all expected leaves have values to compare. In a recording of shapes some have only a
    dtype and a shape."""
    return not paths_without_value(leaves)


def is_described(leaves: Mapping[str, Any]) -> bool:
    """Whether every part of a result could be described."""
    return not any(isinstance(leaf, Unknown | Placeholder) for leaf in leaves.values())


def recorded_leaves(call: Any) -> dict[str, Any] | None:
    """The leaves of what a call returned, as :func:`leaves_of`; None if not all of them are on the
    tape (a stream may be too long)."""
    tree = call.record.outputs
    if tree is None or call.record.outputs_missing is not None:
        return None
    return values_in(
        tree.spec().root, lambda leaf: call.tensor("outputs", leaf), tree.scalars.__getitem__
    )


_NAMES = (("past_key_values", "cache"), ("cache_params", "cache"))
"""Fields of transformers' outputs until 5.23, and since: docs/decisions/guards-and-verdicts.md."""


def as_recorded(expected: Mapping[str, Any], got: Mapping[str, Any]) -> Mapping[str, Any]:
    """The outputs under the names that the tape has for them.

    Args:
        expected: what was recorded, by path: ``.past_key_values.layers.0.keys``.
        got: what came out, by path. A field has its other name only where this side has no field
            of the recorded name, and the tape none of the other.
    """
    recorded, fields_got = _fields(expected), _fields(got)
    for pair in _NAMES:
        for name, renamed in (pair, pair[::-1]):
            if name in recorded - fields_got and renamed in fields_got - recorded:
                return {_renamed(path, renamed, name): value for path, value in got.items()}
    return got


def _fields(leaves: Mapping[str, Any]) -> set[str]:
    return {path.split(".", 2)[1] for path in leaves if path.startswith(".")}


def _renamed(path: str, name: str, renamed: str) -> str:
    head, dot, remainder = path[1:].partition(".")
    return f".{renamed}{dot}{remainder}" if path.startswith(".") and head == name else path


_PART = 2**20
_MAX_SHOWN = 5
_DIGITS = {"float16": 5, "bfloat16": 4, "float32": 9, "complex64": 9}


def distances(expected: Any, got: Any, bounds: tuple[float, float]) -> Distances:
    """How far two tensors of one dtype and shape are apart.

    Args:
        expected, got: the tensors.
        bounds: ``(rtol, atol)``.
    """
    import torch

    digits = _DIGITS.get(_dtype(expected), 17)

    def text(value: Any) -> str:
        return f"{value:.{digits}g}" if isinstance(value, float | complex) else str(value)

    tensor_on_cpu = partial(torch.tensor, device="cpu")  # a model may have set another device
    total, start = Distances(), 0
    for part, other_part in _flat_parts(expected, got):
        part_distances, beyond = _distances_of_part(part, other_part, bounds)
        elements = tuple(
            ElementDifference(
                tuple(map(int, torch.unravel_index(tensor_on_cpu(start + place), expected.shape))),
                text(part[place].item()),
                text(other_part[place].item()),
            )
            for place in beyond[: _MAX_SHOWN - len(total.elements)].tolist()
        )
        total = Distances(
            max(total.max_abs, part_distances.max_abs),
            max(total.max_rel, part_distances.max_rel),
            total.differing + part_distances.differing,
            total.compared + part_distances.compared,
            total.elements + elements,
        )
        start += len(part)
    return total


def _flat_parts(expected: Any, got: Any) -> Iterator[tuple[Any, Any]]:
    """Both as flat tensors that can be compared, in parts: the comparison makes tensors that are
    several times as large."""
    import torch

    if expected.is_quantized:
        expected, got = expected.dequantize(), got.dequantize()
    dense = (t if t.layout is torch.strided else t.to_dense() for t in (expected, got))
    flat = [t.detach().reshape(-1) for t in dense]
    if not expected.dtype.is_complex:
        wide = torch.float64 if expected.dtype.is_floating_point else expected.dtype
    else:
        wide = torch.complex128
    for part, other_part in zip(*(t.split(_PART) for t in flat), strict=True):
        yield part.cpu().to(wide), other_part.cpu().to(wide)


def _distances_of_part(
    expected: Any, got: Any, bounds: tuple[float, float]
) -> tuple[Distances, Any]:
    """How far flat tensors are apart, and the places of the elements that differ."""
    import torch

    if torch.equal(expected, got):
        return Distances(compared=expected.numel()), torch.empty(0)
    rtol, atol = bounds
    unknown = expected.isnan() & got.isnan()
    if expected.dtype.is_complex:
        # The real or imaginary part may be a number on both sides, and differ.
        parts, other_parts = torch.view_as_real(expected), torch.view_as_real(got)
        are_equal = (parts == other_parts) | (parts.isnan() & other_parts.isnan())
        unknown &= are_equal.all(-1)
    are_same = (expected == got) | unknown
    if expected.dtype.is_floating_point or expected.dtype.is_complex:
        distance = torch.where(are_same, 0.0, (expected - got).abs())
        size = expected.abs()
    else:
        # Two large ints that differ may be the same double.
        distance = torch.where(are_same, 0.0, (expected.double() - got.double()).abs().clamp(min=1))
        size = expected.double().abs()
    distance = torch.nan_to_num(distance, nan=math.inf, posinf=math.inf)
    bound = atol + rtol * size
    # Only infinity itself agrees with infinity.
    beyond = (~are_same & ~((distance <= bound) & bound.isfinite())).nonzero().flatten()
    relative = torch.where(size > 0, distance / size, torch.where(are_same, 0.0, math.inf))
    finite = relative[torch.isfinite(relative)]
    counted = expected.numel() - int(unknown.sum())
    largest = float(finite.max()) if len(finite) else 0.0
    return Distances(float(distance.max()), largest, len(beyond), counted), beyond
