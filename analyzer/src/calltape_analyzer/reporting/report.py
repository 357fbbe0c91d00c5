"""From tapes to what a report page says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from calltape_analyzer.reporting.contents import Contents, TapePart, cut
from calltape_analyzer.reporting.tape_parts import Outcomes, ReportedTape, tape_part
from calltape_analyzer.text import counted
from calltape_schema import __version__

__all__ = ["contents_of"]

_MAX_PARTS = 12


def contents_of(
    tapes: Sequence[ReportedTape],
    *,
    scan: bool | None = None,
    outcomes: Mapping[str, Outcomes] | None = None,
    notes: Sequence[str] = (),
) -> Contents:
    """What the report page says of tapes of different targets.

    Args:
        tapes: one for each target.
        scan: whether the record of each call is read; None if there are few calls.
        outcomes: what came of checks of the first tape, by name.
        notes: what else a reader should know.

    Raises:
        TapeError: as :meth:`Tape.variants`.
    """
    shown = tapes[:_MAX_PARTS]
    parts: list[TapePart] = []
    for tape in shown:
        own = outcomes if not parts else None
        parts.append(tape_part(tape, scan=scan, outcomes=own))
    said = [cut(note, 500) for note in notes]
    if len(tapes) > len(shown):
        more = counted(len(tapes) - len(shown), "more target")
        said.append(f"not on this page: {more}; --target chooses one")
    title = parts[0].target if len(parts) == 1 else counted(len(tapes), "recorded target")
    return Contents(title, tuple(parts), __version__, tuple(said))
