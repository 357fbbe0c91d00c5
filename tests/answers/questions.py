"""Asks a tape what it can be asked: the reading verbs of the command, and the two ``infer_*``.

The verbs run in this process, because starting one for each would take most of the time.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from calltape_analyzer import TapeError, open_tape
from calltape_analyzer.tape import Tape
from tests.analyzer.cli.commands import run
from tests.answers.normalising import Normalising
from tests.answers.outlines import outline, shapes_outline

__all__ = ["Answers", "ask"]

Answers = dict[str, Any]
"""By question: lines of text, or for ``infer_*`` plain data."""

_SECONDS = "100000"
"""How long a command may take: how fast the machine is, is no part of an answer."""
_MAX_VARIANTS = 12


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
    if info[-1:] == ["exit 1"] and len(info) == 2:  # noqa: PLR2004
        return {"info": info}  # refused: every other question gets the same answer
    answers: Answers = {
        "info": info,
        "ls": command("ls", tape),
        "variants": command("variants", tape),
        "variants --python": command("variants", tape, "--python"),
        f"diff {Path(following).name}": command("diff", tape, following),
        "survey": command("survey", tape, "--jobs", "1"),
        "table": _table(tape, scratch / "table.csv", normalising),
    }
    for name in _arguments(tape):
        answers[f"explain {name}"] = command("explain", tape, name)
    answers |= {
        question: normalising.value(found)
        for question, found in _inferred(tape)
    }  # fmt: skip
    return answers


def _command(*words: str) -> list[str]:
    """What a command prints, then what it complains about, then its exit code if it is not 0."""
    try:
        code, out, err = run("--max-seconds", _SECONDS, *words)
    except (
        Exception
    ) as error:  # a command has to end otherwise, and the answer shows that it did not
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
    try:
        with open_tape(tape) as opened:
            names: dict[str, None] = {}
            for variant in opened.variants():
                found = variant.findings
                places = [*found.tensors, *found.ints]
                names |= dict.fromkeys(one.argument for one in places)
                names |= dict.fromkeys(_argument_of(place) for place in found.constants)
            for parameter in opened.signature.parameters:
                if parameter.name not in names and _is_passed(opened, parameter.name):
                    names[parameter.name] = None
            return list(names)
    except TapeError:
        return []


def _argument_of(place: str) -> str:
    return place.replace("[", ".").split(".", 1)[0]


def _is_passed(tape: Tape, name: str) -> bool:
    try:
        tape.explain(name)
    except TapeError:
        return False
    return True


def _inferred(tape: str) -> Iterator[tuple[str, Any]]:
    """What ``infer_*`` of the tape and of each of its variants return."""
    try:
        with open_tape(tape) as opened:
            yield "infer_dynamic_shapes", _of(lambda: shapes_outline(opened.infer_dynamic_shapes()))
            yield "infer_arguments", _of(lambda: outline(opened.infer_arguments()))
            variants = opened.variants()
            for variant in variants[:_MAX_VARIANTS]:
                asked = variant.infer_dynamic_shapes
                given = variant.infer_arguments
                yield (
                    f"infer_dynamic_shapes of {variant.name}",
                    _of(lambda asked=asked: shapes_outline(asked(dim="names"))),
                )
                yield (
                    f"infer_arguments of {variant.name}",
                    _of(lambda given=given: outline(given())),
                )
    except TapeError as error:
        yield "infer", f"{type(error).__name__}: {error}"


def _of(question: Callable[[], Any]) -> Any:
    try:
        return question()
    except TapeError as error:
        return f"{type(error).__name__}: {error}"
