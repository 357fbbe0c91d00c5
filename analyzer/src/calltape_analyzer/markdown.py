"""What one pastes into an issue: what a tape is of, and which calls are on it, as Markdown.

Takes a tape; returns text of bounded length that nothing of a tape breaks out of (what comes from
it stands in code spans only: no HTML, no link, no ``@mention``, no ``#reference``), and that tells
nothing private: names, structure, dtypes, sizes, counts and versions. ``?`` stands for the rest:
texts and values of calls, messages of exceptions, paths and names of machines.
"""

from __future__ import annotations

import functools
import platform
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import metadata

from calltape_analyzer.observing.groups import Group
from calltape_analyzer.observing.layout import LEFT_OUT, ArgumentLayout
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.tape import Tape
from calltape_analyzer.text import GOES_ON, counted, merge_alike, printable, time_text
from calltape_analyzer.variant import Variant
from calltape_analyzer.variants.facts import Condition, CounterIs, Fixed
from calltape_analyzer.variants.variant_findings import VariantFindings
from calltape_schema import __version__
from calltape_schema.errors import TapeError
from calltape_schema.privacy import is_name

__all__ = ["LIMIT", "Document", "tape_summary", "versions_here", "versions_of"]

LIMIT = 60_000
"""Characters of a document. GitHub takes 65,536, and the reader adds words of their own."""

_FOR_NOTES = 2_000
_MAX_CELL = 200
_MAX_NOTES = 12
_MAX_RAISED = 50
_MAX_CLASS = 128
_CLASS = re.compile(r"[A-Za-z_][\w.<>]*(:[A-Za-z_][\w.<>]*)?", re.ASCII)
_VERSION = re.compile(r"[\w.+\-() ]{1,100}", re.ASCII)
_LIBRARIES = ("torch", "transformers", "onnx", "onnxruntime")
_VERSIONED = ("calltape", "python", "platform", *_LIBRARIES)


def tape_summary(tape: Tape) -> str:
    """What is on a tape, as Markdown: target, calls, exceptions, the shapes of each variant, damage
    and versions.

    Args:
        tape: the tape, or a part of one.
    """
    document = Document("Tape")
    installed, recorded = versions_here(), versions_of(tape)
    rows = [
        (name, public_version(installed.get(name, "-")), public_version(recorded.get(name, "-")))
        for name in _VERSIONED
        if name in installed or name in recorded
    ]
    document.heading("Versions")
    document.table("versions", ("", "here", "recorded with"), rows)
    raised, whole = _walk(tape)
    document.table("facts", ("", ""), list(_facts(tape, whole, sum(raised.values()))))
    if raised:
        document.heading("Calls that raised")
        shown = [(name, f"{count:,}") for name, count in raised.most_common(_MAX_RAISED)]
        document.table("kinds of exceptions", ("exception", "calls"), shown)
    for number, variant in enumerate(tape.variants()):
        _add_variant(document, variant, number)
    if tape.damage:
        document.heading("Corruption")
        kinds = Counter(error.kind for error in tape.damage)
        shown = [(kind, str(count)) for kind, count in kinds.items()]
        document.table("kinds of corruption", ("kind", "places"), shown)
    return document.text()


def _walk(tape: Tape) -> tuple[Counter[str], int]:
    """The exceptions by class, and how many calls can be read."""
    raised: Counter[str] = Counter()
    whole = 0
    if not tape.calls.has_single_calls:  # a survey counts them, and has no exception
        for inputs_seen in tape.calls.by_inputs():
            whole += inputs_seen.calls
            raised["not known"] += inputs_seen.calls * inputs_seen.raised
        return +raised, whole
    for call in tape.calls:
        try:
            error = call.record.error
        except TapeError:
            continue  # it stands in tape.damage
        whole += 1
        if error is not None:
            raised[public_class(error.type)] += 1
    return raised, whole


