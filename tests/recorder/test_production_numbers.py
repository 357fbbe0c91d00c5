"""Numbers, lists and extras of docs/production.md and docs/recording.md are those of the code."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path
from typing import Any

import pytest
from benchmarks import call_cost
from benchmarks.costs_page import load

from calltape_recorder import Stats, bounds, recorder
from calltape_recorder.keep import ledger
from calltape_recorder.launch.startup import calltape_startup
from calltape_recorder.snapshot import earlier_copies
from calltape_recorder.write import writer
from calltape_schema.drop_reasons import UNWANTED

DOCS = Path(__file__).resolve().parents[2] / "docs"
KIB = 1024


def page(name: str) -> str:
    return " ".join((DOCS / name).read_text(encoding="utf-8").split())


PAGE = page("production.md")


@pytest.mark.parametrize(
    ("says", "value", "told"),
    [
        ("the median of the last 15 recorded calls", ledger.DURATIONS, 15),
        ("to a budget, which holds at most 1% of a second", bounds.SHARE_CREDIT_NS, 10**9),
        ("`max_disk_bytes` (at least 128 KiB)", bounds.LEAST_DISK_BYTES, 128 * KIB),
        ("provided that its tensors are at least 8 KiB", earlier_copies.FEWEST_BYTES, 8 * KIB),
        ("`segment_seconds` or a million calls", bounds.MAX_CALLS_IN_FILE, 10**6),
        ("`segment_seconds` is an eighth of `max_age_seconds`", bounds.OLDEST_SHARE, 8),
        ("which the recorder reads about once a second", writer.LOOK_SECONDS, 1),
        ("events of the same kind at most once a minute", bounds.AGAIN_SECONDS, 60),
        ("at least once a minute, even if it keeps no calls", bounds.COUNT_SECONDS, 60),
        ("take up at most 2 KiB of the file", bounds.COUNTS_BYTES, 2 * KIB),
    ],
)
def test_numbers_of_the_page_are_those_of_the_code(says: str, value: Any, told: Any) -> None:
    assert says in PAGE
    assert value == told


@pytest.mark.parametrize(
    ("says", "value", "told"),
    [
        ("the first 256 chunks that it yielded", bounds.MAX_CHUNKS, 256),
        ("up to 32 per process", bounds.MAX_INSTANCES, 32),
        ("looks for it a few times a second", calltape_startup.POLL_SECONDS, 0.2),
        ("waits up to 10 s", calltape_startup.IMPORT_SECONDS, 10),
        ("`when the target was found`", recorder.FOUND, "when the target was found"),
    ],
)
def test_numbers_of_the_recording_page_are_those_of_the_code(
    says: str, value: Any, told: Any
) -> None:
    assert says in page("recording.md")
    assert value == told


def test_the_page_says_what_a_call_costs_that_is_not_kept() -> None:
    assert "costs as much as about three empty forward hooks" in PAGE
    (row,) = re.findall(
        r"not kept \| [^|]*\| an empty forward hook: [^|]*\| ([\d.]+) ×", page("costs.md")
    )
    of_a_hook = [
        one.ratio for one in load()["call_cost"].rows if one.without.startswith(call_cost.EMPTY)
    ]
    assert f"{row} ×" in of_a_hook
    assert len(of_a_hook) == 2
    assert all(2.5 <= float(ratio.removesuffix(" ×")) < 3.5 for ratio in of_a_hook)


def reasons(text: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", text))


def test_why_calls_are_not_on_the_tape() -> None:
    match = re.search(
        r"`stats\(\).unwanted` counts calls that were left out on purpose: (.*?)`stats\(\).lost`",
        PAGE,
    )
    assert match is not None
    unwanted = reasons(match[1])
    table = (DOCS / "production.md").read_text(encoding="utf-8").partition("## Lost calls")[2]
    lost = reasons(" ".join(re.findall(r"^\| ([^|]*) \|", table, re.MULTILINE)))
    (told,) = re.findall("dropped: (.*?)outputs_lost:", str(Stats.__doc__), re.DOTALL)
    every = reasons(told.replace("``", "`")) - {"max_age_seconds"}  # an option
    assert unwanted == UNWANTED & every
    assert lost == every - UNWANTED


def test_the_extras_are_there() -> None:
    extras = set(re.findall(r"\./recorder\[(\w+)\]", PAGE))
    metadata = importlib.metadata.metadata("calltape-recorder")
    assert extras == set(metadata.get_all("Provides-Extra") or ())
