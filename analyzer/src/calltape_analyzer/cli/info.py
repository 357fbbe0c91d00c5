"""``calltape info``: what is on a tape; and ``calltape TAPE``, which says it in a few lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import typer

from calltape_analyzer.cli.options import Json, OfTarget, Part, Paths, Scan, opened_tape
from calltape_analyzer.cli.output import (
    command,
    complain,
    damage_as_json,
    line,
    lines,
    print_facts,
    print_json,
)
from calltape_analyzer.cli.recordings import (
    MOST_PATHS,
    coverage_as_json,
    coverage_text,
    dumps_text,
    files_as_json,
    files_text,
    policies_text,
    print_recordings,
    sealed_text,
    since_text,
    size,
    traffic_lines,
)
from calltape_analyzer.cli.variants import print_variants
from calltape_analyzer.editing.diagnosis import Symptom, contents_of, symptoms_of
from calltape_analyzer.errors import RepeatedCallsError
from calltape_analyzer.observing.contexts import FLOAT, Context
from calltape_analyzer.observing.signature import signature_text
from calltape_analyzer.observing.traffic_counters import CountedKind
from calltape_analyzer.reading.calls import Calls as RecordedCalls
from calltape_analyzer.reading.segment import Segment
from calltape_analyzer.reading.selection import TargetsError, outside_words
from calltape_analyzer.redacting.private_data import PrivateData, private_data
from calltape_analyzer.tape import Tape
from calltape_analyzer.text import counted, some_of, time_text
from calltape_schema.empty_tapes import why_empty
from calltape_schema.errors import TapeError
from calltape_schema.records import CallRecord, Manifest, Source, Step
from calltape_schema.tree import decode_structure

__all__ = ["info", "overview"]

_DEFAULT, _MOST_CONTEXTS = "gradients, no autocast", 5

_SOURCES = {
    "records": "the record of each call",
    "end": "the summary at the end of the tape (--scan compares it with the records)",
}
_CHECKED = {
    "skipped": "not checked (--quick)",
    "checked": "all match",
    "tensors": "those of tensors match; files without tensors were answered from their ends "
    "(--scan reads them)",
    "survey": "a survey has no calls; the surveyed tapes have them",
    "no tensors": "no tensors to check; --scan reads and checks each record",
}
_SURVEY = "the summaries of the surveyed tapes"
_MOST_IDS = 4
_MOST_STEPS = 8
_MOST_TEXT = 400
_MANY_CALLS = 256
_MOST_PRIVATE = 6


@command
def info(
    paths: Paths,
    target: OfTarget = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Skip the checksums of tensors, and look for fewer problems."),
    ] = False,
    scan: Scan = False,
    json: Json = False,
    markdown: Annotated[
        bool,
        typer.Option(
            "--markdown",
            help="Print Markdown for an issue, without texts, values, messages or paths.",
        ),
    ] = False,
) -> None:
    """Show what a tape contains, what is wrong with it, and what it reveals.

    Prints the target, calls, sizes, coverage and corruption; then problems with advice (files
    without an end, lost calls, sizes that never varied, values and classes that could not be
    stored); then which data may identify a person or a machine, without showing any value.

    info reads and checks every record and tensor. For a sealed tape of many calls without tensors
    it trusts the summary at the end of the tape, and says so; --scan reads those records as well.
    If the tapes are of several models, info lists the models, and --target chooses one.

    \b
    calltape info runs/llm.tape
    calltape info runs/ --quick
    calltape info runs/ --scan
    calltape info runs/ --target Llama
    calltape info runs/llm.tape --json | jq .coverage
    calltape info runs/llm.tape --markdown
    """
    if json and markdown:
        raise typer.BadParameter("--json and --markdown exclude each other; pass one of them")
    part = Part(target=target)
    try:
        _print_info(paths, part, scan=scan, quick=quick, json=json, markdown=markdown)
    except TargetsError:
        if markdown or part != Part():
            raise
        print_recordings(paths, scan=scan, json=json)


def _print_info(
    paths: list[str], part: Part, *, scan: bool, quick: bool, json: bool, markdown: bool
) -> None:
    with opened_tape(paths, part, scan=scan or None) as tape:
        if markdown:
            from calltape_analyzer.markdown import tape_summary

            if not quick and tape.calls.has_single_calls:
                tape.verify()
            print(tape_summary(tape), end="")
            return
        kept: Counter[CountedKind] = Counter()
        facts = _facts(tape, quick, kept)
        is_read = facts["checksums"] == "checked"
        symptoms = _symptoms(tape, is_read)
        private = private_data(tape) if is_read else None
        if json:
            contexts = facts["contexts"].items()
            facts["contexts"] = {context.words() or _DEFAULT: calls for context, calls in contexts}
            facts["findings"] = [symptom.model_dump() for symptom in symptoms]
            facts["private"] = None if private is None else private.model_dump()
            print_json(facts)
        else:
            _print(tape, facts, kept, private)
            _print_findings(symptoms, facts)


class _CallCounts(NamedTuple):
    """What the records of a tape say of its calls, or the ends of its files in their place.

    Attributes:
        calls, raised: how many there are, and how many of them raised.
        files_read: of how many files all records were read.
        times: when the first call began and the last one ended, in nanoseconds; empty without
            calls.
    """

    calls: int
    raised: int
    files_read: int
    times: Sequence[int]


def _counted_calls(tape: Tape, quick: bool, kept: Counter[CountedKind]) -> _CallCounts:
    """Counts the calls of a tape; ``kept`` is filled with them by input signature."""
    calls = raised = read = 0
    times: list[int] = []
    for part in tape.segments:
        # Of many calls, its end is as good as its records, unless there are tensors to compare with
        # checksums.
        end = part.unscanned_end
        has_none = end is not None and not end.tensor_bytes and end.coverage.kept >= _MANY_CALLS
        rows = part.summed_inputs() if quick or has_none or part.is_survey else None
        if end is not None and rows is not None:
            calls += end.coverage.kept
            raised += end.raised
            for row in rows:
                kept[CountedKind.of(row.inputs)] += row.calls
            times += part.span_ns or ()
            continue
        read += 1
        for record in _records(tape, part, quick):
            calls += 1
            raised += record.error is not None
            kept[CountedKind.of(record.inputs)] += 1
            moments = (*times, record.time_ns, record.time_ns + (record.duration_ns or 0))
            times = [min(moments), max(moments)]
    return _CallCounts(calls, raised, read, times)


def _facts(tape: Tape, quick: bool, kept: Counter[CountedKind]) -> dict[str, Any]:
    """What is known of a tape, as plain data; ``kept`` is filled with its calls by input
    signature."""
    calls, raised, read, times = _counted_calls(tape, quick, kept)
    checked = "checked" if read == len(tape.segments) else "tensors" if read else "no tensors"
    if all(part.is_survey for part in tape.segments):
        checked = "survey"
    target = tape.target
    traffic = tape.counters.as_dict(tape.signature, kept)
    return {
        "paths": list(tape.paths),
        "format": f"{tape.manifest.version}.{tape.manifest.minor}",
        "sealed": tape.sealed,
        "continues": tape.continues,
        "unsealed": [part.path for part in tape.segments if part.end is None],
        "unfinished_bytes": tape.unfinished,
        "files": files_as_json(tape),
        "other_ranks": list(tape.other_ranks),
        "hosts": _hosts(tape),
        "target": target.model_dump() if target is not None else None,
        "signature": signature_text(target),
        "source": tape.source,
        "calls": calls,
        "input_signatures": len(kept),
        "contexts": _contexts(kept),
        "errors": raised,
        "bytes": tape.nbytes,
        "tensor_bytes": sum(part.tensor_bytes for part in tape.segments),
        "empty": _why_empty(tape),
        **coverage_as_json(tape.coverage),
        "unwanted": sum(tape.coverage.unwanted.values()),
        "lost": sum(tape.coverage.lost.values()),
        "seen_since": [
            {"tape": tape_id.hex(), "time": time_text(observed.since_ns), "reason": observed.reason}
            for tape_id, observed in tape.observed.items()
        ],
        "policy": tape.manifest.policy.model_dump(),
        "dumps": [dump.model_dump() | {"time": time_text(dump.time_ns)} for dump in tape.dumps],
        "traffic": traffic,
        "producer": tape.manifest.producer.model_dump(exclude_none=True),
        "history": [_step_as_json(step) for step in tape.manifest.history or ()],
        "first_call": time_text(min(times)) if times else None,
        "last_call_end": time_text(max(times)) if times else None,
        "checksums": "skipped" if quick else checked,
        "damage": damage_as_json(tape.damage),
    }


def _step_as_json(step: Step) -> dict[str, Any]:
    """A step of a tape's history as plain data, with the ids of tapes in hexadecimal."""
    sources = [
        source.model_dump(exclude_none=True) | {"tape": source.tape.hex()}
        for source in step.sources
    ]
    return step.model_dump(exclude_none=True) | {"tape": step.tape.hex(), "sources": sources}


