"""Names of variants have commas in them, so that words set something else between them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from calltape_analyzer import ExportOptions, UsageError, diagnose, export, open_tape, replay
from calltape_analyzer.tape import Tape
from calltape_analyzer.text import variant_names
from calltape_recorder import record

ZEROS = torch.zeros
NAMES = ["a present, no b", "no a, b present", "no a, no b"]


class Model(torch.nn.Module):
    def forward(
        self, x: torch.Tensor, a: torch.Tensor | None = None, b: torch.Tensor | None = None
    ) -> torch.Tensor:
        if a is not None:
            x = x + a
        return x if b is None else x * b


@pytest.fixture
def tape(tmp_path: Path) -> Iterator[Tape]:
    model = Model().eval()
    with record(model, tmp_path / "t.tape"):
        for n in (2, 3):
            model(ZEROS(n, 4), a=ZEROS(n, 4))
            model(ZEROS(n, 4), b=ZEROS(n, 4))
            model(ZEROS(n, 4))
    with open_tape(tmp_path / "t.tape") as opened:
        assert [variant.name for variant in opened.variants()] == NAMES
        yield opened


def test_names_in_a_row() -> None:
    assert variant_names([]) == ""
    assert variant_names(NAMES, 2) == "a present, no b; no a, b present; and 1 more"
    assert variant_names(NAMES) == variant_names(NAMES, 3) == "; ".join(NAMES)


def test_explanations_name_variants_in_words(tape: Tape) -> None:
    (note,) = tape.explain("a").notes
    assert note.endswith("in 4 calls: no a, b present; no a, no b")


def test_an_unknown_variant_is_rejected_with_the_names_there_are(tape: Tape) -> None:
    with pytest.raises(UsageError) as refused:
        tape.only(variant="decode")
    assert "There are: a present, no b; no a, b present; no a, no b." in str(refused.value)


@pytest.mark.integration
def test_replay_and_export_name_variants_in_words(tape: Tape) -> None:
    counts = "(a present, no b: 2; no a, b present: 2; no a, no b: 2)"
    programs = export(tape, Model().eval(), options=ExportOptions(merge="never"))
    assert repr(programs) == "<Programs a present, no b; no a, b present; no a, no b>"
    assert counts in programs.verify().summary
    assert counts in replay(tape, programs).summary


def test_a_diagnosis_names_variants_in_words(tape: Tape) -> None:
    diagnosed = diagnose(tape.only(calls="0..2"))
    assert any(
        "for 3 variants: a present, no b; no a, b present;" in str(s) for s in diagnosed.symptoms
    )
