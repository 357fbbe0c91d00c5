"""``calltape info``: policy, files, dumps and the whole traffic; calls that were under way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from calltape_analyzer.cli.recordings import policy_text
from calltape_analyzer.text import GOES_ON
from calltape_recorder import First, FlightRecorder, record
from calltape_schema.records import FlightPolicy, Policy
from tests.analyzer.chats import record_chats, toy_lm
from tests.analyzer.cli.commands import run, without_torch
from tests.analyzer.reading.ahead import ahead


class Heads(torch.nn.Module):
    def forward(self, x: torch.Tensor, masks: Any = False, state: Any = None) -> torch.Tensor:
        return x


CHATS = ((2, 5), (3, 7), (1, 40))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files, of which all but the first few calls are counted only, and three dumped."""
    model = toy_lm()
    values: dict[str, Literal["all", "none"]] = {"*": "all", "past_key_values.*": "none"}
    flight = FlightRecorder(calls=3)
    with record(
        model, tmp_path / "llm.tape", keep=First(4), values=values, flight_recorder=flight
    ) as recorder:
        for number, (batch, length) in enumerate(CHATS):
            ids = torch.zeros(batch, length, dtype=torch.int64)
            _, cache = model(ids)
            for _ in range(2):
                _, cache = model(torch.zeros(batch, 1, dtype=torch.int64), past_key_values=cache)
            if number < 2:
                recorder.seal()
        recorder.dump("it looked odd")
    return tmp_path


def shown(path: Path) -> dict[str, list[str]]:
    """What info prints, by what stands before it."""
    code, out, err = run("info", path)
    assert (code, err) == (0, "")
    found: dict[str, list[str]] = {}
    name = ""
    for line in out.splitlines():
        name = line[:11].strip() or name
        found.setdefault(name, []).append(line[11:])
    return found


def test_info_describes_traffic_beyond_the_calls_that_were_kept(folder: Path) -> None:
    found = shown(folder)
    assert found["tape"] == [", ".join(map(str, sorted(folder.iterdir(), key=_segment)))]
    assert found["files"] == ["3 files of 1 recording, segments 0 to 2"]
    assert found["coverage"] == ["7 of 9 calls seen were kept; 2 not wanted: flight_recorder"]
    assert found["policy"] == [
        "keeps first(4), values by path (all of *, none of past_key_values.*), outputs too, "
        "the last of the other calls held in memory (up to 3 calls, 64.0 MiB)"
    ]
    assert found["dumps"][0].startswith("1 dump of 3 calls: ")
    assert found["dumps"][0].endswith("Z it looked odd (3 calls)")
    assert found["traffic"] == [
        "9 calls with 2 input signatures",
        "6 calls, 4 kept: input_ids: [1..3, 1]; past_key_values.* (2 of them): [1..3, 5..41, 8]",
        "3 calls, 3 kept: input_ids: [1..3, 5..40]",
    ]


def _segment(path: Path) -> str:
    return "" if path.name == "llm.tape" else path.name


