"""Tapes that are redacted already, copied as they are.

In comes a tape. Its history says whether all of it was redacted. Out goes a file with the same
calls, without the names of files that were given after the redaction.
"""

from __future__ import annotations

from pathlib import Path

from calltape_analyzer.editing.edit_report import EditReport
from calltape_analyzer.editing.rewriting import Revision, Rewriting, rewrite
from calltape_analyzer.redacting.tape_facts import foreign_step, own_step
from calltape_analyzer.tape import Tape
from calltape_schema.records import Manifest, Step

__all__ = ["copy_redacted", "is_redacted_as_a_whole"]

_REDACT = "redact"


def is_redacted_as_a_whole(tape: Tape) -> bool:
    """Whether each file of a tape was redacted, and nothing came in since that was not."""
    return tape.redacted == "all"


def copy_redacted(tape: Tape, path: Path) -> EditReport:
    """Writes the calls of a tape that is redacted as a whole.

    Raises:
        TapeError: ``exists``, ``io``, ``limit``.
    """
    how = Rewriting("filter", tape.selected, revision=_WithoutFiles())
    calls = tape.calls
    return rewrite(tape, path, calls, len(calls), how)


class _WithoutFiles(Revision):
    def manifest(self, manifest: Manifest) -> Manifest:
        history = tuple(map(_bare, manifest.history or ()))
        return manifest.model_copy(update={"history": history})


def _bare(step: Step) -> Step:
    """A step without names of files; and without the words of others than those who redact."""
    return own_step(step) if step.verb == _REDACT else foreign_step(step)
