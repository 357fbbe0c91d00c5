"""The whole traffic in numbers, as the trailer has it: also of calls that were not kept."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator
from typing_extensions import Self

from calltape_schema.fields import Count, Int64, Record
from calltape_schema.interning import MAX_NODES, MAX_RANK
from calltape_schema.tree import Structure, decode_structure

__all__ = ["MAX_GROUPS", "MAX_SIZES", "Axis", "Group", "Traffic"]

MAX_GROUPS = 256
MAX_SIZES = 32


class Axis(Record):
    """Values of one axis, or of one int, over all calls of a group: the smallest, the largest, and
    how many calls had which, by value; ``other_calls`` had values beyond the first 32."""

    min: Int64
    max: Int64
    sizes: Annotated[tuple[tuple[Int64, Count], ...], Field(max_length=MAX_SIZES)] = ()
    other_calls: Count = 0


class Group(Record):
    """Calls whose inputs have the same structure, dtypes and ranks.

    Attributes:
        structure: as in the inputs of a record (:meth:`spec` decodes it).
        calls: how many.
        dtypes: of each leaf.
        leaves: of each leaf its axes.
        scalars: of each scalar that is an int, its values; None for another.
    """

    structure: bytes
    calls: Count
    dtypes: Annotated[
        tuple[Annotated[str, Field(max_length=64)], ...], Field(max_length=MAX_NODES)
    ] = ()
    leaves: Annotated[
        tuple[Annotated[tuple[Axis, ...], Field(max_length=MAX_RANK)], ...],
        Field(max_length=MAX_NODES),
    ] = ()
    scalars: Annotated[tuple[Axis | None, ...], Field(max_length=MAX_NODES)] = ()

    def spec(self) -> Structure:
        """The decoded structure, which fits these leaves and scalars.

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
    """All calls that a segment accounts for. ``other_calls`` are of further groups."""

    groups: Annotated[tuple[Group, ...], Field(max_length=MAX_GROUPS)] = ()
    other_calls: Count = 0
