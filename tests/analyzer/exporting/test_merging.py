"""A prefill and its decode steps are one program where that is right, and only there."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from calltape_analyzer import check, export, load_programs, open_tape, replay
from calltape_analyzer.exporting import merging
from calltape_analyzer.programs.notes import MergeRejects
from tests.analyzer.exported import Call, assert_as_module, call, made, taped
from tests.analyzer.exporting.attending import STEPS, UNSEEN, Attending, ToyCache
from tests.analyzer.exporting.models import Model, t


class Crossing(Model):
    """As whisper does: what the cache holds was computed with the first call, and is taken as it is
    from then on. An empty cache is none to Python, and one to a trace."""

    def forward(self, x, encoded, cache=None):
        if cache is None or cache.keys is None:
            keys, values = self.linear(encoded), encoded * 2
        else:
            keys, values = cache.keys, cache.values
        scores = (x @ keys.transpose(1, 2)).softmax(-1)
        return {"y": scores @ values, "cache": ToyCache(keys, values)}


def test_prefill_and_decode_become_one_program(tmp_path: Path) -> None:
    programs = made(tmp_path, Attending(), STEPS, UNSEEN, classes=[ToyCache])
    assert len(programs) == 1, list(programs)
    (program,) = programs.values()
    assert program.variant.completions


@pytest.mark.integration
def test_merge_never_leaves_them_apart(tmp_path: Path) -> None:
    programs = made(tmp_path, Attending(), STEPS, UNSEEN, classes=[ToyCache], merge="never")
    assert len(programs) == 2


@pytest.mark.integration
def test_merged_program_survives_saving(tmp_path: Path) -> None:
    module = Attending()
    made(tmp_path, module, STEPS, classes=[ToyCache]).save(tmp_path / "saved")
    loaded = load_programs(tmp_path / "saved", classes=[ToyCache], trusted=True)
    assert len(loaded) == 1
    assert_as_module(loaded, module, [*STEPS, *UNSEEN])


@pytest.mark.integration
def test_one_file_of_a_saved_directory_points_to_the_directory(tmp_path: Path) -> None:
    """A prefill has no cache, which is an input of the merged program."""
    module, saved = Attending(), tmp_path / "saved"
    made(tmp_path, module, STEPS, classes=[ToyCache]).save(saved)
    tape = open_tape(tmp_path / "calls.tape", classes=[ToyCache])
    (file,) = saved.glob("*.pt2")
    alone = shutil.copy(file, tmp_path / "alone.pt2")
    for run, verb in ((replay, "replay"), (check, "check")):
        wrong = str(run(tape, file, trusted=True))
        assert "the model's inputs cache_" in wrong, wrong
        directory = f"ive the directory, which has a manifest: calltape {verb} TAPE {saved}"
        assert directory in wrong, wrong
        assert run(tape, saved, trusted=True).ok
        assert "xport with the arguments" in str(run(tape, alone, trusted=True))
    shutil.copy(file, saved / "another.pt2")
    assert "xport with the arguments" in str(replay(tape, saved / "another.pt2", trusted=True))


@pytest.mark.parametrize("empty", [False, True])
def test_merge_that_returns_other_values_is_not_one(empty: bool, tmp_path: Path) -> None:
    def cross(batch: int, new: int, past: int) -> Call:
        cache: Any = ToyCache() if empty else None
        if past:
            cache = ToyCache(t(batch, past, 3), t(batch, past, 3))
        return call(t(batch, new, 3), t(batch, past or 6, 3), cache)

    module = Crossing()
    calls = [cross(*c) for c in ((1, 5, 0), (1, 1, 6), (2, 4, 0), (2, 2, 7), (2, 1, 5))]
    programs = made(tmp_path, module, calls, [cross(3, 4, 0), cross(3, 2, 9)], classes=[ToyCache])
    assert len(programs) == 2
    assert not any(program.variant.completions for program in programs.values())


@pytest.mark.integration
def test_cache_that_is_given_empty_is_a_prefill(tmp_path: Path) -> None:
    def empty(batch: int, new: int) -> Call:
        return call(t(batch, new, 3), ToyCache())

    calls = [empty(1, 5), STEPS[1], empty(2, 4), STEPS[4], STEPS[5]]
    programs = made(tmp_path, Attending(), calls, [empty(3, 7), UNSEEN[1]], classes=[ToyCache])
    assert len(programs) == 1, list(programs)


@pytest.mark.integration
def test_decode_alone_is_one_program_that_says_no_to_a_prefill(tmp_path: Path) -> None:
    from calltape_analyzer import NoVariant

    module = Attending()
    programs = export(taped(tmp_path, module, [STEPS[1], STEPS[4]], classes=[ToyCache]), module)
    with pytest.raises(NoVariant, match="cache"):
        programs(*STEPS[0][0])


class Asking(Attending):
    """Does something else while the cache is empty, which no trace of a decode step shows."""

    def forward(self, x, cache=None):
        is_first = cache is None or cache.keys is None or cache.keys.shape[1] == 0
        return super().forward(x + 1 if is_first else x, cache)


@pytest.mark.integration
@pytest.mark.parametrize("least", [0.0, 1e9])
def test_merge_in_vain_says_what_it_cost(
    least: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "WORTH_SAYING", least)
    programs = made(tmp_path, Asking(), STEPS, UNSEEN, classes=[ToyCache])
    assert len(programs) == 2
    tried = [attempt for attempt in programs.attempts if " + " in attempt.variant]
    assert tried
    assert not any(attempt.ok for attempt in tried)
    said = [remark for remark in map(str, programs.verify().remarks) if "merge='never'" in remark]
    assert list(map(str, programs.remarks)) == said
    assert len(said) == (1 if least == 0 else 0)
    programs.save(tmp_path / "saved")
    loaded = load_programs(tmp_path / "saved", classes=[ToyCache], trusted=True)
    assert loaded.remarks == programs.remarks


@pytest.mark.integration
def test_hint_is_not_given_where_it_would_be_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "WORTH_SAYING", 0.0)
    assert not made(tmp_path, Attending(), STEPS, classes=[ToyCache]).remarks
    apart = tmp_path / "apart"
    apart.mkdir()
    assert not made(apart, Asking(), STEPS, classes=[ToyCache], merge="never").remarks


class WidensMany(Attending):
    """Does something else with more numbers than any call had together."""

    def forward(self, x, cache=None):
        made = super().forward(x, cache)
        if made["cache"].keys.shape[1] > 9:
            made["y"] = made["y"] + x
        return made


@pytest.mark.integration
def test_what_one_program_for_both_refuses_is_said(tmp_path: Path) -> None:
    programs = made(tmp_path, WidensMany(), STEPS, classes=[ToyCache])
    assert len(programs) == 1
    (note,) = programs.notes
    assert isinstance(note, MergeRejects)
    assert "ExportOptions(merge='never') makes a program for each" in str(note)
    whole = tmp_path / "whole"
    whole.mkdir()
    assert not made(whole, Attending(), STEPS, classes=[ToyCache]).notes
