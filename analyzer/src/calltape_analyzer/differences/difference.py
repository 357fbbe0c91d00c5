"""What the traffic on one tape shows that another's does not.

In come two tapes. Out go the changes. A program that was exported from tape ``a`` is known to be
right only for what ``a`` shows. For what is new on ``b`` it may refuse a call, or be wrong. Nothing
here needs torch or reads tensor bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import computed_field

from calltape_analyzer.differences.changes import Change, appeared, disappeared
from calltape_analyzer.differences.tape_traffic import TapeTraffic
from calltape_analyzer.limits import bounded
from calltape_analyzer.notebook import Sketch
from calltape_analyzer.plain_data import PlainData, Texts
from calltape_analyzer.tape import Tape, check_tape
from calltape_analyzer.text import printable, some_of

__all__ = ["TapeDifference", "diff"]

_MAX_PATHS = 3
_SAME = "the traffic on both is the same"


class TapeDifference(PlainData):
    """What tape ``b`` shows that ``a`` does not, and what is only on ``a``. To iterate gives the
    changes.

    Attributes:
        a, b: the paths of the files.
        appeared: what is new on ``b``; ``first_call`` and ``calls`` are of ``b``.
        disappeared: what ``b`` no longer shows; ``first_call`` and ``calls`` are of ``a``.
        notes: what limits the comparison.
    """

    a: Texts
    b: Texts
    appeared: tuple[Change, ...]
    disappeared: tuple[Change, ...]
    notes: Texts = ()

    def __iter__(self) -> Iterator[Change]:  # type: ignore[override]
        yield from self.appeared
        yield from self.disappeared

    @computed_field  # type: ignore[prop-decorator]
    @property
    def same(self) -> bool:
        """Whether the traffic is the same. Changes of the kind ``range`` (elements of integer
        tensors) do not count, because token ids differ between any two recordings."""
        return all(change.kind == "range" for change in self)

    def __repr__(self) -> str:
        counts = f"{len(self.appeared):,} appeared, {len(self.disappeared):,} disappeared"
        parts = [counts] if self.appeared or self.disappeared else []
        return f"<TapeDifference: {'; '.join([*parts, *[_SAME] * self.same])}>"

    def _sketch(self) -> Sketch:
        facts = [
            ("a", some_of(self.a, _MAX_PATHS)),
            ("b", some_of(self.b, _MAX_PATHS)),
            ("appeared", len(self.appeared)),
            ("disappeared", len(self.disappeared)),
        ]
        signs = ["+"] * len(self.appeared) + ["-"] * len(self.disappeared)
        rows = [
            (sign, one.kind, one.where, one.text, one.calls or "")
            for sign, one in zip(signs, self, strict=True)
        ]
        head = ("", "kind", "where", "change", "calls")
        note = "; ".join([*self.notes, *[_SAME] * self.same])
        return Sketch("TapeDifference", facts, head=head, rows=rows, note=note)

    def __str__(self) -> str:
        """A line per change, first what appeared. Everything from the tapes is made printable."""
        lines = [f"+ {change}" for change in self.appeared]
        lines += [f"- {change}" for change in self.disappeared]
        lines += [f"note: {note}" for note in self.notes]
        if self.same:
            lines.append(_SAME)
        return "\n".join(printable(line) for line in lines)


@bounded()
def diff(a: Tape, b: Tape) -> TapeDifference:
    """Compares the traffic on two tapes of one model.

    It compares structures, constants, dtypes, sizes, and what always held between sizes (the
    variants of :meth:`Tape.variants`). The order of the calls and the values of their tensors do
    not count.

    Args:
        a: what was seen before, such as the tape that was exported from.
        b: what is seen now.

    Raises:
        TapeError: a call's record breaks the format.
    """
    check_tape(a, "diff")
    check_tape(b, "diff")
    before, now = TapeTraffic.of_both(a, b)
    return TapeDifference(
        a=a.paths,
        b=b.paths,
        appeared=tuple(appeared(before, now)),
        disappeared=tuple(disappeared(before, now)),
    )
