"""The fuzzer itself: what it calls a finding, what it keeps, and that it survives its mutants."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from calltape_analyzer import TapeError
from tests.fixture_files import FIXTURES
from tests.fuzz import answers, campaign, packing, questions
from tests.fuzz.campaign import Campaign
from tests.fuzz.guidance import plain_mutants
from tests.fuzz.mutator import seeds
from tests.fuzz.prompt import command
from tests.fuzz.questions import DEAR, chosen_for, read
from tests.fuzz.steps import Finding, Outcome, Steps
from tests.fuzz.tally import Tally
from tests.fuzz.target import FAILURES, OTHER, Target, tally_file


def kinds(steps: Steps) -> list[str]:
    return [finding.kind for finding in steps.outcome.findings]


def test_a_tape_error_is_an_answer_and_another_exception_is_none() -> None:
    steps = Steps()
    steps.step("a", lambda: _raise(TapeError("invalid", "it is")))
    assert kinds(steps) == []
    assert steps.outcome.kinds == {"invalid": 1}
    steps.step("b", lambda: _raise(KeyError("x")))
    assert kinds(steps) == ["KeyError in test_fuzzer.py:_raise"]


def test_text_that_a_terminal_obeys_is_found() -> None:
    steps = Steps()
    steps.shown("lines", lambda: "two\nlines")
    assert kinds(steps) == []
    steps.shown("escape", lambda: "\x1b[2J")
    assert kinds(steps) == ["raw ['\\x1b'] in escape"]


_SLOW_AND_LARGE = """
from tests.fuzz.steps import Steps, measured
from tests.fuzz.test_fuzzer import _burn

steps = Steps()
steps.step("slow", lambda: _burn(0.6))
steps.begin()
with measured(steps.outcome):
    steps.step("large", lambda: bytearray(b"x" * 60_000_000))
