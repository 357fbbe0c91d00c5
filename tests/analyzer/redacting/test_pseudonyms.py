"""Pseudonyms are distinct, and no words that the tape has."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import open_tape, redact
from calltape_analyzer.redacting.pseudonyms import Pseudonyms
from calltape_recorder import record
from tests.analyzer.redacting.leaks import texts


@pytest.mark.parametrize("_", range(20))
def test_no_pseudonym_is_a_word_of_the_tape(_: int) -> None:
    names, private = set("xyzw"), set("abcdefxy")
    pseudonyms = Pseudonyms("q", names=names, texts=private)
    made = [pseudonyms.text(one) for one in sorted(private)]
    assert len(set(made)) == len(private)
    assert not {*made} & (names | private | {"q"})
    assert [pseudonyms.text(one) for one in sorted(private)] == made


def test_as_many_texts_as_there_are_of_a_kind() -> None:
    private = [one for one in map(chr, range(33, 127)) if one not in "xq"]
    pseudonyms = Pseudonyms("q", names="x", texts=private)
    made = [pseudonyms.text(one) for one in private]
    assert len(set(made)) == len(private)
    assert "q" not in made
    assert {len(one) for one in made} == {1}


def test_names_that_are_texts_as_well() -> None:
    names = [a + b for a in string.ascii_letters for b in string.ascii_letters][:1500]
    pseudonyms = Pseudonyms(names=names, texts=names)
    made = {pseudonyms.text(one) for one in names}
    assert len(made) == len(names)
    assert not made.intersection(names)


class Letters(torch.nn.Module):
    def forward(self, x: Any, y: str = "k", **more: Any) -> Any:
        return x + 1


@pytest.mark.parametrize("_", range(10))
def test_no_text_of_a_redacted_tape_is_the_name_of_an_argument(tmp_path: Path, _: int) -> None:
    words, model = list("abcdefghxyz"), Letters()
    with record(model, tmp_path / "a.tape"):
        for word in words:
            model(torch.ones(2), y=word, z={"a": word, "i": 1})
    with open_tape(tmp_path / "a.tape") as tape:
        redact(tape, tmp_path / "b.tape")
    with open_tape(tmp_path / "b.tape") as tape:
        made = {*texts(tape)}
    assert len(made) == len(words)
    assert not made & {*words, "x", "y", "z", "i", "k"}
