"""An export in a fresh process.

State of torch leaks between exports in one process (rule 14 of
docs/decisions/export-strategies.md). The model goes to the other process by pickle, and the
programs come back as files.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calltape_analyzer.errors import ExportError
from calltape_analyzer.exporting.budget import Progress
from calltape_analyzer.exporting.free_memory import half_of_free, resident
from calltape_analyzer.exporting.verifier import Verifier
from calltape_analyzer.programs.loading import load_programs
from calltape_analyzer.programs.programs import Programs
from calltape_analyzer.writing.temporary import TemporaryFolder

if TYPE_CHECKING:
    from calltape_analyzer.tape import Tape

__all__ = ["export_isolated"]

_RESULT = "result.json"
_PROGRESS = "progress.txt"
_GRACE = 60.0
"""Seconds that the other process gets beyond its time, to start and to write what it found."""
_MAX_OF_FREE = 0.9
"""Beyond that, the kernel would end some process, not always the one that takes the memory."""
_INTERVAL = 0.2


class _RemoteError(Exception):
    """Carries the traceback of the other process."""


def export_isolated(
    export: Callable[..., Programs],
    tape: Tape,
    verifier: Verifier,
    progress: Progress | None = None,
    **options: Any,
) -> Programs:
    """Exports in a fresh process; what comes back is loaded from files.

    Args:
        export: :func:`~calltape_analyzer.export`, which the other process imports by its name.
        tape: the calls.
        verifier: has the model.
        progress: is told what the other process does.
        **options: for ``export``.

    Raises:
        ExportError: as ``export``, or the process died; says how.
    """
    folder = TemporaryFolder()
    max_seconds: float | None = options.get("max_seconds")
    classes = tape.class_index
    part = tape.removed, tape.selected
    given = (
        export,
        [one.location for one in tape.segments],
        classes,
        part,
        verifier.module,
        options,
        str(folder.path),
    )
    process = multiprocessing.get_context("spawn").Process(target=_export, args=given)
    try:
        process.start()
    except Exception as error:  # pickle raises errors of any type
        folder.close()
        raise ExportError(
            f"the model cannot be sent to another process: {type(error).__name__}: {error}",
            advice="export without isolate=True",
        ) from None
    heard = _Heard(folder.path / _PROGRESS, progress)
    try:
        _wait(process, max_seconds, heard)
    except BaseException:  # its limits, Ctrl-C, or what the caller's function of progress raised
        process.kill()
        process.join()
        folder.close()
        raise
    received = _received(folder.path, process.exitcode, tape, verifier, heard)
    received.set_reference(verifier)
    # ONNX models are opened from their files when they are first called: the folder must stay.
    received.set_resource(folder)
    return received


class _Heard:
    """What the other process said of its progress.

    Args:
        path: the file to which it adds a line for whatever it does next.
        progress: is told each line.
    """

    def __init__(self, path: Path, progress: Progress | None) -> None:
        self._path = path
        self._progress = progress
        self._lines = 0
        self._last = ""

    def listen(self) -> None:
        """Passes on what was said since."""
        with contextlib.suppress(OSError):  # it has said nothing yet
            whole, _, _ = self._path.read_text(errors="replace").rpartition("\n")
            lines = whole.splitlines()
            for line in lines[self._lines :]:
                self._last = line
                if self._progress is not None:
                    self._progress(line)
            self._lines = len(lines)

    @property
    def last(self) -> str:
        """What it did last, as the end of a sentence; empty if it said nothing."""
        self.listen()
        return f"; the last that it did, after {self._last}" if self._last else ""


def _wait(process: Any, max_seconds: float | None, heard: _Heard) -> None:
    """Waits until a process ends by itself.

    Raises:
        ExportError: it takes more time or memory than it may.
    """
    allowed = int(2 * half_of_free() * _MAX_OF_FREE)
    begin = time.monotonic()
    while process.exitcode is None:
        process.join(_INTERVAL)
        heard.listen()
        if max_seconds is not None and time.monotonic() - begin > max_seconds + _GRACE:
            raise ExportError(
                f"the exporting process was not done {_GRACE:.0f} s after "
                f"max_seconds={max_seconds:g}, and was ended{heard.last}",
                advice="allow more time, or export without isolate=True to keep what was found",
            )
        taken = resident(process.pid)
        if taken > allowed:
            raise ExportError(
                f"the exporting process took {taken / 2**30:.1f} GiB of memory, more than "
                f"{_MAX_OF_FREE:.0%} of what was free, and was ended{heard.last}",
                advice="export with probe='none', fewer variants, or on a larger machine",
            )


def _received(
    folder: Path, exit_code: int | None, tape: Tape, verifier: Verifier, heard: _Heard
) -> Programs:
    result = folder / _RESULT
    if not result.exists():
        raise ExportError(
            f"the exporting process died ({_end_of(exit_code)}){heard.last}",
            advice="the model, or a kernel that it calls, ended the process",
        )
    document = json.loads(result.read_text())
    if document["error"] is not None:
        remote = _RemoteError(f"\n\n{document['traceback']}")
        raise ExportError(f"in the exporting process: {document['error']}") from remote
    # Trusted: our own process wrote it now, into a directory that only its owner may enter.
    loaded = load_programs(folder / "programs", classes=verifier.classes, trusted=True)
    loaded.set_tape(tape)
    return loaded


def _end_of(exit_code: int | None) -> str:
    """How a process ended, in words: one that the kernel ends cannot tell it."""
    if exit_code is None or exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    hint = ", as the kernel ends a process that takes too much memory" if name == "SIGKILL" else ""
    return f"ended by {name}{hint}"


def _export(
    export: Callable[..., Programs],
    paths: list[str],
    classes: Any,
    part: Any,
    module: Any,
    options: Any,
    name: str,
) -> None:
    from calltape_analyzer.opening import open_tape

    def tell(text: str) -> None:
        with contextlib.suppress(OSError), (Path(name) / _PROGRESS).open("a") as file:
            file.write(" ".join(text.split()) + "\n")

    document: dict[str, Any] = {"error": None}
    try:
        removed, selected = part
        with open_tape(paths, classes=classes) as tape:
            if removed:
                tape.remove_inputs(list(removed))
            programs = export(tape.only(**selected), module, progress=tell, **options)
            programs.save(Path(name) / "programs")
    except Exception as error:
        document["error"] = f"{type(error).__name__}: {error}"
        document["traceback"] = traceback.format_exc()
    # In one step, and last: if the file exists, it is complete, and so are the programs.
    written = Path(name) / f"{_RESULT}.new"
    written.write_text(json.dumps(document))
    written.replace(Path(name) / _RESULT)