assert 0.5 < steps.outcome.total < 3
steps.outcome.limited(seconds=0.4, nbytes=50_000_000)
print([finding.kind for finding in steps.outcome.findings])
"""


@pytest.mark.integration
def test_what_is_slow_or_large_is_found() -> None:
    """In a process of its own, as the fuzzer's are: this one frees what other tests left."""
    ran = subprocess.run(
        [sys.executable, "-c", _SLOW_AND_LARGE], cwd=Path(__file__).parents[2],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.stdout.strip() == "['slow in slow', 'large']", ran.stderr


def test_an_untyped_error_of_a_command_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from calltape_analyzer.tape import Tape

    monkeypatch.setattr(Tape, "variants", lambda *_, **__: _raise(ZeroDivisionError("no")))
    steps = Steps()
    command(steps, OTHER, OTHER, ("variants",))
    assert kinds(steps) == ["unexpected ZeroDivisionError of $ variants"]


@pytest.mark.parametrize("name", sorted(answers.COMPARISONS))
def test_golden_tapes_give_the_right_answers(name: str) -> None:
    from calltape_analyzer import open_tape

    for tape in ("calls-nested-cache", "structures", "aliasing", "quantized", "special_values"):
        path = FIXTURES / "v1" / f"{tape}.tape"
        with open_tape(path) as opened:
            answers.COMPARISONS[name](path, opened)


def test_a_wrong_answer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    import calltape_reader

    right = calltape_reader.document

    def wrong(path: str) -> dict[str, Any]:
        found: dict[str, Any] = right(path)
        found["calls"][1]["inputs"]["leaves"][0]["elements"][0] = "0"
        return found

    monkeypatch.setattr(calltape_reader, "document", wrong)
    outcome = read(OTHER, OTHER, ["answers"])
    assert [finding.kind for finding in outcome.findings] == ["WrongAnswerError in independent"]
    assert "call 1: .inputs.leaves[0].elements[0]" in outcome.findings[0].text


def test_the_same_bytes_are_asked_the_same() -> None:
    asked = [chosen_for(bytes([n % 256, n // 256])) for n in range(4000)]
    assert asked[5] == chosen_for(bytes([5, 0]))
    assert {name for names in asked for name in names} == set(DEAR)
    assert sum(not names for names in asked) > 1000
    assert sum(len(names) == len(DEAR) for names in asked) > 0


def test_a_mutant_that_fails_is_kept(tmp_path: Path) -> None:
    found = Outcome(findings=[Finding("open", "Some error in x.py:y", "why \x1b[2J \udce9")])
    ended: list[int] = []
    (tmp_path / FAILURES).mkdir()
    target = Target(
        tmp_path, tmp_path, 0, seconds=60, mutants=6, known=2, reads=lambda *_: found,
        ends=ended.append,
    )  # fmt: skip
    for number in range(8):
        assert ended == []
        target(b"mutant %d" % number)
    assert ended == [0]
    kept = sorted((tmp_path / FAILURES).glob("*.tape"))
    assert len(kept) == 3  # of each kind a few
    assert kept[0].name.startswith("Some-error-in-x-py-y-")
    assert kept[0].read_bytes().startswith(b"mutant ")
    assert kept[0].with_suffix(".txt").read_text() == "open\nwhy \x1b[2J \\udce9\n"
    told = Tally.read(tally_file(tmp_path, 0))
    assert told.mutants == 6
    assert len(told.findings["Some error in x.py:y"]) == 8  # what is no mutant is read as well
    assert told.findings["Some error in x.py:y"][0][1] == found.findings[0]
    assert Tally.read(tally_file(tmp_path, 0)) == Tally()  # a process that tells nothing


def test_a_run_is_guided_for_ten_minutes_of_each_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign, "has_atheris", lambda: True)
    turn = Campaign(tmp_path, 600).turn
    assert [turn(0), turn(40), turn(100), turn(599), turn(600)] == [
        (True, 100), (True, 60), (False, 500), (False, 1), (True, 0)
    ]  # fmt: skip
    turn = Campaign(tmp_path).turn
    assert [turn(0), turn(600), turn(7200)] == [(True, 600), (False, 3000), (True, 600)]
    assert Campaign(tmp_path, 3800).turn(3600) == (True, 200)
    monkeypatch.setattr(campaign, "has_atheris", lambda: False)
    assert Campaign(tmp_path, 4200).turn(200) == (False, 4000)


def test_mutants_without_guidance_are_of_the_corpus(tmp_path: Path) -> None:
    for number, data in enumerate(seeds()[:20]):
        (tmp_path / f"{number:02}").write_bytes(data)
    corpus = sorted(tmp_path.iterdir())

    def made(seed: int) -> list[bytes]:
        return [*itertools.islice(plain_mutants(corpus, random.Random(seed)), 20)]

    found = made(3)
    assert made(3) == found != made(4)
    assert len({*found} - {*seeds()}) > 17
    assert sum(map(len, found)) < sum(map(len, seeds()[:20]))


PROCESS = """
import os, pathlib, sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
folder, scratch = (pathlib.Path(given[f"--{name}"]) for name in ("folder", "scratch"))
assert len(list((folder / "corpus").iterdir())) > 100 and given["--guided"] == "0"
(scratch / "0.json").write_text('{"mutants": 5, "steps": {"open": 5}}')
if given["--seed"] == "7":
    (scratch / "current-0.tape").write_bytes(b"killer")
    sys.stderr.write("Fatal Python error")
    sys.stderr.flush()
    os.kill(os.getpid(), 11)
"""


def test_a_mutant_that_ends_the_process_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign, "has_atheris", lambda: False)
    command = (sys.executable, "-c", PROCESS)
    tally = Campaign(tmp_path, 60, 9, seed=7, command=command).run()
    assert (tally.mutants, tally.steps) == (10, {"open": 10})
    ((label, finding),) = tally.findings["the process ended with -11"]
    assert (tmp_path / "failures" / label).read_bytes() == b"killer"
    assert finding.text == "Fatal Python error"


@pytest.mark.integration
def test_files_are_read_again(tmp_path: Path) -> None:
    path = FIXTURES / "v1" / "structures.tape"
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("1 mutants, ")


@pytest.mark.integration
def test_every_question_is_asked() -> None:
    read(OTHER, OTHER)  # imports are no tape's
    outcome = read(OTHER, OTHER, DEAR)
    # How long they took is no matter: the machine may be busy.
    assert [
        finding for finding in outcome.findings if not finding.kind.startswith("slow in ")
    ] == []
    assert set(answers.COMPARISONS) <= outcome.steps
    assert {name for name in questions.DEAR if name.startswith("$")} <= outcome.steps
    assert len(outcome.steps) > 90


def test_hostile_files_are_the_same_for_the_same_seed() -> None:
    data = OTHER.read_bytes()
    for form in packing.FORMS:
        made = [packing.hostile(data, form, random.Random(seed)) for seed in range(40)]
        assert made == [packing.hostile(data, form, random.Random(seed)) for seed in range(40)]
        assert len({*made}) > 20


def _raise(error: Exception) -> Any:
    raise error


def _burn(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass
