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
from calltape_analyzer.exporting.parts import exported_parts
from calltape_analyzer.exporting.program_search import ProgramSearch
from calltape_analyzer.exporting.session.budget import Budget, Progress
from calltape_analyzer.exporting.session.probing import Probe, Probing
from calltape_analyzer.exporting.session.verifier import Verifier
from calltape_analyzer.foreign_errors import ErrorKind
from calltape_analyzer.programs.attempts import Attempt
from calltape_analyzer.programs.notes import ModelInTraining, TracedInTraining
from calltape_analyzer.programs.programs import Programs
from calltape_analyzer.programs.reasons import stopped_by
from calltape_analyzer.programs.strategies import Strategy
from calltape_analyzer.programs.torch_version import demand_torch
from calltape_analyzer.progress import told_by
from calltape_analyzer.pytree.placeholder import LEFT_OUT
from calltape_analyzer.reading.targets import outside_words
from calltape_analyzer.tape import Tape, check_tape
from calltape_analyzer.text import some_of

if TYPE_CHECKING:
    import torch


__all__ = ["export"]


def export(
    tape: Tape,
    module: torch.nn.Module | Callable[..., Any],
    *,
    to: Literal["torch", "onnx"] = "torch",
    merge: Literal["auto", "never"] = "auto",
    tolerances: Tolerances | None = None,
    attempt_seconds: float | None = None,
    probe: Probe = "near",
    max_memory: int | None = None,
    max_seconds: float | None = None,
    progress: Progress | bool | None = None,
    parts: Sequence[str] = (),
    drive: Callable[[], Any] | None = None,
    **options: Any,
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
        merge: ``"auto"`` makes one program of prefill and decode steps if replay proves it right.
            ``"never"`` saves the time to find out; ``notes`` say where that would have been wise.
        tolerances: of the comparison; by default of ``torch.testing``, wider for ONNX.
        attempt_seconds: how long a trace may take (of processor time, in the main thread), and a
            run at other sizes than the recorded ones; by default a minute, for a trace half a
            minute and a tenth of a second per module.
        probe: at which other sizes model and programs are run and compared (``Probing``):
            ``"far"`` is up to 500 times the recorded ones.
        max_memory: the bytes that a run at other sizes may take, with the run that it is compared
            with. By default what the largest recorded call takes, or 256 MiB if that is more, and
            never more than half of what is free (for ``probe="far"``: that half).
        max_seconds: how long all of it may take; no limit by default. When the time is up, the
            programs that were found are returned, and ``missing`` says what was not tried. A trace
            is interrupted (in the main thread), a run of a recorded call is not.
        progress: is called with a line of text whenever something else is traced or run. True shows
            the line: below the cell of a notebook, else on stderr.
        parts: names of submodules that are exported as well, with the same options
            (:attr:`Programs.parts`): ``generate()`` calls an encoder on its own. Their calls are
            recorded while one recorded call of each size is run again.
        drive: calls the parts instead, for instance ``lambda: model.generate(ids)``.
        **options: for ``torch.export.export`` or ``torch.onnx.export``.

    Raises:
        ExportError: no variant could be exported; says what was tried. Or the model, or a part of
            it, is a TorchScript module.
        InferenceError: the tape has no calls, or an argument cannot be rebuilt here.
        UsageError: for a module without the recorded method, or options that do not exist; or torch
            is older than 2.12.
    """
    from calltape_analyzer.model.randomness import generators_kept

    demand_torch()
    check_tape(tape, "export")
    shared: dict[str, Any] = {
        "to": to,
        "merge": merge,
        "tolerances": tolerances,
        "attempt_seconds": attempt_seconds,
        "probe": probe,
        "max_memory": max_memory,
        "max_seconds": max_seconds,
        **options,
    }
    if parts or drive is not None:
        return _with_parts(tape, module, parts, drive, {**shared, "progress": told_by(progress)})
    _check_options(to, merge, probe, max_memory, max_seconds)
    bounds = tolerances or (ONNX_TOLERANCES if to == "onnx" else Tolerances())
    verifier = Verifier.of(tape, module, bounds)
    _reject_scripted(verifier.module)
    verifier.probing = Probing(probe, max_memory, fused=to != "onnx")
    verifier.budget = Budget(max_seconds, told_by(progress))
    exporter = _exporter(verifier, to, options, attempt_seconds)
    with generators_kept(verifier.module):
        return _programs(tape, exporter, merging=merge == "auto")


def _with_parts(
    tape: Tape,
    module: torch.nn.Module | Callable[..., Any],
    parts: Sequence[str],
    drive: Callable[[], Any] | None,
    options: dict[str, Any],
) -> Programs:
    if isinstance(parts, str) or not parts:
        raise UsageError(f"parts={parts!r}", advice="pass a list of names of submodules")
    verifier = Verifier.of(tape, module, Tolerances())
    # First, because a name that is wrong should not cost an export.
    found = exported_parts(tape, verifier, parts, drive, partial(export, **options))
    programs = export(tape, module, **options)
    programs.parts.update(found)
    return programs


def _check_options(
    to: str, merge: str, probe: str, max_memory: int | None, max_seconds: float | None
) -> None:
    if to not in ("torch", "onnx") or merge not in ("auto", "never"):
        raise UsageError(f"to={to!r}, merge={merge!r}", advice="see help(export)")
    if probe not in ("near", "far", "none") or (max_memory is not None and max_memory < 0):
        raise UsageError(f"probe={probe!r}, max_memory={max_memory!r}", advice="see help(export)")
    if max_seconds is not None and not max_seconds > 0:
        raise UsageError(f"max_seconds={max_seconds!r}", advice="pass a number above 0, or None")


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


def _exporter(
    verifier: Verifier, to: str, options: dict[str, Any], seconds: float | None
) -> Exporter:
    if seconds:
        verifier.probing.seconds = seconds
    if to == "torch":
        return Exporter(verifier, options, seconds=seconds)
    return Exporter(
        verifier,
        convert=lambda exported, plan, result, variant: to_onnx(
            exported, plan, result, variant, options
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
        if True in exporter.verifier.sorter.training_modes and was_traced:
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
    is_training = getattr(exporter.verifier.module, "training", False)
    if is_training and False in exporter.verifier.sorter.training_modes:
        search.told.append(ModelInTraining())
    return Programs(
        search.programs,
        exporter.verifier.sorter,
        attempts=exporter.attempts,
        missing=search.missing,
        told=search.told,
        verdicts=search.verdicts,
        reference=exporter.verifier,
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
