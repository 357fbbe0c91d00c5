"""Tensors that look like those of an earlier call: what was read of those holds for them.

Reading the facts of a tensor takes about ten steps in Python; comparing all tensors of a call with
earlier ones takes one in C++, by torch's own guards (those that compiled code stands behind): type,
dtype, device, sizes, strides, autograd, and every lazy or unusual kind of tensor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from calltape_recorder.counters import Count, value_of
from calltape_recorder.facts import INFERENCE
from calltape_recorder.sight import Row, Sight
from calltape_recorder.snapshot import Seen, see
from calltape_recorder.structures import Structure

__all__ = ["Familiar", "Likeness", "look", "see_as"]

# Not a public interface of torch; where it is not there, every tensor is read.
_Guards: Any = getattr(
    getattr(getattr(torch._C, "_dynamo", None), "guards", None), "TensorGuards", None
)

_MANY = 16
_Tensor = torch.Tensor
_function_modes = torch._C._len_torch_function_stack


def _has_strides(leaf: Any) -> bool:
    """Guards end the process, by an exception that C++ does not catch, when they are made of a
    plain tensor without strides, or shown a nested one."""
    return type(leaf) is _Tensor and leaf.layout is torch.strided and not leaf.is_nested


def _is_below_autograd() -> bool:
    """Whether guards that are made here do not see the dispatch keys of autograd, by which tensors
    differ from inference tensors."""
    try:
        keys = torch._C.DispatchKey.AutogradFunctionality, torch._C.DispatchKey.AutogradOther
        return any(torch._C._dispatch_tls_is_dispatch_key_excluded(key) for key in keys)
    except AttributeError:  # not a public interface of torch: in doubt each tensor is asked
        return True


class Familiar:
    """A call of nothing but plain tensors, each at its place or under its name: another one that
    looks the same need not be walked. Where no dispatch mode is active it is not one that something
    traces either: the dispatch keys of the thread are a part of how a tensor looks.

    Attributes:
        structure, row: of such calls.
        like: that of their leaves, where there is one.
    """

    __slots__ = ("_calls", "_check", "_names", "_positional", "like", "row", "structure")

    def __init__(self, sight: Sight, check: Callable[..., bool]) -> None:
        self._positional = len(sight.args)
        self._names = tuple(sight.kwargs)
        self._check = check
        self.structure = sight.structure
        self.row: Row = sight.row
        self.like: Likeness | None = None
        self._calls = Count()

    @classmethod
    def of(cls, sight: Sight) -> Familiar | None:
        """What is known from this call; None where it is not of that kind."""
        leaves = (*sight.args, *sight.kwargs.values())
        # A row has two entries per tensor, and a tensor that comes twice is one leaf.
        if not leaves or sight.scalars or 2 * len(leaves) != len(sight.row) or _Guards is None:
            return None
        if not all(_has_strides(leaf) for leaf in leaves):
            return None
        try:
            guards = _Guards(*leaves, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        except Exception:  # an unusual tensor
            return None
        return cls(sight, guards.check)

    def count(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Counts a call that looks the same; False (and not counted) for any other. Not to be asked
        under a mode that intercepts functions: it would see the tensors being read."""
        if len(args) != self._positional:
            return False
        leaves = args
        if kwargs or self._names:
            if tuple(kwargs) != self._names:
                return False
            leaves = (*args, *kwargs.values())
        for leaf in leaves:
            if type(leaf) is not _Tensor or leaf.is_nested:
                return False
        if not self._check(*leaves):
            return False
        # One tensor at two places is another structure.
        if len(leaves) == 2:
            if leaves[0] is leaves[1]:
                return False
        elif len(set(map(id, leaves))) != len(leaves):
            return False
        next(self._calls)
        return True

    @property
    def calls(self) -> int:
        """How many were counted."""
        return value_of(self._calls)


class Likeness:
    """The leaves of one side.

    Attributes:
        seen: what is known of them.
        side: what was recorded of them, where that has no bytes.
        encoded, packed: the encoder's, for whom they are the same for all of them; the second of
            ``side``.
    """

    __slots__ = ("_asks", "_check", "_expected", "_is_pair", "encoded", "packed", "seen", "side")

    def __init__(self, leaves: Sequence[Any], seen: Seen) -> None:
        guards = _Guards(*leaves, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        self._check = guards.check
        self.seen = seen
        inference = [bool(fact.flags & INFERENCE) for fact in seen.facts]
        # Where guards see the keys of autograd and these leaves have them, no inference tensor
        # looks the same; otherwise each is asked. So are many: to walk them takes long, and asking
        # gives the interpreter lock away for a moment.
        self._asks = any(inference) or _is_below_autograd() or len(leaves) > _MANY
        self._expected = tuple(zip(seen.sizes, inference, strict=True))
        # The most frequent kind of which only shapes are kept has nothing else to be asked.
        self._is_pair = len(leaves) == 2 and not self._asks and not any(seen.sizes)
        self.side: Any = None
        self.encoded: Any = None
        self.packed: bytes | None = None

    def fits(self, leaves: Sequence[Any]) -> bool:
        """Whether these look the same, memory included."""
        for leaf in leaves:
            if type(leaf) is not _Tensor or leaf.is_nested:
                return False
        return self._check(*leaves) and self.holds(leaves)

    def holds(self, leaves: Sequence[Any]) -> bool:
        """Whether each of these has memory of its own that holds the bytes to be copied, and is of
        the same inference mode."""
        if self._is_pair:
            # A storage is one Python object for as long as somebody has that.
            first, second = leaves
            return first.untyped_storage() is not second.untyped_storage()
        asks = self._asks
        memories: list[Any] = []
        for leaf, (size, is_inference) in zip(leaves, self._expected, strict=False):
            if asks and leaf.is_inference() != is_inference:
                return False
            memory = leaf.untyped_storage()
            if size and memory.nbytes() < leaf.storage_offset() * leaf.itemsize + size:
                return False
            memories.append(memory)
        return len(set(map(id, memories))) == len(memories)

    def is_of(self, leaf: Any) -> bool:
        """Whether this is one leaf that looks the same, where nothing of it is copied."""
        return (
            type(leaf) is _Tensor
            and not _function_modes()
            and not leaf.is_nested
            and self._check(leaf)
            and (not self._asks or leaf.is_inference() == self._expected[0][1])
        )


def look(
    leaves: Sequence[Any], structure: Structure, familiar: Familiar | None = None
) -> Likeness | None:
    """The likeness that the last leaves of this structure left, if it fits these; ``familiar`` is
    what told that these look the same as earlier ones."""
    like: Likeness | None = structure.like
    if like is None:
        return None
    if familiar is not None and familiar.like is like:
        return like if like.holds(leaves) else None
    if not like.fits(leaves):
        return None
    if familiar is not None:
        familiar.like = like
    return like


def see_as(leaves: list[Any], structure: Structure) -> Seen:
    """What :func:`see` gives; it leaves a likeness behind where such leaves came twice in a row."""
    seen = see(leaves, structure.wanted)
    structure.like = None
    # A growing cache never looks the same again.
    again = structure.last_facts == seen.facts
    structure.last_facts = seen.facts
    if again and _Guards is not None and seen.same is None and _are_plain(leaves, seen):
        with contextlib.suppress(Exception):
            structure.like = Likeness(leaves, seen)
    return seen


def _are_plain(leaves: Sequence[Any], seen: Seen) -> bool:
    for leaf, fact in zip(leaves, seen.facts, strict=False):
        if not _has_strides(leaf) or not fact.direct or fact.missing is not None:
            return False
    return True
