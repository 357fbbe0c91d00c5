"""The command that shows how the smallest tape fails.

In come a check, and the tape that fails it. Out goes a line for a shell, which a user can run or
paste as it stands.
"""

from __future__ import annotations

import re
import shlex

from calltape_analyzer.minimising.changed_calls import is_changed
from calltape_analyzer.minimising.checks import Check
from calltape_analyzer.tape import Tape

__all__ = ["command_of", "notes_of_memory"]

_PREDICATE = (
    "import calltape_analyzer, {module} as checks; "
    "found = checks.{name}(calltape_analyzer.open_tape({path!r})); print(found); exit(bool(found))"
)

_NO_MEMORY = re.compile(r"MemoryError|out of memory|(?:can't|cannot) allocate", re.IGNORECASE)


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
    return shlex.join([*words, *(["--train"] if check.train else [])])


def notes_of_memory(reason: str) -> list[str]:
    """What is to be known of the command if the tape fails for a lack of memory.

    Args:
        reason: why the tape fails.
    """
    if _NO_MEMORY.search(reason) is None:
        return []
    return ["it fails because this machine has too little memory: with more, it may not fail"]
