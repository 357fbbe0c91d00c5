"""Asks a tape what it can be asked: the reading verbs of the command, and the two ``infer_*``.

The verbs run in this process, because starting one for each would take most of the time.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from calltape_analyzer import TapeError, open_tape
from calltape_analyzer.program_source import ProgramSource
from calltape_analyzer.tape import Tape
from tests.analyzer.cli.commands import run
from tests.answers.normalising import Normalising
from tests.answers.outlines import outline, shapes_outline

__all__ = ["Answers", "ask"]

Answers = dict[str, Any]
"""By question: lines of text, or for ``infer_*`` plain data."""

_SECONDS = "100000"
"""How long a command may take: how fast the machine is, is no part of an answer."""
_MAX_VARIANTS, _MAX_ARGUMENTS = 12, 24


def ask(tape: str, following: str, normalising: Normalising, scratch: Path) -> Answers:
    """What a tape answers.

    Args:
        tape: its path from the current directory; answers name it.
        following: the path of another tape, which it is compared with.
        normalising: leaves out what another run would say otherwise.
        scratch: an empty folder.
    """

    def command(*words: str) -> list[str]:
        return normalising.lines(_command(*words))

    info = command("info", tape)
    if not _opens(tape):
        return {"info": info}  # every other question gets the same answer
    answers: Answers = {
        "info": info,
        "ls": command("ls", tape),
        "variants": command("variants", tape),
        "variants --python": command("variants", tape, "--python"),
        f"diff {Path(following).name}": command("diff", tape, following),
        "survey": command("survey", tape, "--jobs", "1"),
        "table": _table(tape, scratch / "table.csv", normalising),
    }
    for name in _arguments(tape)[:_MAX_ARGUMENTS]:
        answers[f"explain {name}"] = command("explain", tape, name)
    answers |= {
        question: normalising.value(found)
        for question, found in _inferred(tape)
    }  # fmt: skip
    return answers


def _opens(tape: str) -> bool:
    try:
        with open_tape(tape):
            return True
    except TapeError:
        return False


def _command(*words: str) -> list[str]:
    """What a command prints, then what it complains about, then its exit code if it is not 0."""
    try:
        code, out, err = run("--max-seconds", _SECONDS, *words)
    except Exception as error:  # no command should end so: the answer shows that this one does
        return [f"raised {type(error).__name__}: {error}"]
    complaints = [f"stderr: {line}" for line in err.splitlines()]
    return [*out.splitlines(), *complaints, *([f"exit {code}"] if code else [])]


def _table(tape: str, path: Path, normalising: Normalising) -> list[str]:
    said = _command("table", tape, "-o", str(path))
    if not path.exists():
        return normalising.lines(said)
    rows = list(csv.reader(io.StringIO(path.read_text())))
    os.remove(path)
    return [*normalising.lines(said), *normalising.rows(rows)]


def _arguments(tape: str) -> list[str]:
    """The arguments that the calls pass, by the words that ``explain`` takes."""
    names: dict[str, None] = {}
    with contextlib.suppress(Exception), open_tape(tape) as opened:
        for variant in opened.variants():
            findings = variant.findings
            names |= dict.fromkeys(one.argument for one in (*findings.tensors, *findings.ints))
            names |= dict.fromkeys(re.split(r"[.\[]", place)[0] for place in findings.constants)
        others = [one.name for one in opened.signature.parameters if one.name not in names]
        names |= dict.fromkeys(name for name in others if _is_passed(opened, name))
    return list(names)


def _is_passed(tape: Tape, name: str) -> bool:
    try:
        tape.explain(name)
    except TapeError:
        return False
    return True


def _inferred(tape: str) -> Iterator[tuple[str, Any]]:
    """What ``infer_*`` of the tape and of its first variants return."""
    with open_tape(tape) as opened:
        yield "infer_dynamic_shapes", _of(_shapes, opened)
        yield "infer_arguments", _of(_given, opened)
        for variant in _of(opened.variants)[:_MAX_VARIANTS]:
            if isinstance(variant, str):  # there are none, and this says why
                return
            yield f"infer_dynamic_shapes of {variant.name}", _of(_shapes, variant, dim="names")
            yield f"infer_arguments of {variant.name}", _of(_given, variant)


def _shapes(source: ProgramSource, **options: Any) -> Any:
    return shapes_outline(source.infer_dynamic_shapes(**options))


def _given(source: ProgramSource) -> Any:
    return outline(source.infer_arguments())


def _of(question: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """The answer, or the error in its place: any, because a wrong one is pinned as well."""
    try:
        return question(*given, **options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
