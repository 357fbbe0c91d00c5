"""The traffic counters in a trailer: counts over all calls, kept or not."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator
from typing_extensions import Self

from calltape_schema.fields import Count, Int64, Many, Record
from calltape_schema.interning import MAX_NODES, MAX_RANK
from calltape_schema.tree import Structure, decode_structure

__all__ = ["MAX_GROUPS", "MAX_SIZES", "Axis", "Group", "Traffic"]

MAX_GROUPS = 256
MAX_SIZES = 32


class Axis(Record):
    """The values of one axis, or of one int, over all calls of a group.

    Attributes:
        min, max: the smallest and the largest value.
        sizes: pairs of a value and how many calls had it, for at most 32 values.
        other_calls: how many calls had other values.
    """

    min: Int64
    max: Int64
    sizes: Annotated[Many[tuple[Int64, Count]], Field(max_length=MAX_SIZES)] = ()
    other_calls: Count = 0


class Group(Record):
    """Calls whose inputs have the same structure, dtypes and ranks.

    Attributes:
        structure: the bytes as in the inputs of a record (:meth:`spec` decodes them).
        calls: how many calls the group has.
        dtypes: the dtype of each leaf.
        leaves: the axes of each leaf.
        scalars: for each scalar its values if it is an int, else None.
    """

    structure: bytes
    calls: Count
    dtypes: Annotated[Many[Annotated[str, Field(max_length=64)]], Field(max_length=MAX_NODES)] = ()
    leaves: Annotated[
        Many[Annotated[Many[Axis], Field(max_length=MAX_RANK)]],
        Field(max_length=MAX_NODES),
    ] = ()
    scalars: Annotated[Many[Axis | None], Field(max_length=MAX_NODES)] = ()

    def spec(self) -> Structure:
        """The decoded structure.

        Raises:
            TapeError: ``invalid`` or ``limit``.
        """
        return decode_structure(self.structure)

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if len(self.dtypes) != len(self.leaves):
            raise ValueError(f"{len(self.dtypes)} dtypes for {len(self.leaves)} leaves")
        return self


class Traffic(Record):
    """All calls that a segment accounts for. ``other_calls`` counts the calls of further groups."""

    groups: Annotated[Many[Group], Field(max_length=MAX_GROUPS)] = ()
    other_calls: Count = 0
