"""What the calls of a tape leave open: sizes that never varied, a batch that was always 1."""

from __future__ import annotations

from collections.abc import Iterator

from calltape_analyzer.editing.symptom import Symptom
from calltape_analyzer.observing.columns import Column
from calltape_analyzer.observing.memory_layout import layouts_in_words
from calltape_analyzer.tape import Tape
from calltape_analyzer.text import alike, counted, listed, printable, some_of, variant_names
from calltape_analyzer.variants.facts import VariantFacts

__all__ = ["evidence_symptoms"]


def evidence_symptoms(tape: Tape) -> Iterator[Symptom]:
    """What to record besides, so that dynamic shapes are sure. Reads no tensor bytes."""
    variants = [variant.facts for variant in tape.variants()]
    alone = [facts for facts in variants if facts.calls == 1]
    if alone:
        names = variant_names([printable(facts.name) for facts in alone], 5)
        yield Symptom(
            kind="one_call",
            level="warning",
            text=f"one call is all the evidence for {counted(len(alone), 'variant')}: {names}",
            advice="record more calls like these, of other sizes",
        )
    same = [facts for facts in variants if facts.calls > 1 and _has_one_size(facts)]
    if same:
        names = variant_names([printable(facts.name) for facts in same], 5)
        yield Symptom(
            kind="one_size",
            level="warning",
            text=f"all calls have the same sizes in {counted(len(same), 'variant')}: {names}",
            advice="record calls of other sizes, or every dimension counts as constant",
        )
    places = _always_one(variants)
    if places:
        yield Symptom(
            kind="batch_one",
            level="warning",
            text=f"the batch was 1 in every call: {listed(places, 5)}",
            advice="record a batch of 2 or more, or declare the dimension with "
            "set_batch_dimension_for=True",
        )
    layouts = _several_layouts(tape)
    if layouts:
        yield Symptom(
            kind="layouts",
            level="note",
            text=f"calls differ in how tensors lie in memory: {some_of(layouts, 5, '; ')}",
            advice="a compiled program may be right for the layout that it was traced with and for "
            "no other: trace it with that of your callers, or call contiguous() before the model",
        )


def _several_layouts(tape: Tape) -> list[str]:
    """The tensors that have several layouts in the calls of one variant, each with these."""
    found: list[str] = []
    variants = tape.variants()
    for variant in variants:
        several = (one for one in variant.findings.tensors if len(one.layouts) > 1)
        words = ((f"{one.argument}{one.path}", layouts_in_words(one.layouts)) for one in several)
        where = f" in {variant.name}" if len(variants) > 1 else ""
        found += (printable(f"{name}{where}: {layouts}") for name, layouts in alike(words))
    return found


def _has_one_size(facts: VariantFacts) -> bool:
    has_dimensions = any(not column.is_int for column in facts.every.columns)
    return has_dimensions and len(facts.every) == 1


def _always_one(variants: list[VariantFacts]) -> list[str]:
    """The first dimensions of all tensors, if each is 1 in all calls. One that is not shows that a
    batch of other sizes was recorded, or that first dimensions are no batch."""
    found: dict[str, None] = {}
    for facts in variants:
        layout = facts.group.layout
        for column in facts.every.columns:
            if column.axis != 0:
                continue
            if _is_always_one(facts, column):
                found[printable(layout.column_name(column))] = None
            elif facts.group.facts[column.index].rank > 1:
                return []
    return list(found)


def _is_always_one(facts: VariantFacts, column: Column) -> bool:
    return facts.every.distinct(column) == {1}
