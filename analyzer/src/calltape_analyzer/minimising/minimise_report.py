"""What came of making a tape small, and the command that shows how the result fails: a line for a
shell, which a user can run or paste as it stands."""

from __future__ import annotations

import re
import shlex

from calltape_analyzer.minimising.changed_calls import is_changed
from calltape_analyzer.minimising.checks import Check
from calltape_analyzer.plain_data import PlainData, Text, Texts
from calltape_analyzer.tape import Tape
from calltape_analyzer.text import counted, printable

__all__ = ["MinimiseReport", "command_of", "notes_of_memory"]

_PREDICATE = (
    "import calltape_analyzer, {module} as checks; "
    "found = checks.{name}(calltape_analyzer.open_tape({path!r})); print(found); exit(bool(found))"
)

_NO_MEMORY = re.compile(r"MemoryError|out of memory|(?:can't|cannot) allocate", re.IGNORECASE)


class MinimiseReport(PlainData):
    """The result of shrinking a tape. ``str()`` of it is text for people.

    Attributes:
        path: the new file.
        reason: why both tapes fail. Numbers in it are replaced by ``#``.
        calls_before, calls: how many calls the tapes have.
        bytes_read, bytes_written: sizes of the files.
        steps: how many tapes were tried.
        seconds: how long it took.
        shown_by: the command that shows how the new tape fails; None if there is none, because
            commands do not load classes by name.
        notes: other things that you should know.
    """

    path: Text
    reason: Text
    calls_before: int
    calls: int
    bytes_read: int
    bytes_written: int
    steps: int
    seconds: float
    shown_by: Text | None = None
    notes: Texts = ()

    def __str__(self) -> str:
        size = f"{self.bytes_written:,} of {self.bytes_read:,} bytes"
        many = f"{self.calls} of {counted(self.calls_before, 'call')}"
        parts = [
            f"{printable(self.path)}: {many}, {size}",
            f"fails: {printable(self.reason)}",
            f"{counted(self.steps, 'step')}, {self.seconds:.1f} s",
        ]
        if self.shown_by is not None:
            parts.append(f"see it fail: {printable(self.shown_by)}")
        parts += [f"note: {printable(text)}" for text in self.notes]
        return "\n".join(parts)


def command_of(check: Check, tape: Tape, path: str) -> str | None:
    """The command; None if there is none: with classes, for a predicate, or if one of them has
    another name on the tape than here.

    Args:
        check: what the tape fails.
        tape: the smallest one.
        path: where it is.
    """
    if check.classes and (
        check.kind == "predicate" or any(name != here for name, here in check.classes.items())
    ):
        return None
    module, _, name = check.name.partition(":")
    if check.kind == "predicate":
        code = _PREDICATE.format(module=module, name=name, path=path)
        return shlex.join(["python", "-c", code])
    words = ["calltape", check.kind, path, "--model", check.name]
    if check.kind == "export":
        words += ["--to", check.to, "--probe", "none"]
    elif any(map(is_changed, tape.calls)):
        # What the model did with these arguments is not on the tape: it only has to return.
        words += ["--expect", "success"]
    for name in check.classes:
        words += ["--classes", name]
    return shlex.join(words)


def notes_of_memory(reason: str) -> list[str]:
    """What is to be known of the command if the tape fails for a lack of memory.

    Args:
        reason: why the tape fails.
    """
    if _NO_MEMORY.search(reason) is None:
        return []
    return ["it fails because this machine has too little memory: with more, it may not fail"]
