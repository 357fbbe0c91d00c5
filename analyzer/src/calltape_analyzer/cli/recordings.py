"""What was recorded, in words and tables: policy, files, what the recorder counted, and what there
is below a directory."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import typer

from calltape_analyzer.cli.output import (
    DAMAGED,
    complain,
    damage_as_json,
    line,
    print_json,
    table,
)
from calltape_analyzer.errors import Damage
from calltape_analyzer.limits import reading
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.observing.traffic_counters import (
    CountedGroup,
    CountedKind,
    TrafficCounters,
    Values,
    ints_of,
    tensors_of,
)
from calltape_analyzer.opening import Recording, list_recordings
from calltape_analyzer.reading.files import files_of, short_paths
from calltape_analyzer.reading.segment import UNDER_WAY_WORDS
from calltape_analyzer.tape import Tape
from calltape_analyzer.text import GOES_ON, counted, listed, merge_alike, some_of, time_text
from calltape_schema.drop_reasons import UNKNOWN, reason_text
from calltape_schema.end import Coverage
from calltape_schema.records import Manifest, Policy, redacted_of_steps

__all__ = [
    "HEAD",
    "MOST_PATHS",
    "coverage_as_json",
    "coverage_text",
    "dumps_text",
    "files_as_json",
    "files_text",
    "policies_text",
    "print_recordings",
    "sealed_text",
    "since_text",
    "size",
    "traffic_lines",
]

_MAX_GROUPS, _MAX_PLACES, _MAX_DUMPS = 8, 6, 5
MOST_PATHS = 3
_SAME = "every size always the same"


def policies_text(manifests: Sequence[Manifest]) -> str:
    """What the recorders of some files were asked to keep; in how many, if they differ."""
    counts = Counter(policy_text(m.policy) + changed_text(m) for m in manifests)
    if len(counts) == 1:
        return next(iter(counts))
    texts = [f"{text} (in {f} of {len(manifests)} files)" for text, f in counts.most_common()]
    return some_of(texts, _MAX_PLACES, "; ")


def policy_text(policy: Policy) -> str:
    """What a recorder was asked to keep."""
    pairs = [f"{values} of {pattern}" for pattern, values in policy.leaf_values]
    values = "values kept" if policy.values == "all" else "shapes only"
    parts = [
        f"values by path ({listed(pairs, _MAX_PLACES)})" if pairs else values,
        "outputs too" if policy.outputs else "no outputs",
    ]
    if policy.keep is not None:
        parts.insert(0, f"keeps {policy.keep}")
    if policy.flight_recorder is not None:
        recorder = policy.flight_recorder
        bounds = f"{counted(recorder.calls, 'call')}, {size(recorder.bytes)}"
        parts.append(f"the last of the other calls held in memory (up to {bounds})")
    if policy.write_ahead:
        parts.append("inputs written ahead")
    return ", ".join((*parts, *_bounds(policy)))


def changed_text(manifest: Manifest) -> str:
    """That less may be on the tape than the recorder kept."""
    steps = manifest.history or ()
    verbs = [step.verb for step in steps]
    if redacted_of_steps(steps) == "part":
        verbs = ["redact (only a part)" if verb == "redact" else verb for verb in verbs]
    return f"; changed since by {listed(verbs, _MAX_PLACES)}" if verbs else ""


def _bounds(policy: Policy) -> Iterator[str]:
    if policy.max_calls is not None:
        yield f"at most {counted(policy.max_calls, 'call')}"
    if policy.max_seconds is not None:
        yield f"for at most {policy.max_seconds:g} s"
    if policy.max_share is not None:
        yield f"at most {100 * policy.max_share:g}% of the time of the calls spent on recording"
    if policy.segment_bytes is not None:
        yield f"a new file after {size(policy.segment_bytes)}"
    if policy.segment_seconds is not None:
        yield f"a new file after {policy.segment_seconds:g} s"
    if policy.max_disk_bytes is not None:
        yield f"at most {size(policy.max_disk_bytes)} on disk"
    if policy.min_free_bytes is not None:
        yield f"{size(policy.min_free_bytes)} of the disk left free"
    if policy.when_full == "delete_oldest":
        yield "the oldest file deleted when full"


def files_text(tape: Tape) -> str | None:
    """How the files belong together; None for one plain file."""
    recordings: dict[bytes, set[int]] = {}
    for manifest in tape.manifests:
        number = manifest.segment.number if manifest.segment is not None else 0
        recordings.setdefault(manifest.tape, set()).add(number)
    ahead = len(tape.under_way)
    missing = tape.missing_files
    deleted = tape.deleted_files
    if len(tape.paths) == 1 and not missing and not ahead and not deleted:
        return None
    parts = [f"{counted(len(tape.paths), 'file')} of {counted(len(recordings), 'recording')}"]
    if len(recordings) == 1:
        ((tape_id, own_numbers),) = recordings.items()
        there = sorted(own_numbers - set(missing.get(tape_id, ())))
        parts[0] += f", segment{'s' * (len(there) != 1)} {_ranges(tuple(there))}"
    for tape_id, numbers in missing.items():
        whose = f" of recording {tape_id.hex()[:8]}" if len(recordings) > 1 else ""
        parts.append(f"missing{whose}: {_ranges(numbers)} (removed, or not opened)")
    for tape_id, runs in deleted.items():
        whose = f" of recording {tape_id.hex()[:8]}" if len(recordings) > 1 else ""
        files = counted(sum(last - first + 1 for first, last in runs), "file")
        parts.append(f"{files}{whose} deleted by the recorder: {_runs(runs)}")
    if ahead:
        parts.append(f"{counted(ahead, 'call')} {UNDER_WAY_WORDS}, or still is")
    return "; ".join(parts)


def files_as_json(tape: Tape) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "segments": [
            {
                "path": path,
                "tape": manifest.tape.hex(),
                "number": manifest.segment.number if manifest.segment is not None else None,
                "first_call": manifest.segment.first_call if manifest.segment is not None else None,
            }
            for path, manifest in zip(tape.paths, tape.manifests, strict=True)
        ],
        "missing": {tape_id.hex(): list(n) for tape_id, n in tape.missing_files.items()},
        "deleted": {tape_id.hex(): list(runs) for tape_id, runs in tape.deleted_files.items()},
        "under_way": [
            {"call": call.number, "address": call.address, "path": call.path}
            for call in tape.under_way
        ],
    }


def _ranges(numbers: tuple[int, ...]) -> str:
    """``0 to 2, 5``."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return _runs(spans)


