"""The zoo is sound, what it promises holds, and what it does not export fails by hand as well."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.zoo import CASES, CORE, FAMILIES, Case
from tests.zoo.attempts import ATTEMPTS, Attempt
from tests.zoo.by_hand import outcome
from tests.zoo.check import problems
from tests.zoo.results import ROWS, Result, committed, read
from tests.zoo.run import main

pytest.importorskip("transformers")
pytestmark = pytest.mark.integration

_SECONDS = 2700  # for the recording and export of every case in a sample
_PROMISED = committed()


@pytest.mark.parametrize("name", CORE)
def test_case_is_sound(tmp_path: Path, name: str) -> None:
    assert list(problems(CASES[name], tmp_path / "t.tape")) == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the first target records what the second one takes as well."""
    return tmp_path_factory.mktemp("zoo")


# fmt: off
_FEW = (
    "llama_generate", "llama_static_generate", "t5_generate", "llava_generate", "vit_any_size",
    "detector_any_number", "lstm_state", "graph_pooled", "dict_key_order", "varargs", "int_slice",
    "broadcast_one_or_n", "mutates_its_input",
)
_MORE = (
    "llama_manual_padded", "llama_generate_batch_one", "mistral_across_window", "mamba",
    "bart_manual", "qwen2_vl_manual", "bert_masked", "hubert", "unet", "packed_sequence",
    "dataclass_argument", "bool_flag", "non_contiguous", "empty_history",
)
# fmt: on
_SAMPLES = {"torch": (*_FEW, *_MORE), "onnx": _FEW}
"""Of every family. All of the core takes half an hour: python -m tests.zoo.run all DIR --core"""


def test_every_case_has_a_name_of_its_own() -> None:
    assert sum(map(len, FAMILIES.values())) == len(CASES)


def test_the_samples_are_of_the_core_and_of_every_family() -> None:
    for target, names in _SAMPLES.items():
        assert set(names) <= set(CORE)
        assert set(names) <= set(_PROMISED[target])
    families = {name: family for family, cases in FAMILIES.items() for name in map(_name, cases)}
    assert {families[name] for name in _SAMPLES["torch"]} == {families[name] for name in CORE}


def _name(case: Case) -> str:
    return case.name


@pytest.mark.timeout(_SECONDS)
@pytest.mark.parametrize("target", _SAMPLES)
def test_a_sample_keeps_its_promises(folder: Path, target: str) -> None:
    names = _SAMPLES[target]
    only = ["--only", ",".join(names), "--jobs", "2", "--reuse"]
    assert main(["all", str(folder), "--to", target, *only]) == 0
    rows = read([folder], target)
    assert set(rows) == set(names), f"{ROWS.format(target)} lacks cases"
    broken = {name: said for name, row in rows.items() if (said := _broken(row, target))}
    assert broken == {}


def _broken(row: dict[str, Any], target: str) -> str:
    """What a case does not keep of its promise, with the exporter's first reasons."""
    promised, kept = _PROMISED[target][row["case"]], Result.of(row, target)
    lost = []
    if kept.wrong:
        lost.append(f"{kept.wrong} wrong values that nothing reported")
    if promised.has_recorded and not kept.has_recorded:
        lost.append("recorded calls")
    if promised.has_unseen and not kept.has_unseen:
        lost.append("unseen calls")
    reasons = [row.get("error") or "", *row.get("details", ())[:2]]
    return ", ".join(lost) and f"{', '.join(lost)}: {'; '.join(filter(None, reasons))}"


# The others take their time: python -m tests.zoo.by_hand
_BY_HAND = [a for a in ATTEMPTS if a.name.startswith(("encodec", "packs_inside", "nested"))]


@pytest.mark.parametrize("attempt", _BY_HAND, ids=lambda attempt: attempt.name)
def test_by_hand(attempt: Attempt) -> None:
    said = outcome(attempt)
    assert said is not None, "this works by hand: the exporter has to learn it"
    assert re.search(attempt.words, said), said
