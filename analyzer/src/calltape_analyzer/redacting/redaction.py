"""A tape that can be given away."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from calltape_analyzer.editing.rewriting import EditReport, Rewriting, rewrite
from calltape_analyzer.errors import RedactionError
from calltape_analyzer.limits import REDACTION_EFFORT, bounded
from calltape_analyzer.redacting.allowed_facts import AllowedFacts, check_file
from calltape_analyzer.redacting.call_redaction import CallRedaction, ElementRanges
from calltape_analyzer.redacting.keyed_redaction import (
    Asked,
    DifferentAnswerError,
    KeyedRedaction,
)
from calltape_analyzer.redacting.leak_search import RemovedValues
from calltape_analyzer.redacting.long_numbers import long_numbers
from calltape_analyzer.redacting.pseudonyms import Pseudonyms
from calltape_analyzer.redacting.tape_facts import BEGIN_NS, TapeFacts
from calltape_analyzer.redacting.tape_words import TapeWords
from calltape_analyzer.redacting.treatment import KEEP, SHAPES_ONLY, Treatments, Way
from calltape_analyzer.redacting.tree_plan import Fates, Replaced
from calltape_analyzer.tape import Tape, check_tape
from calltape_analyzer.text import pattern_of, some_of
from calltape_analyzer.writing.output_file import compressor_of, copy_tape, refuse_inputs, settle
from calltape_analyzer.writing.temporary import TemporaryFolder
from calltape_schema.errors import TapeError

__all__ = ["copy_redacted", "redact"]

_MAX_KEYS = 6
"""By chance, a number may become the size of a tensor. Under another key it does not."""

_SAME = 2
"""After as many keys with the same difference, no further key is tried."""

_MAX_SECONDS = 600.0
"""After so long, no further key is tried."""

_MAX_NAMED = 8

Patterns = str | Sequence[str]


@bounded(effort=REDACTION_EFFORT)
def redact(
    tape: Tape,
    path: str | os.PathLike[str],
    *,
    keep: Patterns = (),
    shapes_only: Patterns = (),
    overwrite: bool = False,
) -> EditReport:
    """Writes a copy of a tape without what may identify a person or a machine.

    By default, only what the analysis needs is kept. Tensors keep only their shapes. Texts become
    pseudonyms of the same length (equal texts stay equal), and long numbers that are unrelated to
    sizes become pseudonyms with the same number of bits. Exception messages and all outputs are
    left out, times become relative, threads are renumbered, and the host name, file names and the
    kernel's build are removed. docs/privacy.md has a table.

    Long numbers that follow from other ints, but from no size, are also left out.

    Before the new file gets its name, it is compared with the tape (or with the tape without the
    arguments that were left out). The facts behind shapes, variants and explanations must be the
    same, and no byte may reveal what was removed. By chance, a pseudonym may equal the size of a
    tensor. Then redaction starts over with other pseudonyms, at most six times, but not after ten
    minutes or two equal failures.

    Args:
        tape: the tape, or a part of one. It is not changed.
        path: the path of the new file.
        keep: paths of values to keep as they are, with the patterns of the recorder's ``values=``
            (``"past_key_values.*"``). If several patterns match, the longest one decides.
        shapes_only: paths of values of which only the shape is kept, without the range of integers.
        overwrite: whether to replace an existing file.

    Raises:
        UsageError: for an empty path, or a path that is one of the tape's own files.
        RedactionError: if the result differs from the tape in these facts, or reveals what was
            removed; then no file is left.
        TapeError: ``exists``, ``io``, ``limit``; ``usage`` if the name ends with ``.tape.zst`` and
            Zstandard is not installed.
    """
    check_tape(tape, "redact")
    target = os.path.abspath(os.fspath(path))
    refuse_inputs(target, tape.paths)
    compressor = compressor_of(target)
    if not overwrite and os.path.lexists(target):
        raise TapeError("exists", "it is there already", path=os.fspath(path))
    asked_for: dict[Way, list[str]] = {"keep": _listed(keep), "shapes_only": _listed(shapes_only)}
    treatments = Treatments(asked_for, tape.signature)
    numbers = long_numbers(tape, treatments)
    treatments = treatments.withholding(numbers.withheld)
    asked = Asked(tape, treatments, TapeWords(tape), ElementRanges(tape), numbers)
    _refuse_needed(asked)
    with _beside(target) as new:
        report, notes = _proven(asked, new)
        if compressor is None:
            settle(new, target, overwrite=overwrite)
        else:
            copy_tape(new, target, overwrite=overwrite)
    return report.model_copy(update={"path": os.fspath(path), "notes": tuple(notes)})


def copy_redacted(tape: Tape, path: str) -> EditReport:
    """Writes a tape that says that it was redacted, with all that its calls refer to. What a tape
    says of itself need not be true, so the new one is made in the same way as by :func:`redact`,
    and checked.

    Raises:
        RedactionError: the result has something that it may not have; no file is left then.
        TapeError: ``exists``, ``io``, ``limit``.
    """
    treatments = Treatments({"keep": ["*"]}, tape.signature)
    fates = Fates(treatments, Pseudonyms(), tape.signature, Replaced(), {})
    first = min(one.created_ns for one in tape.manifests)
    calls = CallRedaction(fates, ElementRanges(tape), BEGIN_NS - first, RemovedValues())
    revision = TapeFacts(calls, keeps_words=True)
    how = Rewriting("filter", tape.selected, change=calls, revision=revision, thorough=True)
    report = rewrite(tape, path, tape.calls, len(tape.calls), how)
    try:
        check_file(path, AllowedFacts(treatments, tape.signature))
    except BaseException:
        os.unlink(path)
        raise
    return report.noting(*calls.notes())


def _refuse_needed(asked: Asked) -> None:
    """Raises if sizes have to do with numbers that are data because they are in a long list."""
    if asked.numbers.needed_lists:
        patterns = sorted(set(map(pattern_of, asked.numbers.needed_lists)))
        raise RedactionError(
            "the analysis would say something else of the new tape: sizes have to do with the "
            f"numbers at {some_of(patterns, _MAX_NAMED)}",
            advice=f"name these paths with `{KEEP}`, or, to leave them out, with "
            f"`{SHAPES_ONLY}`; nothing was written",
        )


def _proven(asked: Asked, path: str) -> tuple[EditReport, list[str]]:
    """The first result that is proven.

    Raises:
        RedactionError: none is.
    """
    deadline = time.monotonic() + _MAX_SECONDS
    try:
        return _under_a_key(asked, path, deadline)
    except DifferentAnswerError as error:
        before = error
        if not asked.numbers.replaced or time.monotonic() > deadline:
            raise
    # What the numbers mean to the analysis, only the analysis knows.
    _empty(os.path.dirname(path))
    numbers = asked.numbers.all_needed()
    return _under_a_key(replace(asked, numbers=numbers), path, deadline, before)


def _under_a_key(
    asked: Asked, path: str, deadline: float, before: RedactionError | None = None
) -> tuple[EditReport, list[str]]:
    failures = [] if before is None else [before]
    while True:
        redaction = KeyedRedaction(asked)
        report = redaction.write(path)
        try:
            return report, redaction.prove(path, has_calls=report.calls > 0)
        except RedactionError as error:
            failures.append(error)
            if len(failures) >= _MAX_KEYS or time.monotonic() > deadline or _is_rule(failures):
                raise
        _empty(os.path.dirname(path))


def _is_rule(failures: Sequence[RedactionError]) -> bool:
    """Whether several keys had the same difference: then no other key helps."""
    found = [getattr(error, "difference", None) for error in failures]
    return found[-1] is not None and found.count(found[-1]) >= _SAME


def _empty(folder: str) -> None:
    for name in os.listdir(folder):
        os.unlink(os.path.join(folder, name))


def _listed(patterns: Patterns) -> list[str]:
    return [patterns] if isinstance(patterns, str) else list(patterns)


@contextlib.contextmanager
def _beside(target: str) -> Iterator[str]:
    """The path of a new file in a folder of its own, which nobody else may read, beside the final
    one."""
    try:
        folder = TemporaryFolder(Path(target).with_name(f".redact-{secrets.token_hex(8)}"))
    except OSError as error:
        reason = f"cannot write it: {error.strerror or type(error).__name__}"
        raise TapeError("io", reason, path=target) from None
    with folder as path:
        yield str(path / "new.tape")
