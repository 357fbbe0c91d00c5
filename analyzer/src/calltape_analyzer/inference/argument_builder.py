"""The arguments of one call in the structure of all, with every gap filled.

In come the row of a call, the slots and the alignment. Out go its arguments, as values that a model
takes. Tensors are read from the tape when they are needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from calltape_analyzer.errors import InferenceError
from calltape_analyzer.inference.aligned_slots import AlignedSlot
from calltape_analyzer.inference.alignment import AlignedRow, Alignment
from calltape_analyzer.inference.binding import Argument
from calltape_analyzer.inference.patterns import CallPattern, call_at, place_of
from calltape_analyzer.pytree.caches import set_token_counters
from calltape_analyzer.pytree.description import Description
from calltape_analyzer.pytree.flattening import FlatTree
from calltape_analyzer.pytree.memory import as_before, as_numbers, contiguous
from calltape_analyzer.pytree.memory_limit import check_memory, memory_limit_of
from calltape_analyzer.pytree.placeholder import Placeholder
from calltape_analyzer.pytree.tensors import dtype_of, zeros
from calltape_analyzer.reading.call import Call

__all__ = ["ArgumentBuilder", "detached"]


def detached(tensor: Any) -> Any:
    """A tensor without its gradient's history. A placeholder stays as it is."""
    return tensor.detach() if hasattr(tensor, "detach") else tensor