def test_info_names_a_few_of_many_files(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    with record(model, tmp_path / "a.tape") as recorder:
        for _ in range(4):
            model(torch.ones(1, 2))
            recorder.seal()
    (line,) = shown(tmp_path)["tape"]
    assert line.count(".tape") == 3
    assert line.endswith("a-00002.tape and 2 more")


def test_info_prints_files_dumps_and_traffic_as_json(folder: Path) -> None:
    document = json.loads(run("info", folder, "--json").out)
    assert [part["number"] for part in document["files"]["segments"]][1:] == [1, 2]
    assert document["files"]["missing"] == {}
    assert document["files"]["under_way"] == []
    assert [(dump["reason"], dump["calls"]) for dump in document["dumps"]] == [("it looked odd", 3)]
    traffic = document["traffic"]
    assert (traffic["calls"], traffic["other_calls"], traffic["complete"]) == (9, 0, True)
    decode, prefill = traffic["groups"]
    assert (decode["calls"], decode["kept"], prefill["kept"]) == (6, 4, 3)
    (ids,) = prefill["tensors"]
    assert ids["name"] == "input_ids"
    assert ids["axes"][1] == {
        "min": 5, "max": 40, "sizes": [[5, 1], [7, 1], [40, 1]], "other_calls": 0
    }  # fmt: skip


def test_info_names_the_missing_files_of_a_recording(folder: Path) -> None:
    (folder / "llm-00001.tape").unlink()
    assert shown(folder)["files"] == [
        "2 files of 1 recording, segments 0, 2; missing: 1 (removed, or not opened)"
    ]
    document = json.loads(run("info", folder, "--json").out)
    assert list(document["files"]["missing"].values()) == [[1]]


def test_what_the_recorder_deleted_is_a_fact_and_no_warning(tmp_path: Path) -> None:
    model = torch.nn.Identity()
    options: Any = {"segment_bytes": 20_000, "max_disk_bytes": 150_000}
    with record(model, tmp_path / "a.tape", when_full="delete_oldest", **options) as recorder:
        for _ in range(20):
            model(torch.ones(2000))
            recorder.flush()
        live = run("info", tmp_path)
        assert "of at least 20 calls seen" in live.out
        assert "counted until" in live.out
        assert json.loads(run("info", tmp_path, "--json").out)["coverage_is_lower_bound"]
    done = run("info", tmp_path)
    assert "deleted by the recorder: 0 to" in done.out
    assert "are missing" not in done.out + done.err
    document = json.loads(run("info", tmp_path, "--json").out)
    assert (document["coverage"]["seen"], document["coverage_is_lower_bound"]) == (20, False)
    assert (document["files"]["missing"], document["counted_until"]) == ({}, None)
    [((first, last),)] = document["files"]["deleted"].values()
    assert (first, last > 1) == (0, True)
    # What somebody else deleted beside them is still missing.
    paths = sorted(path for path in tmp_path.glob("a-*.tape"))
    paths[1].unlink()
    lacking = run("info", tmp_path)
    number = int(paths[1].stem.removeprefix("a-"))
    assert f"missing: {number} (removed, or not opened)" in lacking.out
    assert f"the files numbered {number} of recording" in lacking.out


def test_info_says_at_least_while_the_recorder_goes_on(tmp_path: Path) -> None:
    model = torch.nn.Identity()
    with record(model, tmp_path / "a.tape", segment_seconds=3600) as recorder:
        model(torch.ones(2))
        recorder.seal()
        found = shown(tmp_path)
        assert found["sealed"] == [f"each file; {GOES_ON}"]
        assert found["coverage"][0].startswith(
            "1 of at least 1 calls seen were kept (counted until"
        )
        assert found["traffic"][0].startswith("at least 1 call")
    assert shown(tmp_path)["sealed"] == ["yes"]


def test_info_of_a_plain_file_says_no_more_than_there_is(tmp_path: Path) -> None:
    found = shown(record_chats(tmp_path / "a.tape", CHATS))
    assert not {"files", "dumps"} & found.keys()
    assert found["policy"] == ["values kept, outputs too"]


def test_info_of_one_call_says_nothing_of_sizes_that_vary(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    for calls in (1, 2):
        with record(model, tmp_path / f"{calls}.tape"):
            for _ in range(calls):
                model(torch.zeros(1, 2))
    one, two = (shown(tmp_path / f"{calls}.tape")["traffic"][1] for calls in (1, 2))
    assert one == "1 call, 1 kept: one call does not show which sizes vary"
    assert two == "2 calls, 2 kept: every size always the same"


def test_kinds_of_which_info_says_the_same_are_one_line(tmp_path: Path) -> None:
    model = Heads()
    with record(model, tmp_path / "a.tape"):
        for masks in (False, True, 0.5):
            for size in (2, 3):
                model(torch.zeros(size), masks=masks)
        model(torch.zeros(2, 2))
    assert shown(tmp_path / "a.tape")["traffic"] == [
        "7 calls with 4 input signatures",
        "6 calls with 3 input signatures, 6 kept: x: [2..3]",
        "1 call, 1 kept: one call does not show which sizes vary",
    ]


def test_info_says_at_least_if_a_file_has_no_counters(folder: Path) -> None:
    last = folder / "llm-00002.tape"
    data = last.read_bytes()
    last.write_bytes(data[: data.rindex(b"end.msgpack")])
    head = shown(folder)["traffic"][0]
    assert head == f"at least 4 calls with 2 input signatures; {last} may have seen more"


def test_each_part_of_a_policy_is_put_in_words() -> None:
    policy = Policy(
        outputs=False, values="none", keep="novelty()", write_ahead=True, max_calls=1,
        flight_recorder=FlightPolicy(calls=1, bytes=2048), max_seconds=60.0, segment_bytes=1024,
        segment_seconds=1.5, max_disk_bytes=4096, min_free_bytes=512, when_full="delete_oldest",
    )  # fmt: skip
    assert policy_text(policy) == (
        "keeps novelty(), shapes only, no outputs, the last of the other calls held in memory "
        "(up to 1 call, 2.0 KiB), inputs written ahead, at most 1 call, for at most 60 s, a new "
        "file after 1.0 KiB, a new file after 1.5 s, at most 4.0 KiB on disk, 512 B of the disk "
        "left free, the oldest file deleted when full"
    )


def test_explain_of_what_was_only_counted(tmp_path: Path) -> None:
    model = toy_lm()
    with record(model, tmp_path / "a.tape", keep=First(2)):
        for length in (3, 96, 511):
            model(torch.zeros(2, length, dtype=torch.int64))
    out = run("explain", tmp_path / "a.tape", "input_ids", 1).out
    assert "kept 2 of 3 calls: 3 to 96; over all: 3 to 511" in out
    document = json.loads(run("explain", tmp_path / "a.tape", "input_ids", 1, "--json").out)
    whole = document["parts"][0]["dimensions"][0]["whole"]
    assert (whole["min"], whole["max"], whole["calls"]) == (3, 511, 3)


def test_a_call_that_was_under_way_is_marked_everywhere(tmp_path: Path) -> None:
    folder = ahead(tmp_path, 3)
    words = "under way when the process died"
    assert words in run("ls", folder).out.splitlines()[-1]
    assert words in run("show", folder, 3).out
    assert shown(folder)["files"][0].endswith(f"; 1 call {words}, or still is")
    (found,) = json.loads(run("info", folder, "--json").out)["files"]["under_way"]
    path = str(folder / "a.ahead-0.tape")
    assert found == {"call": 3, "address": "00010203:3", "path": path}


def test_torch_is_not_imported(folder: Path) -> None:
    assert len(without_torch([["info", str(folder)]])) == 1