def _runs(runs: Iterable[Sequence[int]]) -> str:
    shown = [str(a) if a == b else f"{a} to {b}" for a, b in runs]
    return listed(shown, _MAX_PLACES)


def sealed_text(tape: Tape) -> str:
    """Whether the files have their ends; if not, which of them, and since when they are written."""
    if tape.sealed:
        return f"each file; {GOES_ON}" if tape.continues else "yes"
    end = f", {size(tape.unfinished)} of unfinished calls at the end" if tape.unfinished else ""
    names = short_paths(tape.paths)
    seals = [
        f"{f'{names[part.path]} ' if len(tape.paths) > 1 else ''}"
        f"begun {time_text(part.manifest.created_ns)}"
        for part in tape.segments
        if part.end is None
    ]
    return f"no: {some_of(seals, MOST_PATHS)}, still recording, killed, or cut off{end}"


def coverage_text(coverage: Coverage, *, since: str | None = None) -> str:
    """Calls seen, kept, not wanted and lost, by reason, the most frequent first. A tape that is not
    sealed knows of no call after it was last counted; nor does one that was made of it.

    Args:
        since: when calls were first seen, and why not before.
    """
    seen = f"at least {coverage.seen}" if coverage.at_least else coverage.seen
    from_then = f" since {since}," if since is not None else ""
    counted_ns = coverage.counted_ns
    until = "" if counted_ns is None else f" (counted until {time_text(counted_ns)})"
    parts = [f"{coverage.kept} of {seen} calls seen{from_then} were kept{until}"]
    for how, calls in (("not wanted", coverage.unwanted), ("lost", coverage.lost)):
        for reason, count in sorted(calls.items(), key=lambda pair: -pair[1]):
            text = reason_text(reason)
            parts.append(f"{count} {text}" if reason in UNKNOWN else f"{count} {how}: {text}")
    return "; ".join(parts)


