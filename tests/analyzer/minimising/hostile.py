"""Checks that attack the search, as the tests name them."""

from __future__ import annotations

import os
import sys
import time
from typing import Any


def _is_bad(tape: Any) -> bool:
    return any(call.inputs.args[0].shape[-1] > 40 for call in tape)


def is_bad(tape: Any) -> bool:
    return _is_bad(tape)


def prints(tape: Any) -> bool:
    for stream in (1, 2):
        os.write(stream, b"\x1b[2J" + b"x" * 10_000_000)
    sys.stdout.write("y" * 10_000_000)
    sys.stderr.write("y" * 10_000_000)
    return _is_bad(tape)


def says_much(tape: Any) -> None:
    if _is_bad(tape):
        raise RuntimeError("\x1b[31m\x00 \ud800" + "x" * 10_000_000)


class WordlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def says_nothing(tape: Any) -> None:
    if _is_bad(tape):
        raise WordlessError


class Undecided:
    def __bool__(self) -> bool:
        raise ValueError("neither")


def is_undecided(tape: Any) -> Any:
    return Undecided() if _is_bad(tape) else False


def interrupts(tape: Any) -> None:
    if _is_bad(tape):
        raise KeyboardInterrupt


def goes_away(tape: Any) -> bool:
    is_bad = _is_bad(tape)
    os.chdir("/")
    os.environ.clear()
    return is_bad


def _says_that_it_lives() -> None:
    """On a pipe, which has an end once all processes that have it open are gone."""
    os.write(os.open(os.environ["LIVES"], os.O_WRONLY), b"!")


def starts_others(tape: Any) -> bool:
    """What it starts ends with it."""
    _says_that_it_lives()
    if os.fork() == 0:
        time.sleep(1000)
        os._exit(0)
    return _is_bad(tape)
