"""Which leaves of a result differ, and their first elements that do.

In come two results that are not the same. Out go a few leaves with a few elements each, as text:
enough to see what is wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from calltape_analyzer.comparison.comparing import Tolerances, leaf_error, shown_path
from calltape_analyzer.comparison.element_distances import first_beyond
from calltape_analyzer.comparison.json_values import JsonText

__all__ = ["ElementDifference", "LeafDifference", "leaf_differences"]

_MAX_LEAVES, _MAX_ELEMENTS = 3, 5

_DIGITS = {"float16": 5, "bfloat16": 4, "float32": 9, "complex64": 9}


class ElementDifference(BaseModel):
    """An element of a tensor that differs.

    Attributes:
        index: where it is, one number per axis.
        recorded, got: both values as text, with as many digits as tell them apart.
    """

    model_config = ConfigDict(frozen=True)

    index: tuple[int, ...]
    recorded: JsonText
    got: JsonText


class LeafDifference(BaseModel):
    """A leaf of the outputs that differs.

    Attributes:
        path: where it is: ``outputs.logits``.
        error: what differs.
        elements: the first elements that differ; none if it is no tensor, or of another dtype or
            shape.
    """

    model_config = ConfigDict(frozen=True)

    path: JsonText
    error: JsonText
    elements: tuple[ElementDifference, ...] = ()


def leaf_differences(
    expected: Mapping[str, Any],
    got: Mapping[str, Any],
    tolerances: Tolerances,
    omitted: Collection[str] = (),
) -> tuple[LeafDifference, ...]:
    """The first leaves that differ, for the arguments of
    :func:`~calltape_analyzer.comparison.comparing.compared`."""
    found: list[LeafDifference] = []
    for path, one in expected.items():
        if path in omitted or path not in got or len(found) == _MAX_LEAVES:
            continue
        error = leaf_error(path, one, got[path], tolerances)
        if error is not None:
            elements = _elements(one, got[path], tolerances)
            found.append(LeafDifference(path=shown_path(path), error=error, elements=elements))
    return tuple(found)


def _elements(expected: Any, got: Any, tolerances: Tolerances) -> tuple[ElementDifference, ...]:
    import torch

    pair = (expected, got)
    if not all(isinstance(one, torch.Tensor) and one.device.type != "meta" for one in pair):
        return ()
    if (expected.shape, expected.dtype, expected.layout) != (got.shape, got.dtype, got.layout):
        return ()
    dtype = str(expected.dtype).removeprefix("torch.")
    return tuple(
        ElementDifference(
            index=one.place, recorded=_text(one.recorded, dtype), got=_text(one.got, dtype)
        )
        for one in first_beyond(expected, got, tolerances.of(dtype), _MAX_ELEMENTS)
    )


def _text(value: Any, dtype: str) -> str:
    if isinstance(value, float | complex):
        return f"{value:.{_DIGITS.get(dtype, 17)}g}"
    return str(value)
