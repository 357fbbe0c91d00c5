"""The pytest plugin in a project of somebody else, with and without xdist."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from calltape_analyzer import open_tape
from calltape_analyzer.testing import call, write_tape
from tests.analyzer.tapes import refer
from tests.analyzer.testing.projects import TESTS, Project

pytestmark = pytest.mark.integration

CALLS = [f"test_house[house.tape-{n}]" for n in range(4)]
WRONG = TESTS.replace("House()", "House(extra=1.0, at=4)")
EACH_WAY = pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one process", "xdist"])


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path)
    made.write("tests/test_house.py", TESTS)
    made.tape()
    return made


@EACH_WAY
def test_each_call_is_a_test(options: tuple[str, ...], project: Project) -> None:
    ran = project.run(*options)
    assert ran.code == 0, ran.text
    assert ran.outcomes == dict.fromkeys(CALLS, "PASSED")


@EACH_WAY
def test_a_failure_explains_itself(options: tuple[str, ...], project: Project) -> None:
    project.write("tests/test_house.py", WRONG)
    ran = project.run(*options)
    assert ran.code == 1
    assert {name for name, how in ran.outcomes.items() if how == "FAILED"} == {CALLS[0], CALLS[3]}
    tape = os.path.join("tests", "fixtures", "house.tape")
    assert (
        f"call 0 of {tape}: outputs.y: 1 of 12 elements differ by up to 1 (relative 0.5)"
        in ran.text
    )
    assert re.search(r"y\[0, 1\]  recorded 2  got 3\b", ran.text)
    assert f"to see the call: calltape show {tape} 0" in ran.text
    assert "comparing.py" not in ran.text  # no traceback through calltape
    again = re.search(r"to see it again: python -m (pytest .*)$", ran.text, re.M)
    assert again is not None
    words = shlex.split(again[1])[1:]
    alone = project.run(*words)
    assert alone.code == 1
    assert len(alone.outcomes) == 1


def test_a_run_elsewhere_names_a_command_that_works_there(project: Project) -> None:
    project.write("tests/test_house.py", WRONG)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", "../pytest.ini", "--rootdir", ".."],
        cwd=project.folder / "tests", env=project.environment, capture_output=True, text=True,
        check=False, timeout=240,
    )  # fmt: skip
    match = re.search(r"to see it again: python -m pytest '(\S+?)::", done.stdout)
    assert match is not None, done.stdout
    assert match[1] == "test_house.py"


def changed_at_last(project: Project) -> None:
    """The tape has the new outputs of calls 0 and 3, and all else as it was."""
    tape = project.folder / "tests/fixtures/house.tape"
    with open_tape(tape) as new:
        assert new.verify() == []
        assert [found.number for found in new.calls] == [0, 1, 2, 3]
        assert new.calls[0].outputs["y"][0].tolist() == [0, 3, 4]
        assert new.calls[1].outputs["y"].unique().tolist() == [2]
        assert new.calls[2].error is not None
        assert new.calls[0].inputs.args[0].tolist() == torch.arange(12.0).reshape(4, 3).tolist()
        (step,) = new.calls[0].manifest.history or ()
        assert (step.verb, dict(step.options)) == ("update", {"calls": "0, 3"})
    assert tape.stat().st_mode & 0o777 == 0o640
    assert list(tape.parent.iterdir()) == [tape]


def test_new_outputs_are_written(project: Project) -> None:
    tape = project.folder / "tests/fixtures/house.tape"
    os.chmod(tape, 0o640)
    before = tape.read_bytes()
    project.write("tests/test_house.py", WRONG)
    look = project.run("--calltape-update=look")
    assert look.code == 0, look.text
    assert "house.tape: 2 calls would get new outputs; nothing was written" in look.text
    assert tape.read_bytes() == before
    ran = project.run("--calltape-update")
    assert ran.code == 0, ran.text
    assert "call 0 of tests/fixtures/house.tape: outputs.y: 1 of 12 elements differ" in ran.text
    assert "house.tape: 2 calls got new outputs, and the tape was rewritten" in ran.text
    changed_at_last(project)
    # What is right now stays; another update in a row is no further step of the history.
    again = project.run("--calltape-update")
    assert "nothing was written" in again.text
    project.write("tests/test_house.py", TESTS)
    assert project.run("--calltape-update").code == 0
    with open_tape(tape) as new:
        assert len(new.calls[0].manifest.history or ()) == 1
        assert new.calls[0].outputs["y"][0].tolist() == [0, 2, 4]


def test_a_path_may_follow_the_option(project: Project) -> None:
    project.write("tests/test_house.py", WRONG)
    look = project.run("--calltape-update=look", "tests")
    assert look.code == 0, look.text
    assert "2 calls would get new outputs; nothing was written" in look.text
    ran = project.run("--calltape-update", "tests")
    assert ran.code == 0, ran.text
    assert "2 calls got new outputs, and the tape was rewritten" in ran.text
    assert project.run("--calltape-update=neither", "tests").code == 4


def test_workers_hand_new_outputs_over(project: Project) -> None:
    os.chmod(project.folder / "tests/fixtures/house.tape", 0o640)
    project.write("tests/test_house.py", WRONG)
    ran = project.run("-n", "2", "--calltape-update")
    assert ran.code == 0, ran.text
    assert "house.tape: 2 calls got new outputs, and the tape was rewritten" in ran.text
    changed_at_last(project)


def test_what_is_no_output_is_not_written(project: Project) -> None:
    tape = project.folder / "tests/fixtures/house.tape"
    before = tape.read_bytes()
    source = TESTS.replace("House()", "broken") + (
        "\n\ndef broken(x, scale=1.0):\n    raise KeyError('lost')\n"
    )
    project.write("tests/test_house.py", source)
    ran = project.run("--calltape-update")
    assert ran.code == 1
    assert ran.outcomes[CALLS[0]] == "FAILED"
    assert ran.outcomes[CALLS[2]] == "PASSED"  # it raised before: now it raises another exception
    with open_tape(tape) as new:
        assert new.calls[2].error is not None
        assert new.calls[2].error.type == "builtins:KeyError"
        assert new.calls[0].outputs["n"] == 4
    tape.write_bytes(before)
    lucky = TESTS.replace("House()", "noise")
    lucky += (
        "\n\nimport torch\n\n\ndef noise(x, scale=1.0):\n    return {'y': x + torch.rand_like(x)}\n"
    )
    project.write("tests/test_house.py", lucky)
    ran = project.run("--calltape-update", "-k", "house.tape-0")
    assert ran.code == 1
    assert "gives other values each time" in ran.text
    assert tape.read_bytes() == before


def test_two_tests_that_disagree_are_told(project: Project) -> None:
    project.write("tests/test_house.py", WRONG)
    project.write("tests/test_other.py", TESTS.replace("House()", "House(extra=2.0, at=4)"))
    ran = project.run("--calltape-update", "-k", "house.tape-0")
    assert ran.code == 1
    assert "two tests give other outputs for call 0" in ran.text


def test_tapes_are_found_by_the_ini_file(project: Project) -> None:
    project.write(
        "pytest.ini", "[pytest]\naddopts = -p no:cacheprovider\ncalltape_dir = recorded\n"
    )
    project.tape("recorded/a.tape")
    project.tape("recorded/more/b.tape")
    text = TESTS.replace('@pytest.mark.tape("fixtures/house.tape")\n', "")
    text += '\n\n@pytest.mark.tape("more/b.tape", calls="1..2")\ndef test_part(tape):\n'
    text += "    assert len(tape) == 1\n"
    text += '\n\n@pytest.mark.tape("a.tape", whole=True)\ndef test_whole(tape):\n'
    text += "    assert_replays(tape, House())\n    assert len(tape) == 4\n"
    project.write("tests/test_house.py", text)
    ran = project.run()
    assert ran.code == 0, ran.text
    names = [f"test_house[{tape}-{n}]" for tape in ("a.tape", "more/b.tape") for n in range(4)]
    names += ["test_part[b.tape-1]", "test_part[b.tape-2]", "test_whole[a.tape]"]
    assert ran.outcomes == dict.fromkeys(names, "PASSED")


HOSTILE = {
    "missing.tape": "there is no tape missing.tape (looked for ",
    "text.tape": "the tape cannot be used: ",
    "empty.tape": "the tape cannot be used: ",
    "torn.tape": "the tape cannot be used: ",
    "nothing.tape": "nothing.tape has no call",
}


def test_a_bad_tape_fails_its_test_and_no_other(project: Project) -> None:
    folder = project.folder / "tests"
    (folder / "text.tape").write_text("no tape")
    (folder / "empty.tape").write_bytes(b"")
    (folder / "torn.tape").write_bytes((folder / "fixtures/house.tape").read_bytes()[:700])
    write_tape(folder / "nothing.tape", [])
    marks = "".join(
        f'\n\n@pytest.mark.tape("{name}")\ndef test_{name.partition(".")[0]}(tape):\n    pass\n'
        for name in HOSTILE
    )
    marks += "\n\n@pytest.mark.tape()\ndef test_no_path(tape):\n    pass\n"
    marks += '\n\n@pytest.mark.tape("a", cals=3)\ndef test_typo(tape):\n    pass\n'
    marks += "\n\ndef test_no_mark(tape):\n    pass\n"
    marks += (
        '\n\n@pytest.mark.tape("fixtures/house.tape", calls="99")\ndef test_99(tape):\n    pass\n'
    )
    project.write("tests/test_house.py", TESTS + marks)
    ran = project.run("-n", "2")
    assert {name: ran.outcomes[name] for name in CALLS} == dict.fromkeys(CALLS, "PASSED")
    assert len([how for how in ran.outcomes.values() if how == "ERROR"]) == len(HOSTILE) + 4
    for words in HOSTILE.values():
        assert words in ran.text
    assert "the mark tape names no tape" in ran.text
    assert "the mark tape has no cals=" in ran.text
    assert "the test has no tape" in ran.text
    assert "no call 99 on this tape" in ran.text
    assert "Traceback" not in ran.text
    assert "testing/parameters.py" not in ran.text


def test_damage_is_a_failure_beside_the_calls_that_are_whole(project: Project) -> None:
    tape = refer(project.folder / "tests/fixtures/house.tape")  # each call is a group there
    data = bytearray(tape.read_bytes())
    data[data.index(b"records/00000001.msgpack") + 600] ^= 0xFF
    tape.write_bytes(data)
    ran = project.run()
    assert ran.outcomes["test_house[house.tape-damage]"] == "ERROR"
    assert ran.outcomes[CALLS[0]] == "PASSED"
    assert CALLS[1] not in ran.outcomes
    assert "house.tape is corrupted and lacks calls: " in ran.text
    before = tape.read_bytes()
    project.write("tests/test_house.py", WRONG)
    ran = project.run("--calltape-update")
    assert "NOT written" in ran.text
    assert tape.read_bytes() == before


def test_the_names_of_others_are_theirs(project: Project) -> None:
    text = """
