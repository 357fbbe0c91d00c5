"""Runs of ONNX Runtime in another process, because some end the process that they are in: a
recurrent layer aborts in a thread of its own if the batch is empty.

In come the file of a model and the inputs of some runs. Out goes which of them ended the process.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from calltape_analyzer.programs.onnx_session import session_of_trial, value_of
from calltape_analyzer.writing.temporary import TemporaryFolder

__all__ = ["End", "Feed", "fatal_runs", "run_all"]

Feed = tuple[Any, int | None]
"""An array of NumPy, and the type that ONNX has for it, if NumPy has none."""

_RUN = """import json, sys
sys.path[:] = json.loads(sys.argv[1])
from calltape_analyzer.programs.onnx_trial import run_all
run_all(sys.argv[2], sys.argv[3])
"""
_TYPES = "types.json"
_DONE = b"."


class End(Enum):
    """How a run in a process of its own did not come to its end."""

    DIED = "died"
    LATE = "late"
    NOT_TRIED = "not_tried"
    """There is no other process here."""


def fatal_runs(model: str, runs: Sequence[Mapping[str, Feed]], seconds: float) -> list[End | None]:
    """What became of each run that did not come to its end; None for those that did, with an error
    or without.

    Args:
        model: path of the file.
        runs: per run the inputs by name.
        seconds: how long each of the processes may take; after one that takes longer there are no
            more.
    """
    found: list[End | None] = []
    with TemporaryFolder() as folder:
        while len(found) < len(runs):
            _write(folder, runs[len(found) :])
            left = len(runs) - len(found)
            done, reason = _ended(model, str(folder), seconds)
            if done > left or (done < left and reason is None):
                done, reason = 0, End.NOT_TRIED  # that was no Python
            found += [None] * done
            if reason is not None:
                found.append(reason)
            if reason in (End.LATE, End.NOT_TRIED):
                found += [reason] * (len(runs) - len(found))
    return found


def _write(folder: Path, runs: Sequence[Mapping[str, Feed]]) -> None:
    import numpy

    for i, feeds in enumerate(runs):
        numpy.savez(folder / f"{i}.npz", **{name: array for name, (array, _) in feeds.items()})
    types = [{name: kind for name, (_, kind) in feeds.items()} for feeds in runs]
    (folder / _TYPES).write_text(json.dumps(types))


def _ended(model: str, folder: str, seconds: float) -> tuple[int, End | None]:
    """How many runs a process did, and why it did no more; None if it did all."""
    command = [sys.executable, "-c", _RUN, json.dumps(sys.path), model, folder]
    try:
        ended = subprocess.run(command, capture_output=True, timeout=seconds, check=False)
    except OSError:  # there is no Python to start: this process has one built in
        return 0, End.NOT_TRIED
    except subprocess.TimeoutExpired as error:
        return (error.stdout or b"").count(_DONE), End.LATE
    done = ended.stdout.count(_DONE)
    if ended.returncode == 0:
        return done, None
    return done, End.DIED if ended.returncode < 0 else End.NOT_TRIED


def run_all(model: str, folder: str) -> None:
    """Does the runs of a folder, and writes a dot after each. It is called in the other process."""
    import numpy

    session = session_of_trial(model)
    for i, types in enumerate(json.loads((Path(folder) / _TYPES).read_text())):
        with numpy.load(Path(folder) / f"{i}.npz") as arrays:
            values = {name: value_of(arrays[name], kind) for name, kind in types.items()}
        with contextlib.suppress(Exception):  # an error is told where the run is compared
            session.run_with_ort_values(None, values)
        os.write(sys.stdout.fileno(), _DONE)
