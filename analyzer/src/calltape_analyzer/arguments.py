"""Representative arguments: which call stands for all, and what fills its gaps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from calltape_analyzer.alignment import Alignment, Row
from calltape_analyzer.allowance import check_room, room_of
from calltape_analyzer.binding import Argument
from calltape_analyzer.call import Call
from calltape_analyzer.describing import Description
from calltape_analyzer.dims import Track
from calltape_analyzer.errors import InferenceError
from calltape_analyzer.flattening import Form
from calltape_analyzer.patterns import Pattern
from calltape_analyzer.placeholder import Placeholder
from calltape_analyzer.tensors import dtype_of, zeros

__all__ = ["ArgumentBuilder", "check_rebuilt", "detached", "representative", "specialized"]


def representative(
    alignment: Alignment,
    patterns: Sequence[Pattern],
    dynamic: Sequence[Sequence[int]],
) -> Pattern:
    """The pattern whose first call stands for all.

    The rule of ``torch.onnx.InputObserver``: the first call that passes as many arguments, by
    position and by keyword, as the one with the most tensors. Where an argument was passed before
    it had its tensors (a prepared, empty cache; the peer refuses), it is instead the first call
    of those that have every tensor with the fewest dynamic sizes of 0 and 1, because torch.export
    specializes these.
    """
    if alignment.has_late:
        complete = [p for p in patterns if None not in alignment.needed(p)]
        if complete:
            return min(complete, key=lambda p: len(specialized(p, alignment.row(p), dynamic)))
    best = alignment.best.bound
    for pattern in patterns:
        bound = pattern.bound
        if len(bound.args) == len(best.args) and len(bound.kwargs) == len(best.kwargs):
            return pattern
    return alignment.best


def specialized(
    pattern: Pattern, row: Row, dynamic: Sequence[Sequence[int]]
) -> list[tuple[int, int, int]]:
    """The dynamic axes on which a pattern has size 0 or 1, as (slot, axis, size)."""
    return [
        (slot, axis, pattern.shape(*cell)[axis])
        for slot, (cell, axes) in enumerate(zip(row, dynamic, strict=True))
        if cell is not None
        for axis in axes
        if pattern.shape(*cell)[axis] < 2
    ]


def detached(tensor: Any) -> Any:
    """A tensor without its gradient's history; what stands for one as it is."""
    return tensor.detach() if hasattr(tensor, "detach") else tensor


