"""What was found of the variants of a tape is kept, until the tape has other calls or arguments."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path

import pytest

from calltape_analyzer import bundle, variant
from tests.analyzer.observed import Optional, given, tape_of, zeros

CALLS = [given(zeros(2), steps=2), given(zeros(3), steps=3), given(zeros(3), zeros(3), steps=3)]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Has an entry each time that the variants of a tape are found."""
    found: list[str] = []
    find = variant.find_variants

    def counting(tape: variant.CallSource) -> list[variant.FoundVariant]:
        found.append(tape.paths[0])
        return find(tape)

    monkeypatch.setattr(variant, "find_variants", counting)
    return found


def test_many_questions_find_once(tmp_path: Path, asked: list[str]) -> None:
    tape = tape_of(tmp_path, CALLS, Optional())
    one, other = tape.variants(), tape.variants()
    tape.explain("x")
    tape.explain("mask")
    assert len(asked) == 1
    assert [v.name for v in one] == [v.name for v in other]
    assert one[0].findings is other[0].findings


def test_a_declared_batch_is_not_kept(tmp_path: Path) -> None:
    tape = tape_of(tmp_path, [given(zeros(4, 3)), given(zeros(4, 5))], Optional())
    (found,) = tape.variants()
    (declared,) = found.infer_dynamic_shapes(True)
    assert list(declared) == [0, 1]
    (again,) = tape.variants()
    assert [d.dynamic for d in again.findings.tensors[0].dimensions] == [False, True]


def test_other_calls_or_arguments_are_found_anew(tmp_path: Path, asked: list[str]) -> None:
    tape = tape_of(tmp_path, CALLS, Optional())
    assert len(tape.variants()) == 2
    assert len(tape.only(calls="0..1").variants()) == 1
    tape.remove_inputs(["mask"])
    assert len(tape.variants()) == 1
    assert len(asked) == 3


def test_calls_go_with_the_variant_that_read_them(tmp_path: Path) -> None:
    tape = tape_of(tmp_path, CALLS, Optional())
    one, other = tape.variants()[0], tape.variants()[0]
    assert len(one.calls) == 2
    assert "calls" not in vars(other)
    gone = weakref.ref(one)
    del one
    for thread in threading.enumerate():
        if thread.name == "calltape-budget":  # it may be looking at a frame that has the variant
            thread.join()
    gc.collect()
    assert gone() is None


def test_a_bundle_asks_once_of_its_tape(tmp_path: Path, asked: list[str]) -> None:
    bundle(tape_of(tmp_path, CALLS, Optional()), tmp_path / "bug.zip")
    assert len(asked) == 1
