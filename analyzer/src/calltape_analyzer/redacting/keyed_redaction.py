"""The redaction of a tape under one key, and the proof of it.

A key decides what stands for a text, a number or an id. In come a tape, and what is known of it
beforehand. Out go a new tape; and that the analysis says the same of it, or an error.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from calltape_analyzer.editing.edit_report import EditReport
from calltape_analyzer.editing.rewriting import Rewriting, rewrite
from calltape_analyzer.errors import RedactionError
from calltape_analyzer.observing.switches import looks_like_name
from calltape_analyzer.opening import open_tape
from calltape_analyzer.redacting.answers import Answers, Comparison, apart, difference
from calltape_analyzer.redacting.byte_search import found_in
from calltape_analyzer.redacting.call_redaction import CallRedaction
from calltape_analyzer.redacting.element_ranges import ElementRanges
from calltape_analyzer.redacting.leak_search import RemovedValues
from calltape_analyzer.redacting.long_numbers import LongNumbers
from calltape_analyzer.redacting.new_values import NewValues
from calltape_analyzer.redacting.ordered_keys import ordered_keys
from calltape_analyzer.redacting.pseudonyms import Pseudonyms
from calltape_analyzer.redacting.reference_tape import write_reference
from calltape_analyzer.redacting.tape_facts import BEGIN_NS, TapeFacts
from calltape_analyzer.redacting.tape_words import TapeWords
from calltape_analyzer.redacting.treatment import Treatments
from calltape_analyzer.redacting.tree_plan import Fates, Replaced
from calltape_analyzer.redacting.value_facts import ValueFacts
from calltape_analyzer.redacting.varying_keys import varying_keys
from calltape_analyzer.tape import Tape
from calltape_analyzer.text import counted, pattern_of, some_of
from calltape_analyzer.variant import Variant
from calltape_analyzer.writing.coverage import counts_stay
from calltape_analyzer.writing.lineage import numbering_of
from calltape_schema.errors import TapeError
from calltape_schema.privacy import FEWEST_RANGED

__all__ = ["Asked", "DifferentAnswerError", "KeyedRedaction"]

_MAX_NAMED = 8


class Asked(NamedTuple):
    """What is to be redacted and how, and what is known of it whatever the key is.

    Attributes:
        said: what the analysis says of the tape, once a key asked.
    """

    tape: Tape
    treatments: Treatments
    special: bool
    words: TapeWords
    ranges: ElementRanges
    values: ValueFacts
    numbers: LongNumbers
    said: list[Answers]


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
        values = NewValues(asked.values, self._pseudonyms, special=asked.special)
        first = min(one.created_ns for one in tape.manifests)
        draws = self._treatments.has("permute") or self._treatments.has("noise")
        self._removed = RemovedValues(draws=draws)
        self._calls = CallRedaction(fates, asked.ranges, values, BEGIN_NS - first, self._removed)
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
        if self._asked.special:
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
        self._search(path)
        is_open = ("permute", "noise", "shapes_only")
        # The tape that a result without some ints is compared with has no ranges.
        ranges = not any(one.way in is_open for one in self._treatments)
        comparison = Comparison(
            self._pseudonyms, self._replaced, self._is_kept,
            ranges=ranges and not self._replaced.has_withheld,
            numbered=not numbering_of(self._tape.segments).changes,
        )  # fmt: skip
        known = self._tape.class_index.by_name
        with open_tape(path, classes=known) as new, self._reference(path) as old:
            before = comparison.answers(self._said_of(old), is_new=False)
            after = comparison.answers(Answers(new), is_new=True)
            found = difference(before, after)
            if found is not None:
                question = comparison.in_words(found)
                raise DifferentAnswerError(
                    f"the analysis would say something else of the new tape ({question})",
                    (found, apart(before.get(found), after.get(found))),
                    advice=self._advice(),
                )
            return [*self._notes(comparison.old_variants)]

    def _advice(self) -> str:
        """What to do if an answer is another one. Patterns, because paths may have keys in them."""
        numbers = sorted(set(map(pattern_of, self._replaced.numbers)))
        dicts = sorted(set(map(pattern_of, self._replaced.dicts)))
        parts = []
        if numbers:
            parts.append(
                f"name the numbers that were replaced ({some_of(numbers, _MAX_NAMED)}) with "
                "`keep`, or with `shapes_only` to leave them out"
            )
        if dicts:
            parts.append(f"name the dicts whose keys were ({some_of(dicts, _MAX_NAMED)}) in `keep`")
        return "; ".join([*(parts or ["report this"]), "nothing was written"])

    def _said_of(self, old: Tape) -> Answers:
        """What is said of the tape itself is asked once, for all keys."""
        if old is not self._tape:
            return Answers(old)
        if not self._asked.said:
            self._asked.said.append(Answers(old))
        return self._asked.said[0]

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
                f"{counted(len(found), 'value')} that were to be removed would be on the new tape",
                advice="report this, and name other paths meanwhile; nothing was written",
            )

    @contextlib.contextmanager
    def _reference(self, path: str) -> Iterator[Tape]:
        """What the new tape is compared with: the old one; or a copy without what was to be
        withheld; or a copy that counts no more than a copy can."""
        withheld = self._calls if self._replaced.has_withheld else None
        if withheld is None and counts_stay(self._tape.whole.segments):
            yield self._tape
            return
        beside = os.path.join(os.path.dirname(path), "reference.tape")
        write_reference(self._tape, withheld, beside)
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
        if self._removed.skipped:
            yield (
                f"{counted(self._removed.skipped, 'more removed value')} were not searched for: "
                "there are too many"
            )
        names = dict.fromkeys(
            place
            for variant in variants
            for place, value in variant.findings.constants.items()
            if isinstance(value, str) and looks_like_name(value) and not self._is_kept(place)
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
                f"{some_of(sorted(few), _MAX_NAMED)}; shapes_only takes them out"
            )
        changed = [name for name in names if not self._stands_for_itself(variants, name)]
        if changed:
            yield (
                f"the text at {some_of(changed, _MAX_NAMED)} tells variants apart and has a "
                "pseudonym now; keep it if it is a setting and no data"
            )

    def _notes_of_numbers(self) -> Iterator[str]:
        replaced, needed = map(sorted, self._asked.numbers[:2])
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
                "analysis says follows from them; shapes_only takes them out"
            )

    def _stands_for_itself(self, variants: Sequence[Variant], place: str) -> bool:
        """Whether a text that a variant has is a default, which is code."""
        found = (variant.findings.constants.get(place) for variant in variants)
        return all(value is None or value in self._pseudonyms.fixed for value in found)
