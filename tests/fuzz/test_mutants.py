"""Mutants by grammar, under right checksums: ``TapeError`` or an answer, at once and in little
memory, and nothing raw on a terminal. ``python -m tests.fuzz`` runs any number."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from calltape_analyzer import open_tape
from tests.fixture_files import FIXTURES
from tests.fuzz.documents import encoded
from tests.fuzz.reading import read
from tests.fuzz.running import mutant, run, subjects


def test_a_tape_that_was_taken_apart_reads_the_same(tmp_path: Path) -> None:
    for tape in subjects():
        path = tmp_path / f"{tape.name}.tape"
        path.write_bytes(encoded(tape))
        with open_tape(path) as made, open_tape(FIXTURES / "v1" / path.name) as golden:
            assert made.verify() == []
            if golden.verify() == []:
                assert len(made) == len(golden)
                for one, other in zip(made, golden, strict=True):
                    assert repr(one.record.inputs) == repr(other.record.inputs)  # NaN, too


def test_unchanged_tapes_have_no_findings(tmp_path: Path) -> None:
    path = tmp_path / "a.tape"
    for tape in subjects()[::12]:
        path.write_bytes(encoded(tape))
        assert read(path, path, random.Random(0), commands=1).findings == []


def test_mutants_are_the_same_for_the_same_seed() -> None:
    assert mutant(7) == mutant(7)
    assert len({mutant(seed)[0] for seed in range(30)}) == 30


def test_some_mutants(tmp_path: Path) -> None:
    tally = run(range(25), tmp_path, commands=1)
    assert tally.findings == {}, "\n".join(tally.lines())
    # They do harm, and not only one kind of it.
    assert tally.kinds["invalid"] > 5
    assert tally.kinds["inference"] > 5
    assert tally.mutants > 20


@pytest.mark.integration
@pytest.mark.timeout(3600)
def test_many_mutants() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "1000", "1000000"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:]
