"""Accounts of recorders as OpenTelemetry metrics."""

from __future__ import annotations

import gc
import itertools
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_recorder import Recorder, TapeError, record
from calltape_recorder.telemetry import observe
from tests.recorder.models import Add

metrics = pytest.importorskip("opentelemetry.sdk.metrics")
export = pytest.importorskip("opentelemetry.sdk.metrics.export")


class Metrics:
    """A meter, and what it collects."""

    def __init__(self) -> None:
        self._reader = export.InMemoryMetricReader()
        self._provider = metrics.MeterProvider([self._reader], shutdown_on_exit=False)
        self.meter = self._provider.get_meter("tests")

    def collect(self) -> dict[str, dict[Any, Any]]:
        """Values by metric's name, then by the attributes' values."""
        data = self._reader.get_metrics_data()
        if data is None:
            return {}
        found = data.resource_metrics[0].scope_metrics[0].metrics
        return {
            metric.name: {
                tuple(point.attributes.values()): point.value for point in metric.data.data_points
            }
            for metric in found
        }

    def counters(self) -> set[str]:
        """The names of the metrics of which a backend takes that they never fall."""
        data = self._reader.get_metrics_data()
        found = data.resource_metrics[0].scope_metrics[0].metrics
        return {one.name for one in found if getattr(one.data, "is_monotonic", False)}


def test_accounts_are_collected(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    collected, model, x = Metrics(), Add(), torch.ones(3)
    names = ("first.tape", "second.tape")
    with (
        record(model, tmp_path / names[0], max_calls=2) as first,
        record(Add(), tmp_path / names[1]) as second,
    ):
        observing = observe(first, collected.meter)
        observe(first, collected.meter)  # twice is once
        observe(second, collected.meter)
        for _ in range(5):
            model(x, x)
        first.flush()
        found = collected.collect()
        spent = found["calltape.time"]
        assert set(spent) == {(name, where) for name in names for where in ("calls", "thread")}
        assert spent[names[0], "calls"] == first.stats().in_calls_ns > 0
        assert spent[names[1], "calls"] == 0
        assert found["calltape.calls.seen"] == {(names[0],): 5, (names[1],): 0}
        assert found["calltape.calls.kept"] == {(names[0],): 2, (names[1],): 0}
        assert found["calltape.calls.dropped"] == {(names[0], "max_calls"): 3}
        assert found["calltape.queue.bytes"] == {(names[0],): 0, (names[1],): 0}
        written = found["calltape.tape.bytes"]
        assert written == {
            (names[0],): first.stats().written_bytes, (names[1],): second.stats().written_bytes,
        }  # fmt: skip
        assert written[(names[0],)] > written[(names[1],)] > 0
        observing.stop()
        observing.stop()
    # OpenTelemetry says nothing, as it would of two instruments with one name.
    assert {record.name for record in caplog.records} == {"calltape"}


def test_counters_only_grow_although_files_are_deleted(tmp_path: Path) -> None:
    collected, model = Metrics(), Add()
    options: Any = {"segment_bytes": 32 * 1024, "max_disk_bytes": 200 * 1024}
    seen: dict[str, list[dict[Any, Any]]] = {}
    with (
        record(model, tmp_path / "t.tape", when_full="delete_oldest", **options) as recorder,
        observe(recorder, collected.meter),
    ):
        for _ in range(40):
            model(torch.ones(1000), torch.ones(1000))
            recorder.flush()
            for name, values in collected.collect().items():
                seen.setdefault(name, []).append(values)
        stats, counters = recorder.stats(), collected.counters()
        assert stats.dropped["deleted"]
        size = sum(path.stat().st_size for path in tmp_path.glob("*.tape"))
        assert seen["calltape.tape.size"][-1] == {("t.tape",): size}
    assert counters == {
        "calltape.calls.seen", "calltape.calls.written", "calltape.calls.dropped",
        "calltape.tape.bytes", "calltape.time",
    }  # fmt: skip
    for name in counters:
        for before, after in itertools.pairwise(seen[name]):
            assert all(value <= after[key] for key, value in before.items()), name
    for name in ("calltape.calls.kept", "calltape.tape.size"):
        values = [found["t.tape",] for found in seen[name]]
        assert any(after < before for before, after in itertools.pairwise(values)), name
    kept, dropped = seen["calltape.calls.kept"][-1], seen["calltape.calls.dropped"][-1]
    assert kept["t.tape",] + sum(dropped.values()) == 40
    assert seen["calltape.calls.written"][-1] == {("t.tape",): 40}
    assert seen["calltape.tape.bytes"][-1]["t.tape",] > 40 * 12_000


def test_what_is_stopped_is_not_reported(tmp_path: Path) -> None:
    collected = Metrics()
    with record(Add(), tmp_path / "t.tape") as recorder:
        with observe(recorder, collected.meter) as observing:
            assert observing.recorder is recorder
            assert collected.collect()["calltape.calls.seen"] == {("t.tape",): 0}
        assert observing.recorder is None
        assert "calltape.calls.seen" not in collected.collect()
        observe(recorder, collected.meter)
        assert collected.collect()["calltape.calls.seen"] == {("t.tape",): 0}


def test_an_observed_recorder_is_not_kept_alive(tmp_path: Path) -> None:
    collected = Metrics()
    recorder = Recorder(tmp_path / "t.tape")
    observing = observe(recorder, collected.meter)
    recorder.close()
    gone = weakref.ref(recorder)
    del recorder
    gc.collect()
    assert gone() is None
    assert observing.recorder is None
    assert "calltape.calls.seen" not in collected.collect()


def test_without_a_meter_the_global_one_is_used(tmp_path: Path) -> None:
    with record(Add(), tmp_path / "t.tape") as recorder, observe(recorder) as observing:
        assert observing.recorder is recorder


def test_without_opentelemetry_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with (
        record(Add(), tmp_path / "t.tape") as recorder,
        pytest.raises(TapeError, match=r"\./recorder\[otel\]"),
    ):
        observe(recorder)
