"""Makes the sides of a call from its arguments and its result.

A side that looks like an earlier one takes fewer steps: the cache recognizes its tensors, so their
facts are not read again. All of this runs in the application's thread, within its call.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from calltape_recorder.bounds import QUEUED_CALL_BYTES
from calltape_recorder.capture.contexts import Traced, function_modes, is_tracing
from calltape_recorder.capture.names import ModuleNames
from calltape_recorder.capture.structures import Structure, Structures
from calltape_recorder.capture.walk import Walked, capture_inputs, capture_output
from calltape_recorder.snapshot.call import Call
from calltape_recorder.snapshot.copies import copy_leaves
from calltape_recorder.snapshot.device_copies import HostMemory
from calltape_recorder.snapshot.earlier_copies import FEWEST_BYTES, EarlierCopies, QueueMemory
from calltape_recorder.snapshot.facts import data_ptr
from calltape_recorder.snapshot.side import Outline, Side, outline_of, with_ints
from calltape_recorder.snapshot.side_cache import CachedSide, SideCache, SideGuards
from calltape_recorder.snapshot.side_facts import SideFacts, read_facts

_SCALAR_BYTES = 64  # about what a captured Python value takes, which counts for the bound, too
_OF_STRUCTURE = 2  # about what a structure takes, as a multiple of its bytes on the tape
_NO_SCALARS: list[Any] = []
_Tensor = torch.Tensor
_make = tuple.__new__  # makes a named tuple faster than its class does


class QueueFull(Exception):  # noqa: N818 - a signal between functions, not an error
    """The call does not fit into the memory that the queue may use."""


class CapturedSide(NamedTuple):
    """One side of a call as the walk found it, before anything is copied.

    Attributes:
        structure: of the side.
        leaves: its tensors and arrays.
        scalars: those of its scalars that may be on the tape.
        sizes: the outline of its leaves, without scalars.
        cached: the entry of the cache for sides with the same structure, dtypes and shapes.
        guards: the guards that have recognized the leaves; None if none have.
    """

    structure: Structure
    leaves: list[Any]
    scalars: list[Any]
    sizes: Outline
    cached: CachedSide | None
    guards: SideGuards | None = None

    @property
    def outline(self) -> Outline:
        """See :data:`Outline`."""
        return with_ints(self.sizes, self.structure.numbers(self.scalars))


def recognized(guards: SideGuards, leaves: list[Any]) -> CapturedSide:
    """The side of these leaves, which the guards have recognized."""
    cached = guards.cached
    return _make(
        CapturedSide, (cached.structure, leaves, _NO_SCALARS, cached.outline, cached, guards)
    )


class Snapshots:
    """Makes the sides of one recording. Any thread may use it.

    Args:
        memory: of the queue.
        buffers: lends the memory of large copies.
        structures: builds and remembers structures.

    Attributes:
        structures: as given. Another one takes its place when recording begins.
        module_names: the names of the recorded model's parts.
        cache: recognizes sides.
        earlier: tensors that a later call may have again.
    """

    def __init__(
        self, memory: QueueMemory, buffers: HostMemory, structures: Structures,
        module_names: ModuleNames,
    ) -> None:  # fmt: skip
        self._memory = memory
        self._buffers = buffers
        self.structures = structures
        self.module_names = module_names
        self.cache = SideCache()
        self.earlier = EarlierCopies(buffers, memory)

    def inputs(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_training: bool
    ) -> CapturedSide:
        """The inputs of a call.

        Raises:
            Traced: the call does not run the model.
        """
        if is_tracing():
            raise Traced
        if function_modes():
            # A mode such as `with torch.device(...)` intercepts even the read of a shape. Without
            # one, functions that the application registered for its classes run as elsewhere.
            with torch._C.DisableTorchFunction():
                return self.captured(
                    capture_inputs(args, kwargs, self.module_names, is_training=is_training)
                )
        side = self.captured(
            capture_inputs(args, kwargs, self.module_names, is_training=is_training)
        )
        cached, leaves, cache = side.cached, side.leaves, self.cache
        is_consecutive, cache.latest_inputs = cached is cache.latest_inputs, cached
        is_flat = len(leaves) == len(args) + len(kwargs) and not side.scalars
        if cached is None or not leaves or not is_flat:
            return side
        guards = cached.guards
        if guards is not None and not guards.recognizes(leaves, is_consecutive=is_consecutive):
            guards = None
        if guards is None and cached.came_before():
            facts = self._facts_of(side.structure, leaves)
            guards = cached.learn(leaves, facts, is_consecutive=is_consecutive)
        if guards is not None and guards.learn_call(args, kwargs, leaves, is_training=is_training):
            cache.latest_call = guards
        return side._replace(guards=guards)  # so that the leaves are not compared once more

    def captured(self, walked: Walked, *, is_chunk: bool = False) -> CapturedSide:
        """A side that a walk went over. What is omitted from chunks is decided later, when they are
        one list."""
        tokens, leaves, scalars = walked
        structure = self.structures.of(tokens)
        sizes = outline_of(leaves)
        cached = self.cache.of(structure, sizes)
        if scalars and not is_chunk:
            scalars = structure.kept(scalars)
        return _make(CapturedSide, (structure, leaves, scalars, sizes, cached, None))

    def output(self, call: Call, result: Any) -> Side:
        """The outputs of a call.

        Raises:
            QueueFull: the bytes do not fit into the memory that the queue may use.
        """
        walked = capture_output(result)
        with torch._C.DisableTorchFunction():
            side = self.captured(walked)
            copy = self.copy(call, side)
        # A tensor with attributes of its own has another structure.
        if type(result) is _Tensor and not result.__dict__ and side.cached is not None:
            guards = side.cached.guards
            if guards is not None and guards.facts is copy.facts:
                self.cache.latest_result = guards
        return copy

    def copy(self, call: Call, side: CapturedSide) -> Side:
        """The copy of one side.

        Raises:
            QueueFull: the bytes do not fit into the memory that the queue may use.
        """
        structure, leaves, scalars, _, cached, guards = side
        if not structure.is_paid:
            self.pay(call, structure)
        if cached is not None and not leaves and not scalars:
            return cached.side_without_leaves()
        if guards is None and cached is not None:
            guards = cached.guards
            if guards is not None and not guards.accept(leaves):
                guards = None
        if guards is not None and guards.accept_memory(leaves):
            facts = guards.facts
            if guards.template is not None and not facts.nbytes and not scalars:
                return guards.template
        else:
            facts = self._facts_of(structure, leaves)
            guards = cached.learn(leaves, facts) if leaves and cached is not None else None
        nbytes = facts.nbytes
        if scalars:
            nbytes += _SCALAR_BYTES * len(scalars)
            nbytes += sum([len(value) for value in scalars if type(value) in (str, bytes)])
        if nbytes and not self._memory.reserve(call, nbytes):
            self._make_room(call, nbytes)
        if facts.nbytes >= FEWEST_BYTES and structure.wanted:
            # What an earlier call has is not copied again. Its bytes count for this call too,
            # because it may be the last one that holds them.
            earlier = self.earlier.find(leaves, facts)
            copies = copy_leaves(leaves, facts, self._buffers, earlier)
            origins = self.earlier.keep(leaves, facts, copies, earlier)
            return Side(structure, scalars, facts, copies, origins=origins)
        if guards is not None and guards.template is not None:
            # There are few bytes, so they are joined, by the ctypes array of each leaf.
            pairs = zip(guards.arrays, leaves, strict=True)
            joined = b"".join(
                [array.from_address(data_ptr(leaf)) for array, leaf in pairs if array]
            )
            template = None if scalars else guards.template
            return Side(structure, scalars, facts, joined=joined, template=template)
        return Side(structure, scalars, facts, copy_leaves(leaves, facts, self._buffers))

    def pay(self, call: Call, structure: Structure) -> None:
        """Reserves memory for a structure that the call may be the first to have. Waiting calls
        share it; when this call is written, other bounds apply to the remembered structures.

        Raises:
            QueueFull: there is no memory left.
        """
        nbytes = _OF_STRUCTURE * len(structure.encoded) - QUEUED_CALL_BYTES
        if nbytes > 0 and not structure.is_paid and not self._memory.reserve(call, nbytes):
            self._make_room(call, nbytes)
        structure.is_paid = True

    def _make_room(self, call: Call, nbytes: int) -> None:
        """Reserves memory for a call in the place of copies of earlier calls."""
        self.earlier.clear()
        if not self._memory.reserve(call, nbytes):
            raise QueueFull

    def _facts_of(self, structure: Structure, leaves: list[Any]) -> SideFacts:
        facts = read_facts(leaves, structure.wanted, structure.latest_facts)
        structure.latest_facts = facts.per_leaf
        return facts