def coverage_as_json(coverage: Coverage) -> dict[str, Any]:
    """The same as plain data, and until when calls are counted if there may be more."""
    until = coverage.counted_ns
    return {
        "coverage": coverage.model_dump(exclude={"at_least", "counted_ns"}),
        "coverage_is_lower_bound": bool(coverage.at_least),
        "counted_until": None if until is None else time_text(until),
    }


def since_text(tape: Tape, time: Mapping[int, str | None]) -> str | None:
    """When calls of a tape were first seen, if there may have been some before: ``12:03:04, when
    the target was found``. Of several recordings the latest such time; None if none says so.

    Args:
        tape: the tape.
        time: by nanoseconds, as text.
    """
    if not tape.observed:
        return None
    last = max(tape.observed.values(), key=lambda observed: observed.since_ns)
    other_files = len(tape.observed) - 1
    more = f" (of {other_files} more recordings earlier)" if other_files else ""
    return f"{time[last.since_ns]}, {last.reason}{more}"


def dumps_text(tape: Tape, time: Mapping[int, str | None]) -> str | None:
    """How often, when and why a flight recorder was written, the latest first; None if never.

    Args:
        time: by nanoseconds, as text.
    """
    if not tape.dumps:
        return None
    calls = sum(dump.calls for dump in tape.dumps)
    shown = [
        f"{time[dump.time_ns]} {dump.reason} ({counted(dump.calls, 'call')})"
        for dump in reversed(tape.dumps)
    ]
    several = f"{counted(len(tape.dumps), 'dump')} of {counted(calls, 'call')}: "
    more = len(shown) - _MAX_DUMPS
    return several + "; ".join(shown[:_MAX_DUMPS]) + (f"; and {more} more" if more > 0 else "")


def traffic_lines(
    counters: TrafficCounters, signature: Signature, kept: Mapping[CountedKind, int]
) -> Iterator[str]:
    """The whole traffic: for each input signature the number of calls, how many of them are kept,
    and the ranges of what varied. Signatures with equal ranges share a line. Nothing if no call was
    counted."""
    if not counters.calls:
        if counters.missing:
            yield ("unknown: calls may be counted in files that are missing or have no counters")
        return
    least = "" if counters.complete else "at least "  # files without counters may have others
    attributed = counters.calls - counters.other_calls
    signatures = counted(len(counters.groups), "input signature")
    head = f"{least}{counted(attributed, 'call')} with {signatures}"
    if counters.other_calls:
        head += f", and {counters.other_calls:,} of which only the number is known"
    if not counters.complete:
        head += f"; {listed(sorted(counters.missing))} may have seen more"
    yield head
    groups = counters.in_order()
    ranges: dict[str, tuple[int, int, int]] = {}
    for group in groups[:_MAX_GROUPS]:
        kept_calls = kept.get(group.kind, 0)
        calls = max(group.calls, kept_calls)
        unvaried = _SAME if calls > 1 else "one call does not show which sizes vary"
        text = "; ".join(_ranges_of(group, signature)) or unvaried
        kinds, all_calls, all_kept = ranges.get(text, (0, 0, 0))
        ranges[text] = kinds + 1, all_calls + calls, all_kept + kept_calls
    for text, (kinds, calls, kept_calls) in ranges.items():
        several = f" with {kinds} input signatures" if kinds > 1 else ""
        yield f"{least}{counted(calls, 'call')}{several}, {kept_calls} kept: {text}"
    if len(groups) > _MAX_GROUPS:
        more_groups = groups[_MAX_GROUPS:]
        more_calls = counted(sum(group.calls for group in more_groups), "call")
        yield f"{more_calls} with {counted(len(more_groups), 'more input signature')}"


