"""``calltape export``, ``replay``, ``check`` and ``script``: with a model from a module in the
current directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import ExportOptions, export, load_programs, open_tape
from calltape_analyzer.cli import exports
from calltape_analyzer.cli.exports import print_attempts
from calltape_analyzer.facts import Other
from calltape_analyzer.programs.attempts import Attempt
from calltape_analyzer.programs.strategies import Strategy
from calltape_recorder import record
from tests.analyzer.chats import CHATS, record_chats, toy_lm
from tests.analyzer.cli.commands import run
from tests.analyzer.cli.models import MODULE, SOURCE
from tests.analyzer.tapes import write_tape


@pytest.mark.parametrize("name", ["classifier", "made", "Classifier", "Zoo.classifier"])
def test_the_model_itself_reproduces_its_calls(classifier_tape: Path, name: str) -> None:
    code, out, err = run("replay", classifier_tape, "--model", f"{MODULE}:{name}", "--atol", 100)
    assert (code, err) == (0, "")
    assert "4 of 4 recorded calls reproduced" in out


def test_replay_exits_with_1_if_outputs_differ(classifier_tape: Path) -> None:
    arguments = ("replay", classifier_tape, "--model", f"{MODULE}:other")
    code, out, err = run(*arguments)
    assert (code, err) == (1, "")
    assert "0 of 4 recorded calls reproduced" in out
    assert run(*arguments, "--atol", 100.0).code == 0
    document = json.loads(run(*arguments, "--json").out)
    assert document["ok"] is False
    assert [row["call"] for row in document["rows"]] == [0, 1, 2, 3]


def test_the_model_is_in_the_mode_of_its_calls(folder: Path) -> None:
    arguments = ("--model", f"{MODULE}:classifier")  # with dropout
    scope: dict[str, Any] = {"__name__": MODULE}
    exec(SOURCE, scope)
    for is_training in (False, True):
        model = scope["classifier"]().train(is_training)
        tape = folder / f"{is_training}.tape"
        torch.rand(7)  # dropout draws from here on
        with record(model, tape), torch.no_grad():
            model(torch.ones(3, 4))
        assert run("replay", tape, *arguments).code == is_training


@pytest.mark.parametrize("verb", ["export", "replay"])
@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        (MODULE, 2, "not of the form"),
        (f"{MODULE}:", 2, "not of the form"),
        ("os;x:y", 2, "not of the form"),
        ("no_such_module:f", 1, "no module no_such_module"),
        (f"{MODULE}:absent", 1, "has no absent. Name one that is there, such as "),
        (f"{MODULE}:failing", 1, "failing() failed: ValueError: no weights here"),
        (f"{MODULE}:text", 1, "gives a builtins.str"),
    ],
)
def test_models_that_cannot_be_made(
    classifier_tape: Path, verb: str, name: str, code: int, said: str
) -> None:
    got, out, err = run(verb, classifier_tape, "--model", name)
    assert (got, out) == (code, "")
    assert said in " ".join(err.replace("│", " ").split())
    assert "Traceback" not in err
    assert code == 2 or err.count("\n") == 1


def test_the_traceback_of_a_model_can_be_had(
    classifier_tape: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALLTAPE_DEBUG", "1")
    with pytest.raises(ValueError, match="no weights"):
        run("replay", classifier_tape, "--model", f"{MODULE}:failing")


def test_wrong_combinations_of_options_are_rejected(classifier_tape: Path) -> None:
    model = ("--model", f"{MODULE}:classifier")
    for arguments in (
        ("export", classifier_tape),
        ("replay", classifier_tape),
        ("replay", classifier_tape, "--dry-run"),
        ("replay", classifier_tape, "x.onnx", "--dry-run", "--atol", 1),
        ("replay", classifier_tape, "x.onnx", "--dry-run", "--bisect"),
        ("replay", classifier_tape, "--dry-run", *model),
        ("replay", classifier_tape, "x.onnx", *model),
        ("export", classifier_tape, *model, "--to", "jax"),
        ("export", classifier_tape, *model, "--opset", 20),
        ("replay", classifier_tape, *model, "--rtol", -1),
        ("bundle", classifier_tape, "--model", "x", "-o", "x.py"),
    ):
        code, out, err = run(*arguments)
        assert (code, out) == (2, ""), arguments
        assert "Traceback" not in err


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_targets_that_do_not_exist(classifier_tape: Path, options: tuple[str, ...]) -> None:
    for name in ("absent.onnx", "absent.pt2", "absent"):
        code, out, err = run("replay", classifier_tape, name, *options)
        assert (code, out) == (1, "")
        assert err == f"calltape: {name}: no such file. Check the path.\n"


def test_help_shows_examples_of_export_and_replay() -> None:
    for verb in ("export", "replay"):
        assert f"  {verb} " in run("--help").out
        text = run(verb, "--help").out
        assert f"  calltape {verb} runs/" in text
        assert "--json" in text


# With torch.export.


@pytest.mark.integration
def test_exported_programs_pass_replay_and_a_dry_run(classifier_tape: Path, folder: Path) -> None:
    out_dir = folder / "exported"
    model = ("--model", f"{MODULE}:classifier")
    code, out, err = run("export", classifier_tape, *model, "--out", out_dir, "-v")
    assert (code, err) == (0, "")
    assert out.split("\n", 1)[0].split() == [
        "variant", "tried", "recorded", "sizes", "unseen", "sizes", "seconds",
        "result",
    ]  # fmt: skip
    assert "4 of 4 recorded calls reproduced" in out
    saved, *verdicts = out.splitlines()[-1 - len(load_programs(out_dir, trusted=True).verdicts) :]
    assert saved == f"saved in {out_dir}"
    assert all(line.startswith("general: ") for line in verdicts)
    code, out, err = run("replay", classifier_tape, out_dir, "--trust")
    assert (code, err) == (0, "")
    assert "4 of 4 recorded calls reproduced" in out
    code, out, err = run("replay", classifier_tape, out_dir, "--dry-run")
    assert (code, err) == (0, "")
    assert "4 of 4 recorded calls would be accepted" in out
    wider = write_tape(folder / "b.tape", [((torch.zeros(3, 9),), {})])
    code, out, err = run("replay", wider, out_dir, "--json", "--dry-run")
    assert (code, err) == (1, "")
    document = json.loads(out)
    assert document["ok"] is False
    assert document["rows"][0]["ok"] is False


@pytest.mark.integration
def test_programs_of_a_language_model_reproduce_its_calls_and_reject_others(folder: Path) -> None:
    tape, out_dir = record_chats(folder / "llm.tape", CHATS), folder / "llm"
    model = ("--model", "tests.analyzer.chats:toy_lm")
    assert run("replay", tape, *model).code == 0
    code, out, err = run("export", tape, *model)
    assert (code, err) == (0, ""), out
    assert "9 of 9 recorded calls reproduced (prefill + decode: 9)" in out
    with open_tape(tape) as opened:
        export(opened, toy_lm(), options=ExportOptions(merge="never")).save(out_dir)
    assert run("replay", tape, out_dir, "--trust").code == 0
    assert run("replay", tape, out_dir, "--dry-run").code == 0
    # Two tokens at a time, which the programs were never shown.
    other = record_chats(folder / "other.tape", ((2, 5), (3, 4)), step=2)
    assert run("diff", tape, other).code == 4
    code, out, _ = run("replay", other, out_dir, "--dry-run")
    assert code == 1
    assert "2 of 6 recorded calls would be accepted" in out
    code, out, _ = run("replay", other, out_dir, "--trust")
    assert code == 1
    assert "2 of 6 recorded calls reproduced" in out


@pytest.mark.integration
def test_the_place_is_looked_at_before_the_export(
    classifier_tape: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, other = folder / "twice", folder / "other"
    arguments = ("export", classifier_tape, "--model", f"{MODULE}:classifier", "--out")
    assert run(*arguments, saved).code == 0
    written = {path.name: path.read_bytes() for path in saved.iterdir()}
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    with monkeypatch.context() as patch:
        patch.setattr(exports, "model_of", lambda *_, **__: pytest.fail("the model was made"))
        code, out, err = run(*arguments, saved)
        assert (code, out) == (1, "")
        assert "earlier export" in err
        assert "--force" in err
        assert run(*arguments, other, "--force").code == 1
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == written
    assert run(*arguments, saved, "--force").code == 0


@pytest.mark.integration
def test_export_prints_programs_attempts_and_report_as_json(classifier_tape: Path) -> None:
    model = ("--model", f"{MODULE}:classifier")
    code, out, err = run("export", classifier_tape, *model, "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert len(document["programs"]) == 2
    assert document["missing"] == {}
    assert document["saved"] is None
    assert document["report"]["ok"] is True
    attempt = document["attempts"][0]
    assert attempt["reproduced"] == attempt["tried"] > 0
    assert set(attempt) >= {
        "variant", "what", "reproduced", "tried", "agreed", "probed", "wrong", "error", "seconds"
    }  # fmt: skip
    assert "rows" not in attempt


@pytest.mark.integration
def test_export_of_another_model_is_exit_code_1(classifier_tape: Path) -> None:
    code, out, err = run("export", classifier_tape, "--model", f"{MODULE}:other")
    assert code == 1
    assert "Traceback" not in err
    assert "0 of 4" in out or err.startswith("calltape: nothing could be exported")


@pytest.mark.integration
def test_an_export_to_onnx_passes_replay_and_a_dry_run(classifier_tape: Path, folder: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    out_dir = folder / "onnx"
    arguments = ("--model", f"{MODULE}:classifier", "--to", "onnx", "--opset", 20)
    code, out, _ = run("export", classifier_tape, *arguments, "-o", out_dir)
    assert code == 0, out
    assert len(list(out_dir.glob("*.onnx"))) >= 1
    assert run("replay", classifier_tape, out_dir).code == 0
    assert run("replay", classifier_tape, out_dir, "--dry-run").code == 0


@pytest.mark.integration  # a process with torch, and a trace in it
def test_export_of_a_part_verifies_only_its_calls(classifier_tape: Path) -> None:
    arguments = ("export", classifier_tape, "--model", f"{MODULE}:classifier", "--json")
    with open_tape(classifier_tape) as tape:
        names = [variant.name for variant in tape.variants()]
    assert len(names) == 2
    result = run(*arguments, "--variant", 1)
    assert result.code == 0, result
    document = json.loads(result.out)
    assert document["programs"] == [names[1]]
    assert [row["call"] for row in document["report"]["rows"]] == [3]
    document = json.loads(run(*arguments, "--calls", "0..1").out)
    assert [row["call"] for row in document["report"]["rows"]] == [0, 1]


def test_what_came_of_an_attempt_ends_with_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    place = "GuardOnDataDependentSymNode: the model needs a value at model.py:3 (use torch.where)"
    attempts = [
        Attempt(variant="main", strategy=Strategy.PLAIN, error=Other(place)),
        Attempt(variant="other", strategy=Strategy.DEFERRED, error=Other("elephant " * 100)),
    ]
    print_attempts(attempts)
    _, first, second = capsys.readouterr().out.splitlines()
    assert first.endswith(place)
    assert second.endswith(" elephant ...")