def _facts(tape: Tape, whole: int, raised: int) -> Iterator[tuple[str, str]]:
    target = tape.target
    if target is not None:
        name = public_class(target.name)
        if target.module is None:
            name = f"{public_class(target.type)}.{public_name(target.method)}"
        yield "target", f"{name} (seen by {target.via})"
    yield "arguments", ", ".join(_parameters(tape)) or "-"
    yield "calls", f"{whole:,}, {raised:,} raised" if raised else f"{whole:,}"
    coverage = tape.coverage
    lost, unwanted = sum(coverage.lost.values()), sum(coverage.unwanted.values())
    seen = f"at least {coverage.seen}" if coverage.at_least else coverage.seen
    yield "coverage", f"{coverage.kept} of {seen} kept, {unwanted} not wanted, {lost} lost"
    if coverage.counted_ns is not None:
        yield "counted until", time_text(coverage.counted_ns)
    values = "kept" if tape.manifest.policy.values == "all" else "shapes only"
    values = "by path" if tape.manifest.policy.leaf_values else values
    values = f"{values}, a part of the calls redacted" if tape.redacted == "part" else values
    yield "values", "redacted" if tape.redacted == "all" else values
    yield (
        "sealed",
        "no" if not tape.sealed else f"each file; {GOES_ON}" if tape.continues else "yes",
    )
    yield "bytes", f"{tape.nbytes:,} in {counted(len(tape.paths), 'file')}"
    steps = tape.manifest.history or ()
    if steps:
        yield "made by", ", ".join(public_name(step.verb) for step in steps)


def _parameters(tape: Tape) -> Iterator[str]:
    for parameter in Signature.of(tape.target).parameters:
        stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(parameter.kind, "")
        default = "=…" if parameter.has_default else ""
        yield f"{stars}{public_name(parameter.name)}{default}"


def _add_variant(document: Document, variant: Variant, number: int) -> None:
    document.heading(f"Variant {number}")
    findings = variant.findings
    rows = [("name", variant.public_name), ("calls", f"{findings.calls:,}")]
    group = variant.facts.group
    layout = group.layout
    rows += [("where", public_condition(c, layout)) for c in variant.facts.conditions]
    document.table("facts", ("", ""), rows)
    # The name of a symbol is made of the path of its first column.
    names = {
        s.name: public_name(s.name) if layout.path(s.columns[0]).is_public else LEFT_OUT
        for s in variant.facts.symbols
    }
    document.table("arguments", ("argument", "dtype", "shape"), _arguments(findings, group, names))
    sizes = [
        (names[s.name], f"{s.min}..{s.max}", f"{s.distinct}")
        for s, symbol in zip(findings.symbols, variant.facts.symbols, strict=True)
        if not all(column.is_int for column in symbol.columns)
    ]
    document.table("symbols", ("symbol", "sizes", "distinct"), sizes)


def _arguments(
    findings: VariantFindings, group: Group, names: Mapping[str, str]
) -> Iterator[Sequence[str]]:
    places: list[tuple[str, tuple[str, str]]] = []
    for path, tensor in zip(group.layout.tensors, findings.tensors, strict=True):
        sizes = (names[d.symbol] if d.symbol else str(d.min) for d in tensor.dimensions)
        shape = f"[{', '.join(sizes)}]"
        places.append((path.public, (tensor.dtype, shape)))
    for name, look in merge_alike(places):
        yield name, *look
    for path, int_finding in zip(group.layout.ints, findings.ints, strict=True):
        yield path.public, "int", "dynamic" if int_finding.dynamic else "constant"
    for path, constant in group.fixed():
        yield path.public, type(constant).__name__, "constant"
    for path in group.varying:
        yield path.public, path.kind, "varies"


