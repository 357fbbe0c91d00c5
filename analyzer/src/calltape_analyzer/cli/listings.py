"""What was recorded below a directory, and when, as tables.

In come paths, or the counts of days. Out go rows for people, or JSON.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import typer

from calltape_analyzer.cli.budget import reading
from calltape_analyzer.cli.output import (
    DAMAGED,
    complain,
    damage_as_json,
    line,
    print_json,
    table,
)
from calltape_analyzer.listing import Recording, list_recordings
from calltape_analyzer.reading.damage import Damage
from calltape_analyzer.reading.files import files_of
from calltape_analyzer.reading.places import day_of
from calltape_analyzer.text import counted, some_of

__all__ = ["days_lines", "print_recordings"]

_MOST_TARGETS, _MOST_DAYS, _MOST_NAMED = 200, 14, 3
_HEAD = (
    "target", "recordings", "hosts", "files", "calls", "first day", "last day", "sealed", "damaged",
)  # fmt: skip


def print_recordings(paths: Sequence[str], *, scan: bool, json: bool) -> None:
    """Prints what there is of each target; its damage is told, and decides the exit code."""
    damage = Damage()
    with reading(files_of(paths)):
        found = list_recordings(paths, damage, scan=scan)
    if json:
        rows = [one.model_dump() | {"sealed": one.sealed} for one in found]
        print_json({"recordings": rows, "damage": damage_as_json(damage.list())})
    else:
        _print(found)
    sys.stdout.flush()
    for error in damage.list():
        complain(str(error))
    if damage:
        raise typer.Exit(DAMAGED)


def _print(found: Sequence[Recording]) -> None:
    by_target: dict[str, list[Recording]] = {}
    for one in found:
        by_target.setdefault(one.target, []).append(one)
    shown = sorted(by_target.items())[:_MOST_TARGETS]
    table(_HEAD, (_row(target, parts) for target, parts in shown))
    more = len(by_target) - len(shown)
    told = f"; {more} more are not shown" if more else ""
    line(f"tapes of {counted(len(by_target), 'target')}{told}: --target NAME, or a part of it, "
         "chooses one")  # fmt: skip


def _row(target: str, parts: Sequence[Recording]) -> tuple[str, ...]:
    first = min((one.first_ns for one in parts if one.first_ns is not None), default=None)
    last = max((one.last_ns for one in parts if one.last_ns is not None), default=None)
    unsealed = [path for one in parts for path in one.unsealed]
    return (
        target,
        str(len(parts)),
        _hosts(parts),
        str(sum(len(one.paths) for one in parts)),
        str(sum(one.calls for one in parts)),
        "" if first is None else day_of(first),
        "" if last is None else day_of(last),
        "yes" if not unsealed else f"no: {some_of(unsealed, _MOST_NAMED)}",
        str(sum(one.damage for one in parts)),
    )


def _hosts(parts: Sequence[Recording]) -> str:
    """How many hosts are named; the folders stand for those that are not."""
    named = {one.host for one in parts if one.host_named}
    folders = {one.host for one in parts if not one.host_named}
    counts = [str(len(named))] if named else []
    return ", ".join([*counts, *([counted(len(folders), "folder")] if folders else [])])


def days_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Calls per host and day, the latest days if there are many."""
    if len(rows) > _MOST_DAYS:
        yield f"{counted(len(rows), 'row')} of host and day, the last ones (--json has all):"
    for row in rows[-_MOST_DAYS:]:
        first, last = row["first_day"], row["last_day"]
        days = first if first == last else f"{first} to {last}"
        yield f"{days} {row['host']}: {counted(row['calls'], 'call')}"
