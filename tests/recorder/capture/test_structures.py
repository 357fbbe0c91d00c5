"""Structures of calls: equal calls have the same bytes, and a bounded number is remembered."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import torch

from calltape_recorder import record
from calltape_recorder.capture.structures import Structures
from tests.recorder.models import Add
from tests.recorder.reading import read


def test_structures_and_leaves_are_the_same_bytes_for_the_same_call(tmp_path: Path) -> None:
    model, path = Add(), tmp_path / "t.tape"
    with record(model, path):
        for _ in range(3):
            model(torch.ones(2), torch.ones(2))
        model(torch.ones(3), torch.ones(3))
    trees = [call.record.inputs for call in read(path).calls]
    assert len({tree.structure for tree in trees}) == 1
    assert len({tree.leaves for tree in trees}) == 2


def test_many_threads_meet_more_structures_than_are_remembered() -> None:
    structures = Structures(lambda _: None)
    wrong: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            for n in range(900):
                names = tuple(f"k{(n * 7 + thread * 531 + k) % 1400}" for k in range(2))
                structures.of(("outputs", ("dict", names, None), "none", "none"))
        except BaseException as error:
            wrong.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong
    assert len(structures._known) == 1024
