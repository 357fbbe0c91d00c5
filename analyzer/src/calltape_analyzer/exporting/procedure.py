"""``export``: from a tape and a model to programs that reproduce the tape."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from calltape_analyzer.comparing import ONNX_TOLERANCES, Tolerances
from calltape_analyzer.errors import ExportError, InferenceError, UsageError
from calltape_analyzer.exporting.attempts import Attempt, Outcome
from calltape_analyzer.exporting.exporter import Exporter
from calltape_analyzer.exporting.held import held_parts, lengths_of, values_in
from calltape_analyzer.exporting.judging import Judge
from calltape_analyzer.exporting.module_calls import entry_of, wanted_classes
from calltape_analyzer.exporting.onnx import to_onnx
from calltape_analyzer.exporting.probing import Probe, Probing
from calltape_analyzer.exporting.program import Program
from calltape_analyzer.exporting.programs import Programs
from calltape_analyzer.exporting.tracing import device_of
from calltape_analyzer.gathering import Gatherer
from calltape_analyzer.merging import can_merge, completion_of
from calltape_analyzer.names import name_symbols
from calltape_analyzer.observations import Row
from calltape_analyzer.samples import recorded_sample, sample_in
from calltape_analyzer.sizes import Bound
from calltape_analyzer.tallies import CallRef
from calltape_analyzer.variant import named_facts
from calltape_analyzer.variants import VariantFacts, merged

if TYPE_CHECKING:
    import torch

    from calltape_analyzer.tape import Tape

__all__ = ["export"]

_MAX_PROGRAMS_PER_VARIANT = 12
_MAX_EXTENSIONS = 2
_MAX_VALUES_TRIED = 8


def export(
    tape: Tape,
    module: torch.nn.Module,
    *,
    to: Literal["torch", "onnx"] = "torch",
    merge: Literal["auto", "never"] = "auto",
    isolate: bool = False,
    tolerances: Tolerances | None = None,
    attempt_seconds: float | None = None,
    probe: Probe = "near",
    max_memory: int | None = None,
    **options: Any,
) -> Programs:
    """Exports a model for the calls on a tape.

    The calls are split into variants (:meth:`Tape.variants`), each is exported with
    ``torch.export.Dim.AUTO`` for what varies, from a recorded call that is fit for tracing or one
    resized to be, and every program is judged by running recorded calls through it (the rules and
    where they were measured: docs/decisions/0012). What cannot be one program becomes several.

    Args:
        tape: the recorded calls.
        module: the recorded model, with its weights, in the mode that it should be exported in. It
            is called. What its calls change is put back: parameters, buffers and Python
            attributes, except what is written past torch's operators (numpy, compiled kernels).
        to: ``"torch"`` for ``torch.export.ExportedProgram``, ``"onnx"`` for
            ``torch.onnx.ONNXProgram``, judged in ONNX Runtime.
        merge: ``"auto"`` makes one program of a prefill and its decode steps where replaying all of
            their calls through it proves that right; ``"never"`` leaves them apart.
        isolate: exports in a fresh process, so that neither process can spoil the other; the model
            travels there by pickle.
        tolerances: of the comparison; those of ``torch.testing``, wider for ONNX.
        attempt_seconds: how long one trace may take (in the main thread); by default a minute, and
            half a second for each submodule. Also how long a run at other sizes than the recorded
            ones may take; by default a minute.
        probe: at which sizes beside the recorded ones the model and its programs are run and
            compared. ``"near"``: none has more than 4 times the elements of the largest recorded
            call, in all input tensors together, and no size or int is more than 4 times its
            largest recorded value. ``"far"``: also up to 500 times the recorded sizes, as long as
            the inputs stay small; what a model does from some size on is found by this only.
            ``"none"``: the model is run at recorded sizes only.
        max_memory: the bytes that a run at other sizes than the recorded ones may take, by default
            half of what is free. A run that is predicted to take more is not made, and said in
            ``attempts`` and in the notes of the report.
        **options: for ``torch.export.export``, or with ``to="onnx"`` for ``torch.onnx.export``
            (``opset_version``, ``optimize``, ...).

    Raises:
        ExportError: no variant could be exported; says what was tried.
        InferenceError: the tape has no calls, or an argument cannot be rebuilt here.
        UsageError: for a module without the recorded method, or options that do not exist.
    """
    if to not in ("torch", "onnx") or merge not in ("auto", "never"):
        raise UsageError(f"to={to!r}, merge={merge!r}", advice="see help(export)")
    if probe not in ("near", "far", "none") or (max_memory is not None and max_memory < 0):
        raise UsageError(f"probe={probe!r}, max_memory={max_memory!r}", advice="see help(export)")
    judge = _judge(tape, module, tolerances or (ONNX_TOLERANCES if to == "onnx" else Tolerances()))
    if isolate:
        from calltape_analyzer.exporting.isolation import export_isolated

        options |= {"to": to, "merge": merge, "tolerances": tolerances}
        options |= {"attempt_seconds": attempt_seconds, "probe": probe, "max_memory": max_memory}
        return export_isolated(tape, judge, **options)
    judge.probing = Probing(probe, max_memory)
    judge.probing.seconds = attempt_seconds or judge.probing.seconds
    exporter = Exporter(judge, seconds=attempt_seconds)
    if to == "torch":
        exporter.options = options
    else:
        exporter.convert = lambda exported, plan, result, variant: to_onnx(
            exported, plan, result, variant, options
        )
    return _programs(tape, exporter, merging=merge == "auto")


def _judge(tape: Tape, module: torch.nn.Module, tolerances: Tolerances) -> Judge:
    classes = wanted_classes(module, tape.signature, tape.class_index)
    gatherer = Gatherer.of(tape, classes.renamed)
    entry, device = entry_of(module, tape.target), str(device_of(module))
    return Judge(module, entry, gatherer, tape.calls.at, classes, device, tolerances)


def _programs(tape: Tape, exporter: Exporter, *, merging: bool) -> Programs:
    training = exporter.judge.module.training
    with _quiet():
        programs, missing = _Exporting(tape, exporter, merging).run()
    if not programs:
        reasons = "; ".join(f"{name}: {why.rstrip('.')}" for name, why in missing.items())
        hint = "; the model is in training mode: eval() is missing?" if training else ""
        if tape.removed:  # the likelier cause
            hint = f"; without {', '.join(tape.removed)}, which remove_inputs left out"
        raise ExportError(f"nothing could be exported: {reasons}{hint}", exporter.attempts)
    if training:
        for program in programs:
            program.notes.append("the model was exported in training mode; eval() is missing?")
    return Programs(
        programs,
        exporter.judge.gatherer,
        attempts=exporter.attempts,
        missing=missing,
        judge=exporter.judge,
        tape=tape,
    )


_NOISY = (
    "torch._export",
    "torch.export",
    "torch.onnx",
    "torch.fx.experimental.symbolic_shapes",
    "torch.fx.passes.runtime_assert",
)


@contextmanager
def _quiet() -> Iterator[None]:
    """torch warns of each dimension that it specializes; the attempts say what came of it."""
    import logging

    loggers = [logging.getLogger(name) for name in _NOISY]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


class _Exporting:
    def __init__(self, tape: Tape, exporter: Exporter, merging: bool) -> None:
        self.tape = tape
        self.exporter = exporter
        self.gatherer = exporter.judge.gatherer
        self.merging = merging
        self.programs: list[Program] = []
        self.missing: dict[str, str] = {}

    def run(self) -> tuple[list[Program], dict[str, str]]:
        observations = self.gatherer.observations(self.tape.calls)
        if not observations.groups:
            raise InferenceError("there are no calls", advice="record at least one call")
        variants = named_facts(self.tape, observations, self.gatherer)
        self.exporter.judge.probing.bound = Bound.of(variants)
        waiting = list(variants)
        if self.merging:
            waiting = self._merge(waiting)
        for variant in waiting:
            self._cover(variant)
        return self.programs, self.missing

    def _merge(self, variants: Sequence[VariantFacts]) -> list[VariantFacts]:
        """Exports what can be one program as one; gives what is left."""
        left = list(variants)
        for larger in variants:
            smaller = [v for v in left if v is not larger and can_merge(v, larger)]
            if larger not in left or not smaller:
                continue
            whole = self._merged(larger, smaller)
            outcome = self.exporter.export(whole)
            attempt = outcome.attempt
            if outcome.program and attempt and attempt.ok and outcome.program.only is None:
                self.programs.append(outcome.program)
                left = [v for v in left if v is not larger and v not in smaller]
        return left

    def _merged(self, larger: VariantFacts, smaller: Sequence[VariantFacts]) -> VariantFacts:
        call = self.tape.calls.at(larger.rows[0][1].first)
        scalars = recorded_sample(call, self.gatherer).scalars
        completions = [completion_of(v.group, larger, scalars) for v in smaller]
        made = merged(larger, completions, smaller)
        made.name = " + ".join([*(v.name for v in smaller), larger.name])
        name_symbols(made)
        return made

    def _cover(self, variant: VariantFacts) -> None:
        """Programs until every recorded size of a variant has one: what one program refuses, the
        next is traced from."""
        left: list[Row] = [row for row, _ in variant.rows]
        lost: list[Row] = []
        reason = ""
        attempts: list[Attempt] = []
        while left and len(attempts) < _MAX_PROGRAMS_PER_VARIANT:
            made = len(attempts)
            named = replace(variant, name=f"{variant.name} ({made + 1})" if made else variant.name)
            outcome = self.exporter.export(named, left if made else None)
            if not made and self._hold(variant, outcome):
                return
            good = {row for row in left if _is_served(outcome, row)}
            if outcome.program is None or outcome.attempt is None or not good:
                if not made and self._freeze(variant):
                    return
                reason = self._reason(named.name, outcome)
                # After one that works, another size may still do.
                lost += left[:1] if made else left
                left = left[1:] if made else []
                continue
            if made or len(good) < len(left):
                _describe_part(outcome, good, len(variant.rows))
            self.programs.append(outcome.program)
            attempts.append(outcome.attempt)
            left = [row for row in left if row not in good]
        if attempts:
            self._extend(variant, len(attempts), attempts)
        self._report(variant, [*lost, *left], reason)

    def _report(self, variant: VariantFacts, lost: Sequence[Row], reason: str) -> None:
        if lost and len(lost) < len(variant.rows):
            some = f"{len(lost)} of {len(variant.rows)} recorded sizes have no program"
            limit = f"a variant gets at most {_MAX_PROGRAMS_PER_VARIANT}"
            self.missing[f"{variant.name}, other sizes"] = f"{some}: {reason or limit}"
        elif lost:
            self.missing[variant.name] = reason

    def _extend(self, variant: VariantFacts, made: int, attempts: Sequence[Attempt]) -> None:
        """Programs for sizes beyond the recorded ones, where those that were made refuse them."""
        if made > 1 and made == len(variant.rows):
            return  # a program for each size: more would be good for one size each as well
        refused = [set(attempt.refused) for attempt in attempts]
        # What one program refuses another may take.
        everywhere = set.intersection(*refused) if refused else set()
        waiting = sorted(everywhere, key=lambda sizing: sizing.values)
        narrow: list[Program] = []
        while waiting and made < _MAX_EXTENSIONS + len(attempts):
            named = replace(variant, name=f"{variant.name} ({made + 1})")
            outcome = self.exporter.extend(named, waiting[0])
            if outcome.program is None or outcome.attempt is None:
                return
            outcome.program.notes.append("traced at sizes that were not recorded")
            narrow.append(outcome.program)
            if outcome.attempt.held > 1:
                # Good for one size that nobody asked for is of use on the way to others only.
                self.programs += narrow
                narrow = []
            waiting = [s for s in waiting[1:] if s in outcome.attempt.refused]
            made += 1

    def _hold(self, variant: VariantFacts, outcome: Outcome) -> bool:
        """A program per value of the texts and floats that vary, where one for all of them gives
        other results than the model."""
        program, attempt = outcome.program, outcome.attempt
        if variant.held or not variant.group.varying or program is None or attempt is None:
            return False
        values = values_in(variant, self.tape.calls, self.gatherer)
        names = ", ".join(map(str, variant.group.varying))
        others = [self.tape.calls.at(held.first) for held in values[:_MAX_VALUES_TRIED]]
        found = [self.exporter.judge.replayed(program, call, attempt) for call in others]
        rows = attempt.rows.values()
        if "wrong" not in rows and not any(one.ran and not one.ok for one in found):
            good = sum(one.ok for one in found)
            program.notes.append(
                f"{names} varies from call to call and is a constant of it: that of one call; "
                f"{good} of {len(values)} recorded values{lengths_of(values)} were tried and make "
                "no difference; others are served too, and nothing was shown of them"
            )
            return False
        kept = values[:_MAX_PROGRAMS_PER_VARIANT]
        before = len(self.programs)
        for part in held_parts(variant, kept):
            name_symbols(part)
            self._cover(part)
            if len(self.programs) == before:
                return True  # what cannot be traced with one value cannot with another
        left = variant.calls - sum(held.calls for held in kept)
        if left:
            self.missing[f"{variant.name}, other values of {names}"] = (
                f"{left} of {variant.calls} calls; the model does something else for each value, "
                f"and a variant gets at most {_MAX_PROGRAMS_PER_VARIANT} programs"
            )
        return True

    def _reason(self, name: str, outcome: Outcome) -> str:
        if outcome.attempt is not None and outcome.attempt.error:
            return outcome.attempt.error
        tried = [a.error for a in self.exporter.attempts if a.variant == name and a.error]
        return tried[-1] if tried else "not exported"

    def _freeze(self, variant: VariantFacts) -> bool:
        """Programs with a small integer tensor as a constant, one per value of it: a model that
        reads such a tensor with Python (``grid.tolist()``) cannot be traced otherwise."""
        errors = [a.error or "" for a in self.exporter.attempts if a.variant == variant.name]
        if not any(sign in error for error in errors for sign in _DATA_DEPENDENT):
            return False
        for place in _small_integers(variant)[:_MAX_FROZEN_TRIED]:
            made = self._frozen(variant, place)
            if made:
                self.programs += made
                return True
        return False

    def _frozen(self, variant: VariantFacts, place: int) -> list[Program]:
        made: list[Program] = []
        where = variant.group.layout.tensors[place]
        every = self._by_value(variant, place)
        for number, (value, rows) in enumerate(every[:_MAX_PROGRAMS_PER_VARIANT], 1):
            shown = str(value.tolist())
            # Different values have different names: what is too long to be one gets a number.
            is_short = len(shown) <= _MAX_SHOWN_VALUE
            name = f"{variant.name}, {where}{f'={shown}' if is_short else f' of value {number}'}"
            kept = [(row, seen) for row, seen in variant.rows if row in rows]
            # The first call of a row may have had another value.
            firsts = ((row, seen._replace(first=rows[row])) for row, seen in kept)
            part = variant.only(firsts, name)
            part.frozen = {place: value}
            name_symbols(part)
            outcome = self.exporter.export(part)
            if outcome.program is None or not (outcome.attempt and outcome.attempt.reproduced):
                if not made:
                    return []
                self.missing[name] = self._reason(name, outcome)
                continue
            outcome.program.notes.append(f"{where} is a constant of it")
            made.append(outcome.program)
        if made and len(every) > _MAX_PROGRAMS_PER_VARIANT:
            rest = len(every) - _MAX_PROGRAMS_PER_VARIANT
            self.missing[f"{variant.name}, other values of {where}"] = (
                f"{rest} of {len(every)} values: a variant gets at most {_MAX_PROGRAMS_PER_VARIANT}"
            )
        return made

    def _by_value(self, variant: VariantFacts, place: int) -> list[tuple[Any, dict[Row, CallRef]]]:
        """The values of a tensor, each with the rows of its calls and their first call."""
        found: dict[str, tuple[Any, dict[Row, CallRef]]] = {}
        for call in self.tape.calls:
            if call.record.error is not None:
                continue
            placed = self.gatherer.sorted(call.record.inputs)
            if not variant.group.key.takes(placed.key):
                continue
            value = sample_in(variant, call, self.gatherer).tensors[place]
            _, rows = found.setdefault(repr(value.tolist()), (value, {}))
            rows.setdefault(placed.row, call.ref)
        return list(found.values())


_DATA_DEPENDENT = ("DataDependent", "data-dependent", "Could not extract specialized integer")
_MAX_FROZEN_TRIED = 4
_MAX_SHOWN_VALUE = 60
_MAX_FROZEN_ELEMENTS = 64


def _small_integers(variant: VariantFacts) -> list[int]:
    """The integer tensors that could be constants, smallest first. Token ids never are."""
    shapes = variant.rows[0][0].shapes
    found = [
        i
        for i, (place, facts) in enumerate(
            zip(variant.group.layout.tensors, variant.group.facts, strict=True)
        )
        if facts.dtype in ("int64", "int32")
        and math.prod(shapes[i]) <= _MAX_FROZEN_ELEMENTS
        and not place.argument.endswith(("input_ids", "_mask", "labels", "position_ids"))
    ]
    return sorted(found, key=lambda i: math.prod(shapes[i]))


def _is_served(outcome: Outcome, row: Row) -> bool:
    """Whether a recorded size was reproduced; of very many sizes not all are run, and the
    conditions of the program speak for the others."""
    if outcome.program is None or outcome.attempt is None:
        return False
    found = outcome.attempt.rows.get(row)
    return found == "ok" if found is not None else outcome.program.refuses(row) is None


def _describe_part(outcome: Outcome, good: set[Row], count: int) -> None:
    assert outcome.program is not None
    outcome.program.notes.append(f"serves {len(good)} of {count} recorded sizes of its variant")