def _ranges_of(group: CountedGroup, signature: Signature) -> list[str]:
    """``input_ids: [1..8, 3..512]`` of each tensor, and ``n: 1..7`` of each int, that varied; those
    of a list that are alike as one."""
    varied = [
        (name, f"[{', '.join(map(_span, axes))}]")
        for name, _, axes in tensors_of(group, signature)
        if any(axis.varied for axis in axes)
    ]
    texts = [f"{name}: {text}" for name, text in merge_alike(varied)]
    texts += [f"{name}: {_span(v)}" for name, v in ints_of(group, signature) if v.varied]
    more = len(texts) - _MAX_PLACES
    return [*texts[:_MAX_PLACES], f"and {more} more"] if more > 0 else texts


def _span(values: Values) -> str:
    """``3``, ``3..7``."""
    return f"{values.min}..{values.max}" if values.varied else str(values.min)


def size(count: int) -> str:
    """A number of bytes for people: ``640 B``, ``1.5 MiB``."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


_MOST_TARGETS, _MOST_NAMED = 200, 3
HEAD = (
    "target", "recordings", "hosts", "files", "calls", "first day", "last day", "sealed",
    "corrupted",
)  # fmt: skip


def print_recordings(paths: Sequence[str], *, scan: bool, json: bool) -> None:
    """Prints what there is of each target; its damage is told, and decides the exit code."""
    damage = Damage()
    with reading(files_of(paths)):
        recordings = list_recordings(paths, damage, scan=scan)
    if json:
        rows = [recording.model_dump() | {"sealed": recording.sealed} for recording in recordings]
        print_json({"recordings": rows, "damage": damage_as_json(damage.list())})
    else:
        _print(recordings)
    sys.stdout.flush()
    for error in damage.list():
        complain(str(error))
    if damage:
        raise typer.Exit(DAMAGED)


def _print(recordings: Sequence[Recording]) -> None:
    by_target: dict[str, list[Recording]] = {}
    for recording in recordings:
        by_target.setdefault(recording.target, []).append(recording)
    shown = sorted(by_target.items())[:_MOST_TARGETS]
    table(HEAD, (_row(target, parts) for target, parts in shown))
    more = len(by_target) - len(shown)
    hidden = f"; {more} more are not shown" if more else ""
    line(f"tapes of {counted(len(by_target), 'target')}{hidden}; choose one with --target NAME, or "
         "part of the name")  # fmt: skip


def _row(target: str, parts: Sequence[Recording]) -> tuple[str, ...]:
    first = min((part.first_ns for part in parts if part.first_ns is not None), default=None)
    last = max((part.last_ns for part in parts if part.last_ns is not None), default=None)
    named = {part.host for part in parts if part.host_named}
    folders = {part.host for part in parts if not part.host_named}  # in place of their hosts
    hosts = [str(len(named))] if named else []
    hosts += [counted(len(folders), "folder")] if folders else []
    unsealed = [path for part in parts for path in part.unsealed]
    unsealed += [f"{part.paths[-1]} is not the last" for part in parts if part.continues]
    return (
        target,
        str(len(parts)),
        ", ".join(hosts),
        str(sum(len(part.paths) for part in parts)),
        str(sum(part.calls for part in parts)),
        "" if first is None else _day_of(first),
        "" if last is None else _day_of(last),
        "yes" if not unsealed else f"no: {some_of(unsealed, _MOST_NAMED)}",
        str(sum(part.damage for part in parts)),
    )


def _day_of(nanoseconds: int) -> str:
    """The day of a Unix time, in UTC; of a clock that was far off, the time itself."""
    try:
        return datetime.fromtimestamp(nanoseconds // 10**9, timezone.utc).date().isoformat()
    except (OverflowError, ValueError, OSError):
        return f"{nanoseconds} ns"
