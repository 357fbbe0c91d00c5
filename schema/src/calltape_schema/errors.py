"""The error of calltape.

    Exception
    └── TapeError            something is wrong with a tape; ``kind`` says what

The analyzer adds subclasses that are built-in errors too, because callers catch these
(``InferenceError`` is also a ``RuntimeError``). All of them are a ``TapeError``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from calltape_schema.remedies import Remedy

ErrorKind = Literal[
    "not_found",  # no such file, directory or pattern
    "exists",  # the path is taken and overwrite was not asked for
    "io",  # the operating system refused
    "not_a_tape",  # the file is something else
    "version",  # a tape of a newer major format version
    "damaged",  # a checksum, a size or an encoding does not hold
    "invalid",  # well-formed bytes that say something the format forbids
    "unsupported",  # sound bytes of a later version, which this reader does not know
    "limit",  # larger or deeper than a reader accepts
    "closed",  # the tape or the recorder was closed
    "no_value",  # the tape says that this value was not kept
    "usage",  # the caller asked for something that does not exist
    "inference",  # the recorded calls do not determine an answer
]

OF_CALLS: frozenset[ErrorKind] = frozenset({"damaged", "invalid", "unsupported", "limit"})
"""The kinds that cost a call, and say nothing of the process that reads it."""

_ADVICE: dict[str, str | Remedy] = {
    "not_found": "check the path",
    "exists": Remedy(
        "choose another path or pass overwrite=True",
        "name another place, or pass --force to replace what is there",
    ),
    "io": "check permissions and free space",
    "not_a_tape": "pass a file written by calltape (.tape)",
    "version": "upgrade calltape-analyzer to read it",
    "damaged": "the other calls are readable; copy the file again from its source, and do not "
    "trust it if the copy is corrupted too",
    "invalid": "do not trust this file; ask its sender for the original",
    "unsupported": "upgrade calltape-analyzer to read it; the rest of the tape is readable",
    "limit": "do not trust this file; a recorder never writes such data",
    "closed": "open or attach it again",
    "no_value": Remedy(
        "record with values='all' to keep tensor values", "record the values of tensors too"
    ),
    "usage": Remedy("see the documentation of the function", "--help says more"),
    "inference": "see `calltape ls` for the calls that were recorded",
}


_MAX_SHOWN = 200


def _short(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def printable(text: str) -> str:
    """Messages quote names of the file. Escape sequences in them must not reach a terminal."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in text
    )


@dataclass(frozen=True)
class Problem:
    """One problem that validation found.

    ``loc`` is the path inside the member, such as ``("structure", "inputs", "children", 0)``.
    """

    loc: tuple[str | int, ...]
    message: str

    def __str__(self) -> str:
        where = _short(".".join(str(part) for part in self.loc))
        return printable(f"{where}: {_short(self.message)}" if where else _short(self.message))


class TapeError(Exception):
    """There is a problem with a tape, or with a request about it.

    Attributes:
        kind: the cause, for programs; one of ``ErrorKind``.
        reason: what is wrong, without location and advice.
        path: the file, as the caller gave it, or None.
        member: the name of the tar member, or None.
        offset: the offset of that member's header in the file, in bytes, or None.
        problems: everything that validation found wrong, in document order.
        advice: what to do, worded for the command or for Python; ``str(error)`` ends with it.
    """

    def __init__(
        self,
        kind: ErrorKind,
        reason: str,
        *,
        path: str | None = None,
        member: str | None = None,
        offset: int | None = None,
        problems: Iterable[Problem] = (),
        advice: str | Remedy | None = None,
    ) -> None:
        self.kind: ErrorKind = kind
        self.reason = reason
        self.path = path
        self.member = member
        self.offset = offset
        self.problems = tuple(problems)
        self._advice: str | Remedy = advice if advice is not None else _ADVICE[kind]
        super().__init__(reason)

    @property
    def advice(self) -> str:
        return str(self._advice)

    @advice.setter
    def advice(self, advice: str | Remedy) -> None:
        self._advice = advice

    def at(
        self, *, path: str | None = None, member: str | None = None, offset: int | None = None
    ) -> TapeError:
        """Sets the parts of the location that are still unknown, and returns the error itself."""
        self.path = path if self.path is None else self.path
        self.member = member if self.member is None else self.member
        self.offset = offset if self.offset is None else self.offset
        return self

    def __str__(self) -> str:
        member = self.member
        if self.offset is not None:
            member = f"{member} at byte {self.offset}" if member else f"byte {self.offset}"
        shown = "; ".join(str(problem) for problem in self.problems[:3])
        if len(self.problems) > 3:
            shown += f"; and {len(self.problems) - 3} more"
        reason = f"{self.reason} ({shown})" if shown else self.reason
        advice = f"{reason}. {self.advice[:1].upper()}{self.advice[1:]}."
        return printable(": ".join(part for part in (self.path, member, advice) if part))

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions go to other processes (multiprocessing, pytest-xdist) by pickle, which calls
        # the class with ``args`` only.
        return (_restore, (type(self), self.args, self.__dict__.copy()))


class LostCallsError(TapeError):
    """A group is corrupted or gone. An index says which calls it had.

    Attributes:
        calls: how many.
        low, high: the lowest and the highest of their numbers.
    """

    calls = low = high = 0


def _restore(cls: type[TapeError], args: tuple[object, ...], state: dict[str, object]) -> TapeError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error
