"""Which tapes, and which calls of them, a test is run with.

Takes the marks of a test, and where tapes may lie; returns one choice per call, with the id that
the test gets for it; or one that says what is wrong, so that a test fails and all others run.
Nothing here imports torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calltape_analyzer.errors import TapeError
from calltape_analyzer.opening import open_tape
from calltape_analyzer.reading.compressed import SUFFIXES
from calltape_analyzer.tape import Tape

__all__ = ["OPTIONS", "Choice", "Problem", "choices_of", "opened"]

OPTIONS = ("calls", "variant", "ignore", "classes", "whole")


@dataclass(frozen=True)
class Choice:
    """A tape, or one call of it, for one test.

    Attributes:
        id: of the test.
        path: of the tape.
        place: the position of the call among the chosen calls; None for all of them.
        options: what the mark says beside the path.
    """

    id: str
    path: str
    place: int | None
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Problem:
    """Why there is no tape for a test.

    Attributes:
        id: of the test that fails because of it.
        text: what to do.
    """

    id: str
    text: str


def choices_of(
    marks: Sequence[tuple[tuple[Any, ...], Mapping[str, Any]]],
    folders: Sequence[Path],
    tapes: Path | None,
) -> list[Choice | Problem]:
    """What a test is run with.

    Args:
        marks: arguments of its marks.
        folders: where paths of marks are looked up, the first one first.
        tapes: ``calltape_dir``, whose tapes a test without a mark gets; None if it is not set.
    """
    found: list[Choice | Problem] = []
    for args, kwargs in marks:
        unknown = [name for name in kwargs if name not in OPTIONS]
        if unknown or not args:
            what = f"has no {unknown[0]}=" if unknown else "names no tape"
            known = ", ".join(f"{name}=" for name in OPTIONS)
            found.append(Problem("mark", f"the mark tape {what}; it takes paths, and {known}"))
            continue
        for path in args:
            found += _of_path(os.fspath(path), folders, kwargs)
    return found if marks else _of_folder(tapes)


def _of_path(
    path: str, folders: Sequence[Path], options: Mapping[str, Any]
) -> list[Choice | Problem]:
    tried = [folder / path for folder in folders]
    for one in tried:
        if one.exists():
            return list(_of_tape(one, one.name, options))
    places = ", ".join(dict.fromkeys(str(one) for one in tried))
    return [Problem(Path(path).name, f"there is no tape {path} (looked for {places})")]


def _of_folder(tapes: Path | None) -> list[Choice | Problem]:
    if tapes is None:
        advice = 'mark the test with @pytest.mark.tape("file.tape"), or set calltape_dir'
        return [Problem("tape", f"the test has no tape: {advice}")]
    files = sorted(path for path in tapes.rglob("*") if path.name.endswith(SUFFIXES))
    if not files:
        return [Problem("tape", f"there is no *.tape in {tapes}, which calltape_dir names")]
    named = [(file, file.relative_to(tapes).as_posix()) for file in files]
    return [choice for file, name in named for choice in _of_tape(file, name, {})]


def _of_tape(path: Path, name: str, options: Mapping[str, Any]) -> Iterator[Choice | Problem]:
    """A choice per call. What is damaged is a failing test beside them."""
    try:
        with opened(str(path), options) as tape:
            if options.get("whole"):
                yield Choice(name, str(path), None, options)
            elif not len(tape.calls):
                yield Problem(name, f"{path} has no call")
            else:
                for call in tape.calls:
                    shown = tape.calls.label_of(call.ref)
                    yield Choice(f"{name}-{shown}", str(path), call.index, options)
            if tape.damage:
                text = "; ".join(map(str, tape.damage[:3]))
                yield Problem(f"{name}-damage", f"{path} is corrupted and lacks calls: {text}")
    except TapeError as error:
        yield Problem(name, f"the tape cannot be used: {error}")
    except Exception as error:
        yield Problem(name, f"{path} cannot be used: {type(error).__name__}: {error}")


def opened(path: str, options: Mapping[str, Any]) -> Tape:
    """The part of a tape that a mark means.

    Raises:
        TapeError: it cannot be read, or has no such calls.
    """
    tape = open_tape(path, classes=options.get("classes", ()))
    wanted = {name: options[name] for name in ("calls", "variant", "ignore") if name in options}
    try:
        return tape.only(**wanted) if wanted else tape
    except BaseException:
        tape.close()
        raise
