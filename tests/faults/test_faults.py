"""Each fault can be planted, in a file that still loads; and what suites find is told right."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.__main__ import SOME_MISSED, UNUSABLE, main
from tests.faults.catalogue import FAULTS
from tests.faults.fault import ROOT, Fault, StaleFaultError, check, check_modules
from tests.faults.results import Results, compared
from tests.faults.tree import Tree
from tests.faults.trial import Outcome, PytestError, ran, tried
from tests.viewer.node import NODE

FOUND = Path(__file__).parent / "found"
FAULT = next(one for one in FAULTS if one.name == "schema-padding-of-whole-blocks")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_it_can_be_planted_once_and_the_file_still_loads(fault: Fault) -> None:
    check(fault)
    assert [place for place in fault.tests if not (ROOT / place).exists()] == []


def test_modules_of_the_page_still_load(tmp_path: Path) -> None:
    check_modules([fault for fault in FAULTS if fault.file.endswith(".mjs")], str(NODE), tmp_path)


def test_names_are_unique_and_every_package_has_faults() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    counts = Counter(fault.package for fault in FAULTS)
    least = {"schema": 10, "recorder": 15, "analyzer": 20, "viewer": 2}
    assert {name: counts[name] >= most for name, most in least.items()} == dict.fromkeys(
        least, True
    )


@pytest.mark.parametrize("source", ["a = 2\n", "a = 1\na = 1\n"])
def test_a_text_that_is_not_there_once_is_stale(source: str, tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(source)
    with pytest.raises(StaleFaultError, match="stale fault x"):
        check(Fault("x", "x.py", "a = 1", "a = 3", "", ()), tmp_path)


def test_a_fault_that_does_not_load_is_none(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("a = 1\n")
    with pytest.raises(SyntaxError):
        check(Fault("x", "x.py", "a = 1", "a = ", "", ()), tmp_path)


def test_each_fault_was_found_by_some_test() -> None:
    """One that no test finds shows a hole in the suite, or breaks nothing."""
    found = set().union(*(Results.read(path).found for path in FOUND.glob("*.json")))
    assert [fault.name for fault in FAULTS if fault.name not in found] == []


def _results(suite: str, **found: bool) -> Results:
    outcomes = {
        name: Outcome(one, "tests/x.py::test_y[1]" if one else None, "hint" if one else None, 1.0)
        for name, one in found.items()
    }
    return Results(suite, False, outcomes)


def test_what_one_suite_finds_and_another_does_not() -> None:
    slow, fast = _results("slow", a=True, b=True, d=True), _results("fast", a=True, b=False, c=True)
    said, is_as_good = compared(("slow.json", slow), ("fast.json", fast))
    assert not is_as_good
    assert [" ".join(line.split()) for line in said] == [
        "slow.json: slow: 3 of 3 found",
        "fast.json: fast: 2 of 3 found",
        "found by slow.json only:",
        "b 1.0 s found by tests/x.py::test_y[1]",
        "not tried with fast.json:",
        "d 1.0 s found by tests/x.py::test_y[1]",
        "not tried with slow.json:",
        "c 1.0 s found by tests/x.py::test_y[1]",
    ]
    assert compared(("", slow), ("", slow))[1]


def test_the_command_compares_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    _results("slow", a=True).write(one)
    _results("fast", a=False).write(two)
    assert main(["--compare", str(one), str(two)]) == SOME_MISSED
    assert main(["--compare", str(two), str(one)]) == 0
    assert "found by one.json only" in capsys.readouterr().out


def test_results_of_another_suite_are_not_mixed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    _results("chaos", a=True).write(out)
    assert main(["--out", str(out), "--only", FAULT.name]) == UNUSABLE
    assert main(["--only", "no-such-fault"]) == UNUSABLE
    assert "another suite: chaos" in capsys.readouterr().err
    assert Results.read(out).outcomes.keys() == {"a"}


@pytest.mark.integration
def test_tests_run_against_the_copy(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    tree = Tree(tmp_path / "tree")
    suite, wanted = ("-m", ""), "tests/schema/test_tar.py"
    assert ran(tree, [*suite, wanted], 120) is None
    outcome = tried(tree, FAULT, suite, limit=120, hinted=True)
    assert (outcome.found, outcome.where) == (True, "hint")
    assert (outcome.by or "").startswith(wanted)
    assert ran(tree, [*suite, wanted], 120) is None  # it is as it was
    assert ran(tree, ["-k", "no_such_test", wanted], 120) is None
    with pytest.raises(PytestError, match="no_such_file"):
        ran(tree, ["tests/no_such_file.py"], 120)
    answers = subprocess.run(
        [tree.python.parent / "calltape", "--version"],
        env=tree.environment, capture_output=True, text=True,
    )  # fmt: skip
    assert answers.returncode == 0, answers.stderr
