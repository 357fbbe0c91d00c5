"""Calls in the form of ``torch.export.export(dynamic_shapes=...)``.

In come a `Tape` or a `Variant`, or the findings of one program. Out go the dynamic shapes.
"""

from __future__ import annotations

from typing import Any

from calltape_analyzer.inference.dynamic_shapes import dynamic_shapes as shapes_of_findings
from calltape_analyzer.inference.findings import ShapeFindings
from calltape_analyzer.limits import bounded
from calltape_analyzer.tape import Tape
from calltape_analyzer.variant import Variant

__all__ = ["dynamic_shapes"]


@bounded()
def dynamic_shapes(
    source: Tape | Variant | ShapeFindings, **options: Any
) -> tuple[Any, ...] | dict[str, Any]:
    """The dynamic shapes of one program.

    Args:
        source: a variant; a tape, whose calls count as one program; or findings, in which a plain
            tuple stands for a named tuple.
        **options: of ``infer_dynamic_shapes``; findings take none.

    Raises:
        InferenceError: the calls of the tape cannot be one program.
        TypeError: for an option that does not exist.
    """
    if isinstance(source, ShapeFindings):
        return shapes_of_findings(source, **options)
    return source.infer_dynamic_shapes(**options)