def _contexts(kept: Mapping[CountedKind, int]) -> dict[Context, int]:
    """How many calls came in which context; those in torch's default come first."""
    calls_of: Counter[Context] = Counter()
    for kind, calls in kept.items():
        calls_of[Context.of(decode_structure(kind.structure).context)] += calls

    def place(pair: tuple[Context, int]) -> tuple[bool, int, str]:
        words = pair[0].words()
        return words is not None, -pair[1], words or ""

    return dict(sorted(calls_of.items(), key=place))


def _contexts_text(contexts: Mapping[Context, int]) -> str | None:
    """In words; None if the calls are all in one context without autocast and with torch's own
    default dtype."""
    if len(contexts) < 2 and not any(
        context.autocast or context.dtype != FLOAT for context in contexts
    ):
        return None
    texts = [f"{c.words() or _DEFAULT}: {counted(calls, 'call')}" for c, calls in contexts.items()]
    return some_of(texts, _MOST_CONTEXTS, "; ")


def _records(tape: Tape, part: Segment, quick: bool) -> Iterator[CallRecord]:
    """The records of a file that are whole, as far as is to be checked."""
    for call in RecordedCalls((part,), tape.class_index):
        try:
            if not quick:
                call.check(entries=True)
            yield call.record
        except TapeError:
            continue  # it stands in tape.damage


