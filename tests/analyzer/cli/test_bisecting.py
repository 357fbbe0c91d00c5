"""``calltape replay --bisect``: its exit codes are those of ``git bisect run``."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from calltape_analyzer import open_tape
from tests.analyzer.cli.commands import process, run
from tests.analyzer.cli.models import MODULE
from tests.analyzer.tapes import Recorded, write_tape
from tests.forging.changes import flip, member_list


@pytest.mark.parametrize(
    ("name", "options", "code"),
    [
        ("classifier", (), 0),
        ("other", (), 1),
        ("classifier", ("--slower-than", "60s"), 0),
        ("classifier", ("--slower-than", "0.000001ms"), 1),
        ("failing", (), 125),  # it cannot be made
        ("absent", (), 125),
        ("text", (), 125),
        ("classifier", ("--calls", "99"), 128),
        ("classifier", ("--slower-than", "soon"), 128),
        ("no form", (), 128),
    ],
)
def test_bisect_exits_with_the_code_that_git_expects(
    name: str, options: tuple[str, ...], code: int, classifier_tape: Path
) -> None:
    arguments = ("replay", classifier_tape, "--model", f"{MODULE}:{name}", *options)
    assert run(*arguments, "--bisect").code == code


def test_a_model_that_ends_the_process_is_no_good_commit(
    folder: Path, classifier_tape: Path
) -> None:
    source = (folder / f"{MODULE}.py").read_text()
    (folder / f"{MODULE}.py").write_text(f"raise SystemExit(0)\n{source}")
    arguments = ("replay", classifier_tape, "--model", f"{MODULE}:classifier")
    assert run(*arguments, "--bisect").code == 125
    assert run(*arguments).code == 1


def test_without_it_codes_are_as_ever(classifier_tape: Path) -> None:
    base = ("replay", classifier_tape, "--model")
    assert run(*base, f"{MODULE}:failing").code == 1
    assert run(*base, "no form").code == 2
    assert run(*base, f"{MODULE}:classifier", "--slower-than", "soon").code == 2


def test_damage_decides_nothing(classifier_tape: Path, folder: Path) -> None:
    shutil.copy(classifier_tape, folder / "torn.tape")
    blob = [member for member in member_list(classifier_tape) if member.name.startswith("blobs/")][
        -1
    ]
    flip(folder / "torn.tape", blob.start + blob.size - 1)
    arguments = ("replay", folder / "torn.tape", "--model", f"{MODULE}:classifier")
    assert run(*arguments).code == 3
    code, _, err = run(*arguments, "--bisect")
    assert code == 0
    assert "damaged" in err or "checksum" in err


@pytest.mark.parametrize(("name", "code"), [("classifier", 0), ("other", 1)])
def test_calls_that_are_whole_decide(
    name: str, code: int, classifier_tape: Path, folder: Path
) -> None:
    """Of the damaged call, the record is there and its tensors are not."""
    data = bytearray(classifier_tape.read_bytes())
    with open_tape(classifier_tape) as tape:
        tensor = tape.find(1).inputs.args[0].numpy().tobytes()
    data[data.index(tensor)] ^= 0xFF
    (folder / "torn.tape").write_bytes(data)
    arguments = ("replay", folder / "torn.tape", "--model", f"{MODULE}:{name}")
    assert run(*arguments).code == (code or 3)
    result = run(*arguments, "--bisect")
    assert result.code == code
    assert "the calls there were left out, or could not be tried" in result.out
    assert "checksum" in result.err
    only = run(*arguments, "--calls", 1, "--bisect")
    assert only.code == 125, "nothing is left to test it with"


def test_a_call_that_cannot_be_read_is_no_bad_commit(folder: Path) -> None:
    tape = write_tape(folder / "x.tape", [Recorded(args=(torch.ones(2, 4),))])
    arguments = ("replay", tape, "--model", f"{MODULE}:classifier", "--bisect")
    assert run(*arguments).code == 125  # nothing to compare with
    assert run(*arguments, "--expect", "success").code == 0


def test_a_program_that_is_not_there_may_be_in_another_commit(
    classifier_tape: Path, folder: Path
) -> None:
    assert run("replay", classifier_tape, folder / "no.onnx", "--bisect").code == 125


def test_bisecting_stops_if_the_tape_cannot_be_read(folder: Path) -> None:
    (folder / "text.tape").write_text("no tape")
    for name in ("no.tape", "text.tape"):
        result = run("replay", folder / name, "--model", f"{MODULE}:classifier", "--bisect")
        assert result.code == 128
        assert "no commit can be tested" in result.err


@pytest.mark.integration
def test_a_mistyped_option_ends_the_bisection(classifier_tape: Path) -> None:
    arguments = ("replay", str(classifier_tape), "--model", "a:b", "--bisect")
    assert process(*arguments, "--no-such-option").returncode == 128
    assert process(*arguments[:-1], "--no-such-option").returncode == 2
