"""docs/costs.md and the costs in README.md are made of the results that are stored, and these are
what the benchmarks give."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks import bytes_per_step, call_cost, cpu_total, real_sizes, serving
from benchmarks.costs_page import PAGE, README, Measured, load, page, readme, save
from benchmarks.report import Question, Row
from benchmarks.rounds import Samples

from calltape_recorder import Stats

STORED = load()


def test_the_page_is_made_of_the_stored_results() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(STORED)


def test_the_readme_has_the_stored_results() -> None:
    text = README.read_text(encoding="utf-8")
    assert text == readme(text, STORED)


@pytest.mark.parametrize(
    ("benchmark", "of", "figure"),
    [
        ("serving", r"median latency", r"[\d.]+ × \((?=\d)"),
        ("container", r"bytes per call", r"[\d.]+ bytes for"),
        ("cpu_total|call_cost", r"nothing new.*processor time|not kept", r"\+[\d.]+ µs of"),
    ],
)
def test_the_worst_case_is_in_the_summary(benchmark: str, of: str, figure: str) -> None:
    """Not only what looks good: no stored figure of the same kind is larger."""
    rows = [r for n, f in STORED.items() if re.fullmatch(benchmark, n) for r in f.rows]
    rows = [row for row in rows if re.search(of, row.what)]
    cells = [row.ratio if benchmark == "serving" else row.calltape for row in rows]
    matches = re.findall(figure, page(STORED))
    assert len(matches) == 1
    assert number(matches[0]) == max(map(number, cells))


def number(text: str) -> float:
    return float(re.findall(r"[\d.]+", text)[0])


def test_each_table_has_few_rows() -> None:
    shown = [row.question for found in STORED.values() for row in found.rows if row.question]
    counts = [shown.count(question) for question in Question]
    assert min(counts) >= 3
    assert max(counts) <= 9


def test_other_results_stay_where_one_benchmark_is_run_again(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    one, two = Row("a", "1 ms", "2 ms", "0.50 ×", Question.DISK), Row("b", "3")
    save({"x": Measured("this", (one, two)), "y": Measured("this", (one,))}, path)
    save({"y": Measured("that", (two,))}, path)
    assert load(path) == {"x": Measured("this", (one, two)), "y": Measured("that", (two,))}


def test_a_row_is_a_line_of_the_page() -> None:
    rows = Row("a", "1 ms", question=Question.SERVER), Row("b", "2")
    made = page({**STORED, "x": Measured("m", rows)})
    assert "| a | 1 ms | – | – |" in made.splitlines()
    assert "| b |" not in made


# --- what the benchmarks give, without what takes their time --------------------------------------


def told(rows: Iterable[Row]) -> set[tuple[str, Question | None]]:
    return {(row.what, row.question) for row in rows}


def test_rows_of_processor_time_are_worded_as_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    def costs(work: str, names: list[str], rounds: int) -> dict[str, cpu_total.Cost]:
        return {name: cpu_total.Cost(2.0, 1.0, 3.0) for name in [*names, "bare"]}

    monkeypatch.setattr(cpu_total, "costs_of", costs)
    assert told(cpu_total.rows(1.0)) == told(STORED["cpu_total"].rows)


def test_rows_of_time_added_to_a_call_are_worded_as_stored() -> None:
    times = {name: [float(number)] for number, name in enumerate(call_cost.CONTENDERS, 1)}
    rows = [*call_cost.rows_of("add [4,8], paced", Samples(times), call_cost.EMPTY, shown=True)]
    stored = [row for row in STORED["call_cost"].rows if row.what.startswith("add [4,8], paced")]
    assert told(rows) == told(stored)
    assert [row.without.partition(":")[0] for row in rows] == [
        row.without.partition(":")[0] for row in stored
    ]
    shown = Samples(times), call_cost.EMPTY
    assert all(row.question is None for row in call_cost.rows_of("x", *shown))


def test_rows_of_bytes_of_decode_steps_are_worded_as_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bytes_per_step, "bytes_ratio", lambda *, grows: 0.1042 if grows else 1.04)
    assert tuple(bytes_per_step.rows(False)) == STORED["bytes_per_step"].rows


def test_rows_of_a_server_are_worded_as_stored() -> None:
    turns = {name: [serving.Turn(0.02, 0.06, 100.0)] for name in [serving.OFF, *serving.OPTIONS]}
    stats = Stats(seen=1000, kept=16)
    models = {"Llama": 111.0, "GPT-2 small": 6.0}
    rows = [
        row
        for model, rate in models.items()
        for name in serving.OPTIONS
        for row in serving.rows_with(model, name, [rate], turns, stats)
    ]
    assert told(rows) == told(STORED["serving"].rows)
    assert Row("Llama behind HTTP, `max_share=0.01`: calls kept", "1.6%") in rows


def test_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_process(step: str, *arguments: str) -> dict[str, Any]:
        found = {"seconds": 8.1, "once": 1.6, "peak": 2**31, "parameters": 124e6, "bytes": 2**29}
        made = {"programs": 1, "reproduced": 9, "calls": 9, "attempts": 1, "variants": []}
        bare = {"seconds": 2.3, "peak": 2**30}
        return {**found, **made} if step == "export" else bare

    monkeypatch.setattr(real_sizes, "in_process", in_process)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    stored = [row for row in STORED["real_sizes"].rows if row.what.startswith("GPT-2 small")]
    assert told(row for row in real_sizes.rows(1.0) if row.what.startswith("GPT-2 small")) == told(
        stored
    )


def test_the_median_of_the_ratios_is_shown() -> None:
    """Not the ratio of the medians: each round has its own speed."""
    ours, base = (0.02, 0.06, 0.05), (0.01, 0.02, 0.05)
    turns = {
        serving.ALL: [serving.Turn(seconds, 1.0, 1.0) for seconds in ours],
        serving.OFF: [serving.Turn(seconds, 1.0, 1.0) for seconds in base],
    }
    row = next(serving.rows_with("m", serving.ALL, [1.0], turns, Stats(seen=1, kept=1)))
    assert row.ratio == f"{statistics.median((2.0, 3.0, 1.0)):.2f} ×"
    assert (row.calltape, row.without) == ("50.0 ms", "20.0 ms")
