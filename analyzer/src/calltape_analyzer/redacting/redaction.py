"""A tape that can be given away."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence

from calltape_analyzer.editing.edit_report import EditReport
from calltape_analyzer.editing.numbering import numbering_of
from calltape_analyzer.editing.rewriting import Rewriting, rewrite
from calltape_analyzer.errors import RedactionError
from calltape_analyzer.observing.switches import looks_like_name
from calltape_analyzer.opening import open_tape
from calltape_analyzer.redacting.answers import Comparison, difference
from calltape_analyzer.redacting.call_redaction import CallRedaction
from calltape_analyzer.redacting.element_ranges import ElementRanges
from calltape_analyzer.redacting.leak_search import RemovedValues, found_in
from calltape_analyzer.redacting.new_values import NewValues
from calltape_analyzer.redacting.ordered_keys import ordered_keys
from calltape_analyzer.redacting.pseudonyms import Pseudonyms
from calltape_analyzer.redacting.reference_tape import write_reference
from calltape_analyzer.redacting.tape_facts import BEGIN_NS, TapeFacts
from calltape_analyzer.redacting.tape_words import TapeWords
from calltape_analyzer.redacting.treatment import Treatments, Way
from calltape_analyzer.redacting.tree_plan import Fates, Replaced
from calltape_analyzer.tape import Tape, check_tape
from calltape_analyzer.text import counted, some_of
from calltape_analyzer.variant import Variant
from calltape_analyzer.writing.output_file import refuse_inputs, settle
from calltape_schema.errors import TapeError

__all__ = ["redact"]

_MAX_NAMED = 8
Patterns = str | Sequence[str]


def redact(
    tape: Tape,
    path: str | os.PathLike[str],
    *,
    keep: Patterns = (),
    hash: Patterns = (),
    permute: Patterns = (),
    noise: Patterns = (),
    shapes_only: Patterns = (),
    special: bool = False,
    overwrite: bool = False,
) -> EditReport:
    """Writes a tape without what may tell of a person or a machine. The tape that is read stays as
    it is.

    By default nothing stays that the analysis does not need: tensors keep their shapes only, texts
    become others of the same length (equal ones stay equal), exception messages and everything that
    was returned are left out, times are relative, threads are renumbered, and the name of the host,
    the names of files and the build of the kernel go. docs/privacy.md has a table.

    The result is compared with the tape before it gets its name: shapes, variants and explanations
    must say the same, and no byte may tell what was removed.

    Args:
        tape: the tape, or a part of one.
        path: of the new file.
        keep: paths of values that stay as they are, with the patterns of the recorder's ``values=``
            (``"past_key_values.*"``). Where several patterns match, that with the most characters
            decides.
        hash: paths of values that become pseudonyms, as texts do anyway. The key is thrown away.
        permute: paths of integer tensors that keep values: ids are replaced by others of the same
            range, the same ones on the whole tape. Masks, offsets and positions stay.
        noise: paths of tensors whose values are drawn anew in the same range. In a cache, equal
            numbers become equal ones, so that it stays a concatenation of earlier ones.
        shapes_only: paths of values of which only the shape stays, without the range of integers.
        special: whether NaN and infinities stay where they are, under ``noise``.
        overwrite: whether a file that is there already is replaced.

    Raises:
        UsageError: for an empty path, or a path that is one of the tape's own files.
        RedactionError: if the result says something else than the tape or tells what was
            removed; no file is left then.
        TapeError: ``exists``, ``io``, ``limit``.
    """
    check_tape(tape, "redact")
    target = os.path.abspath(os.fspath(path))
    refuse_inputs(target, tape.paths)
    if not overwrite and os.path.lexists(target):
        raise TapeError("exists", "it is there already", path=os.fspath(path))
    asked: dict[Way, Patterns] = {
        "keep": keep, "hash": hash, "permute": permute, "noise": noise, "shapes_only": shapes_only
    }  # fmt: skip
    redaction = _Redaction(tape, {way: _listed(given) for way, given in asked.items()}, special)
    with _beside(target) as new:
        report = redaction.write(new)
        notes = redaction.prove(new) if report.calls else []
        settle(new, target, overwrite=overwrite)
    return report.model_copy(update={"path": os.fspath(path), "notes": tuple(notes)})


class _Redaction:
    """One redaction: what is done, and the proof of it."""

    def __init__(self, tape: Tape, asked: Mapping[Way, Sequence[str]], special: bool) -> None:
        self._tape = tape
        self._treatments = Treatments(dict(asked), tape.signature)
        defaults = (one.default for one in tape.signature.parameters)
        words = TapeWords(tape)
        self._pseudonyms = Pseudonyms(
            [one for one in defaults if isinstance(one, str)], names=words.names, texts=words.texts
        )
        self._replaced = Replaced()
        fates = Fates(
            self._treatments, self._pseudonyms, tape.signature, self._replaced,
            ordered_keys(words.keys),
        )  # fmt: skip
        values = NewValues(tape, self._treatments, self._pseudonyms, special=special)
        first = min(one.created_ns for one in tape.manifests)
        self._removed = RemovedValues()
        self._calls = CallRedaction(
            fates, ElementRanges(tape), values, BEGIN_NS - first, self._removed
        )
        self._special = special
        self._note_names()

    def _note_names(self) -> None:
        """What the manifest says stays, and is no leak."""
        for manifest in self._tape.manifests:
            target = manifest.target
            if target is not None:
                self._removed.name(target.type)
                for parameter in target.signature or ():
                    self._removed.name(parameter.name)
                    self._removed.name(str(parameter.default))
        for one in self._treatments:
            self._removed.name(one.pattern)

    def write(self, path: str) -> EditReport:
        """Writes the new tape."""
        options = {**self._tape.selected, **self._treatments.options()}
        if self._special:
            options["special"] = True
        how = Rewriting(
            "redact", options, change=self._calls, revision=TapeFacts(self._calls), thorough=True
        )
        calls = self._tape.calls
        report = rewrite(self._tape, path, calls, len(calls), how)
        self._tape._leave_out_damaged()  # they are on no new tape, and no evidence
        return report

    def prove(self, path: str) -> list[str]:
        """Compares the new tape with the old one.

        Returns:
            What the user should know, in words.

        Raises:
            RedactionError: they differ.
        """
        try:
            leaked = found_in(path, self._removed)
        except OSError as error:
            raise TapeError("io", f"cannot read it: {error.strerror}", path=path) from None
        if leaked:
            raise RedactionError(
                f"{counted(len(leaked), 'value')} that were to be removed would be on the new tape",
                advice="report this, and name other paths meanwhile; nothing was written",
            )
        is_open = ("permute", "noise", "shapes_only")
        comparison = Comparison(
            self._pseudonyms, self._replaced, self._is_kept,
            ranges=not any(one.way in is_open for one in self._treatments),
            numbered=not numbering_of(self._tape.segments).changes,
        )  # fmt: skip
        known = self._tape.class_index.by_name
        with open_tape(path, classes=known) as new, self._reference(path) as old:
            before = comparison.answers(old, is_new=False)
            found = difference(before, comparison.answers(new, is_new=True))
            if found is not None:
                raise RedactionError(
                    f"the analysis would say something else of the new tape ({found})",
                    advice="the numbers or keys that were replaced mean something: name their "
                    "paths with `keep`; nothing was written",
                )
            return [*self._notes(comparison.variants)]

    @contextlib.contextmanager
    def _reference(self, path: str) -> Iterator[Tape]:
        """What the new tape is compared with: the old one, without what was to be withheld."""
        if not self._replaced.has_withheld:
            yield self._tape
            return
        beside = os.path.join(os.path.dirname(path), "reference.tape")
        write_reference(self._tape, self._calls, beside)
        with open_tape(beside, classes=self._tape.class_index.by_name) as reference:
            yield reference

    def _is_kept(self, place: str) -> bool:
        treatment = self._treatments.of_place(place)
        return treatment is not None and treatment.way == "keep"

    def _notes(self, variants: Sequence[Variant]) -> Iterator[str]:
        unmet = self._treatments.unmet
        if unmet:
            yield f"no value has a path like {some_of(unmet, _MAX_NAMED)}"
        if self._calls.withheld:
            yield f"{counted(self._calls.withheld, 'tensor')} without values"
        names = dict.fromkeys(
            place
            for variant in variants
            for place, value in variant.findings.constants.items()
            if isinstance(value, str) and looks_like_name(value) and not self._is_kept(place)
        )
        changed = [name for name in names if not self._stands_for_itself(variants, name)]
        if changed:
            yield (
                f"the text at {some_of(changed, _MAX_NAMED)} tells variants apart and has a "
                "pseudonym now; keep it if it is a setting and no data"
            )

    def _stands_for_itself(self, variants: Sequence[Variant], place: str) -> bool:
        """Whether a text that a variant has is a default, which is code."""
        found = (variant.findings.constants.get(place) for variant in variants)
        return all(value is None or value in self._pseudonyms.fixed for value in found)


def _listed(patterns: Patterns) -> list[str]:
    return [patterns] if isinstance(patterns, str) else list(patterns)


@contextlib.contextmanager
def _beside(target: str) -> Iterator[str]:
    """The path of a new file in a folder of its own, which nobody else may read, beside the final
    one."""
    try:
        folder = tempfile.mkdtemp(prefix=".redact-", dir=os.path.dirname(target))
    except OSError as error:
        reason = f"cannot write it: {error.strerror or type(error).__name__}"
        raise TapeError("io", reason, path=target) from None
    try:
        yield os.path.join(folder, "new.tape")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
