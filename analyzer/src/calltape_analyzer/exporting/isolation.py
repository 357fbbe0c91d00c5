"""An export in a process of its own.

State of torch leaks between exports in one process (rule 14 of docs/decisions/0012). The model goes
to a fresh process by pickle, and the programs come back as files.
"""

from __future__ import annotations

import json
import multiprocessing
import signal
import tempfile
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calltape_analyzer.errors import ExportError
from calltape_analyzer.exporting.attempts import Attempt
from calltape_analyzer.exporting.judging import Judge
from calltape_analyzer.exporting.loading import load_programs
from calltape_analyzer.exporting.programs import Programs
from calltape_analyzer.sizes import Sizing

if TYPE_CHECKING:
    from calltape_analyzer.tape import Tape

__all__ = ["export_isolated"]

_SAID = "said.json"


def export_isolated(tape: Tape, judge: Judge, **options: Any) -> Programs:
    """:func:`~calltape_analyzer.export` in a fresh process; what comes back is loaded from files.

    Raises:
        ExportError: as ``export``, or the process died; says how.
    """
    folder = tempfile.TemporaryDirectory(prefix="calltape-")
    name = folder.name
    classes = tape.class_index.by_name
    given = (list(tape.paths), classes, tape.removed, judge.module, options, name)
    process = multiprocessing.get_context("spawn").Process(target=_export, args=given)
    try:
        process.start()
    except Exception as error:  # pickle's own, of any type
        folder.cleanup()
        raise ExportError(
            f"the model cannot be sent to another process: {type(error).__name__}: {error}",
            advice="export without isolate=True",
        ) from None
    process.join()
    received = _received(Path(name), process.exitcode, tape, judge)
    received.judged_by(judge)
    # ONNX models are opened from their files when they are first called: these go with them.
    received.keeps(folder)
    return received


def _received(folder: Path, exit_code: int | None, tape: Tape, judge: Judge) -> Programs:
    said = folder / _SAID
    if not said.exists():
        raise ExportError(f"the exporting process died ({_end_of(exit_code)})")
    document = json.loads(said.read_text())
    if document["error"] is not None:
        raise ExportError(f"in its own process: {document['error']}")
    # Written a moment ago by our own process, into a directory that only its owner may enter.
    loaded = load_programs(folder / "programs", classes=judge.classes.by_name, trusted=True)
    loaded.attempts = tuple(_attempt_of(found) for found in document["attempts"])
    loaded.verifies(tape)
    return loaded


def _end_of(exit_code: int | None) -> str:
    """In words: a process that the kernel ends has no words of its own."""
    if exit_code is None or exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    hint = ": so the kernel ends what takes too much memory" if name == "SIGKILL" else ""
    return f"ended by {name}{hint}"


def _export(
    paths: list[str], classes: Any, removed: Any, module: Any, options: Any, name: str
) -> None:
    from calltape_analyzer.exporting.procedure import export
    from calltape_analyzer.opening import open_tape

    document: dict[str, Any] = {"error": None, "attempts": []}
    try:
        with open_tape(paths, classes=classes) as tape:
            if removed:
                tape.remove_inputs(list(removed))
            programs = export(tape, module, **options)
            document["attempts"] = [_document_of(attempt) for attempt in programs.attempts]
            programs.save(Path(name) / "programs")
    except Exception as error:
        document["error"] = f"{type(error).__name__}: {error}"
        traceback.print_exc()
    # In one step, and last: who finds it, finds all of it, and the programs.
    written = Path(name) / f"{_SAID}.new"
    written.write_text(json.dumps(document))
    written.replace(Path(name) / _SAID)


def _document_of(attempt: Attempt) -> dict[str, Any]:
    found = asdict(attempt)
    del found["rows"]  # by sizes that mean nothing outside of the export
    return found


def _attempt_of(found: dict[str, Any]) -> Attempt:
    for name in ("refused", "wrong_at"):
        sizings = [Sizing(s["row"], tuple(s["values"]), s["resized"]) for s in found[name]]
        found[name] = sizings
    return Attempt(**found)
