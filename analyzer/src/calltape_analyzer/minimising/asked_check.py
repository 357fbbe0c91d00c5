"""The check that a user asked for.

In come functions, or their names, and a tape. Out goes a :class:`Check`, which another process can
load.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from calltape_analyzer.errors import UsageError
from calltape_analyzer.minimising.checks import Check
from calltape_analyzer.scripting import is_factory
from calltape_analyzer.tape import Tape

__all__ = ["Named", "check_of"]

Kind = Literal["predicate", "export", "replay"]
Named = str | Callable[..., Any]


def check_of(
    tape: Tape,
    fails: Named | None,
    fails_export: Named | None,
    fails_replay: Named | None,
    reference: Named | None,
    to: Literal["torch", "onnx"],
    train: bool,
) -> Check:
    """The one check that was given.

    Raises:
        UsageError: none was given, or several; or one that cannot be imported by its name.
    """
    asked: dict[Kind, Named | None] = {
        "predicate": fails, "export": fails_export, "replay": fails_replay
    }  # fmt: skip
    given: list[tuple[Kind, Named]] = [(k, one) for k, one in asked.items() if one is not None]
    if len(given) != 1:
        raise UsageError(
            f"{len(given)} checks were given",
            advice="pass one of fails, fails_export, fails_replay",
        )
    if to not in ("torch", "onnx"):
        raise UsageError(f"to={to!r:.100}", advice="pass 'torch' or 'onnx'")
    ((kind, function),) = given
    classes = {name: f"{cls.__module__}:{cls.__qualname__}" for name, cls in _classes(tape).items()}
    return Check(
        kind=kind, name=_name_of(function), to=to, train=train, classes=classes,
        reference=None if reference is None else _name_of(reference),
    )  # fmt: skip


def _classes(tape: Tape) -> dict[str, type]:
    """The classes that the user gave, by their name on the tape."""
    given = set(tape.classes)
    return {name: cls for name, cls in tape.class_index.by_name.items() if cls in given}


def _name_of(function: Named) -> str:
    if isinstance(function, str):
        name = function
    else:
        module = getattr(function, "__module__", None)
        name = f"{module}:{getattr(function, '__qualname__', None)}"
    if not is_factory(name) or name.startswith("__main__:"):
        raise UsageError(
            f"{name!r:.200} is not of the form package.module:function",
            advice="each try runs in another process, which imports it by its name",
        )
    return name
