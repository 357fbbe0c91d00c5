"""What was tried, line by line in a file beside the result. A second run knows the answers."""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from calltape_analyzer.errors import TapeError
from calltape_analyzer.minimising.checks import Outcome

__all__ = ["TrialLog"]

_MAX_BYTES = 2**28
_KIND = "calltape minimise"


class TrialLog:
    """Outcomes by the digest of the tape that was tried.

    Args:
        path: of the file. If it is of the same question, its answers are used, and new ones are
            added; if it is a log of another one, it is written anew.
        question: what was asked, as plain data: the check, its code, the limits.

    Attributes:
        path: of the file.
        known: how many answers were there already.

    Raises:
        TapeError: ``io``; ``exists`` if a file that is no log is there.
    """

    def __init__(self, path: Path, question: dict[str, Any]) -> None:
        self.path = path
        _refuse_others(path)
        head = json.dumps({_KIND: question}, sort_keys=True)
        self._answers = _read(path, head)
        self.known = len(self._answers)
        try:
            flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if self.known else os.O_TRUNC)
            self._file = os.fdopen(os.open(path, flags, 0o600), "a", encoding="ascii")
        except OSError as error:
            raise TapeError("io", f"cannot write it: {error.strerror}", path=str(path)) from None
        if not self.known:
            self._write(head)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def discard(self) -> None:
        """Closes the file, and removes it unless an earlier run wrote to it."""
        self.close()
        if not self.known:
            with suppress(OSError):
                self.path.unlink()

    def answer(self, digest: str) -> Outcome | None:
        """The outcome of a tape that was tried before."""
        return self._answers.get(digest)

    def add(self, digest: str, what: str, calls: int, nbytes: int, outcome: Outcome) -> None:
        """Notes an outcome of a tape of so many calls and bytes. One that a limit of time decided
        is not asked for again."""
        self._answers[digest] = outcome
        document = outcome.model_dump(mode="json")
        document["failing_calls"] = document.pop("calls")
        facts = {"tape": digest, "what": what, "calls": calls, "bytes": nbytes}
        self._write(json.dumps({**facts, **document}))

    def _write(self, line: str) -> None:
        self._file.write(f"{line}\n")
        self._file.flush()


def _refuse_others(path: Path) -> None:
    """Raises TapeError if a file is there that nobody wants to lose."""
    begin = json.dumps({_KIND: {}})[:-2].encode()
    with suppress(OSError):
        found = path.lstat()
        if stat.S_ISREG(found.st_mode):
            with path.open("rb") as file:
                if file.read(len(begin)) in (b"", begin):
                    return
        raise TapeError(
            "exists", "there is a file here that is no log of calltape minimise", path=str(path),
            advice="move it, or name another result: the log is written beside it",
        )  # fmt: skip


def _read(path: Path, head: str) -> dict[str, Outcome]:
    found: dict[str, Outcome] = {}
    with suppress(OSError):
        if path.stat().st_size > _MAX_BYTES:
            return found
        first, *lines = path.read_text(encoding="ascii", errors="replace").split("\n")
        for line in lines if first == head else ():
            with suppress(ValueError, KeyError, TypeError):  # the last one may be torn
                document = json.loads(line)
                document["calls"] = document["failing_calls"]
                outcome = {name: document[name] for name in Outcome.model_fields}
                found[document["tape"]] = Outcome.model_validate(outcome)
    return found
