"""Counters of trailers against the calls on the tape: what contradicts them is not believed."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from calltape_analyzer import open_tape
from calltape_analyzer.tape import Tape
from calltape_analyzer.targets.tensorrt import optimization_profile
from calltape_recorder import Every, First, FlightRecorder, Novelty, Rate, Recorder, record
from calltape_schema.framing import END, MANIFEST, TRAILER
from calltape_schema.records import (
    Segment,
    Trailer,
    decode_manifest,
    decode_trailer,
    encode_manifest,
    encode_trailer,
)
from tests.analyzer.tapes import member
from tests.analyzer.test_cli import run
from tests.analyzer.test_tape import member_list

CONTRADICTS = "the counters contradict the calls on the tape, and are not used"
SEEDS = int(os.environ.get("CALLTAPE_ACCOUNT_SEEDS", "12"))
CONTRADICTS_ITSELF = "the counters contradict themselves, and are not used"


class Add(torch.nn.Module):
    def forward(self, x: Any, n: int = 0) -> Any:
        return x


def recorded(path: Path, sizes: list[int], **options: Any) -> Path:
    model = Add()
    with record(model, path, **options):
        for size in sizes:
            model(torch.zeros(size, 3), size)
    return path


def forge(
    path: Path, change: Callable[[dict[str, Any]], Any], *, number: int | None = None
) -> Path:
    """Rewrites the trailer, with every checksum right; the file claims this number."""
    if number is not None:
        renumber(path, number)
    data = path.read_bytes()
    last = next(m for m in member_list(path) if m.name == TRAILER)
    trailer = decode_trailer(data[last.start : last.start + last.size])
    document = trailer.model_dump()
    change(document)
    content = encode_trailer(Trailer.model_validate(document))
    path.write_bytes(data[: last.offset] + member(TRAILER, content) + END)
    return path


def renumber(path: Path, number: int) -> None:
    """Rewrites the manifest: the file claims to be this one of its recording."""
    data = path.read_bytes()
    first, *calls, last = member_list(path)
    manifest = decode_manifest(data[first.start : first.start + first.size])
    changed = manifest.model_copy(update={"segment": Segment(number=number)})
    start = member(MANIFEST, encode_manifest(changed))
    moved = len(start) - calls[0].offset
    trailer = decode_trailer(data[last.start : last.start + last.size])
    entries = struct.iter_unpack("<QQ", trailer.index)
    index = b"".join(struct.pack("<QQ", call, offset + moved) for call, offset in entries)
    end = member(TRAILER, encode_trailer(trailer.model_copy(update={"index": index})))
    path.write_bytes(start + data[calls[0].offset : last.offset] + end + END)


def axis(document: dict[str, Any], number: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = document["traffic"]["groups"][0]["leaves"][0][number]
    return found


def more_seen(document: dict[str, Any], calls: int) -> None:
    dropped = document["coverage"]["dropped"]
    document["coverage"]["seen"] += calls
    document["coverage"]["dropped"] = {"policy": dropped.get("policy", 0) + calls}


def reasons(tape: Tape) -> list[str]:
    return [error.reason for error in tape.damage]


def narrow(document: dict[str, Any]) -> None:
    more_seen(document, 5)
    document["traffic"]["groups"][0]["calls"] += 5
    axis(document).update(min=2, max=5, sizes=((2, 8),), other_calls=0)


def wider_than_all(document: dict[str, Any]) -> None:
    axis(document).update(max=4096)


def few_calls(document: dict[str, Any]) -> None:
    document["traffic"]["groups"][0]["calls"] = 1


def more_than_all(document: dict[str, Any]) -> None:
    document["traffic"]["groups"][0]["calls"] += 1
    axis(document).update(max=4096, other_calls=1)


def size_less_often(document: dict[str, Any]) -> None:
    more_seen(document, 5)
    document["traffic"]["groups"][0]["calls"] += 5
    axis(document).update(sizes=((2, 1), (5, 1), (9, 6)))


def other_ints(document: dict[str, Any]) -> None:
    document["traffic"]["groups"][0]["scalars"] = ({"min": 100, "max": 200},)


def no_groups(document: dict[str, Any]) -> None:
    document["traffic"]["groups"] = ()


def another_dtype(document: dict[str, Any]) -> None:
    document["traffic"]["groups"][0]["dtypes"] = ("int8",)


def others_beyond_all(document: dict[str, Any]) -> None:
    document["traffic"]["other_calls"] = 1


@pytest.mark.parametrize(
    "change",
    [
        narrow, wider_than_all, few_calls, more_than_all, size_less_often, other_ints, no_groups,
        another_dtype, others_beyond_all,
    ],
)  # fmt: skip
def test_counters_that_contradict_the_calls_are_not_used(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any]
) -> None:
    path = recorded(tmp_path / "a.tape", [2, 5, 9, 2])
    with open_tape(path) as tape:
        assert tape.counters.complete
        assert not tape.damage
        true = tape.variants()[0].infer_dynamic_shapes()
        profile = optimization_profile(tape.variants()[0]).inputs
    forge(path, change)
    with open_tape(path) as tape:
        assert tape.counters.missing == {str(path)}
        assert tape.counters.calls == 0
        (reason,) = reasons(tape)
        assert reason.startswith((CONTRADICTS, CONTRADICTS_ITSELF))
        assert tape.variants()[0].infer_dynamic_shapes() == true
        found = optimization_profile(tape.variants()[0]).inputs
        assert {n: (p.min, p.max) for n, p in found.items()} == {
            n: (p.min, p.max) for n, p in profile.items()
        }
    shown = run("info", path)
    assert shown.code == 3
    assert reason in shown.err


def max_alone(document: dict[str, Any]) -> None:
    axis(document).update(max=100_000)


def min_alone(document: dict[str, Any]) -> None:
    axis(document).update(min=0)


def both_bounds_of_one_other_call(document: dict[str, Any]) -> None:
    first, *rest = axis(document)["sizes"]
    axis(document).update(min=0, max=100_000, sizes=tuple(rest), other_calls=first[1])


def a_size_that_no_call_had(document: dict[str, Any]) -> None:
    axis(document).update(max=100_000, sizes=(*axis(document)["sizes"], (100_000, 0)))


def more_calls_than_the_group(document: dict[str, Any]) -> None:
    *rest, last = axis(document)["sizes"]
    axis(document).update(sizes=(*rest, (last[0], 2**62)))


def fewer_calls_than_the_group(document: dict[str, Any]) -> None:
    axis(document).update(sizes=axis(document)["sizes"][:-1], max=axis(document)["sizes"][-2][0])


def sizes_in_another_order(document: dict[str, Any]) -> None:
    axis(document).update(sizes=axis(document)["sizes"][::-1])


def other_calls_of_a_short_list(document: dict[str, Any]) -> None:
    *rest, last = axis(document)["sizes"]
    axis(document).update(sizes=tuple(rest), other_calls=last[1])


def a_list_on_one_axis_only(document: dict[str, Any]) -> None:
    calls = document["traffic"]["groups"][0]["calls"]
    axis(document, 1).update(sizes=(), other_calls=calls)


def int_of_no_call(document: dict[str, Any]) -> None:
    document["traffic"]["groups"][0]["scalars"] = ({"min": 2, "max": 200},)


def int_of_more_calls(document: dict[str, Any]) -> None:
    document["traffic"]["groups"][0]["scalars"][0].update(other_calls=2**40)


def a_kind_twice(document: dict[str, Any]) -> None:
    (group,) = document["traffic"]["groups"]
    more_seen(document, group["calls"])
    document["traffic"]["groups"] = (group, group)


def a_group_without_calls(document: dict[str, Any]) -> None:
    (group,) = document["traffic"]["groups"]
    empty = {**group, "calls": 0, "dtypes": ("int8",)}
    document["traffic"]["groups"] = (group, empty)


SELF_CONTRADICTIONS = [
    max_alone, min_alone, both_bounds_of_one_other_call, a_size_that_no_call_had,
    more_calls_than_the_group, fewer_calls_than_the_group, sizes_in_another_order,
    other_calls_of_a_short_list, a_list_on_one_axis_only, int_of_no_call, int_of_more_calls,
    a_kind_twice, a_group_without_calls,
]  # fmt: skip


@pytest.mark.parametrize("change", SELF_CONTRADICTIONS)
@pytest.mark.parametrize("is_alone", [False, True])
def test_counters_that_do_not_add_up_are_not_used(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any], is_alone: bool
) -> None:
    """Whatever calls were not kept, and also of one file alone of a recording of many."""
    path = recorded(tmp_path / "a.tape", [2, 5, 30, 9, 9, 7, 4], keep=First(3))
    if is_alone:
        forge(path, lambda document: document.update(continues=True), number=5)
    with open_tape(path) as tape:
        assert tape.counters.complete
        assert not tape.damage
        profile = optimization_profile(tape.variants()[0]).inputs
        assert {n: (p.min, p.max) for n, p in profile.items()} == {"x": ((2, 3), (30, 3))}
    with open_tape(forge(path, change)) as tape:
        assert tape.counters.missing == {str(path)}
        (reason,) = reasons(tape)
        assert reason.startswith(CONTRADICTS_ITSELF)
        assert optimization_profile(tape.variants()[0]).inputs["x"].max == (30, 3)
    assert run("info", path).code == 3


def test_calls_that_were_looked_at_are_counted(tmp_path: Path) -> None:
    path = recorded(tmp_path / "a.tape", [2, 5, 9], keep=First(1))
    forge(path, lambda document: more_seen(document, 1000))
    with open_tape(path) as tape:
        assert not tape.counters.complete
        assert reasons(tape) == [CONTRADICTS]

    def paused(document: dict[str, Any]) -> None:
        document["coverage"]["dropped"] = {"policy": 2, "paused": 1000}

    with open_tape(forge(path, paused)) as tape:
        assert tape.counters.complete
        assert not tape.damage


def test_calls_beyond_the_last_that_was_seen(tmp_path: Path) -> None:
    path = recorded(tmp_path / "a.tape", [2, 5, 9, 2])

    def from_7_on(document: dict[str, Any]) -> None:
        document["coverage"] = {"seen": 2, "kept": 2, "dropped": {}}
        document["index"] = document["index"][32:]
        (group,) = document["traffic"]["groups"]
        group["calls"] = 2
        axis(document).update(sizes=((2, 1), (9, 1)))
        axis(document, 1).update(sizes=((3, 2),))
        group["scalars"][0].update(sizes=((2, 1), (9, 1)))

    with open_tape(forge(path, from_7_on)) as tape:
        assert not tape.counters.complete
        assert CONTRADICTS in reasons(tape)


def test_the_last_file_counts_no_more_than_it_saw(tmp_path: Path) -> None:
    path = recorded(tmp_path / "a.tape", [2, 5, 9])
    forge(path, lambda document: document["traffic"].update(other_calls=1), number=5)
    with open_tape(path) as tape:
        assert not tape.counters.complete
        assert reasons(tape) == [f"{CONTRADICTS_ITSELF}: 4 calls are counted, of 3 seen"]


def test_what_nobody_can_refute_stands(tmp_path: Path) -> None:
    """Sizes that no call on the tape has are those of calls that were not kept."""
    path = recorded(tmp_path / "a.tape", [2, 5, 9, 40], keep=First(2))
    with open_tape(path) as tape:
        (group,) = tape.counters.groups.values()
        assert (group.calls, group.leaves[0][0].max) == (4, 40)
        assert not tape.damage

    def wider(document: dict[str, Any]) -> None:
        axis(document).update(max=50, sizes=((2, 1), (5, 1), (9, 1), (50, 1)))

    with open_tape(forge(path, wider)) as tape:
        assert tape.counters.complete
        assert not tape.damage


def test_calls_of_no_group_may_be_on_the_tape(tmp_path: Path) -> None:
    path = recorded(tmp_path / "a.tape", [2, 5])

    def summed_up(document: dict[str, Any]) -> None:
        document["traffic"] = {"groups": (), "other_calls": 2}

    with open_tape(forge(path, summed_up)) as tape:
        assert (tape.counters.calls, tape.counters.complete) == (2, True)
        assert not tape.damage


@pytest.mark.parametrize("kept", [0, 1, 4])
def test_accounts_that_do_not_add_up_are_damage(tmp_path: Path, kept: int) -> None:
    path = recorded(tmp_path / "a.tape", [2, 5, 9])

    def contradict(document: dict[str, Any]) -> None:
        document["coverage"] = {"seen": kept, "kept": 3, "dropped": {"policy": 2}}

    with open_tape(forge(path, contradict)) as tape:
        assert f"the trailer says {kept} calls seen, and accounts for 5" in reasons(tape)
        assert (tape.coverage.seen, tape.coverage.kept) == (5, 3)


def shuffled_segments(folder: Path) -> list[Path]:
    """Of a recording that begins calls in one file and ends them in the next."""
    model = Add()
    recorder = Recorder(
        folder / "a.tape", flight_recorder=FlightRecorder(calls=3), keep=First(0)
    ).attach(model)
    for part in range(3):
        for size in range(3):
            model(torch.zeros(1 + part * 3 + size, 3))
        recorder.seal()  # the calls are counted here, and written to the next file
        recorder.dump("now")
        recorder.flush()
    recorder.close()
    return sorted(folder.glob("*.tape"), key=lambda path: (len(path.name), path.name))


def test_a_call_may_be_counted_in_the_file_before(tmp_path: Path) -> None:
    paths = shuffled_segments(tmp_path)
    assert len(paths) >= 3
    with open_tape(tmp_path) as tape:
        assert (tape.counters.calls, len(tape)) == (9, 9)
        assert tape.counters.complete
        assert not tape.damage
    for left_out in range(len(paths)):
        with open_tape(paths[:left_out] + paths[left_out + 1 :]) as tape:
            tape.counters.as_dict  # noqa: B018
            assert not tape.damage
    for number in range(len(paths)):
        with open_tape(paths[: number + 1]) as tape:
            assert tape.counters.complete
            assert not tape.damage


def test_a_lie_in_one_of_several_files_is_found(tmp_path: Path) -> None:
    paths = shuffled_segments(tmp_path)

    def lie(document: dict[str, Any]) -> None:
        for group in document["traffic"]["groups"]:
            for leaf in group["leaves"]:
                leaf[0].update(min=1000, max=2000, sizes=((1000, 1), (2000, 2)))

    forge(paths[0], lie)
    with open_tape(tmp_path) as tape:
        assert not tape.counters.complete
        assert set(reasons(tape)) == {CONTRADICTS}


def test_two_files_that_count_the_same_calls(tmp_path: Path) -> None:
    path = recorded(tmp_path / "a.tape", [2, 5])
    other = Path(shutil.copy(path, tmp_path / "b.tape"))
    (record_of_5,) = [m for m in member_list(other) if m.name == "calls/00000001.msgpack"]

    def cut(document: dict[str, Any]) -> None:
        document["index"] = document["index"][:16]
        document["coverage"] = {"seen": 2, "kept": 1, "dropped": {"policy": 1}}

    assert record_of_5.size
    forge(other, cut)
    with open_tape([path, other]) as tape:
        assert tape.counters.calls == 2


def unusual() -> list[Any]:
    nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
    return [
        nested, torch.zeros(3).to_sparse(), torch.nn.Parameter(torch.zeros(2)),
        np.zeros((2, 3), dtype=np.float32), np.zeros(4, dtype="U3"), 2**70, True, "text", None,
        torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        torch.zeros(2, device="meta"), [torch.zeros(1), {"k": torch.zeros(0, 4)}],
        torch.zeros(3, 4).T, np.int64(4), 1.5,
    ]  # fmt: skip


@pytest.mark.parametrize("values", ["all", "none"])
@pytest.mark.parametrize("write_ahead", [False, True])
def test_no_recorder_is_accused(tmp_path: Path, values: str, write_ahead: bool) -> None:
    model = Add()
    options: dict[str, Any] = {"values": values, "write_ahead": write_ahead}
    with record(model, tmp_path / "a.tape", **options) as recorder:
        for _ in range(3):
            for value in unusual():
                model(value)
            for n in (3, -(2**63), 2**63, 2**80):
                model(torch.zeros(2, 1), n)
        for size in range(80):
            model(torch.zeros(size % 40, 1))
    assert recorder.stats().dropped == {}
    with open_tape(tmp_path) as tape:
        assert tape.counters.calls == len(tape) == 3 * 19 + 80
        assert tape.counters.complete
        assert not tape.damage


def test_more_kinds_than_are_counted(tmp_path: Path) -> None:
    model = Add()
    with record(model, tmp_path / "a.tape"):
        for number in range(300):
            model({f"k{number}": torch.zeros(2)})
    with open_tape(tmp_path) as tape:
        assert tape.counters.other_calls
        assert tape.counters.calls == 300
        assert not tape.damage


def test_a_call_that_is_lost_accuses_nobody(tmp_path: Path) -> None:
    path = recorded(tmp_path / "a.tape", [2, 5, 9])
    data = bytearray(path.read_bytes())
    (lost,) = [m for m in member_list(path) if m.name == "calls/00000001.msgpack"]
    data[lost.start + 40] ^= 1
    path.write_bytes(data)
    with open_tape(path) as tape:
        assert len(tape) == 2
        assert tape.counters.calls == 3
        assert len(tape.damage) == 1


class Raises(Add):
    def forward(self, x: Any, n: int = 0) -> Any:
        if n == 13:
            raise ValueError("13")
        return x


def _options(draw: random.Random, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {
        "keep": draw.choice([Every(), First(3), Novelty(), Rate(0.3), First(0)]),
        "values": draw.choice(["all", "none"]),
        "write_ahead": draw.random() < 0.3,
        "outputs": draw.random() < 0.8,
        "max_calls": draw.choice([None, None, 20]),
        "max_queue_bytes": draw.choice([2**26, 2**26, 4000]),
        "flight_recorder": draw.choice([None, None, FlightRecorder(calls=4)]),
        "segment_bytes": draw.choice([None, 8192, 40_000]),
    }
    if found["segment_bytes"] and draw.random() < 0.5:
        found.update(max_disk_bytes=draw.choice([60_000, 400_000]), when_full="delete_oldest")
    return found


def _calls(model: Any, draw: random.Random, calls: int) -> None:
    for _ in range(calls):
        size, n = draw.randrange(draw.choice([3, 90])), draw.choice([0, 1, 13, 2**70, -5])
        given: Any = torch.zeros(size, 2)
        if draw.random() < 0.2:
            given = {f"k{draw.randrange(4)}": given}
        with contextlib.suppress(ValueError):
            model(given, n) if draw.random() < 0.7 else model(torch.zeros(2, 2))


def _record_anyhow(folder: Path, seed: int) -> None:
    draw = random.Random(seed)
    model, options = Raises(), _options(draw, folder)
    recorder = Recorder(folder / "a.tape", **options).attach(model)
    for _ in range(draw.randrange(1, 5)):
        threads = [
            threading.Thread(target=_calls, args=(model, random.Random(draw.random()), 15))
            for _ in range(draw.randrange(1, 4))
        ]
        for thread in threads:
            thread.start()
        action = draw.choice([
            recorder.seal, recorder.pause, recorder.resume, recorder.flush,
            lambda: recorder.dump("now"), lambda: recorder.set_rate(0.5),
            lambda: recorder.set_rate(None),
        ])  # fmt: skip
        action()
        for thread in threads:
            thread.join()
        if draw.random() < 0.1:
            recorder.flush()
            (folder / "a.tape").unlink(missing_ok=True)
            time.sleep(1.1)  # until the recorder looks
    if draw.random() < 0.7:
        recorder.close()
        return
    recorder.flush()
    killed = folder / "killed"  # what would be there if the process died now
    killed.mkdir()
    for path in folder.glob("*.tape"):
        shutil.copy(path, killed)
    recorder.close()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_recorder_is_accused_whatever_it_does(tmp_path: Path, seed: int) -> None:
    """Policies, segments, deleted files, threads, pauses, dumps and the death of the process; all
    files together, the first of them, and each by itself."""
    _record_anyhow(tmp_path, seed)
    for folder in (tmp_path, tmp_path / "killed"):
        paths = sorted(folder.glob("*.tape"), key=lambda path: (len(path.name), path.name))
        sets = [paths, paths[:2], paths[1:], *([path] for path in paths)]
        for some in filter(None, sets):
            with open_tape(some) as tape:
                tape.counters  # noqa: B018
                assert reasons(tape) == [], (seed, some)
