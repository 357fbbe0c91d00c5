"""Recognizes calls that look like an earlier one, so that their tensors need not be read again.

In come the leaves of one side of a call; out goes a :class:`Repeat` if leaves that look the same
came twice in a row. To read the facts of a tensor takes about ten steps in Python. To compare all
tensors of a call takes one step in C++, with the guards that torch has for compiled code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from calltape_recorder.bounds import MAX_REMEMBERED_PARTS, MAX_REPEATS
from calltape_recorder.capture.call_view import Row
from calltape_recorder.capture.contexts import ORDINARY, Context, context_now
from calltape_recorder.capture.structures import Structure
from calltape_recorder.remembered import Remembered
from calltape_recorder.snapshot.facts import INFERENCE, keys_of, storage_offset, untyped_storage
from calltape_recorder.snapshot.look import Look
from calltape_recorder.snapshot.side import Shared
from calltape_recorder.threads import Count, RLock, value_of

__all__ = ["Repeat", "Repeats"]

_MANY = 16  # leaves of one side
_Tensor = torch.Tensor

# This is no public interface of torch. Without it there are no repeats, and every tensor is read.
_Guards: Any = getattr(
    getattr(getattr(torch._C, "_dynamo", None), "guards", None), "TensorGuards", None
)


class Repeat(Shared):
    """Leaves that came twice in a row: plain and contiguous tensors.

    Torch's guards end the process if they are shown a nested tensor, or are made of a tensor
    without strides. So they are made of plain tensors only, and before they are shown a leaf, its
    type is checked.

    Attributes:
        structure: the structure of the side that has these leaves.
        row: dtypes and shapes, see :data:`~calltape_recorder.capture.call_view.Row`.
        look: all that is known of them.
        calls: counts the calls that are not on the tape and whose inputs are such leaves and
            nothing else.
        counted_calls: how many of these calls were counted so far.
    """

    __slots__ = (
        "_asks",
        "_check",
        "_context",
        "_copied",
        "_keys",
        "_names",
        "_on_cuda",
        "_positional",
        "calls",
        "counted_calls",
        "look",
        "row",
        "structure",
    )  # fmt: skip

    def __init__(self, structure: Structure, leaves: Sequence[Any], look: Look) -> None:
        super().__init__()
        guards = _Guards(*leaves, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        self._check = guards.check
        self.structure = structure
        self.look = look
        facts = look.facts
        self.row: Row = tuple([part for fact in facts for part in (fact.dtype, fact.shape)])
        self.calls = Count()
        self.counted_calls = 0
        self._positional = -1
        self._names: tuple[str, ...] = ()
        self._context: Context = ORDINARY
        self._keys = [keys_of(leaf) for leaf in leaves]
        # Guards that see the dispatch keys of autograd recognize inference tensors, unless these
        # leaves are inference tensors. If the guards cannot tell, each leaf is asked. Many leaves
        # are asked too: to walk them takes long, and each question lets other threads run.
        is_any_inference = any(fact.flags & INFERENCE for fact in facts)
        self._asks = is_any_inference or _is_below_autograd() or len(facts) > _MANY
        self._copied = tuple(look.sizes) if any(look.sizes) else None
        self._on_cuda = any(fact.direct == "cuda" for fact in facts)

    def forget_guards(self) -> None:
        """From now on, no leaves are like these. The guards lie on the heap between the tensors of
        the host: as long as they are there, the heap does not join what is free beside them."""
        self._check = _is_none

    def is_of_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether these arguments are such leaves in the same places, and nothing else, and the
        context is the same. Then the call has the same structure. False if the learned call had
        other arguments too."""
        if len(args) != self._positional:
            return False
        context = context_now()  # mostly the same object
        if context is not self._context and context != self._context:
            return False
        leaves = args
        if kwargs or self._names:
            if tuple(kwargs) != self._names:
                return False
            leaves = (*args, *kwargs.values())
        if not self.is_like(leaves):
            return False
        # A call that passes one tensor twice has another structure.
        if len(leaves) == 2:
            return leaves[0] is not leaves[1]
        return len(set(map(id, leaves))) == len(leaves)

    def learn_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any]) -> bool:
        """Makes this call the one that :meth:`is_of_call` compares with; False if it has other
        arguments than leaves."""
        values = [*args, *kwargs.values()]
        if list(map(id, values)) != list(map(id, leaves)):
            return False
        self._positional, self._names = len(args), tuple(kwargs)
        self._context = context_now()
        return True

    def is_like(self, leaves: Sequence[Any]) -> bool:
        """Whether these leaves, of the same structure, look the same."""
        for leaf in leaves:
            if type(leaf) is not _Tensor or leaf.is_nested:
                return False
        return bool(self._check(*leaves))

    def is_like_single(self, leaf: Any) -> bool:
        """Whether this is one leaf that looks the same, has no attributes of its own, and is of the
        same inference mode. If nothing of it is copied, no more needs to be checked."""
        return (
            type(leaf) is _Tensor
            and not leaf.is_nested
            and self._check(leaf)
            and not leaf.__dict__
            and (not self._asks or keys_of(leaf) == self._keys[0])
        )

    def has_memory_of(self, leaves: Sequence[Any]) -> bool:
        """Whether each of these leaves, which look the same, has memory of its own that holds the
        bytes to be copied, and is of the same inference mode. False while a CUDA graph is captured,
        because nothing can be copied then."""
        if self._asks:
            for leaf, expected in zip(leaves, self._keys, strict=True):
                if keys_of(leaf) != expected:
                    return False
        sizes = self._copied
        # This is the most frequent case if only shapes are kept.
        if sizes is None and len(leaves) < 3:
            # A storage stays the same Python object as long as somebody refers to that object.
            return len(leaves) == 1 or (
                untyped_storage(leaves[0]) is not untyped_storage(leaves[1])
            )
        memories = [untyped_storage(leaf) for leaf in leaves]
        if sizes is not None:
            if self._on_cuda and torch.cuda.is_current_stream_capturing():
                return False
            for leaf, memory, size in zip(leaves, memories, sizes, strict=True):
                if size and memory.nbytes() < storage_offset(leaf) * leaf.itemsize + size:
                    return False
        return len(set(map(id, memories))) == len(memories)


