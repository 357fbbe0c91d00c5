"""``calltape info --markdown``: what a tape is of, and which calls are on it.

In comes a tape. Out goes text of bounded length without anything private, to paste into an issue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from calltape_analyzer.markdown import disclosure as told
from calltape_analyzer.markdown.document import LIMIT, Document
from calltape_analyzer.markdown.versions import add_versions
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.tape import Tape
from calltape_analyzer.text import alike, counted
from calltape_analyzer.variant import Variant
from calltape_analyzer.variants.variant_findings import TensorFinding, VariantFindings
from calltape_schema.errors import TapeError
from calltape_schema.records import Target

__all__ = ["tape_summary"]

_MAX_RAISED = 50


def tape_summary(tape: Tape, *, limit: int = LIMIT) -> str:
    """What is on a tape, as Markdown: target, calls, exceptions, the shapes of each variant, damage
    and versions.

    Args:
        tape: the tape, or a part of one.
        limit: of its characters. The text says what was cut.
    """
    document = Document("Tape", limit=limit)
    add_versions(document, tape)
    raised, whole = _walk(tape)
    document.table("facts", ("", ""), list(_facts(tape, whole, sum(raised.values()))))
    if raised:
        document.heading("Calls that raised")
        shown = [(name, f"{count:,}") for name, count in raised.most_common(_MAX_RAISED)]
        document.table("kinds of exceptions", ("exception", "calls"), shown)
    for number, variant in enumerate(tape.variants()):
        _add_variant(document, variant, number)
    if tape.damage:
        document.heading("Damage")
        kinds = Counter(error.kind for error in tape.damage)
        shown = [(kind, str(count)) for kind, count in kinds.items()]
        document.table("kinds of damage", ("kind", "places"), shown)
    return document.text()


def _walk(tape: Tape) -> tuple[Counter[str], int]:
    """The exceptions by class, and how many calls can be read."""
    raised: Counter[str] = Counter()
    whole = 0
    if not tape.calls.are_single:  # a survey counts them, and has no exception
        for seen in tape.calls.by_inputs():
            whole += seen.calls
            raised["not known"] += seen.calls * seen.raised
        return +raised, whole
    for call in tape.calls:
        try:
            error = call.record.error
        except TapeError:
            continue  # it stands in tape.damage
        whole += 1
        if error is not None:
            raised[told.class_name(error.type)] += 1
    return raised, whole


def _name(target: Target) -> str:
    if target.module is not None:
        return told.class_name(target.name)
    return f"{told.class_name(target.type)}.{told.name(target.method)}"


def _facts(tape: Tape, whole: int, raised: int) -> Iterator[tuple[str, str]]:
    target = tape.target
    if target is not None:
        yield "target", f"{_name(target)} (seen by {target.via})"
    yield "arguments", ", ".join(_parameters(tape)) or "-"
    yield "calls", f"{whole:,}, {raised:,} raised" if raised else f"{whole:,}"
    coverage = tape.coverage
    lost, unwanted = sum(coverage.lost.values()), sum(coverage.unwanted.values())
    seen = f"at least {coverage.seen}" if coverage.at_least else coverage.seen
    yield "coverage", f"{coverage.kept} of {seen} kept, {unwanted} not wanted, {lost} lost"
    values = "kept" if tape.manifest.policy.values == "all" else "shapes only"
    values = "by path" if tape.manifest.policy.leaf_values else values
    values = f"{values}, a part of the calls redacted" if tape.redacted == "part" else values
    yield "values", "redacted" if tape.redacted == "all" else values
    yield "sealed", "yes" if tape.sealed else "no"
    yield "bytes", f"{tape.nbytes:,} in {counted(len(tape.paths), 'file')}"
    steps = tape.manifest.history or ()
    if steps:
        yield "made by", ", ".join(told.name(step.verb) for step in steps)


def _parameters(tape: Tape) -> Iterator[str]:
    for parameter in Signature.of(tape.target).parameters:
        stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(parameter.kind, "")
        default = "=…" if parameter.has_default else ""
        yield f"{stars}{told.name(parameter.name)}{default}"


def _add_variant(document: Document, variant: Variant, number: int) -> None:
    document.heading(f"Variant {number}")
    found = variant.findings
    rows = [("name", variant.public_name), ("calls", f"{found.calls:,}")]
    rows += [("where", told.condition(text)) for text in found.conditions]
    document.table("facts", ("", ""), rows)
    document.table("arguments", ("argument", "dtype", "shape"), _arguments(found))
    sizes = [
        (told.name(s.name), f"{s.min}..{s.max}", f"{s.distinct}")
        for s in found.symbols
        if any("[" in name for name in s.dimensions)
    ]
    document.table("symbols", ("symbol", "sizes", "distinct"), sizes)


def _arguments(found: VariantFindings) -> Iterator[Sequence[str]]:
    places = ((told.place(f"{t.argument}{t.path}"), (t.dtype, _shape(t))) for t in found.tensors)
    for name, look in alike(places):
        yield name, *look
    for given in found.ints:
        yield told.place(given.name), "int", "dynamic" if given.dynamic else "constant"
    for place, constant in found.constants.items():
        yield told.place(place), type(constant).__name__, "constant"
    for place, kind in found.varying.items():
        yield told.place(place), kind, "varies"


def _shape(tensor: TensorFinding) -> str:
    sizes = (told.name(d.symbol) if d.symbol else str(d.min) for d in tensor.dimensions)
    return f"[{', '.join(sizes)}]"
