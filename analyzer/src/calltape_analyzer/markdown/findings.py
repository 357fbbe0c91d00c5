"""``calltape explain`` and ``diff`` with ``--markdown``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from calltape_analyzer.differences.change import Change
from calltape_analyzer.differences.difference import TapeDifference
from calltape_analyzer.explanation.explanation import DimensionExplanation, Explanation
from calltape_analyzer.markdown.disclosure import Disclosure
from calltape_analyzer.markdown.document import LIMIT, Document, span
from calltape_analyzer.markdown.versions import add_versions
from calltape_analyzer.observing.memory_layout import layouts_in_words
from calltape_analyzer.observing.public_paths import LEFT_OUT
from calltape_analyzer.tape import Tape
from calltape_analyzer.text import counted

__all__ = ["difference_in_markdown", "explanation_in_markdown"]

_OF_VALUES = frozenset({"constant", "range", "int", "kind"})
"""The kinds of changes whose text has what was passed."""
_MAX_SIZES = 12


def explanation_in_markdown(
    found: Explanation, tape: Tape, *, private: bool = False, limit: int = LIMIT
) -> str:
    """Why something is what it is, as Markdown.

    Args:
        found: what ``tape.explain(...)`` returned.
        tape: that tape.
        private: also tells the values of ints and constants, and files.
        limit: of its characters.
    """
    told = Disclosure(tape, private=private)
    document = Document("Explanation", limit=limit)
    add_versions(document, tape, told)
    axis = "" if found.axis is None else f"[{found.axis}]"
    document.paragraph(f"Of {span(told.place(found.subject) + axis)}:")
    for number, part in enumerate(found.parts):
        rows = [
            ("variant", told.variant(part.variant, number)),
            ("calls", f"{part.calls:,}, first call {part.address or part.first_call}"),
            ("places", ", ".join(map(told.place, part.places[:_MAX_SIZES]))),
            ("kind", f"{part.kind} {part.dtype or ''}".strip()),
        ]
        if part.value is not None:
            rows.append(("value", part.value if private else "constant, left out here"))
        if (layouts := layouts_in_words(part.layouts)) is not None:
            rows.append(("layout in memory", layouts))
        for dimension in part.dimensions:
            rows += _dimension(dimension, told)
        document.table("reasons", ("", ""), rows)
    document.bullets("notes", [span(told.text(note)) for note in found.notes])
    return document.text()


def _dimension(found: DimensionExplanation, told: Disclosure) -> Iterator[tuple[str, str]]:
    is_size = found.axis is not None
    what = f"dimension {found.axis}" if is_size else "the int"
    why = told.text(found.why, numbers=is_size)
    yield what, f"{'dynamic' if found.dynamic else 'constant'}: {why}"
    if is_size or told.private:
        sizes = ", ".join(str(one.value) for one in found.seen[:_MAX_SIZES])
        more = found.distinct - min(len(found.seen), _MAX_SIZES)
        yield "seen", f"{sizes} and {more} more" if more > 0 else sizes
    if found.symbol is not None:
        yield "symbol", told.symbol(found.symbol)
    if found.equals:
        yield "always equal to", ", ".join(map(told.place, found.equals[:_MAX_SIZES]))
    if found.expression is not None:
        words = found.expression.split()
        shown = [w if w in "+-*" or w.isdigit() else told.symbol(w.split("*")[-1]) for w in words]
        yield "always", " ".join(words if told.private else shown)
    for text in found.warnings:
        yield "warning", told.text(text, numbers=is_size)


def difference_in_markdown(
    found: TapeDifference, a: Tape, b: Tape, *, private: bool = False, limit: int = LIMIT
) -> str:
    """What one tape shows that another does not, as Markdown.

    Args:
        found: what ``diff(a, b)`` returned.
        a, b: the two tapes.
        private: also tells constants, ints, ranges of elements, and files.
        limit: of its characters.
    """
    told = Disclosure(a, b, private=private)
    document = Document("Difference of two tapes", limit=limit)
    add_versions(document, b, told)
    if found.same:
        document.paragraph("The traffic on both is the same.")
    for words, changes in (
        ("New on the second", found.appeared), ("No longer on the second", found.disappeared)
    ):  # fmt: skip
        if changes:
            document.heading(words)
            head = ("kind", "where", "change", "calls")
            document.table("changes", head, [_change(one, told) for one in changes])
    document.bullets("notes", [span(told.text(note)) for note in found.notes])
    if private:
        document.bullets("files", [span(", ".join(paths)) for paths in (found.a, found.b)])
    return document.text()


def _change(change: Change, told: Disclosure) -> Sequence[str]:
    where, text = change.where, change.text
    if not told.private:
        places = [told.place(one) for one in where.split(", ")]
        is_structure = change.kind in ("structure", "target", "error")
        where = told.text(where) if is_structure else ", ".join(places)
        if change.kind == "target":
            where = ", ".join(map(told.class_name, change.where.split(", ")))
        text = (
            LEFT_OUT
            if change.kind in _OF_VALUES
            else told.text(text.partition(": ")[0] if change.kind == "argument" else text)
        )
    first = "" if change.first_call is None else f", first {change.address or change.first_call}"
    return change.kind, where, text, f"{counted(change.calls, 'call')}{first}"
