"""``calltape info --markdown``: what a tape is of, and which calls are on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timezone

from calltape_analyzer.markdown.disclosure import Disclosure
from calltape_analyzer.markdown.document import LIMIT, Document
from calltape_analyzer.markdown.versions import add_versions
from calltape_analyzer.observing.public_paths import LEFT_OUT, is_name
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.observing.switches import shown_constant
from calltape_analyzer.tape import Tape
from calltape_analyzer.text import alike, counted
from calltape_analyzer.variants.variant_findings import TensorFinding, VariantFindings
from calltape_schema.errors import TapeError
from calltape_schema.records import Target

__all__ = ["tape_summary"]

_MAX_RAISED, _MAX_MESSAGE = 50, 200


def tape_summary(tape: Tape, *, private: bool = False, limit: int = LIMIT) -> str:
    """What is on a tape, as Markdown: target, calls, exceptions, the shapes of each variant, damage
    and versions.

    Args:
        tape: the tape, or a part of one.
        private: also tells paths, times, host, values that select a program, and messages of
            exceptions.
        limit: of its characters. The text says what was cut.
    """
    told = Disclosure(tape, private=private)
    document = Document("Tape", limit=limit)
    add_versions(document, tape, told)
    raised, whole = _walk(tape, private)
    rows = list(_facts(tape, told, whole, sum(raised.values())))
    document.table("facts", ("", ""), rows)
    if raised:
        document.heading("Calls that raised")
        document.table("kinds of exceptions", ("exception", "calls"), _raised(raised, told))
    for number, variant in enumerate(tape.variants()):
        _add_variant(document, variant.findings, number, told)
    if tape.damage:
        document.heading("Damage")
        kinds = Counter(error.kind for error in tape.damage)
        shown = [(kind, str(count)) for kind, count in kinds.items()]
        document.table("kinds of damage", ("kind", "places"), shown)
        if private:
            document.block("the damage", "\n".join(map(str, tape.damage)))
    return document.text()


def _walk(tape: Tape, private: bool) -> tuple[Counter[tuple[str, str]], int]:
    """The exceptions by class, and the beginning of their messages if they may be told; and how
    many calls can be read."""
    raised: Counter[tuple[str, str]] = Counter()
    whole = 0
    for call in tape.calls:
        try:
            error = call.record.error
        except TapeError:
            continue  # it stands in tape.damage
        whole += 1
        if error is not None:
            raised[error.type, error.message[:_MAX_MESSAGE] if private else ""] += 1
    return raised, whole


def _name(target: Target, told: Disclosure) -> str:
    if target.module is not None:
        return told.class_name(target.name)
    method = target.method if is_name(target.method) else LEFT_OUT
    return f"{told.class_name(target.type)}.{method}"


def _facts(tape: Tape, told: Disclosure, whole: int, raised: int) -> Iterator[tuple[str, str]]:
    target = tape.target
    if target is not None:
        yield "target", f"{_name(target, told)} (seen by {target.via})"
    yield "arguments", ", ".join(_parameters(tape, told)) or "-"
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
        yield (
            "made by",
            ", ".join(
                told.text(step.verb)
                if told.private
                else step.verb
                if is_name(step.verb)
                else LEFT_OUT
                for step in steps
            ),
        )
    if told.private:
        yield from _private_facts(tape)


def _private_facts(tape: Tape) -> Iterator[tuple[str, str]]:
    yield "files", ", ".join(tape.paths)
    if tape.manifest.producer.host:
        yield "host", tape.manifest.producer.host
    if len(tape.calls):
        with suppress(TapeError, OverflowError, ValueError, OSError):  # damage, or a clock far off
            moment = datetime.fromtimestamp(tape.calls[0].time, timezone.utc)
            yield "first call", moment.isoformat(timespec="seconds")


def _parameters(tape: Tape, told: Disclosure) -> Iterator[str]:
    for parameter in Signature.of(tape.target).parameters:
        stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(parameter.kind, "")
        name = parameter.name if told.private or is_name(parameter.name) else LEFT_OUT
        default = "=…" if parameter.has_default else ""
        yield f"{stars}{name}{default}"


def _raised(raised: Counter[tuple[str, str]], told: Disclosure) -> Sequence[tuple[str, str]]:
    found: Counter[str] = Counter()
    for (name, message), count in raised.items():
        shown = told.class_name(name)
        found[f"{shown}: {message}" if told.private else shown] += count
    return [(name, f"{count:,}") for name, count in found.most_common(_MAX_RAISED)]


def _add_variant(document: Document, found: VariantFindings, number: int, told: Disclosure) -> None:
    document.heading(f"Variant {number}")
    # `is` in the words of our own; the name is a span, as everything that is of the tape.
    rows = [("name", told.variant(found.name, number)), ("calls", f"{found.calls:,}")]
    rows += [("where", told.text(text, numbers="[" in text)) for text in found.conditions]
    document.table("facts", ("", ""), rows)
    document.table("arguments", ("argument", "dtype", "shape"), _arguments(found, told))
    sizes = [
        (told.symbol(s.name), f"{s.min}..{s.max}", f"{s.distinct}")
        for s in found.symbols
        if told.private or any("[" in name for name in s.dimensions)
    ]
    document.table("symbols", ("symbol", "sizes", "distinct"), sizes)


def _arguments(found: VariantFindings, told: Disclosure) -> Iterator[Sequence[str]]:
    places = (
        (told.place(f"{t.argument}{t.path}"), (t.dtype, _shape(t, told))) for t in found.tensors
    )
    for name, look in alike(places):
        yield name, *look
    for given in found.ints:
        yield told.place(given.name), "int", "dynamic" if given.dynamic else "constant"
    for place, constant in found.constants.items():
        shown = shown_constant(constant) if told.private else "constant"
        yield told.place(place), type(constant).__name__, shown
    for place, kind in found.varying.items():
        yield told.place(place), kind, "varies"


def _shape(tensor: TensorFinding, told: Disclosure) -> str:
    sizes = (told.symbol(d.symbol) if d.symbol else str(d.min) for d in tensor.dimensions)
    return f"[{', '.join(sizes)}]"
