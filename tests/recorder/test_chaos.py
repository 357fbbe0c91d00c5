"""SIGKILL at random moments: every acknowledged call reads back bit-identical."""

from __future__ import annotations

import functools
import math
import os
import random
import struct
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_recorder import FlightRecorder, Novelty, Rate, Recorder, record
from tests.recorder.calls import appearance_of
from tests.recorder.killed import Killed, in_daemon
from tests.recorder.models import Identity
from tests.recorder.reading import ReadCall, ReadTape, read

pytestmark = pytest.mark.chaos

KIB = 1024
DISK = 2048 * KIB
LARGEST_FILE = 500 * KIB  # of one call that is larger than a file should be
ENDS = 128 * KIB  # what is kept free for the end of the current file, and the one after it
AT_ONCE = 2

ACKNOWLEDGED, INSIDE, LEAVING = range(3)
_SAID = struct.Struct("<qqq")  # what, thread, number


def tag_of(thread: int, number: int) -> int:
    return thread << 32 | number


def tensor_of(tag: int) -> torch.Tensor:
    """What the call with this tag is given: small, and now and then large enough for the pool."""
    number = tag & 0xFFFFFFFF
    size = 60_000 if number % 17 == 3 else 5 + number % 7
    return torch.arange(size, dtype=torch.float32) * (tag % 1_000_003 + 1)


