"""Each fault can be planted, in a file that still loads; and its tests run against the copy."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.faults import FAULTS
from tests.faults.__main__ import UNUSABLE, main
from tests.faults.fault import ROOT, Fault, StaleFaultError, check, check_modules
from tests.faults.tree import Tree
from tests.faults.trial import PytestError, found_by, ran
from tests.viewer.node import NODE


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_each_fault_can_be_planted_once_and_its_file_still_loads(fault: Fault) -> None:
    check(fault)
    assert [place for place in fault.tests if not (ROOT / place).exists()] == []


def test_modules_of_the_page_still_load(tmp_path: Path) -> None:
    check_modules([fault for fault in FAULTS if fault.file.endswith(".mjs")], str(NODE), tmp_path)


def test_names_are_unique() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize(
    ("source", "new", "error"),
    [
        ("a = 2\n", "a = 3", StaleFaultError),
        ("a = 1\na = 1\n", "a = 3", StaleFaultError),
        ("a = 1\n", "a = ", SyntaxError),
    ],
)
def test_a_fault_that_cannot_be_planted_is_an_error(
    source: str, new: str, error: type[Exception], tmp_path: Path
) -> None:
    (tmp_path / "x.py").write_text(source)
    with pytest.raises(error):
        check(Fault("x", "x.py", "a = 1", new, "", ()), tmp_path)


def test_an_unknown_name_of_a_fault_is_unusable(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "no-such-fault"]) == UNUSABLE
    assert "no such fault: no-such-fault" in capsys.readouterr().err


@pytest.mark.integration
def test_tests_run_against_the_copy(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    tree, wanted = Tree(tmp_path / "tree"), "tests/schema/test_tar.py"
    fault = next(one for one in FAULTS if one.name == "schema-padding-of-whole-blocks")
    assert (found_by(tree, fault) or "").startswith(wanted)
    assert ran(tree, [wanted]) is None  # it is as it was
    assert ran(tree, ["-k", "no_such_test", wanted]) is None
    with pytest.raises(PytestError, match="no_such_file"):
        ran(tree, ["tests/no_such_file.py"])
    answers = subprocess.run(
        [tree.python.parent / "calltape", "--version"],
        env=tree.environment, capture_output=True, text=True,
    )  # fmt: skip
    assert answers.returncode == 0, answers.stderr
