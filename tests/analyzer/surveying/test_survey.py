"""A survey is a tape without calls: it says what one tape of all calls says, and no single call."""

from __future__ import annotations

import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import TapeError, diff, open_tape, survey
from calltape_analyzer.errors import UsageError
from calltape_analyzer.surveying.survey import Loop
from calltape_recorder import record
from calltape_schema import bounds
from calltape_schema.inputs_table import InputsTable
from tests.analyzer.cli.commands import run


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fails = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fails:
            raise ValueError("no")
        return x


def made(folder: Path, name: str, sizes: tuple[int, ...] = (2, 3, 4), model: Any = None) -> Path:
    model = Model() if model is None else model
    with record(model, folder / f"{name}.tape"):
        for size in sizes:
            model(torch.zeros(size, 4))
    return folder / f"{name}.tape"


def written(folder: Path, name: str, *paths: Path) -> Path:
    out = folder / f"{name}.tape"
    survey(paths, Loop()).write(out, inputs=[str(path) for path in paths])
    return out


def test_a_survey_answers_as_its_tapes_do(tmp_path: Path) -> None:
    paths = made(tmp_path, "a"), made(tmp_path, "b", (5, 6, 9))
    found = written(tmp_path, "s", *paths)
    with open_tape(found) as tape, open_tape(paths) as tapes:
        assert len(tape) == len(tapes) == 6
        assert tape.coverage == tapes.coverage
        assert tape.infer_dynamic_shapes() == tapes.infer_dynamic_shapes()
        assert tape.counters == tapes.counters
        assert [v.findings for v in tape.variants()] == [v.findings for v in tapes.variants()]
        assert str(diff(tapes, tape)) == "the traffic on both is the same"
        assert not tape.damage
    assert run("variants", found).out == run("variants", *paths).out
    assert run("explain", found, "x", "0").code == run("explain", *paths, "x", "0").code


def test_equal_files_make_equal_bytes_on_any_executor(tmp_path: Path) -> None:
    paths = [made(tmp_path, name) for name in "abcde"]
    with ThreadPoolExecutor(3) as threads:
        one, other = survey(paths, threads), survey(paths[::-1], Loop())
    assert one.target().to_bytes() == other.target().to_bytes()


def test_surveys_add_up(tmp_path: Path) -> None:
    one, two = made(tmp_path, "a"), made(tmp_path, "b")
    both = written(tmp_path, "both", written(tmp_path, "sa", one), written(tmp_path, "sb", two))
    outs = (run("variants", *paths).out for paths in ([both], [one, two]))
    # Calls with equal inputs are in both recordings: which is named first goes by their ids.
    told = [re.sub("[0-9a-f]{8}:", "", out) for out in outs]
    assert told[0] == told[1]


def test_a_copy_counts_once_and_is_told(tmp_path: Path) -> None:
    one = made(tmp_path, "a")
    shutil.copy(one, tmp_path / "again.tape")
    ran = run("survey", tmp_path)
    assert (ran.code, ran.err) == (0, "")
    assert "again.tape" in next(row for row in ran.out.splitlines() if row.startswith("copies"))
    (facts,) = json.loads(run("survey", tmp_path, "--json").out)
    assert (facts["calls"], facts["copies"]) == (3, 1)


def test_calls_that_a_survey_has_already_are_refused(tmp_path: Path) -> None:
    one = made(tmp_path, "a")
    found = written(tmp_path, "s", one)
    with pytest.raises(UsageError, match="would count twice"):
        survey([one, found], Loop())


@pytest.mark.parametrize("words", [["ls"], ["show", "0"], ["replay", "-m", "x:y"], ["variants"]])
def test_a_survey_has_no_single_call(tmp_path: Path, words: list[str]) -> None:
    found = written(tmp_path, "s", made(tmp_path, "a"))
    verb, *rest = words
    ran = run(verb, found, *(rest or (["--scan"] if verb == "variants" else [])))
    assert ran.code != 0
    assert "unexpected" not in ran.err


def test_calls_that_raised_are_counted_apart(tmp_path: Path) -> None:
    model = Model()
    with record(model, tmp_path / "a.tape"):
        model(torch.zeros(2, 4))
        model.fails = True
        with pytest.raises(ValueError, match="no"):
            model(torch.zeros(2, 4))
    found = written(tmp_path, "s", tmp_path / "a.tape")
    with open_tape(found) as tape:
        assert sorted((one.raised, one.calls) for one in tape.calls.by_inputs()) == [
            (False, 1),
            (True, 1),
        ]


def test_what_cannot_be_read_costs_its_own_answer_only(tmp_path: Path) -> None:
    made(tmp_path, "a")
    (tmp_path / "text.tape").write_text("hello" * 300)
    ran = run("survey", tmp_path, "-o", tmp_path / "s.tape")
    assert ran.code == 3
    assert "text.tape" in ran.err
    assert len(open_tape(tmp_path / "s.tape")) == 3


def test_several_targets_are_told(tmp_path: Path) -> None:
    made(tmp_path, "a", model=torch.nn.ReLU())
    made(tmp_path, "b", model=torch.nn.Tanh())
    ran = run("survey", tmp_path, "-o", tmp_path / "s.out")
    assert ran.code == 1
    assert "--target" in ran.err
    assert run("survey", tmp_path, "--target", "Tanh", "-o", tmp_path / "s.out").code == 0
    with pytest.raises(TapeError, match="several targets"):
        survey(tmp_path, Loop()).target()


def test_inputs_without_room_are_told(tmp_path: Path) -> None:
    surveyed = survey(made(tmp_path, "a"), Loop())
    small = InputsTable(max_rows=1)
    small.merge(surveyed.target().table)
    surveyed.target().table = small
    surveyed.write(tmp_path / "s.tape")
    with open_tape(tmp_path / "s.tape") as tape:
        assert len(tape) == 3
        tape.variants()
        assert "the inputs of 2 calls are left out" in str(tape.damage[0])
        assert tape.counters.calls == 3


def test_a_survey_beside_its_tapes_is_left_out(tmp_path: Path) -> None:
    one = made(tmp_path, "a")
    found = written(tmp_path, "s", one)
    with open_tape(tmp_path) as tape:
        assert (len(tape), len(list(tape))) == (3, 3)
        assert "the survey is left out" in str(tape.damage[0])
    with open_tape([found, shutil.copy(found, tmp_path / "again.tape")]) as tape:
        assert len(tape) == 3


DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "surveys.md").read_text(encoding="utf-8")


def test_its_numbers_are_those_of_the_code() -> None:
    text = " ".join(PAGE.split())
    assert f"keeps at most {bounds.MAX_ROWS:,} distinct inputs" in text
    assert f"names at most {bounds.MAX_SOURCES:,} recordings" in text


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#:]+)[^)]*\)", PAGE))
def test_links_lead_somewhere(target: str) -> None:
    assert (DOCS / target).exists()