@functools.cache  # folders and files are read
def versions_here() -> dict[str, str]:
    """Of calltape, Python, the platform, and the libraries that are installed. Nothing is
    imported."""
    versions = {
        "calltape": __version__,
        "python": ".".join(map(str, sys.version_info[:3])),
        # Not platform.platform(): a kernel may be named after the machine it was built for.
        "platform": f"{platform.system()} {platform.machine()}",
    }
    for name in _LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def versions_of(tape: Tape) -> dict[str, str]:
    """Those that the tape was recorded with, as far as they are told of any tape."""
    recorded = tape.manifest.producer.model_dump(exclude_none=True)
    return {name: str(recorded[name]) for name in _VERSIONED if recorded.get(name)}


def public_condition(condition: Condition, layout: ArgumentLayout) -> str:
    """What the calls of a variant have in common: sizes are told, values of ints are not."""
    if not isinstance(condition, Fixed):
        return condition.text(layout) if isinstance(condition, CounterIs) else LEFT_OUT
    value = LEFT_OUT if condition.column.is_int else str(condition.value)
    path = layout.path(condition.column)
    place = layout.column_name(condition.column) if path.is_public else path.public
    return f"{place} {condition.sign} {value}"


def public_name(text: str) -> str:
    """The name of a symbol, parameter or method."""
    return text if is_name(text) else LEFT_OUT


def public_class(text: str) -> str:
    """``module:Class``."""
    return text if _CLASS.fullmatch(text) and len(text) <= _MAX_CLASS else LEFT_OUT


def public_version(text: str) -> str:
    """The version of a library, or the platform."""
    return text if _VERSION.fullmatch(text) else LEFT_OUT


class Document:
    """Text that grows block by block until there is no room. What does not fit is counted, and the
    last lines say so.

    Args:
        title: of the document; our own words.
        limit: of its characters, at least 5,000.
    """

    def __init__(self, title: str, *, limit: int = LIMIT) -> None:
        self._blocks = [f"### {title}"]
        self._room = limit - _FOR_NOTES - len(title) - 10
        self._cut: list[str] = []

    def heading(self, words: str) -> None:
        """A heading in our own words."""
        self._add(f"#### {words}", "a heading")

    def table(self, what: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """A table.

        Args:
            what: its rows, for the note that some were cut: ``calls that fail``.
            head: our own words.
            rows: texts of any content.
        """
        lines = [f"| {' | '.join(map(cell, row))} |" for row in rows]
        shown = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
        room = self._room - sum(len(line) + 1 for line in shown) - 2
        fit = 0
        for line in lines:
            room -= len(line) + 1
            if room < 0:
                break
            fit += 1
        if fit < len(lines):
            self._cut.append(f"{len(lines) - fit:,} of {len(lines):,} {what}")
        if fit:
            self._add("\n".join([*shown, *lines[:fit]]), what)

    def text(self) -> str:
        """The document, with a note of what was cut."""
        blocks = list(self._blocks)
        if self._cut:
            shown = "; ".join(self._cut[:_MAX_NOTES])
            more = len(self._cut) - _MAX_NOTES
            more_text = f"; and {more} more" if more > 0 else ""
            blocks.append(f"*Cut to keep this short: {shown}{more_text}.*")
        return "\n\n".join(blocks) + "\n"

    def _add(self, block: str, what: str) -> None:
        if len(block) + 2 > self._room:
            self._cut.append(what)
            return
        self._room -= len(block) + 2
        self._blocks.append(block)


def span(text: str, most: int = _MAX_CELL) -> str:
    """A text of any content as a code span on one line."""
    shown = printable(" ".join(text.split("\n")) if "\n" in text else text)
    if len(shown) > most:
        shown = f"{shown[:most]}… and {counted(len(shown) - most, 'more character')}"
    if not shown.strip():
        return "-"
    fence = "`" * (max(map(len, re.findall("`+", shown)), default=0) + 1)
    space = " " if shown[0] in "` " or shown[-1] in "` " else ""
    return f"{fence}{space}{shown}{space}{fence}"


def cell(text: str) -> str:
    """A text of any content as a cell of a table. A bar would end the cell, also within a code
    span, and readers differ in how it is escaped: it is shown as control characters are."""
    if not text or text == "-":
        return "-"
    return span(text.replace("|", "\\x7c"))