def _is_none(*_: Any) -> bool:
    return False


def _is_below_autograd() -> bool:
    """Whether guards that are made now cannot see the dispatch keys of autograd. By these keys,
    inference tensors differ from other tensors."""
    try:
        keys = torch._C.DispatchKey.AutogradFunctionality, torch._C.DispatchKey.AutogradOther
        return any(torch._C._dispatch_tls_is_dispatch_key_excluded(key) for key in keys)
    except AttributeError:  # this is no public interface of torch: in doubt, each tensor is asked
        return True


class Repeats:
    """The repeats of a recorder, per structure. Any thread may use them.

    Attributes:
        call: the latest repeat of a call that has only tensors as arguments.
        result: the latest repeat of a result that is one tensor, of which no bytes are kept.
    """

    def __init__(self) -> None:
        self._known: dict[Structure, Repeat] = {}
        self._rows = _last_of_each()
        self._facts = _last_of_each()
        self._replaced: list[Repeat] = []
        self.call: Repeat | None = None
        self.result: Repeat | None = None
        self.lock = RLock()  # reentrant: a signal handler may call the model in it
        self.of = self._known.get
        """The repeat of a structure, or None."""

    def __len__(self) -> int:
        return len(self._known) + len(self._replaced)

    def has_same_sizes(self, structure: Structure, row: Row) -> bool:
        """Whether the last leaves of this structure that were no repeat had the same sizes. The
        leaves of a growing cache never have."""
        return self._is_last(self._rows, structure, row)

    def has_same_look(self, structure: Structure, look: Look) -> bool:
        """Whether the last leaves of this structure that were read had the same facts."""
        return self._is_last(self._facts, structure, look.facts)

    def learn(self, structure: Structure, leaves: Sequence[Any], look: Look) -> Repeat | None:
        """Remembers leaves that came again, if they are plain."""
        is_known = structure in self._known
        if not look.is_plain or len(self._replaced if is_known else self) >= MAX_REPEATS:
            return None
        if len(leaves) * len(self) > MAX_REMEMBERED_PARTS:  # about so many leaves are known
            return None
        try:
            made = Repeat(structure, leaves, look)
        except Exception:  # there are no guards, or not for such tensors
            return None
        with self.lock:
            self._retire(structure)
            self._known[structure] = made
        return made

    def counted(self) -> Iterator[tuple[Repeat, int]]:
        """Each repeat with the calls that it counted since the last time. One thread alone asks,
        about once a second. A repeat that counted no call two times in a row, and of which none
        was written, is forgotten if it was replaced or if there are many."""
        are_many = len(self._known) >= MAX_REPEATS // 2
        for repeat in {*self._known.values(), *self._replaced}:
            calls = value_of(repeat.calls)
            if calls > repeat.counted_calls:
                yield repeat, calls - repeat.counted_calls
                repeat.counted_calls, repeat.was_idle = calls, False
            elif not repeat.was_idle:
                repeat.was_idle = True
            else:
                with self.lock:
                    if repeat in self._replaced:
                        self._replaced.remove(repeat)
                    elif are_many:
                        self._retire(repeat.structure)

    def _is_last(
        self, last: Remembered[Structure, tuple[Any, ...]], structure: Structure, found: Any
    ) -> bool:
        """Whether this was found last for this structure; it is remembered as the last."""
        if last.get(structure) == found:
            return True
        with self.lock:
            last.keep(structure, found)
        return False

    def _retire(self, structure: Structure) -> None:
        """Hides the repeat of a structure. A thread that has it already may still count with it."""
        before = self._known.pop(structure, None)
        if before is not None:
            before.was_idle = False
            before.forget_guards()
            self._replaced.append(before)
            if self.call is before:
                self.call = None
            if self.result is before:
                self.result = None


def _last_of_each() -> Remembered[Structure, tuple[Any, ...]]:
    return Remembered(MAX_REPEATS, lambda _, found: len(found))
