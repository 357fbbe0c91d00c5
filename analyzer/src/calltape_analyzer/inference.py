"""From recorded calls to one answer: dynamic shapes and representative arguments.

The contract is that of ``torch.onnx.InputObserver`` (torch 2.15) and its sibling in yobx: the same
calls give the same shapes and arguments. Where the peers refuse or answer in a form that
``torch.export`` refuses, this answers; ``docs/decisions/`` says where and why.

Nothing here needs torch until a torch object is returned, and no tensor byte is read until an
argument is.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from calltape_analyzer.alignment import Alignment, Row
from calltape_analyzer.arguments import ArgumentBuilder, check_rebuilt, detached
from calltape_analyzer.binding import Argument, Bound, Key, Signature, given_argument
from calltape_analyzer.call import Call, Calls
from calltape_analyzer.dims import BatchFor, DimNames, check_names, tracks_of
from calltape_analyzer.errors import InferenceError, UsageError
from calltape_analyzer.evidence import Evidence
from calltape_analyzer.explanation import counted
from calltape_analyzer.findings import ShapeFindings
from calltape_analyzer.named_tuples import NamedTuples
from calltape_analyzer.patterns import Pattern, Patterns
from calltape_analyzer.traffic_counters import Counters
from calltape_schema.records import Target

__all__ = ["Inference"]

_NO_CALLS = "No inputs were captured"


class Inference:
    """What the calls of one model say together.

    Args:
        target: what was recorded; None where that is not known (then all arguments count as
            those of ``*args`` and ``**kwargs``).
        calls: the recorded calls, in order.
        value_if_missing: values for arguments that some calls leave out, by parameter name. They
            count as if they had been passed. A value for a position replaces the argument there
            in every call.
        bind_keywords: whether a parameter may be passed by position in one call and by keyword in
            another. ``torch.onnx.InputObserver`` refuses that.
        on_recorded_devices: whether tensors go back to the device that they were on; the CPU
            otherwise.
        like_observer: what else ``torch.onnx.InputObserver`` does: tensors are detached; calls that
            raised are evidence where they fit the others; of a given dict, names that the calls do
            not have are left out.
        counters: gives those of the whole traffic, where the tape has any.
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
        counters: Callable[[], Counters] | None = None,
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
        self._evidence: Evidence | None = None
        self._registrations: object = None
        self._bound: tuple[object, Patterns] | None = None

    def check(self) -> None:
        """Binds all calls, without asking whether they are one program.

        Raises:
            UsageError, UnsupportedError, KeyTypeError: ``value_if_missing`` does not fit them.
        """
        Patterns(self._calls, self._signature, self._value_if_missing)

    def findings(
        self, set_batch_dimension_for: BatchFor = None, dim_names: DimNames = None
    ) -> ShapeFindings:
        """The dynamic dimensions with their evidence, as plain data.

        Args:
            set_batch_dimension_for: names or positions of arguments whose dimension 0 is declared
                dynamic although it never varied; True for all.
            dim_names: True for readable names, shared by dimensions that were always equal; a
                mapping from argument (name or position) to ``{axis: name}`` to give them.

        Raises:
            InferenceError: there are no calls, or they cannot be one program; says which differ in
                what.
            UsageError: for names that are none, or of arguments that do not exist.
        """
        found = self.evidence()
        return found.findings(set_batch_dimension_for, dim_names, self._counters_for(found))

    def _counters_for(self, found: Evidence) -> Counters | None:
        calls, counters = self._calls, self._counters and self._counters()
        if counters and found.reduced.left_out and isinstance(calls, Calls):
            return counters.of_returned(calls)
        return counters

    def dynamic_shapes(
        self, set_batch_dimension_for: BatchFor = None, dim_names: DimNames = None
    ) -> tuple[Any, ...] | dict[str, Any]:
        """What ``torch.export.export(dynamic_shapes=...)`` takes.

        Returns:
            A tuple where all arguments are positional, else a dict in the order of the signature;
            per tensor ``{axis: torch.export.Dim.DYNAMIC}``, or ``{axis: name}`` with
            ``dim_names``; None for constants.

        Raises:
            InferenceError: as :meth:`findings`.
        """
        from calltape_analyzer.targets.torch_export import dynamic_shapes

        findings = self.findings(set_batch_dimension_for, dim_names)
        # Walks all structures: most tapes have no named tuple.
        known: list[NamedTuples] = []

        def class_of(type_name: str) -> type | None:
            if not known:
                known.append(NamedTuples(self._calls, self.evidence().patterns))
            return known[0].class_of(type_name)

        return dynamic_shapes(findings, class_of)

    def arguments(
        self,
        index: int | tuple[Any, ...] | Mapping[str, Any] | None = None,
        *,
        flat: bool = False,
        as_args_kwargs: bool = False,
    ) -> Any:
        """Representative arguments, or those of one call, completed.

        What a call does not have and others do is filled: with ``value_if_missing``, else with a
        tensor of the last recorded shape whose last dynamic dimension is 0 (zeros of the full
        shape where nothing is dynamic).

        Args:
            index: None for the representative call; the position of a call; or arguments of the
                caller's own, a tuple or a dict, to be completed.
            flat: a list of tensors in flattening order instead.
            as_args_kwargs: always ``(args, kwargs)``.

        Returns:
            A tuple where all arguments are positional, else a dict by name.

        Raises:
            InferenceError: as :meth:`findings`; or there is no such call; or ``*args`` makes
                ``as_args_kwargs=True`` necessary; or an argument holds an object of a class that
                is not known here.
            UsageError: ``index`` is something else.
        """
        found = self.evidence()
        row, call = self._asked_for(found, index)
        builder = self._builder(found)
        if flat:
            tensors = builder.tensors(row, call)
            for track, tensor in zip(found.tracks, tensors, strict=True):
                check_rebuilt(track.name, tensor)
            return tensors
        values = list(builder.build(row, call))
        keys = found.alignment.keys
        for key, value in zip(keys, values, strict=True):
            check_rebuilt(self._signature.name_of(key), value)
        args = tuple(v for key, v in zip(keys, values, strict=True) if isinstance(key, int))
        kwargs = {k: v for k, v in zip(keys, values, strict=True) if isinstance(k, str)}
        kwargs = self._in_order({**kwargs, **dict(found.alignment.best.constants)})
        return (args, kwargs) if as_args_kwargs else self._as_one(args, kwargs)

    def call_tensors(self, index: int) -> list[tuple[str, str, Any, bool]]:
        """The flattened, completed arguments of one call, as (argument, path below it, tensor,
        whether it was missing); for feeding a program by name.

        Raises:
            InferenceError: as :meth:`arguments`.
        """
        found = self.evidence()
        row, call = self._asked_for(found, index)
        builder = self._builder(found)
        return [
            (track.name, track.path, tensor, gap)
            for track, tensor, gap in zip(
                found.tracks, builder.tensors(row, call), builder.gaps(row), strict=True
            )
            if tensor is not None
        ]

    def aligned(self, index: int) -> list[Any]:
        """The tensors of one call in the order of all, None where it does not have one.

        Raises:
            InferenceError: as :meth:`arguments`.
        """
        found = self.evidence()
        row, call = self._asked_for(found, index)
        return self._builder(found).present(row, call)

    def as_passed(self, index: int) -> tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]:
        """The arguments of one call with ``value_if_missing``, nothing filled and their tensors
        detached: positional ones, those by keyword, and the constants among the latter."""
        call = self._calls[index]
        pattern = self._bindings().pattern(call)
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

    def remove_inputs(self, names: Sequence[Key]) -> int:
        """Leaves parameters out of everything that is inferred from here on.

        Args:
            names: parameter names or positions.

        Returns:
            How many arguments of calls that takes out; 0 for names that no call passes.

        Raises:
            UsageError: for ``*args`` or ``**kwargs`` as a whole; for anything but a list of names.
        """
        check_names("remove_inputs", names)
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
        self._evidence = self._bound = None
        return count

    def _count(self, names: set[str]) -> int:
        seen = Patterns(self._calls, self._signature, {})
        count = 0
        for pattern in seen.patterns:
            passed = [self._signature.name_of(a.key) for a in pattern.bound.all]
            passed += [name for name, _ in pattern.constants]
            count += len(pattern.calls) * sum(name in names for name in passed)
        return count

    def evidence(self) -> Evidence:
        """Everything that follows from the calls alone, kept until something changes.

        Raises:
            InferenceError: as :meth:`findings`.
        """
        # What a class flattens to may change with what is registered with torch in this process.
        registrations = _registrations()
        if self._evidence is None or registrations != self._registrations:
            self._evidence = self._gather()
            self._registrations = registrations
        return self._evidence

    def _gather(self) -> Evidence:
        seen = self._bindings()
        if self._like_observer and seen.left_out:
            # The peer refuses where such a call does not fit the others.
            with contextlib.suppress(InferenceError):
                return self._gathered(self._patterns(with_raised=True))
        return self._gathered(seen)

    def _gathered(self, seen: Patterns) -> Evidence:
        patterns = seen.patterns
        if not patterns and (places := self._damaged()):
            reason = f"no call can be used: the tape is damaged in {counted(places, 'place')}"
            raise InferenceError(reason, advice="calltape info tells where")
        if not patterns:
            raise InferenceError(_NO_CALLS, advice="record at least one call of the model")
        alignment = Alignment.of(patterns, self._signature, bind_keywords=self._bind_keywords)
        groups = tracks_of(alignment, patterns, self._signature)
        return Evidence(self._calls, self._signature, seen, patterns, alignment, groups)

    def _bindings(self) -> Patterns:
        """The calls, bound once and kept until something changes."""
        registrations = _registrations()
        if self._bound is None or registrations != self._bound[0]:
            self._bound = registrations, self._patterns()
        return self._bound[1]

    def _patterns(self, with_raised: bool = False) -> Patterns:
        given = {
            k: v for k, v in self._value_if_missing.items() if k not in self._signature.removed
        }
        return Patterns(self._calls, self._signature, given, with_raised=with_raised)

    def _builder(self, found: Evidence) -> ArgumentBuilder:
        return ArgumentBuilder(
            found.alignment,
            found.tracks,
            self._calls,
            on_recorded_devices=self._on_recorded_devices,
            detached=self._like_observer,
        )

    def _asked_for(self, found: Evidence, index: Any) -> tuple[Row, Call | None]:
        if index is None:
            index = found.representative()
        if isinstance(index, int) and not isinstance(index, bool):
            if not -len(self._calls) <= index < len(self._calls):
                raise InferenceError(
                    f"No stored input set for index {index}: there are {len(self._calls)} calls",
                    advice="count from 0",
                )
            call = self._calls[index]
            pattern = found.reduced.pattern(call)
            return found.alignment.row(pattern), call
        if not isinstance(index, tuple | Mapping):
            raise UsageError(
                f"Unexpected type {type(index)} for the arguments to complete",
                advice="give a position, a tuple of arguments or a dict of them",
            )
        pattern = self._given(index, found.alignment)
        found.alignment.check_structure(pattern)
        return found.alignment.row(pattern), None

    def _given(self, given: tuple[Any, ...] | Mapping[str, Any], alignment: Alignment) -> Pattern:
        args: tuple[Argument, ...] = ()
        kwargs: dict[str, Argument] = {}
        known = alignment.names if self._like_observer else frozenset()
        if isinstance(given, tuple):
            args = tuple(given_argument(i, value) for i, value in enumerate(given))
        else:
            for name, value in given.items():
                if self._like_observer and name not in known:
                    continue
                # Constants are those of the recorded calls.
                if value is not None and not isinstance(value, int | float | str):
                    kwargs[name] = given_argument(name, value)
        return Pattern(Bound(args, kwargs), (), ())

    def _in_order(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        order = {name: i for i, name in enumerate(self._signature.names)}
        return dict(sorted(kwargs.items(), key=lambda item: order.get(item[0], len(order))))

    def _as_one(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not kwargs:
            return args
        if not args:
            return kwargs
        if self._signature.variadic_positional is not None:
            raise InferenceError(
                "Arguments of a method with *args are neither a tuple nor a dict alone",
                advice="set as_args_kwargs=True",
            )
        named = {self._signature.name_at(i): value for i, value in enumerate(args)}
        return {**named, **kwargs}


def _registrations() -> object:
    pytree = sys.modules.get("torch.utils._pytree")
    nodes: Mapping[Any, Any] = getattr(pytree, "SUPPORTED_NODES", {})
    return frozenset((cls, id(node)) for cls, node in list(nodes.items()))