class ArgumentBuilder:
    """Builds the arguments of one call in the structure of all, with every gap filled.

    Each call of :meth:`build` reads the tensors again, because an export may leave marks on them.

    Args:
        alignment: of all calls.
        slots: of all calls, in flattening order.
        calls: of the tape.
        on_recorded_devices: whether tensors go back to the device that they were on.
        detached: whether tensors are without their gradient's history.
        device: where tensors are put, whatever device they were on.
        is_contiguous: whether tensors are contiguous, however they lay in memory.
    """

    def __init__(
        self,
        alignment: Alignment,
        slots: Sequence[AlignedSlot],
        calls: Sequence[Call],
        *,
        on_recorded_devices: bool = False,
        detached: bool = False,
        device: Any = None,
        is_contiguous: bool = False,
    ) -> None:
        self._alignment = alignment
        self._slots = slots
        self._calls = calls
        self._on_recorded_devices = on_recorded_devices
        self._detached = detached
        self._device = device
        self._is_contiguous = is_contiguous
        self._made: list[tuple[Sequence[int], int]] = []  # what was made contiguous: shape, width

    def tensors(self, row: AlignedRow, call: Call | None) -> list[Any]:
        """The tensors of a row, slot by slot, with every gap filled. None if no call has a tensor
        there."""
        return [self._slot(i, row, call, {}) for i in range(len(row))]

    def present(self, row: AlignedRow, call: Call | None) -> list[Any]:
        """The tensors of a row, slot by slot. None if the call has no tensor there."""
        return [None if row[i] is None else self._slot(i, row, call, {}) for i in range(len(row))]

    def gaps(self, row: AlignedRow) -> list[bool]:
        """For every slot, whether other calls have a tensor there and this one does not."""
        return [
            leaf is None and bool(slot.shapes) for leaf, slot in zip(row, self._slots, strict=True)
        ]

    def build(self, row: AlignedRow, call: Call | None) -> Iterator[Any]:
        """The arguments of a row, in the order of the alignment's keys.

        Args:
            row: of one pattern, or of arguments that the caller gave.
            call: a call of the pattern; None for the caller's arguments.
        """
        shared: dict[int, Any] = {}
        self._made.clear()
        gaps = self.gaps(row)
        start = 0
        for reference, source in self._alignment.references:
            end = start + len(reference.slots)
            leaves = row[start:end]
            whole = self._whole_argument(leaves, any(gaps[start:end]), reference)
            if whole is not None:
                # An argument without tensors in any call comes from the call of the reference.
                is_own = any(leaf is not None for leaf in leaves)
                yield self._recorded(whole, source, call if is_own else None, shared)
            else:
                filled = [self._slot(i, row, call, shared) for i in range(start, end)]
                yield self._filled(reference, source, filled)
            start = end

    def _whole_argument(
        self, leaves: AlignedRow, has_gap: bool, reference: Argument
    ) -> Argument | None:
        """The argument as the call passed it, if it has every tensor and the form of all calls;
        else None."""
        owner = next((leaf.argument for leaf in leaves if leaf is not None), None)
        if owner is None:
            # Constants, and containers that are empty in every call, have no gap to fill.
            return None if has_gap else reference
        return owner if not has_gap and _alike(owner.form, reference.form) else None

    def _recorded(
        self, argument: Argument, source: CallPattern, call: Call | None, shared: dict[int, Any]
    ) -> Any:
        """An argument as a call passed it; as the first call of ``source`` did, if it is None."""
        if argument.given is not None:
            tensors = [self._cloned(tensor) for tensor in argument.given.tensors]
            return _with_tensors(argument.given, dict(enumerate(tensors)))
        if call is None:
            call, shared = call_at(self._calls, place_of(source)), {}
        changes = self._on_recorded_devices or self._detached or self._is_contiguous
        if changes or self._device is not None:
            for slot in argument.slots:
                if slot.leaf is not None and slot.leaf not in shared:
                    shared[slot.leaf] = self._tensor(argument, slot.leaf, call)
        return call.build("inputs", argument.node, shared)

    def _slot(self, i: int, row: AlignedRow, call: Call | None, shared: dict[int, Any]) -> Any:
        found = row[i]
        if found is None:
            return self._filler(self._slots[i], i)
        argument, leaf = found
        if argument.given is not None:
            return self._cloned(argument.given.tensors[leaf])
        assert call is not None
        if leaf not in shared:
            shared[leaf] = self._tensor(argument, leaf, call)
        return shared[leaf]

    def _tensor(self, argument: Argument, leaf: int, call: Call) -> Any:
        if argument.given is not None:
            return self._cloned(argument.given.tensors[leaf])
        import torch

        tensor = call.tensor("inputs", leaf)
        if isinstance(tensor, Placeholder):
            return tensor
        if self._is_contiguous and tensor.layout is torch.strided and not tensor.is_contiguous():
            # The tape has one element of an expanded axis, however long it is.
            self._made.append((tensor.shape, tensor.dtype.itemsize))
            check_memory(memory_limit_of(call.tape_bytes), self._made, "contiguous arguments")
            tensor = contiguous(tensor)
        if self._detached:
            tensor = tensor.detach()
        if self._device is not None:
            return tensor.to(self._device)
        device = call.record.inputs.facts()[leaf].device
        return tensor.to(device) if self._on_recorded_devices and device != "cpu" else tensor

    def _cloned(self, tensor: Any) -> Any:
        made = as_before(as_numbers(tensor.detach()).clone(), tensor)
        return made if self._device is None else made.to(self._device)

    def _filler(self, slot: AlignedSlot, i: int) -> Any:
        """The tensor that fills a gap, as in ``torch.onnx.InputObserver``.

        It has the shape of the last tensor in this slot, with size 0 on the last dynamic axis. If
        no axis is dynamic, it is zeros of the whole shape. If the last tensor is empty, it is that
        tensor.
        """
        if slot.last is None:
            return None
        place, pattern, shape = slot.last
        found = self._alignment.row(pattern)[i]
        if found is None:
            raise InferenceError(f"There is no tensor for {slot} in any call")
        if 0 in shape:
            return self._tensor(*found, call_at(self._calls, place))
        axes = slot.dynamic_axes()
        sizes = tuple(0 if axes and axis == axes[-1] else size for axis, size in enumerate(shape))
        argument, leaf = found
        facts = None if argument.given is not None else pattern.facts[leaf]
        recorded = facts.device if self._on_recorded_devices and facts is not None else "cpu"
        dtype = dtype_of(pattern.dtype(argument, leaf))
        limit = memory_limit_of(call_at(self._calls, place).tape_bytes)
        check_memory(limit, [(sizes, dtype.itemsize)], str(slot))
        return zeros(sizes, dtype, recorded if self._device is None else self._device)

    def _filled(self, reference: Argument, source: CallPattern, filled: Sequence[Any]) -> Any:
        """The structure of the reference with other tensors."""
        tensors = {
            slot.leaf: tensor
            for slot, tensor in zip(reference.slots, filled, strict=True)
            if slot.leaf is not None
        }
        if reference.given is not None:
            return _with_tensors(reference.given, tensors)
        made = call_at(self._calls, place_of(source)).build("inputs", reference.node, tensors)
        set_token_counters(made)
        return made


def _alike(one: FlatTree, other: FlatTree) -> bool:
    """Whether two forms nest in the same way. Keys of a dict may stand in any order."""
    if one.kind != other.kind or len(one.children) != len(other.children):
        return False
    if one.kind == "dict":
        if set(one.keys) != set(other.keys):
            return False
        children = dict(zip(one.keys, one.children, strict=True))
        return all(
            _alike(children[key], child)
            for key, child in zip(other.keys, other.children, strict=True)
        )
    return all(_alike(a, b) for a, b in zip(one.children, other.children, strict=True))


def _with_tensors(description: Description, tensors: Mapping[int, Any]) -> Any:
    """A value of the caller with other tensors."""
    import torch
    from torch.utils import _pytree as pytree

    replaced = {id(old): tensors.get(i, old) for i, old in enumerate(description.tensors)}
    return pytree.tree_map_only(
        torch.Tensor, lambda tensor: replaced.get(id(tensor), tensor), description.value
    )
