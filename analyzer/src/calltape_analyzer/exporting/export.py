"""``export``: from a tape and a model to programs that reproduce the tape."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from calltape_analyzer.comparison.comparing import ONNX_TOLERANCES, Tolerances
from calltape_analyzer.errors import ExportError, UsageError
from calltape_analyzer.exporting.exporter import Exporter
from calltape_analyzer.exporting.onnx.conversion import to_onnx
from calltape_analyzer.exporting.options import ExportOptions
from calltape_analyzer.exporting.parts import exported_parts
from calltape_analyzer.exporting.program_search import ProgramSearch
from calltape_analyzer.exporting.session.budget import Budget, Progress
from calltape_analyzer.exporting.session.probing import Probing
from calltape_analyzer.exporting.session.session import Session
from calltape_analyzer.foreign_errors import ErrorKind
from calltape_analyzer.programs.notes import ModelInTraining, TracedInTraining
from calltape_analyzer.programs.programs import Programs
from calltape_analyzer.programs.reasons import stopped_by
from calltape_analyzer.programs.strategies import Attempt, Strategy
from calltape_analyzer.programs.torch_model import demand_torch
from calltape_analyzer.progress import told_by
from calltape_analyzer.pytree.placeholder import LEFT_OUT
from calltape_analyzer.reading.selection import outside_words
from calltape_analyzer.tape import Tape, check_tape
from calltape_analyzer.text import some_of

if TYPE_CHECKING:
    import torch


__all__ = ["export"]

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
    docs/decisions/export-strategies.md. Recorded calls are run through every program and compared.
    If one program cannot serve a variant, several are made.

    Args:
        tape: the recorded calls.
        module: the recorded model, with its weights; or the recorded function. It is called, in
            the mode (training or evaluation) that it was recorded in. What its calls change is put
            back: parameters, buffers, Python attributes and generators of random numbers, except
            what is written past torch's operators (numpy, compiled kernels), and globals. If
            recorded calls need what the ones before left outside of buffers, their variant has no
            program.
        to: ``"onnx"`` for ``torch.onnx.ONNXProgram``, run in ONNX Runtime.
        options: how programs are made and checked, and what that may cost.
        parts: names of submodules that are exported as well, with the same options
            (:attr:`Programs.parts`): ``generate()`` calls an encoder on its own. Their calls are
            recorded while one recorded call of each size is run again.
        drive: calls the parts instead, for instance ``lambda: model.generate(ids)``.
        progress: is called with a line of text whenever something else is traced or run. True shows
            the line: below the cell of a notebook, else on stderr.

    Raises:
        ExportError: no variant could be exported; says what was tried. Or the model, or a part of
            it, is a TorchScript module.
        InferenceError: the tape has no calls, or an argument cannot be rebuilt here.
        UsageError: for a module without the recorded method, or a format that does not exist; or
            torch is older than 2.12.
    """
    from calltape_analyzer.model.randomness import generators_kept

    demand_torch()
    check_tape(tape, "export")
    if to not in ("torch", "onnx"):
        raise UsageError(f"to={to!r}", advice="pass 'torch' or 'onnx'")
    if parts or drive is not None:
        exported = partial(export, to=to, options=options, progress=told_by(progress))
        return _with_parts(tape, module, parts, drive, exported)
    bounds = options.tolerances or (ONNX_TOLERANCES if to == "onnx" else Tolerances())
    session = Session.of(tape, module, bounds)
    _reject_scripted(session.module)
    session.probing = Probing(options.probe, options.max_memory, fused=to != "onnx")
    session.budget = Budget(options.max_seconds, told_by(progress))
    exporter = _exporter(session, to, options)
    with generators_kept(session.module):
        return _programs(tape, exporter, merging=options.merge == "auto")


def _with_parts(
    tape: Tape,
    module: torch.nn.Module | Callable[..., Any],
    parts: Sequence[str],
    drive: Callable[[], Any] | None,
    exported: Callable[..., Programs],
) -> Programs:
    if isinstance(parts, str) or not parts:
        raise UsageError(f"parts={parts!r}", advice="pass a list of names of submodules")
    session = Session.of(tape, module, Tolerances())
    # First, because a name that is wrong should not cost an export.
    found = exported_parts(tape, session, parts, drive, exported)
    programs = exported(tape, module)
    programs.parts.update(found)
    return programs


def _reject_scripted(module: torch.nn.Module) -> None:
    from torch.jit import ScriptModule

    for name, part in module.named_modules():
        if isinstance(part, ScriptModule):
            what = f"{name}, a part of the model," if name else "the model"
            raise ExportError(
                f"{what} is a TorchScript module (of torch.jit.script or torch.jit.trace), which "
                "torch.export cannot trace",
                advice="load its weights into the module that it was made from, and export that",
            )


def _exporter(session: Session, to: str, options: ExportOptions) -> Exporter:
    seconds, given = options.attempt_seconds, dict(options.exporter)
    if seconds:
        session.probing.seconds = seconds
    if to == "torch":
        return Exporter(session, given, seconds=seconds)
    return Exporter(
        session,
        convert=lambda exported, plan, result, variant: to_onnx(
            exported, plan, result, variant, given
        ),
        seconds=seconds,
    )


def _programs(tape: Tape, exporter: Exporter, *, merging: bool) -> Programs:
    search = ProgramSearch(tape, exporter)
    with _without_warnings():
        search.run(merging=merging)
    if not search.programs:
        reasons = "; ".join(_reasons(search))
        was_traced = any(map(_was_traced, exporter.attempts))
        hint = ""
        if True in exporter.session.sorter.training_modes and was_traced:
            hint = "; the calls were recorded in training mode: record a model after eval()"
        if tape.removed:  # the likelier cause
            hint = f"; without {', '.join(tape.removed)}, which {LEFT_OUT} left out"
        elif tape.target is not None and tape.target.outside and was_traced:
            hint = f"; {outside_words(tape.target.outside)}"
        told = f"nothing could be exported: {reasons}{hint}"
        raise ExportError(told, exporter.attempts, missing=search.missing)
    for program in search.programs:
        if program.plan.context.training:
            program.note(TracedInTraining())
    is_training = getattr(exporter.session.module, "training", False)
    if is_training and False in exporter.session.sorter.training_modes:
        search.told.append(ModelInTraining())
    return Programs(
        search.programs,
        exporter.session.sorter,
        attempts=exporter.attempts,
        missing=search.missing,
        told=search.told,
        verdicts=search.verdicts,
        reference=exporter.session,
        tape=tape,
    )


def _was_traced(attempt: Attempt) -> bool:
    """Whether the model, or a trace of it, ran: the mode of the model may be the reason."""
    is_other = attempt.strategy is not Strategy.NOT_TRACED
    return is_other and not stopped_by(attempt.error, ErrorKind.OF_CALLTAPE)


def _reasons(search: ProgramSearch) -> Iterator[str]:
    """Why each variant has no program. What no trace can take is said once."""
    alike = [name for name in search.missing if name in search.untraceable][1:]
    for name, why in search.missing.items():
        if name not in alike:
            yield f"{name}: {str(why).rstrip('.')}"
    if alike:
        yield f"and likewise {some_of(alike, 5)}"


_WARNING_LOGGERS = (
    "torch._export",
    "torch.export",
    "torch.onnx",
    "torch.fx.experimental.symbolic_shapes",
    "torch.fx.passes.runtime_assert",
)


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Leaves out torch's warning for each dimension that became a constant: the attempts tell."""
    import logging

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
