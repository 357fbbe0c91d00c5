"""Which arguments are one object, or share memory: a model may ask, or write to one and read the
other, so that this decides which program serves a call.

In come leaves. Out go the pairs, as a part of a key that is equal for calls of one program.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from calltape_analyzer.pytree.memory import Place, overlap, place_of_leaf
from calltape_schema.blob import contiguous
from calltape_schema.tree import Leaf

__all__ = ["Shared", "shared_memory"]

_MAX_PARTNERS = 16
"""Of one tensor, so many others that it shares memory with are noted."""


class Shared(NamedTuple):
    """Two tensors of a call that are one object, or share memory.

    Attributes:
        one, other: their numbers in the layout; ``one`` is the first.
        is_one: whether they are one object.
    """

    one: int
    other: int
    is_one: bool

    def text(self, places: Sequence[object], *, negated: bool = False) -> str:
        """``value is key``, or ``window shares memory with store``.

        Args:
            places: the paths of the tensors.
            negated: whether it is not so: ``value is not key``.
        """
        how = "is" if self.is_one else "shares memory with"
        if negated:
            how = "is not" if self.is_one else "shares no memory with"
        return f"{places[self.other]} {how} {places[self.one]}"


def shared_memory(leaves: Sequence[Leaf], objects: Sequence[Hashable]) -> tuple[Shared, ...]:
    """Which tensors are one object, and which have a byte in common. Empty tensors have none.

    Args:
        leaves: in the order of a layout.
        objects: of each, what is equal for one object only; None for what is never shared.
    """
    first: dict[Hashable, int] = {}
    found: list[Shared] = []
    groups: dict[int, list[int]] = defaultdict(list)
    for i, (leaf, known) in enumerate(zip(leaves, objects, strict=True)):
        if known is None or 0 in leaf.shape:
            continue
        earlier = first.setdefault(known, i)
        if earlier != i:
            found.append(Shared(earlier, i, True))
        elif leaf.storage is not None:
            groups[leaf.storage].append(i)
    for members in groups.values():
        if len(members) > 1:
            found += _overlapping({i: _place(leaves[i]) for i in members})
    return tuple(sorted(found))


def _place(leaf: Leaf) -> Place:
    one = contiguous(leaf.dtype, (1,))
    return place_of_leaf(leaf, one.nbytes if one is not None else 1)


def _overlapping(places: dict[int, Place]) -> list[Shared]:
    """The pairs with a byte in common. In the order of where they begin, each is compared with
    those that have not ended there."""
    found: list[Shared] = []
    active: list[int] = []
    for i in sorted(places, key=lambda i: (places[i].offset, i)):
        active = [j for j in active if places[j].end > places[i].offset]
        partners = [j for j in active[-_MAX_PARTNERS:] if overlap(places[j], places[i])]
        found += [Shared(min(i, j), max(i, j), False) for j in partners]
        active.append(i)
    return found
