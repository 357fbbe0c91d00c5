"""Exports a model together with some of its submodules.

A tape has the calls of one module. So the calls of each submodule are recorded to a tape of its own
while the model runs, and the submodule is exported from that tape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from calltape_analyzer.arguments.sizings import recorded_sizing
from calltape_analyzer.comparison.comparing import Tolerances
from calltape_analyzer.errors import UsageError
from calltape_analyzer.exporting.session.session import Session
from calltape_analyzer.opening import open_tape
from calltape_analyzer.programs.programs import Programs
from calltape_analyzer.tape import Tape
from calltape_analyzer.writing.output_file import TemporaryFolder

__all__ = ["export_with_parts"]


def export_with_parts(
    tape: Tape,
    module: torch.nn.Module | Callable[..., Any],
    names: Sequence[str],
    drive: Callable[[], Any] | None,
    export_one: Callable[[Tape, Any], Programs],
) -> Programs:
    """The programs of a model, with those of its parts in :attr:`Programs.parts`.

    Args:
        tape: the calls of the model.
        module: the model.
        names: of the submodules.
        drive: calls the parts; None to run one recorded call of each size.
        export_one: exports one module from a tape.

    Raises:
        UsageError: there is no such part, it was not called, or calltape-recorder is missing.
        ExportError: a part cannot be exported.
    """
    if isinstance(names, str) or not names:
        raise UsageError(f"parts={names!r}", advice="pass a list of names of submodules")
    session = Session.of(tape, module, Tolerances())
    # First, because a wrong name should not cost an export.
    modules = dict(session.module.named_modules())
    unknown = [name for name in names if name not in modules or not name]
    if unknown:
        raise UsageError(
            f"{type(session.module).__name__} has no part {unknown[0]!r}",
            advice="name submodules as named_modules() does",
        )

    def run_each_size() -> None:
        for variant in (recorded.facts for recorded in tape.variants()):
            for row in range(len(variant.rows)):
                session.eager(*session.planned(variant, recorded_sizing(variant, row)))

    programs_of_parts: dict[str, Programs] = {}
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryFolder())
        parts = {name: modules[name] for name in names}
        tape_paths = _record_parts(parts, folder, drive or run_each_size)
        for name, path in tape_paths.items():
            part_tape = stack.enter_context(open_tape(path, classes=tape.class_index))
            if not len(part_tape):
                raise UsageError(
                    f"the part {name!r} was not called",
                    advice="pass drive=, a function that calls it: lambda: model.generate(ids)",
                )
            programs_of_parts[name] = export_one(part_tape, parts[name])
        open_tapes = stack.pop_all()
    for programs in programs_of_parts.values():
        programs.set_resource(open_tapes)  # they can be verified with their tapes
    programs = export_one(tape, module)
    programs.parts.update(programs_of_parts)
    return programs


def _record_parts(parts: dict[str, Any], folder: Path, drive: Callable[[], Any]) -> dict[str, Path]:
    """Records the calls of each part, and returns the path of its tape by its name."""
    try:
        from calltape_recorder import record
    except ImportError:
        raise UsageError(
            "parts= needs the recorder, which is not installed",
            advice="run `pip install ./recorder` in a clone of calltape",
        ) from None
    paths = {name: folder / f"{number}.tape" for number, name in enumerate(parts)}
    with ExitStack() as recorders, torch.no_grad():
        for name, path in paths.items():
            recorders.enter_context(record(parts[name], path))
        drive()
    return paths
