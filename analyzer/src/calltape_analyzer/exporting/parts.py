"""Parts of a model that are exported beside it, such as the encoder of an encoder-decoder.

A tape has the calls of one module. ``generate()`` calls an encoder on its own, past the recorded
method. In come a tape, the model, and the names of its parts; the calls of the parts are recorded
while the model runs, and each part is exported from them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calltape_analyzer.arguments.plan import Plan
from calltape_analyzer.arguments.sizings import Sizing
from calltape_analyzer.errors import UsageError
from calltape_analyzer.exporting.session.session import Session
from calltape_analyzer.opening import open_tape
from calltape_analyzer.programs.programs import Programs
from calltape_analyzer.writing.output_file import TemporaryFolder

if TYPE_CHECKING:
    from calltape_analyzer.tape import Tape

__all__ = ["exported_parts"]


def exported_parts(
    tape: Tape,
    session: Session,
    names: Sequence[str],
    drive: Callable[[], Any] | None,
    export: Callable[[Tape, Any], Programs],
) -> dict[str, Programs]:
    """The programs of each part, by its name.

    Args:
        tape: the calls of the model.
        session: has the model.
        names: of submodules.
        drive: calls the model. By default one recorded call of each size is run again.
        export: exports the calls on a tape, given the module.

    Raises:
        UsageError: there is no such part, it was not called, or calltape-recorder is missing.
        ExportError: a part cannot be exported.
    """
    modules = dict(session.module.named_modules())
    unknown = [name for name in names if name not in modules or not name]
    if unknown:
        raise UsageError(
            f"{type(session.module).__name__} has no part {unknown[0]!r}",
            advice="name submodules as named_modules() does",
        )
    parts = {name: modules[name] for name in names}
    stack = ExitStack()
    folder = stack.enter_context(TemporaryFolder())
    try:
        paths = _recorded(parts, folder, drive or (lambda: _run_again(tape, session)))
        found: dict[str, Programs] = {}
        for name, path in paths.items():
            opened = stack.enter_context(open_tape(path, classes=tape.class_index))
            if not len(opened):
                raise UsageError(
                    f"the part {name!r} was not called",
                    advice="pass drive=, a function that calls it: lambda: model.generate(ids)",
                )
            found[name] = export(opened, parts[name])
    except BaseException:
        stack.close()
        raise
    for programs in found.values():
        programs.set_resource(stack)  # their tapes, by which they can be verified
    return found


def _recorded(parts: dict[str, Any], folder: Path, drive: Callable[[], Any]) -> dict[str, Path]:
    """Records the calls of each part to a tape of its own."""
    import torch

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


def _run_again(tape: Tape, session: Session) -> None:
    """One call of each recorded size, through the model."""
    for variant in tape.variants():
        facts = variant.facts
        for row in range(len(facts.rows)):
            sizing = Sizing(row, tuple(symbol.values[row] for symbol in facts.symbols), False)
            sample = session.sample(facts, sizing)
            session.eager(Plan.of(facts, sample, session.sorter.signature), sample)