def _print(
    tape: Tape, facts: dict[str, Any], kept: Counter[CountedKind], private: PrivateData | None
) -> None:
    target = tape.target
    moments = [dump.time_ns for dump in tape.dumps]
    moments += [observed.since_ns for observed in tape.observed.values()]
    times = {moment: time_text(moment) for moment in moments}
    traffic = list(traffic_lines(tape.counters, tape.signature, kept))
    producer = tape.manifest.producer.model_dump(exclude_none=True)
    signatures = counted(facts["input_signatures"], "input signature")
    raised = f", {facts['errors']} raised" if facts["errors"] else ""
    first = facts["first_call"]
    recordings = list(dict.fromkeys(manifest.tape.hex()[:8] for manifest in tape.manifests))
    in_tensors = "in tensors" if tape.calls.has_single_calls else "in tensors, some on other tapes"
    if all(part.is_survey for part in tape.segments):
        in_tensors = "in tensors on other tapes"
    rows = [
        ("tape", some_of(tape.paths, MOST_PATHS)),
        ("files", files_text(tape)),
        ("ranks", _ranks(tape)),
        ("recording", some_of(recordings, _MOST_IDS)),
        ("hosts", some_of(facts["hosts"], _MOST_IDS) if facts["hosts"] else None),
        ("sealed", sealed_text(tape)),
        ("target", "unknown" if target is None else f"{target.name} (seen by {target.via})"),
        ("signature", facts["signature"] or "unknown"),
        ("calls", f"{facts['calls']} with {signatures}{raised}"),
        ("contexts", _contexts_text(facts["contexts"])),
        (
            "coverage",
            coverage_text(tape.coverage, since=since_text(tape, times)),
        ),
        ("bytes", f"{size(facts['bytes'])}, {size(facts['tensor_bytes'])} {in_tensors}"),
        ("time", "no calls" if first is None else f"{first} to {facts['last_call_end']}"),
        ("policy", policies_text(tape.manifests)),
        ("dumps", dumps_text(tape, times)),
        *zip(("traffic", *[""] * len(traffic)), traffic, strict=False),
        ("producer", ", ".join(f"{name} {version}" for name, version in producer.items())),
        *_history(tape.manifest),
        ("format", facts["format"]),
        ("checksums", _checksums(tape, facts)),
        ("source", _SOURCES[facts["source"]] if tape.calls.has_single_calls else _SURVEY),
        ("private", None if private is None else private.short(_MOST_PRIVATE)),
    ]
    if target is not None and target.outside:
        rows.append(("outside", outside_words(target.outside)))
    if facts["empty"] is not None:
        rows.append(("WARNING", facts["empty"]))
    print_facts(rows)


