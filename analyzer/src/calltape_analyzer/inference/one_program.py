"""The tape as one program: dynamic shapes and representative arguments that hold for all calls.

In come the recorded calls. Out go one answer for all of them, or an error that says which two calls
cannot be calls of one program. The contract is that of ``torch.onnx.InputObserver`` (torch 2.15)
and of its sibling in yobx: the same calls give the same shapes and arguments. There is an
answer here for some calls that the peers refuse, or answer with a form that ``torch.export``
refuses (docs/decisions/variants-and-shapes.md).

Nothing here needs torch until a torch object is returned, and no tensor byte is read until an
argument is.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from calltape_analyzer.errors import InferenceError, UsageError
from calltape_analyzer.inference.aligned_calls import AlignedCalls
from calltape_analyzer.inference.aligned_slots import slots_by_argument
from calltape_analyzer.inference.alignment import AlignedRow, Alignment
from calltape_analyzer.inference.argument_builder import ArgumentBuilder, detached
from calltape_analyzer.inference.argument_form import as_one
from calltape_analyzer.inference.binding import bind_given
from calltape_analyzer.inference.findings import ShapeFindings
from calltape_analyzer.inference.named_tuples import NamedTuples
from calltape_analyzer.inference.patterns import CallPattern, CallPatterns, call_at, place_of
from calltape_analyzer.limits import Worth, bounded
from calltape_analyzer.observing.declarations import BatchFor, DimNames, check_arguments
from calltape_analyzer.observing.evidence import counters_of_evidence
from calltape_analyzer.observing.signature import Key, Signature
from calltape_analyzer.observing.traffic_counters import TrafficCounters
from calltape_analyzer.pytree.placeholder import check_rebuilt
from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.calls import Calls
from calltape_analyzer.text import counted
from calltape_schema.records import Target

__all__ = ["OneProgram"]

_NO_CALLS = "No inputs were captured"


class OneProgram:
    """The calls of one model, as calls of one program.

    Args:
        target: what was recorded. If it is None, all arguments are taken for those of ``*args`` and
            ``**kwargs``.
        calls: the recorded calls, in order.
        value_if_missing: values for arguments that some calls leave out, by parameter name. They
            count as if they had been passed. A value for a position replaces the argument at this
            position of every call.
        bind_keywords: whether a parameter may be passed by position in one call and by keyword in
            another. ``torch.onnx.InputObserver`` refuses that.
        on_recorded_devices: whether tensors are put on the device that they were on. If not, they
            are on the CPU.
        like_observer: whether to do what else ``torch.onnx.InputObserver`` does. Tensors are
            detached. Calls that raised are evidence if they fit the others. Names of a given dict
            that the calls do not have are left out. A cache that was passed empty is like one that
            was not passed.
        counters: gives the traffic counters, if the tape has any.
        damaged: tells in how many places the tape was found damaged.
    """

    def __init__(
        self,
        target: Target | None,
        calls: Sequence[Call],
        value_if_missing: Mapping[Key, Any] | None = None,
        *,
        bind_keywords: bool = True,
        on_recorded_devices: bool = False,
        like_observer: bool = False,
        counters: Callable[[], TrafficCounters] | None = None,
        damaged: Callable[[], int] = lambda: 0,
    ) -> None:
        self._damaged = damaged
        self._calls = calls
        self._counters = counters
        self._signature = Signature.of(target)
        self._value_if_missing = dict(value_if_missing or {})
        self._bind_keywords = bind_keywords
        self._on_recorded_devices = on_recorded_devices
        self._like_observer = like_observer
        self._aligned: AlignedCalls | None = None
        self._registrations: object = None
        self._bound: tuple[object, CallPatterns] | None = None

    @property
    def _worth(self) -> Worth | None:
        return getattr(self._calls, "_worth", None)  # none of calls that are on no tape

    @bounded()
    def check(self) -> None:
        """Binds all calls. They need not be calls of one program.

        Raises:
            UsageError, UnsupportedError, KeyTypeError: ``value_if_missing`` does not fit them.
        """
        CallPatterns(self._calls, self._signature, self._value_if_missing)

    @bounded()
    def findings(
        self, set_batch_dimension_for: BatchFor = None, dim_names: DimNames = None
    ) -> ShapeFindings:
        """The dynamic dimensions with their evidence, as plain data.

        Args:
            set_batch_dimension_for: names or positions of arguments whose dimension 0 is declared
                dynamic although it never varied; True for all.
            dim_names: True for readable names, which dimensions share that were always equal; or
                the names, as ``{argument: {axis: name}}`` (an argument by name or position).

        Raises:
            InferenceError: there are no calls, or they cannot be calls of one program. The message
                says which two calls differ, and in what.
            UsageError: the parameters are not names and positions, or name an argument that does
                not exist.
        """
        found = self.aligned_calls()
        return found.findings(set_batch_dimension_for, dim_names, self._counters_for(found))

    def _counters_for(self, found: AlignedCalls) -> TrafficCounters | None:
        calls, counters = self._calls, self._counters and self._counters()
        if counters and isinstance(calls, Calls):
            return counters_of_evidence(counters, calls, found.reduced.left_out)
        return counters

    @bounded()
    def dynamic_shapes(
        self,
        set_batch_dimension_for: BatchFor = None,
        dim_names: DimNames = None,
        *,
        dim: Literal["auto", "dynamic"] = "dynamic",
    ) -> tuple[Any, ...] | dict[str, Any]:
        """What ``torch.export.export(dynamic_shapes=...)`` takes.

        Args:
            set_batch_dimension_for, dim_names: as for :meth:`findings`.
            dim: whether ``Dim.AUTO`` or ``Dim.DYNAMIC`` stands for a dimension without a name.

        Returns:
            A tuple if all arguments are positional, else a dict in the order of the signature. A
            tensor is ``{axis: torch.export.Dim.DYNAMIC}``, or ``{axis: name}`` with
            ``dim_names``; a constant is None.

        Raises:
            InferenceError: as :meth:`findings`.
        """
        from calltape_analyzer.inference.dynamic_shapes import dynamic_shapes

        findings = self.findings(set_batch_dimension_for, dim_names)
        # Made when it is needed, because it walks all structures and most have no named tuple.
        known: list[NamedTuples] = []

        def class_of(type_name: str) -> type | None:
            if not known:
                known.append(NamedTuples(self._calls, self.aligned_calls().patterns))
            return known[0].class_of(type_name)

        return dynamic_shapes(findings, class_of, dim)

    @bounded()
    def arguments(
        self,
        index: int | tuple[Any, ...] | Mapping[str, Any] | None = None,
        *,
        flat: bool = False,
        as_args_kwargs: bool = False,
        device: Any = None,
        is_contiguous: bool = False,
    ) -> Any:
        """Representative arguments, or those of one call, completed.

        A tensor that other calls have and this one does not is filled in: with
        ``value_if_missing``, else with a tensor of the last recorded shape whose last dynamic
        dimension is 0. If no dimension is dynamic, it is zeros of the whole shape.

        Args:
            index: None for the representative call; the position of a call; or arguments of the
                caller, a tuple or a dict, that are to be completed.
            flat: whether to return a list of tensors in flattening order.
            as_args_kwargs: whether to return ``(args, kwargs)`` in any case.
            device: where the tensors are made, instead of the CPU or their recorded device.
            is_contiguous: whether tensors are contiguous, however they lay in memory.

        Returns:
            A tuple if all arguments are positional, else a dict by name.

        Raises:
            InferenceError: as :meth:`findings`; or there is no such call; or the method has
                ``*args``, and only ``as_args_kwargs=True`` can hold them; or an argument holds an
                object of a class that is not known here.
            UsageError: ``index`` is something else.
        """
        found = self.aligned_calls()
        row, call = self._asked_for(found, index)
        builder = self._builder(found, device, is_contiguous=is_contiguous)
        if flat:
            tensors = builder.tensors(row, call)
            names_of_slots = (slot.name for slot in found.slots)
            check_rebuilt(zip(names_of_slots, tensors, strict=True), self._signature.may_lack)
            return tensors
        values = list(builder.build(row, call))
        keys = found.alignment.keys
        names = map(self._signature.name_of, keys)
        check_rebuilt(zip(names, values, strict=True), self._signature.may_lack)
        args = tuple(v for key, v in zip(keys, values, strict=True) if isinstance(key, int))
        kwargs = {k: v for k, v in zip(keys, values, strict=True) if isinstance(k, str)}
        kwargs = self._in_order({**kwargs, **dict(found.alignment.best.constants)})
        return (args, kwargs) if as_args_kwargs else as_one(args, kwargs, self._signature)

    @bounded()
    def call_tensors(self, index: int) -> list[tuple[str, str, Any, bool]]:
        """The flattened, completed arguments of one call, to pass them to a program by name.

        Returns:
            Per tensor the name of its argument, its path below the argument, the tensor, and
            whether it was missing.

        Raises:
            InferenceError: as :meth:`arguments`.
        """
        found = self.aligned_calls()
        row, call = self._asked_for(found, index)
        builder = self._builder(found)
        return [
            (slot.name, slot.path, tensor, gap)
            for slot, tensor, gap in zip(
                found.slots, builder.tensors(row, call), builder.gaps(row), strict=True
            )
            if tensor is not None
        ]

    @bounded()
    def aligned(self, index: int) -> list[Any]:
        """The tensors of one call in the order of all calls. None if this call has no tensor there.

        Raises:
            InferenceError: as :meth:`arguments`.
        """
        found = self.aligned_calls()
        row, call = self._asked_for(found, index)
        return self._builder(found).present(row, call)

    @bounded()
    def as_passed(self, index: int) -> tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]:
        """The arguments of one call with ``value_if_missing`` and nothing else filled in. Tensors
        are detached.

        Returns:
            The positional arguments, those by keyword, and the constants that were passed by
            keyword.
        """
        call = self._calls[index]
        pattern = self._bindings().pattern(call.seen(index))
        recorded = [slot for a in pattern.bound.all if a.given is None for slot in a.slots]
        shared = {
            slot.leaf: detached(call.tensor("inputs", slot.leaf))
            for slot in recorded
            if slot.leaf is not None
        }
        built = [
            call.build("inputs", argument.node, shared)
            if argument.given is None
            else argument.given.value
            for argument in pattern.bound.all
        ]
        positional = len(pattern.bound.args)
        kwargs = dict(zip(pattern.bound.kwargs, built[positional:], strict=True))
        return tuple(built[:positional]), kwargs, dict(pattern.constants)

    @bounded()
    def remove_inputs(self, names: Sequence[Key]) -> int:
        """Leaves parameters out of everything that is inferred from here on.

        Args:
            names: parameter names or positions.

        Returns:
            How many arguments of calls are left out by this; 0 if no call passes these names.

        Raises:
            UsageError: ``names`` has ``*args`` or ``**kwargs`` as a whole, or is no list of names
                and positions.
        """
        check_arguments("remove_inputs", names)
        signature = self._signature
        variadic = signature.variadic_positional
        removed: set[str] = set()
        for name in names:
            is_positional = variadic is not None and (name in variadic)
            if is_positional or name == signature.variadic_keyword:
                raise UsageError(
                    f"Cannot remove variadic {name!r}", advice="name the arguments in it"
                )
            removed.add(signature.name_of(name))
        count = self._count(removed)
        self._signature = signature.without(frozenset(removed))
        self._aligned = self._bound = None
        return count

    def _count(self, names: set[str]) -> int:
        seen = CallPatterns(self._calls, self._signature, {})
        count = 0
        for pattern in seen.patterns:
            passed = [self._signature.name_of(a.key) for a in pattern.bound.all]
            passed += [name for name, _ in pattern.constants]
            count += pattern.calls * sum(name in names for name in passed)
        return count

    @bounded()
    def aligned_calls(self) -> AlignedCalls:
        """Everything that follows from the calls alone, kept until something changes.

        Raises:
            InferenceError: as :meth:`findings`.
        """
        # What a class flattens to may change with what is registered with torch in this process.
        registrations = _registrations()
        if self._aligned is None or registrations != self._registrations:
            self._aligned = self._align()
            self._registrations = registrations
        return self._aligned

    def _align(self) -> AlignedCalls:
        seen = self._bindings()
        if self._like_observer and seen.left_out:
            # To the peer calls that raised are evidence. It refuses if one does not fit the others.
            with contextlib.suppress(InferenceError):
                return self._aligned_with(self._patterns(with_raised=True))
        return self._aligned_with(seen)

    def _aligned_with(self, seen: CallPatterns) -> AlignedCalls:
        patterns = seen.patterns
        if not patterns and (places := self._damaged()):
            reason = f"no call is usable: the tape is corrupted in {counted(places, 'place')}"
            raise InferenceError(reason, advice="run calltape info to see where")
        if not patterns:
            raise InferenceError(_NO_CALLS, advice="record at least one call of the model")
        alignment = Alignment.of(patterns, self._signature, bind_keywords=self._bind_keywords)
        slots = slots_by_argument(alignment, patterns, self._signature)
        return AlignedCalls(
            self._calls, self._signature, seen, patterns, alignment, slots, self._like_observer
        )

    def _bindings(self) -> CallPatterns:
        """The calls, bound once and kept until something changes."""
        registrations = _registrations()
        if self._bound is None or registrations != self._bound[0]:
            self._bound = registrations, self._patterns()
        return self._bound[1]

    def _patterns(self, with_raised: bool = False) -> CallPatterns:
        given = {
            k: v for k, v in self._value_if_missing.items() if k not in self._signature.removed
        }
        return CallPatterns(self._calls, self._signature, given, with_raised=with_raised)

    def _builder(
        self, found: AlignedCalls, device: Any = None, *, is_contiguous: bool = False
    ) -> ArgumentBuilder:
        return ArgumentBuilder(
            found.alignment,
            found.slots,
            self._calls,
            on_recorded_devices=self._on_recorded_devices,
            detached=self._like_observer,
            device=device,
            is_contiguous=is_contiguous,
        )

    def _asked_for(self, found: AlignedCalls, index: Any) -> tuple[AlignedRow, Call | None]:
        if index is None:
            pattern = found.representative()
            return found.alignment.row(pattern), call_at(self._calls, place_of(pattern))
        if isinstance(index, int) and not isinstance(index, bool):
            if not -len(self._calls) <= index < len(self._calls):
                raise InferenceError(
                    f"No stored input set for index {index}: there are {len(self._calls)} calls",
                    advice="count from 0",
                )
            call = self._calls[index]
            pattern = found.reduced.pattern(call.seen(index))
            found.alignment.check(pattern)
            return found.alignment.row(pattern), call
        if not isinstance(index, tuple | Mapping):
            raise UsageError(
                f"Unexpected type {type(index)} for the arguments to complete",
                advice="give a position, a tuple of arguments or a dict of them",
            )
        # The peer leaves out names of a dict that the calls do not have.
        known = found.alignment.names if self._like_observer else None
        pattern = CallPattern(bind_given(index, known), (), ())
        found.alignment.check_structure(pattern)
        return found.alignment.row(pattern), None

    def _in_order(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        order = {name: i for i, name in enumerate(self._signature.names)}
        return dict(sorted(kwargs.items(), key=lambda item: order.get(item[0], len(order))))


def _registrations() -> object:
    pytree = sys.modules.get("torch.utils._pytree")
    nodes: Mapping[Any, Any] = getattr(pytree, "SUPPORTED_NODES", {})
    known = dict(nodes)  # another thread may register one meanwhile
    return frozenset(zip(known, map(id, known.values()), strict=True))
