"""What the traffic on one tape shows that another's did not.

A program that was exported from tape ``a`` is only known to be right for what ``a`` shows. What is
new on ``b`` is where it may refuse a call, or be wrong. Needs no torch, and reads no tensor bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from calltape_analyzer.explanation import counted
from calltape_analyzer.printable import printable

if TYPE_CHECKING:
    from calltape_analyzer.tape import Tape

__all__ = ["Change", "TapeDifference", "diff"]


@dataclass(frozen=True)
class Change:
    """One thing that one tape shows and the other does not.

    Attributes:
        kind: ``target`` (another model or signature), ``argument``, ``structure`` (calls that need
            a program of their own), ``kind`` (a tensor where there was an int), ``dtype``,
            ``rank``, ``constant`` (a value that selects a program), ``dimension`` (was constant),
            ``size`` (outside the range seen), ``int``, ``symbol`` (dimensions that were always
            equal), ``relation`` (a sum or multiple that always held), ``range`` (elements of an
            integer tensor), ``error`` (calls that raised).
        where: the argument, the tensors or the dimensions.
        text: in words.
        first_call: the number of the first call that shows it; None where no call does.
        calls: how many do.
        path: the file where that call is, if the tape is several.
    """

    kind: str
    where: str
    text: str
    first_call: int | None = None
    calls: int = 0
    path: str | None = None

    def __str__(self) -> str:
        said = f"{self.kind}: {self.where}: {self.text}"
        if self.first_call is None:
            return said
        first = "call" if self.calls == 1 else "first call"
        at = f" of {self.path}" if self.path else ""
        return f"{said} ({counted(self.calls, 'call')}, {first} {self.first_call}{at})"


@dataclass(frozen=True)
class TapeDifference:
    """What tape ``b`` shows that ``a`` does not, and what is only on ``a``.

    Attributes:
        a, b: the files.
        appeared: what is new on ``b``; ``first_call`` and ``calls`` are of ``b``.
        disappeared: what ``b`` no longer shows; ``first_call`` and ``calls`` are of ``a``.
        notes: what limits the comparison.
    """

    a: tuple[str, ...]
    b: tuple[str, ...]
    appeared: tuple[Change, ...]
    disappeared: tuple[Change, ...]
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Change]:
        yield from self.appeared
        yield from self.disappeared

    @property
    def same(self) -> bool:
        """Whether nothing appeared or disappeared but the elements of integer tensors (kind
        ``range``): token ids differ between any two recordings."""
        return all(change.kind == "range" for change in self)

    def __str__(self) -> str:
        """A line per change with everything from the tapes made printable, what appeared first."""
        lines = [f"+ {change}" for change in self.appeared]
        lines += [f"- {change}" for change in self.disappeared]
        lines += [f"note: {note}" for note in self.notes]
        if self.same:
            lines.append("the traffic on both is the same")
        return "\n".join(printable(line) for line in lines)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "same": self.same,
            "a": list(self.a),
            "b": list(self.b),
            "appeared": [asdict(change) for change in self.appeared],
            "disappeared": [asdict(change) for change in self.disappeared],
            "notes": list(self.notes),
        }


def diff(a: Tape, b: Tape) -> TapeDifference:
    """Compares the traffic on two tapes of one model: structures, constants, dtypes, sizes, and
    what always held between sizes (the variants of :meth:`Tape.variants`). The order of the calls
    and their values do not count.

    Args:
        a: what was seen before, such as the tape that was exported from.
        b: what is seen now.

    Raises:
        TapeError: a call's record breaks the format.
    """
    from calltape_analyzer.traffic import Traffic
    from calltape_analyzer.traffic_changes import appeared, disappeared

    before, now = Traffic(a), Traffic(b)
    return TapeDifference(
        a.paths,
        b.paths,
        tuple(appeared(before, now)),
        tuple(disappeared(before, now)),
    )
