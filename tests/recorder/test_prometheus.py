"""The accounts of recorders as text for Prometheus, read by its own parser."""

from __future__ import annotations

import os
import stat
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_recorder import Recorder, prometheus_text, record, write_prometheus_text
from calltape_recorder.prometheus import CONTENT_TYPE
from tests.recorder.models import Add
from tests.recorder.processes import in_a_fork

parser = pytest.importorskip("prometheus_client.parser")

ONE = torch.ones(2)


def samples(text: str, folder: Path | None = None) -> dict[tuple[Any, ...], float]:
    """Values by the metric's name and the labels that are not the same for all."""
    found = {}
    for family in parser.text_string_to_metric_families(text):
        assert family.documentation.endswith(".")
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("process") == str(os.getpid())
            labels.pop("target")
            key = (sample.name, *labels.values())
            assert key not in found
            found[key] = sample.value
    return found


def test_the_accounts_are_read_by_the_parser_of_prometheus(tmp_path: Path) -> None:
    model = Add()
    with record(model, tmp_path / "a.tape", max_calls=2) as recorder:
        empty = samples(prometheus_text([recorder]))
        assert ("calltape_last_write_timestamp_seconds", "a.tape") not in empty
        for _ in range(5):
            model(ONE, ONE)
        recorder.flush()
        text, stats = prometheus_text([recorder]), recorder.stats()
        found = samples(text)
        assert found["calltape_calls_seen_total", "a.tape"] == 5
        assert found["calltape_calls_kept", "a.tape"] == 2
        assert found["calltape_calls_dropped_total", "a.tape", "max_calls"] == 3
        assert found["calltape_queue_calls", "a.tape"] == 0
        assert found["calltape_tape_bytes", "a.tape"] == stats.written_bytes
        assert found["calltape_tape_files", "a.tape"] == 1
        assert stats.last_write_ns is not None
        assert found["calltape_last_write_timestamp_seconds", "a.tape"] == pytest.approx(
            stats.last_write_ns / 1e9
        )
        assert found["calltape_state", "a.tape", "recording"] == 1
        recorder.pause()
        found = samples(prometheus_text([recorder]))
        assert found["calltape_state", "a.tape", "recording"] == 0
        assert found["calltape_state", "a.tape", "paused"] == 1
    kinds = {family.name: family.type for family in parser.text_string_to_metric_families(text)}
    assert kinds["calltape_calls_seen"] == kinds["calltape_calls_dropped"] == "counter"
    assert {
        kinds[name] for name in kinds if "calls_seen" not in name and "dropped" not in name
    } == {"gauge"}
    assert CONTENT_TYPE.startswith("text/plain; version=0.0.4")


def test_lines_of_one_metric_follow_each_other(tmp_path: Path) -> None:
    with record(Add(), tmp_path / "a.tape") as one, record(Add(), tmp_path / "b.tape") as other:
        lines = prometheus_text([one, other]).splitlines()
    named = [line.split()[2] if line[0] == "#" else line.partition("{")[0] for line in lines]
    changes = sum(name != before for before, name in pairwise(named))
    assert changes == len(set(named)) - 1


def test_all_open_recorders_of_the_process_are_told(tmp_path: Path) -> None:
    model = Add()
    with record(model, tmp_path / "mine.tape") as recorder:
        assert ("calltape_calls_seen_total", "mine.tape") in samples(prometheus_text())

        def work() -> bool:
            model(ONE, ONE)
            name = f"mine-p{os.getpid()}.tape"
            found = samples(prometheus_text())
            recorder.close()
            return found["calltape_calls_seen_total", name] == 1

        in_a_fork(work)
    assert ("calltape_calls_seen_total", "mine.tape") not in samples(prometheus_text())


def test_labels_are_escaped(tmp_path: Path) -> None:
    names = ['quote"d', "back\\slash", "two\nlines", "naïve ☃", "\\n", os.fsdecode(b"\xff\xfe")]
    recorders = [record(Add(), tmp_path / f"{name}.tape") for name in names]
    text = prometheus_text(recorders)
    for recorder in recorders:
        recorder.close()
    text.encode()
    tapes = {key[1] for key in samples(text) if key[0] == "calltape_calls_kept"}
    assert tapes == {f"{name}.tape" for name in names[:-1]} | {"??.tape"}


def test_the_file_of_a_collector_is_replaced_in_one_step(tmp_path: Path) -> None:
    model = Add()
    with record(model, tmp_path / "a.tape") as recorder:
        (tmp_path / "metrics").mkdir()
        path = Path(write_prometheus_text(tmp_path / "metrics", [recorder]))
        assert path == tmp_path / "metrics" / f"calltape-{os.getpid()}.prom"
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        over = threading.Event()
        wrong: list[str] = []

        def scrape() -> None:
            while not over.is_set():
                text = path.read_text()
                if not samples(text):
                    wrong.append(text)

        thread = threading.Thread(target=scrape)
        thread.start()
        for _ in range(100):
            model(ONE, ONE)
            write_prometheus_text(tmp_path / "metrics", [recorder])
        over.set()
        thread.join()
        assert not wrong
        assert [one.name for one in path.parent.iterdir()] == [path.name]
        with pytest.raises(OSError, match="No such file"):
            write_prometheus_text(tmp_path / "missing", [recorder])


def test_a_recorder_that_attached_nothing_is_told(tmp_path: Path) -> None:
    with Recorder(tmp_path / "a.tape") as recorder:
        found = samples(prometheus_text([recorder]))
    assert found["calltape_state", "a.tape", "open"] == 1
