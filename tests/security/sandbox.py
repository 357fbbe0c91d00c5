"""Runs a program, and reports each process that it starts, file that it writes outside of its
folder, socket that it opens, and character that a terminal would obey.

Python's audit hooks tell (``watching/sitecustomize.py``). torch starts processes and opens
libraries of its own: what a harmless run of the same program does is allowed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Event", "Watched", "watched"]

_WATCHING = Path(__file__).parent / "watching"
_ROOT = Path(__file__).parents[2]

Event = tuple[str, str]


@dataclass(frozen=True)
class Watched:
    """What a program did.

    Attributes:
        code: its exit code.
        output: what it printed, on both streams.
        events: each kind of event, with its arguments, that was not allowed.
        escapes: the characters in the output that are no text.
    """

    code: int
    output: str
    events: tuple[Event, ...]
    escapes: str

    @property
    def findings(self) -> list[str]:
        """What it must not do, in words."""
        found = [f"{event} {what}" for event, what in self.events]
        return found + ([f"prints {self.escapes!r}"] if self.escapes else [])


def watched(
    words: Sequence[str | Path],
    folder: Path,
    *,
    allowed: Iterable[Event] | None = (),
    seconds: float = 300,
) -> Watched:
    """Runs ``python *words`` in a folder, which is all that it may write to.

    Args:
        words: arguments of the interpreter.
        folder: its working directory, and its home.
        allowed: the events of a harmless run; None for that run itself, in which everything
            happens.
        seconds: how long it may take.
    """
    log = folder.parent / f"{folder.name}.events"
    log.write_bytes(b"")
    environment = {
        "PATH": os.environ.get("PATH", ""),
        "PYTHONPATH": os.pathsep.join(map(str, (_WATCHING, _ROOT))),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "OMP_NUM_THREADS": "1",
        "CALLTAPE_WATCH": str(log),
        "CALLTAPE_WATCH_FOLDER": str(folder),
    }
    if allowed is not None:
        environment["CALLTAPE_WATCH_ALLOWED"] = json.dumps([list(one) for one in allowed])
    done = subprocess.run(
        [sys.executable, *map(str, words)], cwd=folder, env=environment, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds,
    )  # fmt: skip
    output = done.stdout.decode("utf-8", "surrogateescape")
    lines = log.read_text().splitlines()
    events: dict[Event, None] = dict.fromkeys((e, what) for e, what in map(json.loads, lines))
    escapes = "".join(dict.fromkeys(one for one in output if _is_obeyed(one)))
    return Watched(done.returncode, output, tuple(events), escapes)


def _is_obeyed(char: str) -> bool:
    return not char.isprintable() and char not in "\n\t"
