"""The redaction of a tape under one key, and the proof of it.

A key decides what stands for a text, a number or an id. In come a tape, and what is known of it
beforehand. Out go a new tape; and that the analysis says the same of it, or an error.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from calltape_analyzer.editing.rewriting import EditReport, Revision, Rewriting, rewrite
from calltape_analyzer.editing.withholding import Withholding, WithholdingPlan
from calltape_analyzer.errors import RedactionError
from calltape_analyzer.observing.switches import looks_like_name
from calltape_analyzer.opening import open_tape
from calltape_analyzer.redacting.allowed_facts import AllowedFacts, check_file
from calltape_analyzer.redacting.answers import Answers, Comparison, apart, difference
from calltape_analyzer.redacting.byte_search import found_in
from calltape_analyzer.redacting.call_redaction import CallRedaction, ElementRanges
from calltape_analyzer.redacting.leak_search import RemovedValues
from calltape_analyzer.redacting.long_numbers import LongNumbers
from calltape_analyzer.redacting.pseudonyms import Pseudonyms
from calltape_analyzer.redacting.tape_facts import BEGIN_NS, TapeFacts
from calltape_analyzer.redacting.tape_words import TapeWords, ordered_keys, varying_keys
from calltape_analyzer.redacting.treatment import KEEP, SHAPES_ONLY, Treatments
from calltape_analyzer.redacting.tree_plan import Fates, Replaced
from calltape_analyzer.tape import Tape
from calltape_analyzer.text import counted, pattern_of, some_of
from calltape_analyzer.variant import Variant
from calltape_analyzer.writing.coverage import counts_stay
from calltape_analyzer.writing.lineage import numbering_of
from calltape_schema.errors import TapeError
from calltape_schema.inputs_table import InputsTable, Kind
from calltape_schema.privacy import FEWEST_RANGED
from calltape_schema.tree import Structure

__all__ = ["Asked", "DifferentAnswerError", "KeyedRedaction"]

_MAX_NAMED = 8


@dataclass
class Asked:
    """What is to be redacted and how, and what is known of it whatever the key is."""

    tape: Tape
    treatments: Treatments
    words: TapeWords
    ranges: ElementRanges
    numbers: LongNumbers

    @cached_property
    def said(self) -> Answers:
        """What the analysis says of the tape."""
        return Answers(self.tape)


class DifferentAnswerError(RedactionError):
    """The analysis says something else of the new tape.

    Attributes:
        difference: the question, and where both answers differ. Where other keys give the same, it
            is no chance.
    """

    def __init__(self, reason: str, difference: tuple[Any, ...], *, advice: str) -> None:
        super().__init__(reason, advice=advice)
        self.difference = difference


class KeyedRedaction:
    """One redaction, under a new key that nobody keeps."""

    def __init__(self, asked: Asked) -> None:
        tape = self._tape = asked.tape
        self._asked = asked
        self._treatments = asked.treatments
        defaults = (one.default for one in tape.signature.parameters)
        self._pseudonyms = Pseudonyms(
            [one for one in defaults if one is not None],
            names=asked.words.names, texts=asked.words.texts,
        )  # fmt: skip
        self._replaced = Replaced()
        fates = Fates(
            self._treatments, self._pseudonyms, tape.signature, self._replaced,
            ordered_keys(asked.words.keys), asked.numbers.replaced | asked.numbers.listed,
        )  # fmt: skip
        first = min(one.created_ns for one in tape.manifests)
        self._removed = RemovedValues()
        self._calls = CallRedaction(fates, asked.ranges, BEGIN_NS - first, self._removed)
        self._note_names()

    def _note_names(self) -> None:
        """What the manifest says stays, and is no leak."""
        for manifest in self._tape.manifests:
            target = manifest.target
            if target is not None:
                self._removed.name(target.type)
                self._removed.name(target.name)
                for parameter in target.signature or ():
                    self._removed.name(parameter.name)
                    self._removed.name(str(parameter.default))
                    self._removed.stays(parameter.default)
        for one in self._treatments:
            self._removed.name(one.pattern)

    def write(self, path: str) -> EditReport:
        """Writes the new tape."""
        options = {**self._tape.selected, **self._treatments.options()}
        how = Rewriting(
            "redact", options, change=self._calls, revision=TapeFacts(self._calls), thorough=True
        )
        calls = self._tape.calls
        report = rewrite(self._tape, path, calls, len(calls), how)
        self._tape._leave_out_damaged()  # they are on no new tape, and no evidence
        return report

    def prove(self, path: str, *, has_calls: bool) -> list[str]:
        """Looks for what was removed, and compares the new tape with the old one, if it has calls.

        Returns:
            What the user should know, in words.

        Raises:
            RedactionError: they differ.
        """
        allowed = AllowedFacts(
            self._treatments, self._tape.signature, self._asked.numbers,
            any_key=self._asked.words.has_more_keys,
        )  # fmt: skip
        check_file(path, allowed)
        self._search(path)
        if not has_calls:
            return [*self._notes(())]
        # The tape that a result without some ints is compared with has no ranges.
        ranges = not any(one.way == "shapes_only" for one in self._treatments)
        comparison = Comparison(
            self._pseudonyms, self._replaced.numbers, self._treatments.keeps_place,
            ranges=ranges and not self._has_less,
        )  # fmt: skip
        known = self._tape.class_index
        with open_tape(path, classes=known) as new, self._reference(path) as old:
            said = self._asked.said if old is self._tape else Answers(old)
            before = comparison.answers(said, is_new=False)
            after = comparison.answers(Answers(new), is_new=True)
            found = difference(before, after)
            if found is not None:
                question = comparison.in_words(found)
                raise DifferentAnswerError(
                    f"the analysis would say something else of the new tape ({question})",
                    (found, apart(before.get(found), after.get(found))),
                    advice=self._advice(),
                )
            return [*self._notes(said.variants)]

    @property
    def _has_less(self) -> bool:
        """Whether the new tape lacks values that the analysis may read."""
        return self._replaced.has_withheld or self._calls.has_unreferenced

    def _advice(self) -> str:
        """What to do if an answer is another one. Patterns, because paths may have keys in them."""
        numbers = sorted(set(map(pattern_of, self._replaced.numbers)))
        dicts = sorted(set(map(pattern_of, self._replaced.dicts)))
        parts = []
        if numbers:
            parts.append(
                f"name the numbers that were replaced ({some_of(numbers, _MAX_NAMED)}) with "
                f"`{KEEP}`, or with `{SHAPES_ONLY}` to leave them out"
            )
        if dicts:
            parts.append(
                f"name the dicts whose keys were ({some_of(dicts, _MAX_NAMED)}) in `{KEEP}`"
            )
        return "; ".join([*(parts or ["report this"]), "nothing was written"])

    def _search(self, path: str) -> None:
        """Looks for what was removed."""
        try:
            found = found_in(path, self._removed)
        except OSError as error:
            raise TapeError("io", f"cannot read it: {error.strerror}", path=path) from None
        found = [value for value in found if not self._removed.is_name(value)]
        if found:  # it may be a part of what stays elsewhere
            for call in self._tape.calls:
                for data in self._calls.staying(call):
                    found = [value for value in found if value not in data]
        if found:
            raise RedactionError(
                f"{counted(len(found), 'removed value')} would be on the new tape",
                advice="report this, and name other paths meanwhile; nothing was written",
            )

    @contextlib.contextmanager
    def _reference(self, path: str) -> Iterator[Tape]:
        """What the new tape is compared with: the old one; or a copy without what was to be
        withheld; or a copy that counts no more than a copy can, has other numbers of calls, or
        lacks the variants that were not chosen, which are evidence of the old one."""
        withheld = self._calls if self._has_less else None
        is_same = self._tape.whole is self._tape and counts_stay(self._tape.segments)
        if withheld is None and is_same and not numbering_of(self._tape.segments).changes:
            yield self._tape
            return
        beside = os.path.join(os.path.dirname(path), "reference.tape")
        _write_reference(self._tape, withheld, beside)
        with open_tape(beside, classes=self._tape.class_index) as reference:
            yield reference

    def _notes(self, variants: Sequence[Variant]) -> Iterator[str]:
        unmet = self._treatments.unmet
        if unmet:
            yield f"no value has a path like {some_of(unmet, _MAX_NAMED)}"
        if self._calls.withheld:
            yield f"{counted(self._calls.withheld, 'tensor')} without values"
        yield from self._calls.notes()
        if self._removed.skipped:
            yield (
                f"{counted(self._removed.skipped, 'more removed value')} were not searched for: "
                "there are too many"
            )
        names = dict.fromkeys(
            place
            for variant in variants
            for place, value in variant.findings.constants.items()
            if isinstance(value, str)
            and looks_like_name(value)
            and not self._treatments.keeps_place(place)
        )
        yield from self._notes_of_numbers()
        keys = varying_keys(self._tape)
        if keys:
            yield (
                f"the keys of the dicts at {some_of(keys, _MAX_NAMED)} differ from call to call, "
                "and stay where they are plain words; if they are names of persons, do not give "
                "the tape away"
            )
        ranged = self._calls.ranged.items()
        few = {place for (place, _), elements in ranged if elements < FEWEST_RANGED}
        if few:
            yield (
                "the smallest and the largest of few numbers stay, at "
                f"{some_of(sorted(few), _MAX_NAMED)}; {SHAPES_ONLY} takes them out"
            )
        changed = [name for name in names if not self._stands_for_itself(variants, name)]
        if changed:
            yield (
                f"the text at {some_of(changed, _MAX_NAMED)} tells variants apart and has a "
                "pseudonym now; keep it if it is a setting and no data"
            )

    def _notes_of_numbers(self) -> Iterator[str]:
        replaced, needed = map(sorted, (self._asked.numbers.replaced, self._asked.numbers.needed))
        if self._asked.numbers.apart:
            yield (
                f"the numbers at {some_of(sorted(self._asked.numbers.apart), _MAX_NAMED)} may be "
                "data and are not on the new tape: they follow from each other, or from other "
                "ints, and no others would; keep them if they are settings"
            )
        if replaced:
            yield (
                f"the numbers at {some_of(replaced, _MAX_NAMED)} may be data and are others now; "
                "keep them if they are settings"
            )
        if needed:
            yield (
                f"the numbers at {some_of(needed, _MAX_NAMED)} may be data and stay: what the "
                f"analysis says follows from them; {SHAPES_ONLY} takes them out"
            )

    def _stands_for_itself(self, variants: Sequence[Variant], place: str) -> bool:
        """Whether a text that a variant has is a default, which is code."""
        found = (variant.findings.constants.get(place) for variant in variants)
        return all(value is None or value in self._pseudonyms.fixed for value in found)


class _Without(Withholding):
    """Takes out what the plans of a redaction withhold and what no node refers to, and nothing else
    of scalars."""

    def __init__(self, tape: Tape, redaction: CallRedaction) -> None:
        super().__init__((), tape.signature)
        self._redaction = redaction

    def counted(self, kind: Kind) -> Kind | None:
        try:
            return self.kind(kind)
        except TapeError:
            return None

    def new_plan(self, structure: bytes, spec: Structure, path: str) -> WithholdingPlan:
        gone = self._redaction.withheld_paths(structure, spec, path)
        return WithholdingPlan(spec, path, lambda at: "numbers" if at in gone else "tensors")


class _Counters(Revision):
    def __init__(self, without: _Without) -> None:
        self._without = without

    def unkept(self, table: InputsTable) -> InputsTable:
        return table.changed(self._without.counted)


def _write_reference(tape: Tape, redaction: CallRedaction | None, path: str) -> None:
    """Writes a tape to compare a redacted one with, where values were to be withheld or counts are
    lost.

    A text of which only the length is left is an object to the analysis, and no constant: what it
    says of the tape must change. So the redacted tape must say what the tape says without these
    values, and without those of tensors, which the analysis does not read. And of calls that are
    on no tape, or are damaged, a copy of a tape may count less.

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