class ArgumentBuilder:
    """Builds the arguments of one call in the structure of all, with every gap filled.

    Tensors are read from the tape when they are needed, anew for every call of :meth:`build`: an
    export may leave marks on what it is given.
    """

    def __init__(
        self,
        alignment: Alignment,
        tracks: Sequence[Track],
        calls: Sequence[Call],
        *,
        on_recorded_devices: bool = False,
        detached: bool = False,
    ) -> None:
        self._alignment = alignment
        self._tracks = tracks
        self._calls = calls
        self._on_recorded_devices = on_recorded_devices
        self._detached = detached

    def tensors(self, row: Row, call: Call | None) -> list[Any]:
        """The tensors of a row, slot by slot, None where no call has one."""
        return [self._slot(i, row, call, {}) for i in range(len(row))]

    def present(self, row: Row, call: Call | None) -> list[Any]:
        """The tensors of a row, slot by slot, None where the call has none."""
        return [None if row[i] is None else self._slot(i, row, call, {}) for i in range(len(row))]

    def gaps(self, row: Row) -> list[bool]:
        """For every slot, whether a tensor is missing that other calls have."""
        return [
            cell is None and bool(track.shapes)
            for cell, track in zip(row, self._tracks, strict=True)
        ]

    def build(self, row: Row, call: Call | None) -> Iterator[Any]:
        """The arguments of a row, in the order of the alignment's keys.

        Args:
            row: of one pattern, or of arguments that the caller gave.
            call: a call of the pattern; None for the caller's arguments.
        """
        shared: dict[int, Any] = {}
        gaps = self.gaps(row)
        start = 0
        for reference, source in self._alignment.references:
            end = start + len(reference.slots)
            cells = row[start:end]
            whole = self._whole_argument(cells, any(gaps[start:end]), reference)
            if whole is not None:
                # What no call has a tensor in comes from the call that the reference is of.
                is_own = any(cell is not None for cell in cells)
                yield self._recorded(whole, source, call if is_own else None, shared)
            else:
                filled = [self._slot(i, row, call, shared) for i in range(start, end)]
                yield self._filled(reference, source, filled)
            start = end

    def _whole_argument(self, cells: Row, has_gap: bool, reference: Argument) -> Argument | None:
        """The argument as the call passed it, where it has every tensor and the form of all."""
        owner = next((cell[0] for cell in cells if cell is not None), None)
        if owner is None:
            # Nothing to fill either: constants, and containers that are empty in every call.
            return None if has_gap else reference
        return owner if not has_gap and _alike(owner.form, reference.form) else None

    def _recorded(
        self, argument: Argument, source: Pattern, call: Call | None, shared: dict[int, Any]
    ) -> Any:
        """An argument as a call passed it; of the first call of ``source`` for None."""
        if argument.given is not None:
            tensors = [tensor.detach().clone() for tensor in argument.given.tensors]
            return _with_tensors(argument.given, dict(enumerate(tensors)))
        if call is None:
            call, shared = self._calls[source.first], {}
        if self._on_recorded_devices or self._detached:
            for slot in argument.slots:
                if slot.leaf is not None and slot.leaf not in shared:
                    shared[slot.leaf] = self._tensor(argument, slot.leaf, call)
        return call.build("inputs", argument.node, shared)

    def _slot(self, i: int, row: Row, call: Call | None, shared: dict[int, Any]) -> Any:
        cell = row[i]
        if cell is None:
            return self._filler(self._tracks[i], i)
        argument, leaf = cell
        if argument.given is not None:
            return argument.given.tensors[leaf].detach().clone()
        assert call is not None
        if leaf not in shared:
            shared[leaf] = self._tensor(argument, leaf, call)
        return shared[leaf]

    def _tensor(self, argument: Argument, leaf: int, call: Call) -> Any:
        if argument.given is not None:
            return argument.given.tensors[leaf].detach().clone()
        tensor = call.tensor("inputs", leaf)
        if isinstance(tensor, Placeholder):
            return tensor
        if self._detached:
            tensor = tensor.detach()
        device = call.record.inputs.facts()[leaf].device
        return tensor.to(device) if self._on_recorded_devices and device != "cpu" else tensor

    def _filler(self, track: Track, i: int) -> Any:
        """The tensor that stands for one which a call does not have.

        As in ``torch.onnx.InputObserver``: of the shape that it had last, with size 0 on the last
        dynamic axis; zeros where no axis is dynamic; the last tensor itself where that is empty.
        """
        if track.last is None:
            return None
        position, pattern, shape = track.last
        cell = self._alignment.row(pattern)[i]
        if cell is None:
            raise InferenceError(f"There is no tensor for {track.name}{track.path} in any call")
        if 0 in shape:
            return self._tensor(*cell, self._calls[position])
        axes = track.varied()
        sizes = tuple(0 if axes and axis == axes[-1] else size for axis, size in enumerate(shape))
        argument, leaf = cell
        facts = None if argument.given is not None else pattern.facts[leaf]
        moved = self._on_recorded_devices and facts is not None
        dtype = dtype_of(pattern.dtype(argument, leaf))
        room = room_of(self._calls[position].tape_bytes)
        check_room(room, [(sizes, dtype.itemsize)], f"{track.name}{track.path}")
        return zeros(sizes, dtype, facts.device if moved and facts is not None else "cpu")

    def _filled(self, reference: Argument, source: Pattern, filled: Sequence[Any]) -> Any:
        """The reference's structure around other tensors."""
        tensors = {
            slot.leaf: tensor
            for slot, tensor in zip(reference.slots, filled, strict=True)
            if slot.leaf is not None
        }
        if reference.given is not None:
            return _with_tensors(reference.given, tensors)
        made = self._calls[source.first].build("inputs", reference.node, tensors)
        _reset_counters(made)
        return made


def check_rebuilt(name: str, value: Any) -> None:
    """Raises InferenceError where an argument holds what stands for an object: a model cannot use
    that, and fails far from here."""
    found = _placeholder_in(value, set())
    if found is None:
        return
    if found.reason.startswith("class not "):
        advice = (
            f"pass open_tape(path, classes=[{found.type_name.rpartition(':')[2]}]), and for export "
            f"register_flattening_functions(tape=tape)"
        )
    else:
        advice = f"leave it out with Tape.remove_inputs([{name!r}])"
    raise InferenceError(
        f"{name} holds a {found.type_name}, which was not rebuilt ({found.reason})", advice=advice
    )


def _placeholder_in(value: Any, seen: set[int]) -> Placeholder | None:
    if isinstance(value, Placeholder):
        return value
    if isinstance(value, type) or hasattr(value, "untyped_storage") or id(value) in seen:
        return None
    seen.add(id(value))
    parts: list[Any] = list(value) if isinstance(value, list | tuple | set | frozenset) else []
    if isinstance(value, Mapping):
        parts += value.values()
    parts += getattr(value, "__dict__", {}).values()
    return next((f for part in parts if (f := _placeholder_in(part, seen)) is not None), None)


def _reset_counters(cache: Any) -> None:
    """A cache layer that was filled with no tokens has counted none. Its state is that of the call
    which shows the structure, and a sliding-window layer masks by its counter."""
    for layer in getattr(cache, "layers", ()):
        shape: tuple[int, ...] = getattr(getattr(layer, "keys", None), "shape", ())
        is_counting = type(getattr(layer, "cumulative_length", None)) is int
        if is_counting and len(shape) > 1 and shape[-2] == 0:
            layer.cumulative_length = 0
    for part in ("self_attention_cache", "cross_attention_cache"):
        if hasattr(cache, part):
            _reset_counters(getattr(cache, part))


def _alike(one: Form, other: Form) -> bool:
    """Whether two forms nest in the same way, the order of dict keys aside."""
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
    """The caller's value with other tensors in it."""
    import torch
    from torch.utils import _pytree as pytree

    replaced = {id(old): tensors.get(i, old) for i, old in enumerate(description.tensors)}
    return pytree.tree_map_only(
        torch.Tensor, lambda tensor: replaced.get(id(tensor), tensor), description.value
    )
