"""Whether two results are the same: leaf by leaf, within a tolerance for each dtype.

The tolerances are the documented ones of ``torch.testing.assert_close``, or a multiple of them: a
program in another runtime adds and fuses in another order.

Two results are the same only if something was compared. What cannot be described, or has no value
on the tape, is named with its path and is not the same as anything
(docs/decisions/guards-and-verdicts.md).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from calltape_analyzer.comparison.element_distances import distances
from calltape_analyzer.comparison.renamed_outputs import as_recorded
from calltape_analyzer.pytree.placeholder import Placeholder
from calltape_analyzer.pytree.recorded_description import describe_result
from calltape_analyzer.pytree.result_values import Constant, Unknown, values_in

__all__ = [
    "NO_VALUE",
    "ONNX_TOLERANCES",
    "Difference",
    "Tolerances",
    "because",
    "compared",
    "has_values",
    "is_described",
    "is_within",
    "leaf_error",
    "leaves_of",
    "not_verified",
    "other_outputs",
    "recorded_leaves",
    "shown_path",
]

NO_VALUE = (
    "the outputs hold no tensor and no value, and what the call did beside returning is not on the "
    "tape"
)
"""Why a call that returned None is not verified: it was made for what it does, and a program that
does nothing returns None as well."""

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


class Difference(NamedTuple):
    """What came of a comparison.

    Attributes:
        ok: whether everything was compared, and is the same.
        max_abs, max_rel: the largest absolute and relative difference of any element
            (``|a - b| / |b|`` if ``b`` is not 0).
        error: why it is not ok, None if it is.
        compared: how many elements of tensors and other values were compared. An element that is
            NaN on both sides is the same, and proves nothing: it is not counted.
        agrees: whether nothing that was compared differs, and there was something.
        unverified: what could not be compared: where it is, and why.
    """

    ok: bool
    max_abs: float = 0.0
    max_rel: float = 0.0
    error: str | None = None
    compared: int = 0
    agrees: bool = False
    unverified: tuple[str, ...] = ()


class _Found(NamedTuple):
    """What came of one leaf; ``unverified`` says why it was not compared, without its path."""

    max_abs: float = 0.0
    max_rel: float = 0.0
    error: str | None = None
    compared: int = 0
    unverified: str | None = None


_NO_VALUE = "has no value on the tape, only a dtype and a shape"


def leaves_of(value: Any) -> dict[str, Any]:
    """The values of a result by path (:func:`calltape_analyzer.pytree.result_values.values_in`)."""
    described = describe_result(value)
    return values_in(described.node, described.tensors.__getitem__, described.scalars.__getitem__)


def compared(
    expected: Mapping[str, Any],
    got: Mapping[str, Any],
    tolerances: Tolerances,
    omitted: Collection[str] = (),
) -> Difference:
    """Compares leaves by path.

    Args:
        expected: what should come out. A meta tensor stands for any tensor of its shape and dtype;
            no value of it is verified.
        got: what came out.
        tolerances: how far apart they may be.
        omitted: paths of ``expected`` that the model does not return; they are left out.
    """
    got = as_recorded(expected, got)
    unknown = {
        path: value
        for side in (got, expected)
        for path, value in side.items()
        if isinstance(value, Unknown | Placeholder) and path not in omitted
    }
    wanted, given = (
        {p: v for p, v in side.items() if p not in omitted and not is_within(p, unknown)}
        for side in (expected, got)
    )
    unverified = [f"outputs{path} {because(value)}" for path, value in unknown.items()]
    if wanted.keys() != given.keys():
        return Difference(
            False, math.inf, math.inf, other_outputs(wanted, given), 0, False, tuple(unverified)
        )
    found = {path: _leaf(path, one, given[path], tolerances) for path, one in wanted.items()}
    unverified += [f"outputs{path} {f.unverified}" for path, f in found.items() if f.unverified]
    error = next((f.error for f in found.values() if f.error), None)
    is_any = len(found) > sum(f.unverified is not None for f in found.values())
    return Difference(
        error is None and is_any and not unverified,
        max((f.max_abs for f in found.values()), default=0.0),
        max((f.max_rel for f in found.values()), default=0.0),
        error or _not_compared(unverified, is_any, omitted),
        sum(f.compared for f in found.values()),
        error is None and is_any,
        tuple(unverified),
    )


def not_verified(found: Difference, parts: Iterable[str]) -> Difference:
    """A difference with more parts that should be the same, and could not be compared, or are
    not the same."""
    unverified = (*found.unverified, *parts)
    error = found.error if found.error and not found.agrees else _not_compared(unverified, True, ())
    return found._replace(ok=False, error=error, unverified=unverified)


def is_within(path: str, others: Collection[str]) -> bool:
    """Whether a path is among others, or below one of them."""
    at = 0 if others else -1
    while at >= 0:
        if path[:at] in others:
            return True
        at = path.find(".", at + 1)
    return path in others


def because(value: Unknown | Placeholder) -> str:
    """Why something cannot be compared, in words that follow its path."""
    return str(Unknown(value.type_name, value.reason))


def other_outputs(expected: Mapping[str, Any], got: Mapping[str, Any]) -> str:
    missing = sorted(expected.keys() - got.keys())
    more = sorted(got.keys() - expected.keys())
    parts = [f"{what} {', '.join(map(shown_path, paths[:3]))}" for what, paths in
             (("missing:", missing), ("unexpected:", more)) if paths]  # fmt: skip
    return f"other outputs ({'; '.join(parts)})"


def _not_compared(unverified: Sequence[str], is_any: bool, omitted: Collection[str]) -> str | None:
    """Why a comparison that found no difference proves nothing, or not everything; None if it
    does."""
    if is_any and not unverified:
        return None
    what = "not verified" if is_any else "nothing was compared"
    nothing = "the model returns nothing of what was recorded" if omitted else NO_VALUE
    shown = "; ".join(unverified[:3]) or nothing
    more = f"; and {len(unverified) - 3} more" if len(unverified) > 3 else ""
    return f"{what}: {shown}{more}"


def shown_path(path: str) -> str:
    """Where a leaf is, by the name that the other reports and ``redact`` have for it."""
    return f"outputs{path}"


def leaf_error(path: str, expected: Any, got: Any, tolerances: Tolerances) -> str | None:
    """What differs about one leaf, with its path; None if nothing does."""
    return _leaf(path, expected, got, tolerances).error


def _leaf(path: str, expected: Any, got: Any, tolerances: Tolerances) -> _Found:
    import torch

    if isinstance(expected, torch.Tensor) and isinstance(got, torch.Tensor):
        return _tensors(path, expected, got, tolerances)
    for one in (expected, got):
        if isinstance(one, torch.Tensor) and one.device.type == "meta":
            return _Found(unverified=_NO_VALUE)
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
        same = both_nan or math.isclose(expected, got, rel_tol=rtol, abs_tol=atol)
    else:
        both_nan = False
        same = type(expected) is type(got) and bool(expected == got)
    if same:
        return _Found(compared=0 if both_nan else 1)
    error = f"{shown_path(path)} is {_shown_value(got)} instead of {_shown_value(expected)}"
    return _Found(math.inf, math.inf, error, 1)


def _shown_value(value: Any) -> str:
    return f"{value.kind} {value.name:.60}" if isinstance(value, Constant) else f"{value!r:.60}"


def _tensors(path: str, expected: Any, got: Any, tolerances: Tolerances) -> _Found:
    facts = [(tuple(t.shape), str(t.dtype).removeprefix("torch.")) for t in (expected, got)]
    if facts[0] != facts[1]:
        (shape, dtype), (other, other_dtype) = facts
        error = f"{shown_path(path)} is {other_dtype}{list(other)} instead of {dtype}{list(shape)}"
        return _Found(math.inf, math.inf, error, 1)
    if "meta" in (expected.device.type, got.device.type):
        return _Found(unverified=_NO_VALUE)
    if expected.layout != got.layout:
        error = f"{shown_path(path)} is {got.layout} instead of {expected.layout}"
        return _Found(math.inf, math.inf, error, 1)
    if expected.numel() == 0:
        return _Found()  # it has only a dtype and a shape
    largest, relative, beyond, counted = distances(expected, got, tolerances.of(facts[0][1]))
    if beyond == 0:
        return _Found(largest, relative, None, counted)
    error = (
        f"{shown_path(path)}: {beyond} of {expected.numel()} elements differ by up to "
        f"{largest:.3g} (relative {relative:.3g})"
    )
    return _Found(largest, relative, error, counted)


def has_values(leaves: Mapping[str, Any]) -> bool:
    """Whether all expected leaves have values to compare. In a recording of shapes some have only a
    dtype and a shape."""
    return not any(
        (isinstance(leaf, Unknown) and leaf.is_withheld)
        or getattr(getattr(leaf, "device", None), "type", "") == "meta"
        for leaf in leaves.values()
    )


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
