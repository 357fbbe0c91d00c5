"""The copy of one side of a call, and what the encoder remembers of sides that look the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from calltape_recorder.capture.structures import Structure, Wanted
from calltape_recorder.snapshot.earlier_copies import Origin
from calltape_recorder.snapshot.facts import Alias, Facts
from calltape_schema.blob import Stored

__all__ = ["EncodedLeaves", "Shared", "Side"]


@dataclass(frozen=True, eq=False)
class EncodedLeaves:
    """What follows from structure and facts: the encoded leaf records, the leaves that the blob has
    (in order, and by key), the leaves that get a range, and the hash of inputs without scalars."""

    encoded: bytes
    header: dict[str, Stored]
    stored: tuple[int, ...]
    ranged: tuple[int, ...]
    inputs: int


class Shared:
    """What sides have in common if their leaves look the same. The first recorded one sets it.

    Attributes:
        side: the recorded side, if no bytes of it are kept.
        encoded: their leaf records.
        tree: ``side`` as a record has it.
        was_idle: whether there was no call with such leaves since this was set.
    """

    __slots__ = ("encoded", "side", "tree", "was_idle")

    def __init__(self) -> None:
        self.side: Side | None = None
        self.encoded: EncodedLeaves | None = None
        self.tree: dict[str, Any] | None = None
        self.was_idle = False


class Side:
    """Copied inputs or outputs of a call; ``repeat`` is set if they look like earlier ones, and
    ``origins`` tells of each leaf where its bytes are on the tape."""

    # Slots, because to make a dataclass or a named tuple costs as much as to copy a tensor.
    __slots__ = (
        "facts", "origins", "pieces", "repeat", "same", "scalars", "storages", "structure",
        "wanted",
    )  # fmt: skip

    def __init__(
        self,
        structure: Structure,
        scalars: list[Any],
        facts: tuple[Facts, ...],
        same: tuple[int, ...] | None,
        storages: tuple[Alias | None, ...] | None,
        pieces: Sequence[Any],
        wanted: Wanted = True,
        repeat: Shared | None = None,
        origins: Sequence[Origin | None] | None = None,
    ) -> None:
        self.repeat = repeat
        self.origins = origins
        self.structure = structure
        self.scalars = scalars
        self.facts = facts
        self.same = same
        self.storages = storages
        # A tuple of bytes is nothing to Python's garbage collector, however many calls wait.
        self.pieces = tuple(pieces)
        self.wanted = wanted