import pytest

@pytest.fixture
def tape():
    return "sticky"

def test_theirs(tape):
    assert tape == "sticky"

@pytest.mark.parametrize("tape, n", [("red", 1)])
def test_given(tape, n):
    assert tape == "red"
"""
    project.write("tests/test_house.py", text)
    ran = project.run()
    assert ran.code == 0, ran.text
    assert len(ran.outcomes) == 2


def test_nothing_is_imported_until_it_is_used(project: Project) -> None:
    text = """
import sys

def test_nothing():
    loaded = {name.partition(".")[0] for name in sys.modules}
    assert "calltape_analyzer" in loaded, "the plugin is there"
    assert not loaded & {"torch", "numpy", "safetensors", "calltape_schema", "pydantic", "rich"}
    assert [n for n in sys.modules if n.startswith("calltape_analyzer.")] == [
        "calltape_analyzer.pytest_plugin"
    ]
"""
    project.write("tests/test_house.py", text)
    ran = project.run("-p", "no:hypothesispytest")
    assert ran.code == 0, ran.text


def test_collecting_imports_no_torch(project: Project) -> None:
    text = TESTS.replace("from house import House\n", "").replace(
        "from calltape_analyzer.testing import assert_replays\n", ""
    )
    text = text.replace("    assert_replays(tape, House())", "    pass")
    text += "\n\ndef test_torch():\n    import sys\n    assert 'torch' not in sys.modules\n"
    project.write("tests/test_house.py", text)
    ran = project.run()
    assert ran.code == 0, ran.text
    assert len(ran.outcomes) == 5


def test_a_tape_of_shapes_fails_for_other_shapes_and_is_not_updated(project: Project) -> None:
    x = torch.ones(2, 3)
    shapes = project.folder / "tests/shapes.tape"
    write_tape(shapes, [call(x).returns({"y": x, "n": 2})], values="none")
    text = TESTS.replace("fixtures/house.tape", "shapes.tape")
    project.write("tests/test_house.py", text)
    assert project.run().code == 0
    wrong = text.replace("House()", "lambda x: {'y': x[:1], 'n': 2}")
    project.write("tests/test_house.py", wrong)
    before = shapes.read_bytes()
    ran = project.run("--calltape-update")
    assert ran.code == 1
    assert "y is float32[1, 3] instead of float32[2, 3] (with synthetic arguments" in ran.text
    assert shapes.read_bytes() == before