def _symptoms(tape: Tape, is_read: bool) -> list[Symptom]:
    """What is wrong or unwise; with the files only, if the records of calls were not read."""
    try:
        return symptoms_of(tape, contents_of(tape, check=False) if is_read else None)
    except TapeError as error:  # the facts are of use without
        complain(str(error))
        return []


def _print_findings(symptoms: Sequence[Symptom], facts: Mapping[str, Any]) -> None:
    """What is wrong or unwise, but for what stands in a line of its own."""
    for symptom in symptoms:
        if symptom.kind != "empty" or facts["empty"] is None:
            lines(str(symptom))
    if facts["checksums"] not in ("checked", "survey"):
        how = "run info with --scan" if facts["checksums"] != "skipped" else "leave out --quick"
        line(f"note: missing values, open classes and private data were not looked for; {how}")


def _why_empty(tape: Tape) -> str | None:
    """Why no call of a sealed tape is on it, and what to do."""
    target, coverage = tape.target, tape.coverage
    if target is None or not tape.sealed or len(tape) or tape.manifest.history:
        return None
    return why_empty(target.name, target.via, coverage.seen, coverage.kept, coverage.dropped)


def _ranks(tape: Tape) -> str | None:
    """Which process of a job recorded; None if it was none."""
    ranks = [manifest.rank for manifest in tape.manifests if manifest.rank is not None]
    if not ranks:
        return None
    numbers = sorted({rank.number for rank in ranks})
    text = f"{some_of(list(map(str, numbers)), _MOST_IDS)} of {max(rank.of for rank in ranks)}"
    others = len(tape.other_ranks)
    if not others:
        return text
    return f"{text}; {counted(others, 'file')} of other ranks ignored: a step counts once"


def _hosts(tape: Tape) -> list[str]:
    """The hosts that the tapes name, and those of which a survey has calls."""
    named = {manifest.producer.host for manifest in tape.manifests}
    named |= {source.host for part in tape.segments for source in part.sources}
    return sorted(host for host in named if host is not None)


def _history(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """What was done to the tape since it was recorded, the oldest step first."""
    steps = manifest.history or ()
    for i, step in enumerate(steps[-_MOST_STEPS:]):
        options = ", ".join(f"{name} {text}" for name, text in step.options[:_MOST_IDS])
        sources = list(map(_source, step.sources))
        parts = [step.verb, options, sources and f"of {some_of(sources, _MOST_IDS)}"]
        words = " ".join(part for part in parts if part)
        yield "history" if i == 0 else "", f"{words[:_MOST_TEXT]}, by {step.tool} {step.version}"


def _source(source: Source) -> str:
    """``3f9a01bc (a.tape and 1 more file, 12 calls, 3 of them left out)``."""
    parts = list(source.files[:1])
    others = len(source.files) - len(parts) + source.other_files
    if parts and others:
        parts[0] += f" and {counted(others, 'more file')}"
    parts.append(counted(source.calls, "call"))
    if source.left_out:
        parts.append(f"{source.left_out} of them left out")
    return f"{source.tape.hex()[:8]} ({', '.join(parts)})"


def _checksums(tape: Tape, facts: dict[str, Any]) -> str:
    copies = sum(isinstance(error, RepeatedCallsError) for error in tape.damage)
    damaged = len(tape.damage) - copies
    if damaged:
        return f"{counted(damaged, 'corrupted place')}, listed on stderr"
    checked = _CHECKED[facts["checksums"]]
    return f"{checked}; copies of files, listed on stderr: {copies}" if copies else checked


@command
def overview(paths: Paths, target: OfTarget = None) -> None:
    """Show what a tape is, and the variants of its calls. The verbs show more."""
    with opened_tape(paths, Part(target=target)) as tape:
        spans = [span for part in tape.segments if (span := part.span_ns) is not None]
        times = "no calls"
        if spans:
            begin, end = min(span[0] for span in spans), max(span[1] for span in spans)
            times = f"{time_text(begin)} to {time_text(end)}"
        rows = (
            ("tape", some_of(tape.paths, MOST_PATHS)),
            ("files", files_text(tape)),
            ("target", "unknown" if tape.target is None else tape.target.name),
            ("coverage", coverage_text(tape.coverage)),
            ("bytes", size(tape.nbytes)),
            ("time", times),
            ("sealed", sealed_text(tape)),
            ("policy", policies_text(tape.manifests)),
        )
        print_facts(rows)
        print()
        variants = tape.variants()
        if not variants:
            line("no calls")
        print_variants(variants)
