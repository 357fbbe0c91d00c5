"""A variant's findings as marks on the tensors that ``torch.compile`` is first called with.

Without marks the first call compiles for its own sizes, and the second of other sizes again, for
dynamic ones (torch's documentation of dynamic shapes in ``torch.compile``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from calltape_analyzer.tape import Tape
from calltape_analyzer.targets.given import tensors_given, variant_for
from calltape_analyzer.variant import Variant
from calltape_analyzer.variants.variant_findings import DimensionFinding

__all__ = ["Mark", "mark_dynamic"]

_SMALLEST = 2  # torch takes sizes of 0 and 1 for constants, whatever the marks say


class Mark(BaseModel):
    """What was said of one axis: ``dynamic`` (an error where the code needs one size),
    ``maybe`` (no error then), ``static``, or ``none`` if nothing can be said.

    ``min`` and ``max`` are the range that torch was given, if any.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    axis: int
    mark: Literal["dynamic", "maybe", "static", "none"]
    min: int | None = None
    max: int | None = None


def mark_dynamic(
    source: Tape | Variant,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    static: bool = False,
    bounds: bool = True,
) -> list[Mark]:
    """Marks the tensors in some arguments for ``torch.compile``, in place::

        compiled = torch.compile(model)
        mark_dynamic(variant, (x,), {"mask": mask})
        compiled(x, mask=mask)

    An axis that varied gets ``torch._dynamo.mark_dynamic`` with the sizes seen as its range (those
    of calls that were not kept too, if the tape has counters of the whole traffic); one
    that is taken for dynamic because of other evidence (see
    :class:`~calltape_analyzer.variants.variant_findings.DimensionFinding`)
    ``maybe_mark_dynamic``, and no range. The rules are torch's, by its documentation of these
    functions and checked with 2.15:

    - An axis whose size here is 0 or 1 gets no mark, as torch compiles such sizes on their own and
      refuses the mark. Marks belong on arguments with larger sizes, as
      ``variant.infer_arguments()`` has them. A range starts at 2 or above for the same reason.
    - A marked tensor out of its range is refused at compile time, so that the range is widened to
      the size at hand. A later call without marks that is out of the range compiles again.
    - One marked call is enough if later ones have no marks; marks that differ compile again.
    - Ints cannot be marked; torch makes an int dynamic when it has its second value.

    Args:
        source: a variant; or a tape, of which the variant is meant that takes the arguments.
        args, kwargs: what the compiled function is about to be called with.
        static: marks the other axes with ``mark_static``.
        bounds: whether ranges are given.

    Raises:
        UsageError: the variant, or every variant, refuses these arguments.
    """
    marks: list[Mark] = []
    variant = variant_for(source, args, kwargs or {})
    tensors = tensors_given(variant, args, kwargs or {})
    for tensor, finding in zip(tensors, variant.findings.tensors, strict=True):
        if tensor is None:
            continue
        for dimension in finding.dimensions:
            size = int(tensor.shape[dimension.axis])
            mark = _mark_of(finding.name, dimension, size, static, bounds)
            _apply(mark, tensor)
            marks.append(mark)
    return marks


def _mark_of(name: str, found: DimensionFinding, size: int, static: bool, bounds: bool) -> Mark:
    if not found.dynamic:
        return Mark(name=name, axis=found.axis, mark="static" if static else "none")
    if size < _SMALLEST:
        return Mark(name=name, axis=found.axis, mark="none")
    if found.reason != "varied":
        return Mark(name=name, axis=found.axis, mark="maybe")
    if not bounds:
        return Mark(name=name, axis=found.axis, mark="dynamic")
    low, high = max(min(found.min, size), _SMALLEST), max(found.max, size)
    return Mark(name=name, axis=found.axis, mark="dynamic", min=low, max=high)


def _apply(mark: Mark, tensor: Any) -> None:
    from torch import _dynamo

    if mark.mark == "dynamic":
        _dynamo.mark_dynamic(tensor, mark.axis, min=mark.min, max=mark.max)
    elif mark.mark == "maybe":
        _dynamo.maybe_mark_dynamic(tensor, mark.axis)
    elif mark.mark == "static":
        _dynamo.mark_static(tensor, mark.axis)
