"""Whether two results are the same: leaf by leaf, within a tolerance for each dtype.

The tolerances are those of ``torch.testing.assert_close`` (its documented table), of which one can
ask for a multiple: a program in another runtime adds and fuses in another order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from calltape_analyzer.describing import describe
from calltape_analyzer.layout import Place, layout_of_value
from calltape_analyzer.placeholder import Placeholder

__all__ = [
    "ONNX_TOLERANCES",
    "Difference",
    "Tolerances",
    "compared",
    "has_values",
    "leaves_of",
    "recorded_leaves",
]

# rtol and atol by dtype; the rest is exact.
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
"""Another runtime adds and fuses in another order; these are the bounds that torch.onnx's own
verification documents for float32, and their like."""


class Difference(NamedTuple):
    """What became of a comparison.

    ``max_abs`` and ``max_rel`` are the largest absolute and relative difference of any element
    (``|a - b| / |b|`` where ``b`` is not 0); ``error`` says why it failed, None where it did not.
    """

    ok: bool
    max_abs: float = 0.0
    max_rel: float = 0.0
    error: str | None = None


def leaves_of(value: Any) -> dict[str, Any]:
    """The tensors and scalars of a value by path. Private attributes of objects are left out."""
    described = describe(value, as_recorded=True)
    layout = layout_of_value(described.node)
    found = {p.path: described.tensors[p.number] for p in layout.tensors if not p.private}
    return found | {p.path: described.scalars[p.number] for p in layout.scalars if not p.private}


def compared(
    expected: Mapping[str, Any], got: Mapping[str, Any], tolerances: Tolerances
) -> Difference:
    """Compares leaves by path.

    Args:
        expected: what should come out. A placeholder or a meta tensor stands for anything of its
            shape and dtype.
        got: what came out.
        tolerances: how far apart they may be.
    """
    if expected.keys() != got.keys():
        missing = sorted(expected.keys() - got.keys())
        more = sorted(got.keys() - expected.keys())
        parts = [f"{what} {', '.join(map(_shown, paths[:3]))}" for what, paths in
                 (("missing:", missing), ("unexpected:", more)) if paths]  # fmt: skip
        return Difference(False, math.inf, math.inf, f"other outputs ({'; '.join(parts)})")
    worst = Difference(True)
    for path, one in expected.items():
        found = _leaf(path, one, got[path], tolerances)
        worst = Difference(
            worst.ok and found.ok,
            max(worst.max_abs, found.max_abs),
            max(worst.max_rel, found.max_rel),
            worst.error or found.error,
        )
    return worst


def _shown(path: str) -> str:
    return path.lstrip(".") or "the output"


def _leaf(path: str, expected: Any, got: Any, tolerances: Tolerances) -> Difference:
    import torch

    if isinstance(expected, Placeholder):
        return Difference(True)
    if isinstance(expected, torch.Tensor) and isinstance(got, torch.Tensor):
        return _tensors(path, expected, got, tolerances)
    if isinstance(expected, torch.Tensor) and expected.numel() == 1:
        expected = expected.item()  # an ONNX model has no ints, only tensors
    elif isinstance(got, torch.Tensor) and got.numel() == 1:
        got = got.item()
    if type(expected) is float and isinstance(got, int | float):
        rtol, atol = tolerances.of("float32")
        same = math.isclose(expected, got, rel_tol=rtol, abs_tol=atol) or (
            math.isnan(expected) and math.isnan(got)
        )
    else:
        same = type(expected) is type(got) and bool(expected == got)
    if same:
        return Difference(True)
    return Difference(
        False, math.inf, math.inf, f"{_shown(path)} is {got!r:.60} instead of {expected!r:.60}"
    )


def _tensors(path: str, expected: Any, got: Any, tolerances: Tolerances) -> Difference:
    facts = [(tuple(t.shape), str(t.dtype).removeprefix("torch.")) for t in (expected, got)]
    if facts[0] != facts[1]:
        (shape, dtype), (other, other_dtype) = facts
        error = f"{_shown(path)} is {other_dtype}{list(other)} instead of {dtype}{list(shape)}"
        return Difference(False, math.inf, math.inf, error)
    if expected.device.type == "meta" or expected.numel() == 0:
        return Difference(True)
    largest, relative, beyond = _distances(expected, got, tolerances.of(facts[0][1]))
    if beyond == 0:
        return Difference(True, largest, relative)
    error = (
        f"{_shown(path)}: {beyond} of {expected.numel()} elements differ by up to {largest:.3g} "
        f"(relative {relative:.3g})"
    )
    return Difference(False, largest, relative, error)


def _distances(expected: Any, got: Any, bounds: tuple[float, float]) -> tuple[float, float, int]:
    import torch

    rtol, atol = bounds
    if expected.is_quantized:
        expected, got = expected.dequantize(), got.dequantize()
    expected, got = (t if t.layout is torch.strided else t.to_dense() for t in (expected, got))
    if not expected.dtype.is_complex:
        wide = torch.float64 if expected.dtype.is_floating_point else expected.dtype
    else:
        wide = torch.complex128
    one, other = expected.detach().cpu().to(wide), got.detach().cpu().to(wide)
    same = (one == other) | (one.isnan() & other.isnan())
    if wide.is_floating_point or wide.is_complex:
        distance = torch.where(same, 0.0, (one - other).abs())
        size = one.abs()
    else:
        # Large ints that differ may be one double.
        distance = torch.where(same, 0.0, (one.double() - other.double()).abs().clamp(min=1))
        size = one.double().abs()
    distance = torch.nan_to_num(distance, nan=math.inf, posinf=math.inf)
    bound = atol + rtol * size
    # Nothing but infinity is near it.
    beyond = int((~same & ~((distance <= bound) & bound.isfinite())).sum())
    relative = torch.where(size > 0, distance / size, torch.where(same, 0.0, math.inf))
    finite = relative[torch.isfinite(relative)]
    return float(distance.max()), float(finite.max()) if len(finite) else 0.0, beyond


def has_values(leaves: Mapping[str, Any]) -> bool:
    """Whether expected leaves have values to compare, all of them, or say of some only what they
    look like (a recording of shapes, a tensor that could not be kept)."""
    return not any(
        isinstance(leaf, Placeholder)
        or getattr(getattr(leaf, "device", None), "type", "") == "meta"
        for leaf in leaves.values()
    )


def recorded_leaves(call: Any, side: str = "outputs") -> dict[str, Any] | None:
    """The leaves of what a call returned, as :func:`leaves_of`; None where they were not kept, or
    not all of them (a stream)."""
    tree = call.record.outputs
    if tree is None or call.record.outputs_missing is not None:
        return None
    layout = layout_of_value(tree.spec().root)

    def tensor(place: Place) -> Any:
        return call.tensor("outputs", place.number)

    found = {p.path: tensor(p) for p in layout.tensors if not p.private}
    return found | {p.path: tree.scalars[p.number] for p in layout.scalars if not p.private}
