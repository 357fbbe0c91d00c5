"""The tapes and calls for the parameters of a test, from its marks.

A tape that cannot be read becomes a parameter whose test fails, so that other tests still run.
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

__all__ = ["OPTIONS", "BadParameter", "TapeParameter", "opened_part", "parameters_for"]

OPTIONS = ("calls", "variant", "ignore", "classes", "whole")


@dataclass(frozen=True)
class TapeParameter:
    """A tape, or one call of it, for one test.

    Attributes:
        id: the id of the parameter.
        path: the path of the tape.
        position: the position of the call among the selected calls; None for all of them.
        options: the keyword arguments of the mark.
    """

    id: str
    path: str
    position: int | None
    options: Mapping[str, Any]


@dataclass(frozen=True)
class BadParameter:
    """Why there is no tape for a test, which fails.

    Attributes:
        id: the id of the parameter.
        text: the problem, for people.
    """

    id: str
    text: str


def parameters_for(
    marks: Sequence[tuple[tuple[Any, ...], Mapping[str, Any]]],
    folders: Sequence[Path],
    tapes: Path | None,
) -> list[TapeParameter | BadParameter]:
    """The parameters of a test.

    Args:
        marks: the arguments of its marks.
        folders: folders in which paths of marks are looked up, in this order.
        tapes: ``calltape_dir``, the tapes for tests without a mark; None if it is not set.
    """
    if not marks:
        return _in_folder(tapes)
    parameters: list[TapeParameter | BadParameter] = []
    for args, kwargs in marks:
        unknown = [name for name in kwargs if name not in OPTIONS]
        if unknown or not args:
            what = f"has no {unknown[0]}=" if unknown else "names no tape"
            known = ", ".join(f"{name}=" for name in OPTIONS)
            parameters.append(
                BadParameter("mark", f"the mark tape {what}; it takes paths, and {known}")
            )
            continue
        for path in map(os.fspath, args):
            candidates = [folder / path for folder in folders]
            tape = next((candidate for candidate in candidates if candidate.exists()), None)
            if tape is not None:
                parameters += _in_tape(tape, tape.name, kwargs)
                continue
            places = ", ".join(dict.fromkeys(map(str, candidates)))
            text = f"there is no tape {path} (looked for {places})"
            parameters.append(BadParameter(Path(path).name, text))
    return parameters


def _in_folder(tapes: Path | None) -> list[TapeParameter | BadParameter]:
    if tapes is None:
        advice = 'mark the test with @pytest.mark.tape("file.tape"), or set calltape_dir'
        return [BadParameter("tape", f"the test has no tape: {advice}")]
    files = sorted(path for path in tapes.rglob("*") if path.name.endswith(SUFFIXES))
    if not files:
        return [BadParameter("tape", f"there is no *.tape in {tapes}, which calltape_dir names")]
    named = [(file, file.relative_to(tapes).as_posix()) for file in files]
    return [parameter for file, name in named for parameter in _in_tape(file, name, {})]


def _in_tape(
    path: Path, name: str, options: Mapping[str, Any]
) -> Iterator[TapeParameter | BadParameter]:
    """A parameter for each call, and a problem if the tape is corrupted."""
    try:
        with opened_part(str(path), options) as tape:
            if options.get("whole"):
                yield TapeParameter(name, str(path), None, options)
            elif not len(tape.calls):
                yield BadParameter(name, f"{path} has no call")
            else:
                for call in tape.calls:
                    shown = tape.calls.label_of(call.ref)
                    yield TapeParameter(f"{name}-{shown}", str(path), call.index, options)
            if tape.damage:
                text = "; ".join(map(str, tape.damage[:3]))
                yield BadParameter(f"{name}-damage", f"{path} is corrupted and lacks calls: {text}")
    except TapeError as error:
        yield BadParameter(name, f"the tape cannot be used: {error}")
    except Exception as error:
        yield BadParameter(name, f"{path} cannot be used: {type(error).__name__}: {error}")


def opened_part(path: str, options: Mapping[str, Any]) -> Tape:
    """Opens the part of a tape that a mark selects.

    Raises:
        TapeError: it cannot be read, or has no such calls.
    """
    tape = open_tape(path, classes=options.get("classes", ()))
    selection = {name: options[name] for name in ("calls", "variant", "ignore") if name in options}
    try:
        return tape.only(**selection) if selection else tape
    except BaseException:
        tape.close()
        raise
