"""What the command says of the context that calls ran in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from calltape_recorder import record
from tests.analyzer.cli.commands import run
from tests.analyzer.cli.models import Model


@pytest.fixture
def path(tmp_path: Path) -> Path:
    model, given = Model().eval(), torch.ones(2, 3)
    with record(model, tmp_path / "calls.tape"):
        model(given)
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
            model(given)
    return tmp_path / "calls.tape"


def test_info_counts_contexts(path: Path) -> None:
    text = "gradients, no autocast: 1 call; autocast cpu bfloat16, no_grad: 1 call"
    assert f"contexts   {text}" in run("info", path)[1]
    facts = json.loads(run("info", path, "--json")[1])
    assert facts["contexts"] == {
        "gradients, no autocast": 1,
        "autocast cpu bfloat16, no_grad": 1,
    }


def test_info_is_silent_on_what_all_calls_have(tmp_path: Path) -> None:
    model = Model().eval()
    with record(model, tmp_path / "calls.tape"), torch.no_grad():
        model(torch.ones(2, 3))
    assert "contexts" not in run("info", tmp_path / "calls.tape")[1]


def test_a_call_shows_its_context(path: Path) -> None:
    plain, under = run("ls", path)[1].splitlines()[1:]
    assert under.endswith("autocast cpu bfloat16")
    assert "autocast" not in plain
    assert "called in" not in run("show", path, "0")[1]
    assert "called in autocast cpu bfloat16, no_grad" in run("show", path, "1")[1]
    assert json.loads(run("ls", path, "--json")[1])[1]["context"].endswith("no_grad")


def test_variants_and_explain_name_the_context(path: Path) -> None:
    assert "autocast cpu bfloat16: 1 call" in run("variants", path)[1]
    assert "in autocast cpu bfloat16 (1 call, call 1)" in run("explain", path, "x")[1]


def test_diff_names_it(path: Path, tmp_path: Path) -> None:
    assert run("filter", path, "--calls", "0", "--out", tmp_path / "plain.tape")[0] == 0
    code, out, _ = run("diff", tmp_path / "plain.tape", path)
    assert code == 4
    assert "autocast cpu bfloat16 instead of no autocast" in out
