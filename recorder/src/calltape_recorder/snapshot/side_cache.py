"""Recognizes a side of a call whose structure, dtypes and shapes came before.

The cache has an entry for each structure with its dtypes and shapes, found by one lookup in a dict.
The entry counts the calls that are not on the tape. If the same leaves recur, it also has the facts
of their tensors, and guards that recognize them. Reading the facts of a tensor takes about ten
steps in Python. Comparing all tensors of a call takes one step in C++, with the guards that torch
has for compiled code.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from operator import attrgetter
from typing import Any
from weakref import ref

import torch

from calltape_recorder.bounds import MAX_CACHED_SIDES, MAX_WAITING_WEIGHT, BoundedDict
from calltape_recorder.capture.contexts import (
    Context,
    context_now,
    dispatch_modes,
    function_modes,
)
from calltape_recorder.capture.structures import Structure
from calltape_recorder.snapshot.buffers import array_type
from calltape_recorder.snapshot.earlier_copies import FEWEST_BYTES
from calltape_recorder.snapshot.facts import (
    INFERENCE,
    is_plain,
    keys_of,
    keys_of_all,
    storage_offset,
    untyped_storage,
)
from calltape_recorder.snapshot.side import Outline, Side, lasting
from calltape_recorder.snapshot.side_facts import SideFacts
from calltape_recorder.threads import RLock, is_interrupt, new_count, value_of

_ENTRY_WEIGHT = 4  # of an entry, besides its outline
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


class SideGuards:
    """Guards for leaves that came twice in a row: plain and contiguous tensors.

    Torch's guards end the process if they are given a nested tensor, or made of a tensor without
    strides. So only plain tensors make guards, and the type of a leaf is checked first. Guards lie
    on the heap between the application's tensors and fragment it: those of each length of a growing
    cache took gigabytes. So a side of many leaves has guards of its own only if the calls before
    and after look the same; the other sides of its structure share guards without sizes.

    Attributes:
        cached: the entry of sides with these leaves.
        facts: of the leaves.
        template: a side without scalars and copies, if little CPU memory is copied of such leaves;
            else None.
        arrays: then, the ctypes array of each leaf that is copied, or None.
    """

    __slots__ = (
        "_check", "_checks_keys", "_context", "_copied_sizes", "_keys", "_names", "_positional",
        "_shared_check", "arrays", "cached", "facts", "template",
    )  # fmt: skip

    def __init__(
        self, cached: CachedSide, leaves: Sequence[Any], facts: SideFacts, *, own_guards: bool
    ) -> None:
        structure = cached.structure
        self._check: Callable[..., bool] | None = None
        if own_guards:
            self._check = Guards(*leaves, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
        else:
            # All but sizes and strides, so that one with other sizes need not make new ones.
            check = structure.check
            if check is None or not check(*leaves):
                any_size = [[None] * leaf.dim() for leaf in leaves]
                guards = Guards(*leaves, dynamic_dims_sizes=any_size, dynamic_dims_strides=any_size)
                check = structure.check = guards.check
            self._shared_check: Callable[..., bool] = check
        self.cached = cached
        self.facts = facts
        self.template: Side | None = None
        self.arrays: tuple[Any, ...] = ()
        if not facts.is_on_cuda and facts.nbytes < (
            FEWEST_BYTES if structure.wanted else _MOST_BYTES_OF_RANGES
        ):
            self.arrays = tuple([array_type(size) if size else None for size in facts.sizes])
            self.template = Side(structure, (), facts, ([None] * len(facts.sizes), b""))
            self.template.is_template = True
        self._positional = -1
        self._names: tuple[str, ...] = ()
        self._context: Context | None = None
        # Guards that see the dispatch keys of autograd recognize inference tensors, unless these
        # leaves are inference tensors. If the guards cannot, each leaf is checked.
        is_any_inference = any(fact.flags & INFERENCE for fact in facts.per_leaf)
        self._checks_keys = is_any_inference or _is_below_autograd()
        self._keys: tuple[Hashable, ...] = keys_of_all(leaves) if self._checks_keys else ()
        self._copied_sizes = facts.sizes if facts.nbytes else None

    def expire(self) -> None:
        """From now on, accepts nothing."""
        self._check = lambda *_: False

    def recognizes(self, leaves: Sequence[Any], *, is_consecutive: bool) -> bool:
        """Whether these leaves, of the same structure, dtypes and shapes, look the same. False if
        the call before had such leaves too and the guards are shared: then they can have some of
        their own."""
        return (self._check is not None or not is_consecutive) and self.accept(leaves)

    def accept_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], is_training: bool) -> bool:
        """Whether these arguments are such leaves in the same places, and nothing else, and the
        context is the same. Then the call has the same structure. Only for guards for which
        :meth:`learn_call` was True."""
        # The dispatch keys of the thread are a part of the guards, which were learned from a call
        # that was not traced. So without a mode, a call like it is not traced either.
        if len(args) != self._positional or dispatch_modes() or function_modes():
            return False
        context = context_now(is_training)  # mostly the same object
        if context is not self._context and context != self._context:
            return False
        leaves = args
        if kwargs or self._names:
            if len(kwargs) != len(self._names):
                return False
            for name, learned in zip(kwargs, self._names, strict=True):
                if name is not learned and (type(name) is not str or name != learned):
                    return False
            leaves = (*args, *kwargs.values())
        if not self.accept(leaves):
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
        """Makes this call the one that :meth:`accept_call` compares with; False if it has other
        arguments than leaves, or if there are no guards."""
        values = [*args, *kwargs.values()]
        if self._check is None or list(map(id, values)) != list(map(id, leaves)):
            return False
        if any(type(name) is not str for name in kwargs):
            return False
        self._positional, self._names = len(args), tuple(kwargs)
        self._context = context_now(is_training)
        return True

    def accept(self, leaves: Sequence[Any]) -> bool:
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

    def accept_result(self, leaf: Any) -> bool:
        """Whether this is one leaf that looks the same, has no attributes of its own, and is of the
        same inference mode. If nothing of it is copied, no more needs to be checked."""
        return (
            type(leaf) is _Tensor
            and not leaf.is_nested
            and self._check is not None
            and self._check(leaf)
            and not leaf.__dict__
            and (not self._checks_keys or keys_of(leaf) == self._keys[0])
        )

    def accept_memory(self, leaves: Sequence[Any]) -> bool:
        """Whether each of these leaves, which look the same, has memory of its own that holds the
        bytes to be copied, and is of the same inference mode. False while a CUDA graph is captured,
        because nothing can be copied then."""
        if self._checks_keys and keys_of_all(leaves) != self._keys:
            return False
        sizes = self._copied_sizes
        # This is the most frequent case if only shapes are kept.
        if sizes is None and len(leaves) < 3:
            # A storage stays the same Python object as long as there is a reference to it.
            return len(leaves) == 1 or (
                untyped_storage(leaves[0]) is not untyped_storage(leaves[1])
            )
        memories = list(map(untyped_storage, leaves))
        if sizes is not None:
            if self.facts.is_on_cuda and torch.cuda.is_current_stream_capturing():
                return False
            for leaf, memory, size in zip(leaves, memories, sizes, strict=True):
                if size and memory.nbytes() < storage_offset(leaf) * leaf.itemsize + size:
                    return False
        return len(set(map(id, memories))) == len(memories)


def _is_below_autograd() -> bool:
    """Whether guards that are made now cannot see the dispatch keys of autograd. By these keys,
    inference tensors differ from other tensors."""
    try:
        keys = torch._C.DispatchKey.AutogradFunctionality, torch._C.DispatchKey.AutogradOther
        return any(torch._C._dispatch_tls_is_dispatch_key_excluded(key) for key in keys)
    except AttributeError:  # this is no public interface of torch: in doubt, each tensor is asked
        return True


class CachedSide:
    """The entry of the cache for sides of one structure with the same dtypes and shapes.

    Attributes:
        structure, outline: of the sides.
        calls: counts the calls with such inputs that are not on the tape.
        counted: how many of these calls are in a table already.
        guards: recognize such leaves, if they came twice in a row.
    """

    __slots__ = (
        "__weakref__", "_is_evicted", "_last_facts", "_side", "calls", "counted", "guards",
        "outline", "structure",
    )  # fmt: skip

    def __init__(self, structure: Structure, outline: Outline) -> None:
        self.structure = structure
        self.outline = outline
        self.calls = new_count()
        self.counted = 0
        self.guards: SideGuards | None = None
        self._last_facts: Any = None
        self._side: Side | None = None
        self._is_evicted = False

    @property
    def weight(self) -> int:
        """What it counts for. A structure that is large for its leaves counts too."""
        return _ENTRY_WEIGHT + max(len(self.outline), self.structure.weight)

    def came_before(self) -> bool:
        """Whether an earlier side asked this before. Then its leaves may recur."""
        last, self._last_facts = self._last_facts, self._last_facts or ()
        return last is not None

    def learn(
        self, leaves: Sequence[Any], facts: SideFacts, *, is_consecutive: bool = False
    ) -> SideGuards | None:
        """Makes guards for leaves, if they are plain and the last ones looked the same.
        ``is_consecutive`` says whether those of the call before did."""
        if self._last_facts != facts.per_leaf:
            self._last_facts = facts.per_leaf
            return None
        if facts.same is not None or not all(map(is_plain, facts.per_leaf)):
            return None
        try:
            own_guards = is_consecutive or len(leaves) <= _FEW
            self.guards = guards = SideGuards(self, leaves, facts, own_guards=own_guards)
        except Exception as error:  # there are no guards, or not for such tensors
            if is_interrupt(error):
                raise
            return None
        if self._is_evicted:  # by another thread, meanwhile
            self.evict()
            return None
        return guards

    def side_without_leaves(self) -> Side:
        """The side, if it has no leaves and no scalars."""
        side = self._side
        if side is None:
            side = self._side = Side(self.structure, (), SideFacts((), (), ()))
            side.is_template = True
        return side

    def evict(self) -> None:
        """Recognizes nothing from now on, and breaks its reference cycle, which an application may
        never collect."""
        self._is_evicted = True
        guards, self.guards = self.guards, None
        if guards is not None:
            guards.expire()


class SideCache:
    """The entries of sides, the oldest of them evicted first. Any thread may use it.

    Attributes:
        latest_call: recognizes the latest call that had only tensors as arguments.
        latest_result: recognizes the latest result that was one tensor.
        latest_inputs: those of the latest call that was walked.
        lock: is taken for new entries.
        evicted_weight: of the entries that are evicted, and wait.
    """

    def __init__(self) -> None:
        self.latest_call: SideGuards | None = None
        self.latest_result: SideGuards | None = None
        self.latest_inputs: CachedSide | None = None
        self.lock = RLock()  # reentrant: a signal handler may call the model in it
        self._evicted: deque[CachedSide] = deque()
        self.evicted_weight = 0
        # By the numbers of structures: Python's garbage collector does not visit such keys.
        self._entries: BoundedDict[tuple[int, Outline], CachedSide] = BoundedDict(
            MAX_CACHED_SIDES, lambda _, entry: entry.weight, self._evict
        )
        self._find = self._entries.get

    def __len__(self) -> int:
        return len(self._entries) + len(self._evicted)

    @property
    def evicted(self) -> int:
        """How many entries are evicted, and wait until their calls are counted."""
        return len(self._evicted)

    def of(self, structure: Structure, outline: Outline) -> CachedSide | None:
        """The entry for sides of this structure with these dtypes and shapes; None if more are
        waiting to be counted than memory is there for."""
        return self._find((structure.number, outline)) or self._new(structure, outline)

    def counted(self) -> Iterator[tuple[Structure, Outline, int]]:
        """Structure, dtypes and shapes, each with the calls that were counted since the last time.
        Only one thread calls it. Others may count with an evicted entry that they had found before:
        so it stays until nothing refers to it."""
        with self.lock:
            entries = [*self._entries.values()]
            evicted = len(self._evicted)
        for entry in entries:
            calls = value_of(entry.calls)
            if calls > entry.counted:
                yield entry.structure, entry.outline, calls - entry.counted
                entry.counted = calls
        for _ in range(evicted):
            entry = self._evicted[0]  # other threads append
            structure, outline, weight, counter = (
                entry.structure, entry.outline, entry.weight, entry.calls,
            )  # fmt: skip
            calls = value_of(counter)
            if calls > entry.counted:
                yield structure, outline, calls - entry.counted
                entry.counted = calls
            reference = ref(entry)
            with self.lock:
                self._evicted.popleft()
                del entry
                still_used = reference()
                if still_used is not None:
                    self._evicted.append(still_used)
                    continue
                self.evicted_weight -= weight
            last = value_of(counter)
            if last > calls:  # counted by the last thread that referred to it
                yield structure, outline, last - calls

    def _new(self, structure: Structure, outline: Outline) -> CachedSide | None:
        with self.lock:
            entry = self._find((structure.number, outline))
            if entry is None and self.evicted_weight < MAX_WAITING_WEIGHT:
                entry = CachedSide(structure, lasting(outline))
                self._entries.keep((structure.number, entry.outline), entry)
            return entry

    def _evict(self, entry: CachedSide) -> None:
        self._evicted.append(entry)
        self.evicted_weight += entry.weight
        guards = entry.guards
        entry.evict()
        if guards is not None and self.latest_call is guards:
            self.latest_call = None
        if guards is not None and self.latest_result is guards:
            self.latest_result = None
        if self.latest_inputs is entry:
            self.latest_inputs = None
