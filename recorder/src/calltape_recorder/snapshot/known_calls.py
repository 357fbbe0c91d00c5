"""Recognizes a side of a call whose structure, dtypes and shapes came before.

Takes a structure and an outline; returns what is known of such sides: one entry of a dict. It
counts the calls that are not on the tape, and has what a look at the tensors found, so that they
need not be read again. To read the facts of a tensor takes about ten steps in Python. To compare
all tensors of a call takes one step in C++, with the guards that torch has for compiled code.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from operator import attrgetter
from typing import Any
from weakref import ref

import torch

from calltape_recorder.bounds import MAX_KNOWN_CALLS, MAX_WAITING_PARTS, Remembered
from calltape_recorder.capture.contexts import Context, context_now
from calltape_recorder.capture.structures import Structure
from calltape_recorder.snapshot.buffers import array_type
from calltape_recorder.snapshot.earlier_copies import FEWEST_BYTES
from calltape_recorder.snapshot.facts import (
    INFERENCE,
    Outline,
    keys_of,
    keys_of_all,
    lasting,
    storage_offset,
    untyped_storage,
)
from calltape_recorder.snapshot.look import Look
from calltape_recorder.snapshot.side import Side
from calltape_recorder.threads import RLock, is_interrupt, new_count, value_of

_OWN_PARTS = 4  # what one takes beside its outline
_FEW = 16  # leaves of one side

# Ids of which only the range is kept are copied for it, and not remembered: no tape has them.
_MOST_BYTES_OF_RANGES = 64 * 1024

_Tensor = torch.Tensor
_PLAIN = {torch.Tensor}
_is_contiguous = torch.Tensor.is_contiguous
_is_nested = attrgetter("is_nested")

# This is no public interface of torch. Without it, every tensor is read.
Guards: Any = getattr(
    getattr(getattr(torch._C, "_dynamo", None), "guards", None), "TensorGuards", None
)


class Alike:
    """Leaves that came twice in a row: plain and contiguous tensors.

    Torch's guards end the process if they are shown a nested tensor, or are made of a tensor
    without strides. So they are made of plain tensors only, and before they are shown a leaf, its
    type is checked. They lie on the heap between the tensors of the host, and keep it from joining
    what is free beside them: those of each length of a growing cache took gigabytes of a host. So
    many leaves have guards of their own only if the calls before and after look the same. If not,
    they share guards that do not know their sizes with all leaves of the same structure.

    Attributes:
        known: what is known of sides with these leaves.
        look: all that is known of them.
        side: a side without scalars and copies, if little host memory is copied of such leaves;
            else None.
        arrays: then, the ctypes array of each leaf that is copied, or None.
    """

    __slots__ = (
        "_asks", "_check", "_context", "_copied", "_keys", "_names", "_positional", "_shared_check",
        "arrays", "known", "look", "side",
    )  # fmt: skip

    def __init__(
        self, known: Known, leaves: Sequence[Any], look: Look, *, has_guards: bool
    ) -> None:
        self._check: Callable[..., bool] | None = None
        if has_guards:
            self._check = Guards(*leaves, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
        else:
            self._shared_check = _guards_of_any_size(known.structure, leaves)
        self.known = known
        self.look = look
        self.side: Side | None = None
        self.arrays: tuple[Any, ...] = ()
        if not look.is_on_cuda and look.nbytes < (
            FEWEST_BYTES if known.structure.wanted else _MOST_BYTES_OF_RANGES
        ):
            self.arrays = tuple([array_type(size) if size else None for size in look.sizes])
            nothing = [None] * len(look.sizes), b""
            self.side = Side(known.structure, (), look, nothing, known.structure.wanted)
            self.side.is_shared = True
        self._positional = -1
        self._names: tuple[str, ...] = ()
        self._context: Context | None = None
        # Guards that see the dispatch keys of autograd recognize inference tensors, unless these
        # leaves are inference tensors. If the guards cannot tell, each leaf is asked.
        is_any_inference = any(fact.flags & INFERENCE for fact in look.facts)
        self._asks = is_any_inference or _is_below_autograd()
        self._keys: tuple[Hashable, ...] = keys_of_all(leaves) if self._asks else ()
        self._copied = look.sizes if look.nbytes else None

    def forget_guards(self) -> None:
        """From now on, no leaves are like these."""
        self._check = _is_none

    def recognizes(self, leaves: Sequence[Any], *, in_a_row: bool) -> bool:
        """Whether these leaves, of the same structure, dtypes and shapes, look the same. False if
        the call before had such leaves too and there are no guards: then there can be some."""
        return (self._check is not None or not in_a_row) and self.is_like(leaves)

    def is_of_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], is_training: bool) -> bool:
        """Whether these arguments are such leaves in the same places, and nothing else, and the
        context is the same. Then the call has the same structure. Only asked if :meth:`learn_call`
        was told so."""
        if len(args) != self._positional:
            return False
        context = context_now(is_training)  # mostly the same object
        if context is not self._context and context != self._context:
            return False
        leaves = args
        if kwargs or self._names:
            if len(kwargs) != len(self._names):
                return False
            for name, known in zip(kwargs, self._names, strict=True):
                if name is not known and (type(name) is not str or name != known):
                    return False
            leaves = (*args, *kwargs.values())
        if not self.is_like(leaves):
            return False
        # A call that passes one tensor twice has another structure.
        if len(leaves) == 2:
            return leaves[0] is not leaves[1]
        return len(set(map(id, leaves))) == len(leaves)

    def learn_call(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        leaves: list[Any],
        *,
        is_training: bool,
    ) -> bool:
        """Makes this call the one that :meth:`is_of_call` compares with; False if it has other
        arguments than leaves, or if there are no guards."""
        values = [*args, *kwargs.values()]
        if self._check is None or list(map(id, values)) != list(map(id, leaves)):
            return False
        if any(type(name) is not str for name in kwargs):
            return False
        self._positional, self._names = len(args), tuple(kwargs)
        self._context = context_now(is_training)
        return True

    def is_like(self, leaves: Sequence[Any]) -> bool:
        """Whether these leaves, of the same structure, dtypes and shapes, look the same."""
        check = self._check
        if check is None:
            return (
                set(map(type, leaves)) == _PLAIN
                and not any(map(_is_nested, leaves))
                and bool(self._shared_check(*leaves))
                and all(map(_is_contiguous, leaves))
            )
        for leaf in leaves:
            if type(leaf) is not _Tensor or leaf.is_nested:
                return False
        return bool(check(*leaves))

    def is_like_single(self, leaf: Any) -> bool:
        """Whether this is one leaf that looks the same, has no attributes of its own, and is of the
        same inference mode. If nothing of it is copied, no more needs to be checked."""
        return (
            type(leaf) is _Tensor
            and not leaf.is_nested
            and self._check is not None
            and self._check(leaf)
            and not leaf.__dict__
            and (not self._asks or keys_of(leaf) == self._keys[0])
        )

    def has_memory_of(self, leaves: Sequence[Any]) -> bool:
        """Whether each of these leaves, which look the same, has memory of its own that holds the
        bytes to be copied, and is of the same inference mode. False while a CUDA graph is captured,
        because nothing can be copied then."""
        if self._asks and keys_of_all(leaves) != self._keys:
            return False
        sizes = self._copied
        # This is the most frequent case if only shapes are kept.
        if sizes is None and len(leaves) < 3:
            # A storage stays the same Python object as long as somebody refers to that object.
            return len(leaves) == 1 or (
                untyped_storage(leaves[0]) is not untyped_storage(leaves[1])
            )
        memories = list(map(untyped_storage, leaves))
        if sizes is not None:
            if self.look.is_on_cuda and torch.cuda.is_current_stream_capturing():
                return False
            for leaf, memory, size in zip(leaves, memories, sizes, strict=True):
                if size and memory.nbytes() < storage_offset(leaf) * leaf.itemsize + size:
                    return False
        return len(set(map(id, memories))) == len(memories)


def _guards_of_any_size(structure: Structure, leaves: Sequence[Any]) -> Callable[..., bool]:
    """Guards that know of such leaves all but sizes and strides."""
    check = structure.check
    if check is None or not check(*leaves):
        any_size = [[None] * leaf.dim() for leaf in leaves]
        guards = Guards(*leaves, dynamic_dims_sizes=any_size, dynamic_dims_strides=any_size)
        check = structure.check = guards.check
    return check


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


class Known:
    """Sides of one structure with the same dtypes and shapes.

    Attributes:
        structure, outline: of them.
        calls: counts the calls with such inputs that are not on the tape.
        counted: how many of these calls are in a table already.
        alike: recognizes such leaves, if they came twice in a row.
    """

    __slots__ = (
        "__weakref__", "_facts", "_is_forgotten", "_side", "alike", "calls", "counted", "outline",
        "structure",
    )  # fmt: skip

    def __init__(self, structure: Structure, outline: Outline) -> None:
        self.structure = structure
        self.outline = outline
        self.calls = new_count()
        self.counted = 0
        self.alike: Alike | None = None
        self._facts: Any = None
        self._side: Side | None = None
        self._is_forgotten = False

    def met_again(self) -> bool:
        """Whether such a side came before. Then its leaves may come again."""
        before, self._facts = self._facts, self._facts or ()
        return before is not None

    def learn(self, leaves: Sequence[Any], look: Look, *, in_a_row: bool = False) -> Alike | None:
        """Remembers the look of leaves, if they are plain and the last ones looked the same.

        Args:
            leaves, look: the leaves, and what a look at them found.
            in_a_row: whether the call before had such leaves, too.
        """
        if self._facts != look.facts:
            self._facts = look.facts
            return None
        if not look.is_plain:
            return None
        try:
            made = Alike(self, leaves, look, has_guards=in_a_row or len(leaves) <= _FEW)
        except Exception as error:  # there are no guards, or not for such tensors
            if is_interrupt(error):
                raise
            return None
        self.alike = made
        if self._is_forgotten:  # by another thread, meanwhile
            self.let_go()
            return None
        return made

    def side_without_leaves(self) -> Side:
        """The side, if it has no leaves and no scalars."""
        found = self._side
        if found is None:
            found = self._side = Side(self.structure, (), Look((), (), ()))
            found.is_shared = True
        return found

    def let_go(self) -> None:
        """Recognizes no more. Nothing of it is a circle then, which a host may never collect."""
        self._is_forgotten = True
        alike, self.alike = self.alike, None
        if alike is not None:
            alike.forget_guards()


class KnownCalls:
    """What is known of sides, the oldest of them forgotten first. Any thread may use it.

    Attributes:
        call: recognizes the latest call that had only tensors as arguments.
        result: recognizes the latest result that was one tensor.
        latest: the inputs of the latest call that was walked.
        lock: is taken for what is new.
        forgotten_parts: how many dtypes and shapes those have that are forgotten, and wait.
    """

    def __init__(self) -> None:
        self.call: Alike | None = None
        self.result: Alike | None = None
        self.latest: Known | None = None
        self.lock = RLock()  # reentrant: a signal handler may call the model in it
        self._forgotten: deque[Known] = deque()
        self.forgotten_parts = 0
        # By the numbers of structures: such a key is nothing to Python's garbage collector.
        self._known: Remembered[tuple[int, Outline], Known] = Remembered(
            MAX_KNOWN_CALLS,
            lambda _, known: _parts_of(known.structure, known.outline),
            self._forget,
        )
        self._find = self._known.get

    def __len__(self) -> int:
        return len(self._known) + len(self._forgotten)

    @property
    def forgotten(self) -> int:
        """How many are forgotten, and wait until their calls are counted."""
        return len(self._forgotten)

    def of(self, structure: Structure, outline: Outline) -> Known | None:
        """What is known of sides of this structure with these dtypes and shapes; None if more are
        waiting to be counted than memory is there for."""
        return self._find((structure.number, outline)) or self._new(structure, outline)

    def counted(self) -> Iterator[tuple[Structure, Outline, int]]:
        """Structure, dtypes and shapes, each with the calls that were counted since the last time.
        One thread alone asks. A thread may count with one that is forgotten, if it had found it
        before: so it stays until nobody holds it."""
        with self.lock:
            every = [*self._known.values()]
            waiting = len(self._forgotten)
        for known in every:
            calls = value_of(known.calls)
            if calls > known.counted:
                yield known.structure, known.outline, calls - known.counted
                known.counted = calls
        for _ in range(waiting):
            one = self._forgotten[0]  # other threads append
            structure, outline, counter = one.structure, one.outline, one.calls
            told = value_of(counter)
            if told > one.counted:
                yield structure, outline, told - one.counted
                one.counted = told
            held = ref(one)
            with self.lock:
                self._forgotten.popleft()
                del one
                kept = held()
                if kept is not None:
                    self._forgotten.append(kept)
                    continue
                self.forgotten_parts -= _parts_of(structure, outline)
            last = value_of(counter)
            if last > told:  # counted by the last one who held it
                yield structure, outline, last - told

    def _new(self, structure: Structure, outline: Outline) -> Known | None:
        with self.lock:
            known = self._find((structure.number, outline))
            if known is None and self.forgotten_parts < MAX_WAITING_PARTS:
                known = Known(structure, lasting(outline))
                self._known.keep((structure.number, known.outline), known)
            return known

    def _forget(self, known: Known) -> None:
        self._forgotten.append(known)
        self.forgotten_parts += _parts_of(known.structure, known.outline)
        alike = known.alike
        known.let_go()
        if alike is not None and self.call is alike:
            self.call = None
        if alike is not None and self.result is alike:
            self.result = None
        if self.latest is known:
            self.latest = None


def _parts_of(structure: Structure, outline: Outline) -> int:
    """What an entry counts for. A structure that is large for its leaves counts too."""
    return _OWN_PARTS + len(outline) + max(0, structure.parts - len(outline))
