"""A tape to compare a redacted one with, where values were to be withheld or counts are lost.

A text of which only the length is left is an object to the analysis, and no constant: what it says
of the tape must change. So the redacted tape must say what the tape says without these values. And
of calls that are on no tape, or are damaged, a copy of a tape may count less. In come a tape and
the plans of its redaction, if it withholds values. Out goes a tape that lacks these, and then also
the values of tensors, which the analysis does not read.
"""

from __future__ import annotations

from calltape_analyzer.editing.rewriting import Revision, Rewriting, rewrite
from calltape_analyzer.editing.withholding import Withholding, WithholdingPlan
from calltape_analyzer.redacting.call_redaction import CallRedaction
from calltape_analyzer.tape import Tape
from calltape_schema.inputs_table import InputsTable
from calltape_schema.tree import Structure

__all__ = ["write_reference"]


class _Without(Withholding):
    """Takes out what the plans of a redaction withhold, and nothing else of scalars."""

    def __init__(self, tape: Tape, redaction: CallRedaction) -> None:
        super().__init__((), outputs=False, signature=tape.signature)
        self._redaction = redaction

    def new_plan(self, structure: bytes, spec: Structure, path: str) -> WithholdingPlan:
        gone = self._redaction.withheld_paths(structure, spec, path)
        return WithholdingPlan(spec, path, lambda at: "numbers" if at in gone else "tensors")


class _Counters(Revision):
    def __init__(self, without: _Without) -> None:
        self._without = without

    def unkept(self, table: InputsTable) -> InputsTable:
        return table.changed(self._without.kind)


def write_reference(tape: Tape, redaction: CallRedaction | None, path: str) -> None:
    """Writes a tape without the values that a redaction withholds.

    Args:
        tape: has them.
        redaction: of this tape; None if it withholds nothing.
        path: of the new file.

    Raises:
        TapeError: ``io``, ``limit``.
    """
    how = Rewriting("filter", {})
    if redaction is not None:
        without = _Without(tape, redaction)
        how = Rewriting("filter", {}, change=without, revision=_Counters(without))
    calls = tape.calls
    rewrite(tape, path, calls, len(calls), how)
