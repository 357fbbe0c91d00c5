"""``export``: from a tape and a model to programs that reproduce the tape."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch.jit import ScriptModule

from calltape_analyzer.comparison.comparing import ONNX_TOLERANCES, Tolerances
from calltape_analyzer.errors import ExportError, UsageError, to_install
from calltape_analyzer.exporting.exporter import Exporter
from calltape_analyzer.exporting.parts import export_with_parts
from calltape_analyzer.exporting.program_search import ProgramSearch
from calltape_analyzer.exporting.session.budget import Probe, Probing, Progress, TimeBudget
from calltape_analyzer.exporting.session.session import Session
from calltape_analyzer.exporting.tracing import Convert
from calltape_analyzer.foreign_errors import ErrorMeaning
from calltape_analyzer.model.randomness import generators_kept
from calltape_analyzer.programs.exported_model import require_torch
from calltape_analyzer.programs.notes import ModelInTraining, TracedInTraining
from calltape_analyzer.programs.programs import Programs
from calltape_analyzer.programs.reasons import stopped_by
from calltape_analyzer.programs.strategies import Strategy
from calltape_analyzer.progress import reporter_of
from calltape_analyzer.pytree.placeholder import LEFT_OUT
from calltape_analyzer.reading.selection import outside_words
from calltape_analyzer.tape import Tape, check_tape
from calltape_analyzer.text import some_of

__all__ = ["ExportOptions", "export"]


@dataclass(frozen=True)
class ExportOptions:
    """How programs are made and checked, and what that may cost. The defaults suit a workstation
    that has room for the recorded calls.

    Attributes:
        merge: ``"auto"`` makes one program for prefill and decode steps if replay proves it right.
            ``"never"`` saves the time of that attempt; ``notes`` say where it was in vain.
        tolerances: of the comparison; by default of ``torch.testing``, wider for ONNX.
        attempt_seconds: how long a trace (processor time, in the main thread) or a run at an
            unrecorded size may take. By default half a minute and a tenth of a second per module
            for a trace, and a minute for a run.
        probe: at which unrecorded sizes model and programs are compared: ``"near"`` is up to 4
            times the recorded ones, ``"far"`` up to 500 times, ``"none"`` is at none.
        max_memory: the bytes that a run at an unrecorded size may take, together with the run that
            it is compared with. By default what the largest recorded call takes, or 256 MiB if that
            is more, and never more than half of the free memory (for ``probe="far"``: that half).
        max_seconds: how long the export may take; no limit by default. When the time is up, it
            returns the programs so far, and ``missing`` says what was not tried. A trace is
            interrupted (in the main thread), a run of a recorded call is not.
        exporter: options for ``torch.export.export`` or ``torch.onnx.export``, as in
            ``{"opset_version": 20}``.

    Raises:
        UsageError: a value is not allowed.
    """

    merge: Literal["auto", "never"] = "auto"
    tolerances: Tolerances | None = None
    attempt_seconds: float | None = None
    probe: Probe = "near"
    max_memory: int | None = None
    max_seconds: float | None = None
    exporter: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.merge not in ("auto", "never"):
            raise UsageError(f"merge={self.merge!r}", advice="pass 'auto' or 'never'")
        if self.probe not in ("near", "far", "none"):
            raise UsageError(f"probe={self.probe!r}", advice="pass 'near', 'far' or 'none'")
        if self.max_memory is not None and self.max_memory < 0:
            raise UsageError(f"max_memory={self.max_memory!r}", advice="pass bytes, or None")
        for name in ("max_seconds", "attempt_seconds"):
            seconds = getattr(self, name)
            if seconds is not None and not seconds > 0:
                raise UsageError(f"{name}={seconds!r}", advice="pass a number above 0, or None")


_DEFAULTS = ExportOptions()


def export(
    tape: Tape,
    module: torch.nn.Module | Callable[..., Any],
    *,
    to: Literal["torch", "onnx"] = "torch",
    options: ExportOptions = _DEFAULTS,
    parts: Sequence[str] = (),
    drive: Callable[[], Any] | None = None,
    progress: Progress | bool | None = None,
) -> Programs:
    """Exports a model for the calls on a tape: each variant (:meth:`Tape.variants`) by the rules of
    docs/decisions/export-strategies.md. Recorded calls run through every program, and the results
    are compared. If one program cannot serve a variant, it gets several.

    Args:
        tape: the recorded calls.
        module: the recorded model, with its weights; or the recorded function. It is called, in
            the mode (training or evaluation) that it was recorded in. Everything that its calls
            change is restored: parameters, buffers, Python attributes and random number generators,
            but not globals, nor what is written without torch's operators (numpy, compiled
            kernels). If recorded calls need state that previous calls left outside of buffers,
            their variant has no program.
        to: ``"onnx"`` for ``torch.onnx.ONNXProgram``, run in ONNX Runtime.
        options: how programs are made and checked, and what that may cost.
        parts: names of submodules to export as well, with the same options
            (:attr:`Programs.parts`): ``generate()`` calls an encoder on its own. Their calls are
            recorded while one recorded call of each size runs again.
        drive: calls the parts instead, for instance ``lambda: model.generate(ids)``.
        progress: is called with a line of text for each step. True shows the line: below the cell
            of a notebook, else on stderr.

    Raises:
        ExportError: no variant could be exported; says what was tried. Or the model, or a part of
            it, is a TorchScript module.
        InferenceError: the tape has no calls, or an argument cannot be rebuilt.
        UsageError: the module lacks the recorded method, there is no such format, or torch is older
            than 2.12.
    """
    require_torch()
    check_tape(tape, "export")
    if to not in ("torch", "onnx"):
        raise UsageError(f"to={to!r}", advice="pass 'torch' or 'onnx'")
    if parts or drive is not None:
        export_one = partial(export, to=to, options=options, progress=reporter_of(progress))
        return export_with_parts(tape, module, parts, drive, export_one)
    tolerances = options.tolerances or (ONNX_TOLERANCES if to == "onnx" else Tolerances())
    session = Session.of(tape, module, tolerances)
    _reject_scripted(session.module)
    session.probing = Probing(options.probe, options.max_memory, fused=to != "onnx")
    session.probing.seconds = options.attempt_seconds or session.probing.seconds
    session.budget = TimeBudget(options.max_seconds, reporter_of(progress))
    exporter = Exporter(session, seconds=options.attempt_seconds)
    if to == "onnx":
        exporter.convert = _onnx_converter(options.exporter)
    else:
        exporter.options = dict(options.exporter)
    with generators_kept(session.module):
        return _programs(tape, exporter, merging=options.merge == "auto")


def _onnx_converter(exporter_options: Mapping[str, Any]) -> Convert:
    """The conversion to ONNX, with options for ``torch.onnx.export``.

    Raises:
        UsageError: a package that it needs is not installed.
    """
    try:
        from calltape_analyzer.exporting.onnx.conversion import to_onnx
    except ImportError as error:
        raise UsageError(
            f"an export to ONNX needs {error.name}, which is not installed",
            advice=to_install("onnx"),
        ) from None
    return partial(to_onnx, options=exporter_options)


def _reject_scripted(module: torch.nn.Module) -> None:
    """Raises ExportError if the model is, or contains, a TorchScript module."""
    for name, part in module.named_modules():
        if isinstance(part, ScriptModule):
            what = f"{name}, a part of the model," if name else "the model"
            raise ExportError(
                f"{what} is a TorchScript module (of torch.jit.script or torch.jit.trace), which "
                "torch.export cannot trace",
                advice="load its weights into the module that it was made from, and export that",
            )


def _programs(tape: Tape, exporter: Exporter, *, merging: bool) -> Programs:
    """Searches for the programs of a tape.

    Args:
        tape: the calls.
        exporter: tries to make a program for a variant.
        merging: whether one program may serve a prefill and its decode steps.

    Raises:
        ExportError: there are none.
    """
    search = ProgramSearch(tape, exporter)
    with closing(exporter), _without_warnings():
        search.run(merging=merging)
    if not search.programs:
        raise _no_programs(tape, search)
    for program in search.programs:
        if program.plan.context.training:
            program.note(TracedInTraining())
    is_training = getattr(exporter.session.module, "training", False)
    if is_training and False in exporter.session.sorter.training_modes:
        search.all_notes.append(ModelInTraining())
    return Programs(
        search.programs,
        exporter.session.sorter,
        attempts=exporter.attempts,
        missing=search.missing,
        all_notes=search.all_notes,
        verdicts=search.verdicts,
        reference=exporter.session,
        tape=tape,
    )


def _no_programs(tape: Tape, search: ProgramSearch) -> ExportError:
    """The error that no variant has a program, with the likely cause."""
    exporter = search.exporter
    # Variants that cannot be traced are listed together.
    alike = [name for name in search.missing if name in search.untraceable][1:]
    reasons = [
        f"{name}: {str(why).rstrip('.')}"
        for name, why in search.missing.items()
        if name not in alike
    ]
    if alike:
        reasons.append(f"and likewise {some_of(alike, 5)}")
    # The mode of the model may be the reason only if the model, or a trace of it, ran.
    was_traced = any(
        attempt.strategy is not Strategy.NOT_TRACED
        and not stopped_by(attempt.error, ErrorMeaning.OF_CALLTAPE)
        for attempt in exporter.attempts
    )
    hint = ""
    if True in exporter.session.sorter.training_modes and was_traced:
        hint = "; the calls were recorded in training mode: record a model after eval()"
    if tape.removed:  # the likelier cause
        hint = f"; without {', '.join(tape.removed)}, which {LEFT_OUT} left out"
    elif tape.target is not None and tape.target.outside and was_traced:
        hint = f"; {outside_words(tape.target.outside)}"
    error = f"nothing could be exported: {'; '.join(reasons)}{hint}"
    return ExportError(error, exporter.attempts, missing=search.missing)


_WARNING_LOGGERS = (
    "torch._export",
    "torch.export",
    "torch.onnx",
    "torch.fx.experimental.symbolic_shapes",
    "torch.fx.passes.runtime_assert",
)


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Suppresses torch's warning for each dimension that became a constant, which attempts
    report."""
    loggers = [logging.getLogger(name) for name in _WARNING_LOGGERS]
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