def new_tensor_of(tag: int) -> torch.Tensor:
    """A new shape every few calls, so that ``Novelty`` goes on finding something."""
    number = (tag & 0xFFFFFFFF) // 5
    shape = [1 + number // 3**axis % 3 for axis in range(6)]
    return (torch.arange(729, dtype=torch.float32) + tag)[: math.prod(shape)].reshape(shape)


def large_tensor_of(tag: int) -> torch.Tensor:
    """Large enough for a kill in the middle of a write, and for a checksum of its own thread."""
    return torch.arange(1_100_000 if tag % 4 == 2 else 9, dtype=torch.float32) * (tag + 1)


class Tells(torch.nn.Module):
    """Says when it is entered and left."""

    def __init__(self, say: Callable[[int, int, int], None]) -> None:
        super().__init__()
        self.say = say

    def forward(self, value: list[Any]) -> Any:
        thread, number = divmod(value[1], 1 << 32)
        self.say(INSIDE, thread, number)
        time.sleep(number % 3 / 1000)
        self.say(LEAVING, thread, number)
        return value


@dataclass
class Server:
    """What runs until it is killed."""

    options: dict[str, Any] = field(default_factory=dict)
    threads: int = 1
    forks: int = 0
    dumps: bool = False
    counts: bool = False  # what is kept is acknowledged as well, without a flush
    tensor: Callable[[int], torch.Tensor] = tensor_of
    latest: float = 0.12  # seconds until it is killed

    def serve(self, path: Path, pipe: int) -> None:
        def say(what: int, thread: int, number: int) -> None:
            os.write(pipe, _SAID.pack(what, thread, number))  # so short a write is whole

        # torch makes its thread pool anew in a forked child, and two threads at once would get in
        # each other's way there ("Invalid thread pool!").
        torch.set_num_threads(1)
        model = Tells(say) if "write_ahead" in self.options else Identity()
        recorder = record(model, path, **self.options)
        for thread in range(1, self.threads):
            in_daemon(self.work, model, recorder, say, thread)
        for child in range(self.threads, self.threads + self.forks):
            if os.fork() == 0:  # while other threads call
                in_daemon(self.work, model, recorder, say, child)
                time.sleep(600)
        self.work(model, recorder, say, 0)

    def call(self, model: torch.nn.Module, tag: int) -> None:
        value = [self.tensor(tag), tag]
        assert model(value) is value
        assert torch.equal(value[0], self.tensor(tag))

    def work(
        self, model: torch.nn.Module, recorder: Recorder, say: Callable[..., None], thread: int
    ) -> None:
        number, looks = 0, appearance_of(model)
        while number + 5 < MOST_NEW:
            for _ in range(1 + number % 5):
                self.call(model, tag_of(thread, number))
                number += 1
            assert appearance_of(model) == looks
            if self.dumps:
                recorder.dump(f"after {number}")
            if number % 3 == 0 and self.counts:
                stats = recorder.stats()
                acknowledged = stats.kept + sum(stats.dropped.values())
            else:
                recorder.flush()
                acknowledged = number
            say(ACKNOWLEDGED, thread, acknowledged)
        while True:
            time.sleep(60)  # the kill comes late


SERVERS = {
    "plain": Server(counts=True),
    "large calls": Server(counts=True, tensor=large_tensor_of, latest=0.3),
    "segments": Server({"segment_bytes": 100 * KIB}, counts=True),
    "oldest deleted": Server(
        {"segment_bytes": 100 * KIB, "max_disk_bytes": DISK, "when_full": "delete_oldest"},
        counts=True,
        latest=0.25,
    ),
    # Never more calls between two dumps than it holds, so each of them is written.
    "flight recorder": Server(
        {"keep": Rate(0.3), "flight_recorder": FlightRecorder(calls=5)}, dumps=True
    ),
    "write-ahead": Server({"write_ahead": True}, threads=3),
    "threads": Server({"segment_bytes": 300 * KIB}, threads=4),
    "novelty": Server({"keep": Novelty()}, tensor=new_tensor_of),
    "forked children": Server(threads=2, forks=2, latest=0.25),
}
KILLS = 60  # of each kind
MOST_NEW = 10_000  # calls of a thread before a kill, however late it comes


def kill(server: Server, folders: list[Path]) -> list[Killed]:
    """Runs a server per folder, and kills each at a random moment."""
    killed = []
    for folder in folders:
        folder.mkdir()
        killed.append(Killed(functools.partial(server.serve, folder / "t.tape"), _SAID))
    waited = 0.0
    moments = sorted(random.uniform(0.005, server.latest) for _ in killed)
    for one, after in zip(killed, moments, strict=True):
        one.wait(after - waited)
        waited = after
        one.kill()
    return killed


def told(one: Killed) -> tuple[dict[int, int], dict[int, int]]:
    """Per thread how many calls were acknowledged, and the one that was under way."""
    acknowledged: dict[int, int] = {}
    inside: dict[int, int] = {}
    for what, thread, number in one.said:
        if what == ACKNOWLEDGED:
            acknowledged[thread] = max(acknowledged.get(thread, 0), number)
        elif what == INSIDE:
            inside[thread] = number
        else:
            assert inside.pop(thread) == number
    return acknowledged, inside


def tag_in(call: ReadCall) -> int:
    return int(call.record.inputs.scalars[0])


def check(server: Server, call: ReadCall, *, under_way: bool = False) -> None:
    """Bit-identical inputs, and outputs where it has any."""
    expected = server.tensor(tag_in(call)).view(torch.int32)
    assert torch.equal(call.input(0).view(torch.int32), expected)
    assert (call.record.outputs is None) == under_way
    if under_way:
        assert call.record.outputs_missing == "under way"
    else:
        assert torch.equal(call.output(0).view(torch.int32), expected)


def whole_tapes(server: Server, folder: Path, counts: Counter[str]) -> list[ReadTape]:
    """All tapes of calls that ended, each checked; an empty file has lost its manifest only."""
    found = []
    for path in sorted(folder.glob("*.tape")):
        if ".ahead-" in path.name or not path.stat().st_size:
            continue
        tape = read(path)
        assert all(error.offset is not None for error in tape.damage)
        for call in tape.calls:
            check(server, call)
        counts["torn"] += bool(tape.damage)
        counts["of children"] += len(tape.calls) * ("-p" in path.name)
        found.append(tape)
    counts["files"] += len(found)
    return found


def check_deletion(tapes: list[ReadTape], folder: Path, tags: set[int]) -> int:
    """Only the oldest files went, and only for want of room; the first call that is left."""
    if not tags:
        return 0
    oldest = min(tags)
    numbers = sorted(t.manifest.segment.number for t in tapes if t.manifest.segment is not None)
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    size = sum(path.stat().st_size for path in folder.glob("*.tape"))
    assert size <= DISK
    if oldest:
        # The file of a large call may have made room for another one, which is not there yet.
        assert size > DISK - 2 * LARGEST_FILE - ENDS
    return oldest


def check_under_way(
    server: Server, folder: Path, inside: dict[int, int], counts: Counter[str]
) -> None:
    """The calls in which the process died are in the files beside the tape."""
    found: set[int] = set()
    for path in folder.glob("*.ahead-*.tape"):
        if not path.stat().st_size:
            continue
        for call in read(path).calls:
            check(server, call, under_way=True)
            found.add(tag_in(call))
    under_way = {tag_of(thread, number) for thread, number in inside.items()}
    assert under_way <= found
    counts["under way"] += len(under_way)


def kept_undisturbed(server: Server, folder: Path) -> set[int]:
    """The calls that a policy keeps of the first ones, where nobody is killed."""
    model = Identity()
    with record(model, folder / "undisturbed.tape", **server.options):
        for tag in range(MOST_NEW):
            server.call(model, tag)
    return {tag_in(call) for call in read(folder / "undisturbed.tape").calls}


def check_one(
    server: Server, folder: Path, one: Killed, counts: Counter[str], to_keep: set[int] | None
) -> None:
    tapes = whole_tapes(server, folder, counts)
    in_order = [tag_in(call) for tape in tapes for call in tape.calls]
    tags = set(in_order)
    assert len(tags) == len(in_order)  # no call twice
    oldest = 0
    if "when_full" in server.options:
        oldest = check_deletion(tapes, folder, tags)
        counts["deleted"] += oldest
    acknowledged_of, inside = told(one)
    for thread, acknowledged in acknowledged_of.items():
        expected = {tag_of(thread, n) for n in range(oldest, acknowledged)}
        if to_keep is not None:
            assert acknowledged < MOST_NEW
            expected &= to_keep
            assert tags <= to_keep
            counts["new"] += len(expected)
        assert expected <= tags
        counts["acknowledged"] += acknowledged
    if "write_ahead" in server.options:
        check_under_way(server, folder, inside, counts)
    counts["recovered"] += len(tags)


@pytest.mark.parametrize("kind", SERVERS)
def test_no_acknowledged_call_is_lost(tmp_path: Path, kind: str) -> None:
    torch.set_num_threads(1)  # a forked child has no thread pool
    server, counts = SERVERS[kind], Counter[str]()
    to_keep = kept_undisturbed(server, tmp_path) if "novelty" in kind else None
    for first in range(0, KILLS, AT_ONCE):
        folders = [tmp_path / str(first + n) for n in range(AT_ONCE)]
        for folder, one in zip(folders, kill(server, folders), strict=True):
            check_one(server, folder, one, counts, to_keep)
            for path in folder.iterdir():
                path.unlink()
    assert counts["acknowledged"] > KILLS // 2
    assert counts["deleted"] or "when_full" not in server.options
    assert counts["under way"] or "write_ahead" not in server.options
    assert to_keep is None or 0 < counts["new"] < counts["acknowledged"]
    assert counts["of children"] or not server.forks
