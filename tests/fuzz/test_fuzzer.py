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
from tests.fuzz import target as target_module
from tests.fuzz.campaign import Campaign
from tests.fuzz.guidance import plain_mutants
from tests.fuzz.mutator import seeds
from tests.fuzz.prompt import command
from tests.fuzz.questions import DEAR, chosen_for, read
from tests.fuzz.steps import Finding, Outcome, Steps
from tests.fuzz.tally import Tallies, Tally
from tests.fuzz.target import OTHER, Target


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


def test_a_mutant_that_fails_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Outcome(findings=[Finding("open", "Some error in x.py:y", "why")])
    monkeypatch.setattr(target_module, "read", lambda *_: found)
    monkeypatch.setattr(Target, "warm_up", lambda self: None)
    ended: list[int] = []
    monkeypatch.setattr(target_module.os, "_exit", ended.append)
    target = Target(tmp_path, tmp_path, 0, 5, seconds=0, mutants=6, known=2)
    for number in range(8):
        assert ended == []
        target(b"mutant %d" % number)
    assert ended == [0]
    kept = sorted((tmp_path / "failures").glob("*.tape"))
    assert len(kept) == 3  # of each kind a few
    assert kept[0].name.startswith("Some-error-in-x-py-y-")
    assert kept[0].read_bytes().startswith(b"mutant ")
    assert kept[0].with_suffix(".txt").read_text() == "open\nwhy\n"
    told = Tallies(tmp_path / "tallies").read(5)
    assert told.mutants == 6
    assert len(told.findings["Some error in x.py:y"]) == 8  # what is no mutant is read as well


def test_a_run_is_guided_for_ten_minutes_of_each_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign, "has_atheris", lambda: True)
    assert [*Campaign(tmp_path, 60).turns()] == [(True, 60)]
    assert [*Campaign(tmp_path, 600).turns()] == [(True, 100), (False, 500)]
    assert [*Campaign(tmp_path, 4200).turns()] == [
        (True, 600), (False, 3000), (True, 100), (False, 500)
    ]  # fmt: skip
    assert [*itertools.islice(Campaign(tmp_path, 0).turns(), 3)] == [
        (True, 600), (False, 3000), (True, 600)
    ]  # fmt: skip
    assert [*Campaign(tmp_path, 4200, plain=True).turns()] == [(False, 4200)]
    monkeypatch.setattr(campaign, "has_atheris", lambda: False)
    assert [*Campaign(tmp_path, 4200).turns()] == [(False, 4200)]


def test_mutants_without_guidance_are_of_the_corpus(tmp_path: Path) -> None:
    for number, data in enumerate(seeds()[:20]):
        (tmp_path / f"{number:02}").write_bytes(data)
    corpus = sorted(tmp_path.iterdir())

    def made(seed: int) -> list[bytes]:
        return [*itertools.islice(plain_mutants(corpus, random.Random(seed)), 40)]

    assert made(3) == made(3) != made(4)
    assert len({*made(3)} - {*seeds()}) > 35
    assert sum(map(len, made(3))) / 40 < sum(map(len, seeds()[:20])) / 20


def test_a_mutant_that_ends_the_process_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = [-11, 0]

    def process(self: Campaign, job: int, scratch: Path, *given: Any) -> int:
        self.tallies.write(given[-1], Tally(mutants=5))
        (self.folder / f"job-{job}.log").write_text("Fatal Python error")
        (scratch / f"current-{job}.tape").write_bytes(b"killer")
        return codes.pop(0)

    monkeypatch.setattr(Campaign, "_process", process)
    tally, *_ = Campaign(tmp_path, seconds=60).run()
    assert tally.mutants == 10
    ((label, finding),) = tally.findings["the process ended with -11"]
    assert (tmp_path / "failures" / label).read_bytes() == b"killer"
    assert finding.text == "Fatal Python error"
    assert (
        Campaign(tmp_path, 60)
        .tallies.together()
        .startswith(
            "together with earlier runs: 10 mutants of 2 seeds, 0 s of processor time, 1 kinds"
        )
    )
    assert len(list((tmp_path / "corpus").iterdir())) == len(seeds())


@pytest.mark.integration
def test_what_is_slow_is_read_again_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A good tape that a busy process found slow is no finding."""
    good = (FIXTURES / "v1" / "structures.tape").read_bytes()
    slow = Finding("shapes", "slow in shapes", "2.1 s")

    def process(self: Campaign, *given: Any) -> int:
        failures = self.folder / "failures"
        failures.mkdir()
        for suffix in ("tape", "txt"):
            (failures / f"slow-in-shapes-abc.{suffix}").write_bytes(good)
        told = Tally(mutants=1, findings={slow.kind: [("abc", slow)]})
        self.tallies.write(given[-1], told)
        return 0

    monkeypatch.setattr(Campaign, "_process", process)
    tally, *_ = Campaign(tmp_path, seconds=60).run()
    assert tally.findings == {}
    assert tally.unconfirmed == 1
    assert "1 mutants of 1 seeds" in Campaign(tmp_path, 60).tallies.together()
    assert "0 kinds of findings" in Campaign(tmp_path, 60).tallies.together()
    assert list((tmp_path / "failures").iterdir()) == []


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
    assert [one for one in outcome.findings if not one.kind.startswith("slow in ")] == []
    assert set(answers.COMPARISONS) <= outcome.steps
    assert {name for name in questions.DEAR if name.startswith("$")} <= outcome.steps
    assert len(outcome.steps) > 90


def test_runs_add_up(tmp_path: Path) -> None:
    tallies = Tallies(tmp_path / "tallies")
    first, second = tallies.new_seed(7), tallies.new_seed(1)
    tallies.write(first, Tally(mutants=1500, processor=10.4, slowest=(1.5, "a", "shapes")))
    tallies.write(second, Tally(mutants=1000, processor=20, largest=(3_000_000, "b")))
    lost = tallies.new_seed(7)  # of a process that was ended before it told anything
    assert (first, second, lost) == (7, 8, 9)
    assert tallies.read(first).slowest == (1.5, "a", "shapes")
    assert tallies.together() == (
        "together with earlier runs: 2,500 mutants of 3 seeds, 30 s of processor time, "
        "0 kinds of findings; slowest 1.50 s, largest 3 MB"
    )


def test_what_a_process_found_is_read_back(tmp_path: Path) -> None:
    outcome = Outcome(
        findings=[Finding("open", "Some error", "\x1b[2J and \udce9")],
        kinds={"invalid": 2}, steps={"open"}, total=0.5, rise=9,
    )  # fmt: skip
    tally = Tally()
    tally.add("abc", outcome)
    Tallies(tmp_path).write(1, tally)
    assert Tallies(tmp_path).read(1) == tally


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
