"""``redact``: a copy of a tape without private data."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from calltape_analyzer.editing.rewriting import EditReport, Rewriting, rewrite
from calltape_analyzer.limits import REDACTION_EFFORT, bounded
from calltape_analyzer.redacting.allowed_facts import check_file
from calltape_analyzer.redacting.plan import Plan
from calltape_analyzer.redacting.policy import KEEP, SHAPES_ONLY, Policy
from calltape_analyzer.redacting.private_data import varying_keys
from calltape_analyzer.redacting.redacted_records import Redaction
from calltape_analyzer.tape import Tape, check_tape
from calltape_analyzer.text import counted, some_of
from calltape_analyzer.writing.output_file import (
    TemporaryFolder,
    compressor_of,
    copy_tape,
    move_into_place,
    reject_inputs,
)
from calltape_schema.errors import TapeError

__all__ = ["copy_redacted", "redact"]

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

    Tensors keep their shapes. Integer tensors keep a range: the one that tensors at the same place
    have over all calls. Texts, and keys of dicts that look like data, become ordinals: equal ones
    stay equal. Numbers that look like data are omitted, unless they are sizes of tensors of the
    same call. Exception messages and all outputs are omitted, times become relative, threads are
    renumbered, and the host name, file names and the kernel's build are removed. docs/privacy.md
    has a table.

    The new file is then read from its first byte to its last, and gets its name only if every byte
    belongs to a fact that a redacted tape may contain.

    Args:
        tape: the tape, or a part of one. It does not change.
        path: the path of the new file.
        keep: paths of values to keep, with the patterns of the recorder's ``values=``
            (``"past_key_values.*"``). If several patterns match, the longest one decides.
        shapes_only: paths of values to reduce to their shapes, without ordinals and ranges.
        overwrite: whether to replace an existing file.

    Raises:
        UsageError: for an empty path, or a path that is one of the tape's own files.
        RedactionError: if the result contains a fact that is not allowed; then no file is left.
        TapeError: ``exists``, ``io``, ``limit``; ``usage`` if the name ends with ``.tape.zst`` and
            Zstandard is not installed.
    """
    check_tape(tape, "redact")
    target = os.path.abspath(os.fspath(path))
    reject_inputs(target, tape.paths)
    compressor = compressor_of(target)
    if not overwrite and os.path.lexists(target):
        raise TapeError("exists", "it is there already", path=os.fspath(path))
    policy = Policy(tape.signature, _as_list(keep), _as_list(shapes_only))
    with _private_file(target) as new:
        report = _write_checked(tape, new, policy, "redact", policy.options)
        if compressor is None:
            move_into_place(new, target, overwrite=overwrite)
        else:
            copy_tape(new, target, overwrite=overwrite)
    unmatched = some_of(policy.unmatched, _MAX_NAMED)
    notes = [f"no value has a path like {unmatched}"] if unmatched else []
    return report.model_copy(update={"path": os.fspath(path)}).noting(*notes)


def copy_redacted(tape: Tape, path: str) -> EditReport:
    """Copies a tape whose history says that it was redacted, with all values. The history may be
    wrong, so the copy is made and checked as by :func:`redact`.

    Raises:
        RedactionError: the result contains a fact that is not allowed; then no file is left.
        TapeError: ``exists``, ``io``, ``limit``.
    """
    try:
        return _write_checked(tape, path, Policy(tape.signature, keep=["*"]), "filter", {})
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise


def _write_checked(
    tape: Tape, path: str, policy: Policy, verb: str, options: Mapping[str, Any]
) -> EditReport:
    """Writes the new tape, and checks it.

    Raises:
        RedactionError: it contains a fact that is not allowed.
    """
    plan = Plan(tape, policy)
    created_ns = min(manifest.created_ns for manifest in tape.manifests)
    redaction = Redaction(plan, created_ns, keeps_patterns=verb != "redact")
    how = Rewriting(
        verb, {**tape.selected, **options}, redaction, validate=True, allow_later_dtypes=True
    )
    report = rewrite(tape, path, tape.calls, len(tape.calls), how)
    check_file(path, policy)
    return report.noting(*_notes(tape, plan, redaction))


def _notes(tape: Tape, plan: Plan, redaction: Redaction) -> Iterator[str]:
    if redaction.unknown_dtypes:
        tensors = counted(redaction.unknown_dtypes, "tensor")
        yield f"{tensors} without values: only a later version knows the dtype"
    if redaction.omitted:
        yield f"{counted(redaction.omitted, 'tensor')} without values"
    if plan.omitted_numbers:
        yield (
            f"the numbers at {some_of(sorted(plan.omitted_numbers), _MAX_NAMED)} may be data and "
            f"are not on the new tape; name those that are settings in `{KEEP}`"
        )
    if plan.replaced_names:
        yield (
            f"the texts at {some_of(sorted(plan.replaced_names), _MAX_NAMED)} were replaced; "
            f"name those that are settings in `{KEEP}`"
        )
    if keys := varying_keys(tape):
        yield (
            f"the keys of the dicts at {some_of(keys, _MAX_NAMED)} differ from call to call, and "
            "stay where they are plain words; if they are names of persons, do not give the tape "
            "away"
        )
    if redaction.few_ranged:
        yield (
            "the smallest and the largest of few numbers stay, at "
            f"{some_of(sorted(redaction.few_ranged), _MAX_NAMED)}; `{SHAPES_ONLY}` omits them"
        )


def _as_list(patterns: Patterns) -> list[str]:
    return [patterns] if isinstance(patterns, str) else list(patterns)


@contextlib.contextmanager
def _private_file(target: str) -> Iterator[str]:
    """The path for a new file next to the final one, in a temporary folder that only the owner may
    read."""
    try:
        folder = TemporaryFolder(Path(target).with_name(f".redact-{secrets.token_hex(8)}"))
    except OSError as error:
        reason = f"cannot write it: {error.strerror or type(error).__name__}"
        raise TapeError("io", reason, path=target) from None
    with folder as path:
        yield str(path / "new.tape")
