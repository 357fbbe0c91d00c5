"""What `diagnose` finds on sick tapes, and that it is silent about healthy ones."""

from __future__ import annotations

import shutil
import urllib.parse
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from calltape_analyzer import (
    Diagnosis,
    TapeError,
    UsageError,
    diagnose,
    filter_tape,
    open_tape,
    recover_tape,
)
from calltape_recorder import record
from tests.analyzer.editing.recordings import Model, recorded
from tests.analyzer.tapes import Recorded, write_tape
from tests.fixture_files import WITH_CALLS, expected_of


class Pair(NamedTuple):
    a: Any
    b: Any


class OddCache:
    def __init__(self) -> None:
        self.keys = torch.zeros(2, 3)


def diagnosis(*paths: Path) -> Diagnosis:
    with open_tape(paths) as tape:
        return diagnose(tape)


def kinds(*paths: Path) -> dict[str, str]:
    symptoms = diagnosis(*paths).symptoms
    assert all(symptom.text and symptom.advice for symptom in symptoms)
    return {symptom.kind: symptom.level for symptom in symptoms}


def calls(*shapes: tuple[int, ...]) -> list[Recorded]:
    return [Recorded(args=(torch.zeros(shape),), outputs=torch.zeros(1)) for shape in shapes]


def test_nothing_is_wrong_with_a_healthy_tape(tmp_path: Path) -> None:
    path = write_tape(tmp_path / "a.tape", calls((2, 3), (4, 3), (5, 3)), target=Model())
    diagnosed = diagnosis(path)
    assert diagnosed.ok
    assert str(diagnosed) == "3 calls: nothing wrong was found"


def test_sizes_that_never_varied_are_a_warning(tmp_path: Path) -> None:
    path = write_tape(tmp_path / "a.tape", calls((2, 3), (2, 3)))
    assert kinds(path) == {"one_size": "warning"}
    assert not diagnosis(path).ok
    path = write_tape(tmp_path / "b.tape", calls((2, 3)))
    assert kinds(path)["one_call"] == "warning"


def test_a_batch_that_was_always_one_is_a_warning(tmp_path: Path) -> None:
    path = write_tape(tmp_path / "a.tape", calls((1, 3), (1, 4), (1, 9)))
    assert kinds(path)["batch_one"] == "warning"
    assert "args.0[0]" in str(diagnosis(path))
    path = write_tape(tmp_path / "b.tape", calls((1, 3), (1, 4), (2, 9)))
    assert "batch_one" not in kinds(path)
    two = [Recorded(args=(torch.zeros(1, n), torch.zeros(7, n)), outputs=None) for n in (2, 3)]
    assert "batch_one" not in kinds(write_tape(tmp_path / "c.tape", two))


def test_damage_and_torn_ends(tmp_path: Path) -> None:
    source = recorded(tmp_path / "a.tape", [3, 4, 5, 6])
    data = bytearray(source.read_bytes())
    torn = tmp_path / "torn.tape"
    torn.write_bytes(data[: data.index(b"blobs/00000003") + 700])
    found = kinds(torn)
    assert found["unsealed"] == "warning"
    assert "damage" not in found
    assert "of unfinished calls" in str(diagnosis(torn))
    data[data.index(b"blobs/00000001.safetensors") + 800] ^= 1
    broken = tmp_path / "broken.tape"
    broken.write_bytes(data)
    found_ = diagnosis(broken)
    assert found_.symptoms[0].kind == "damage"
    assert "calltape recover" in str(found_)
    assert found_.calls == 3


def test_copies_of_a_tape_are_duplicates(tmp_path: Path) -> None:
    source = recorded(tmp_path / "a.tape", [3, 4, 5, 6])
    with open_tape(source) as tape:
        filter_tape(tape, tmp_path / "b.tape", drop="x", first=2)
    found = kinds(source, tmp_path / "b.tape")
    assert found["duplicates"] == "error"
    assert found["damage"] == "error"
    with open_tape(source) as tape:
        filter_tape(tape.only(calls="0..2"), tmp_path / "d.tape")
        filter_tape(tape.only(calls="1..3"), tmp_path / "e.tape")
    found = kinds(tmp_path / "d.tape", tmp_path / "e.tape")
    assert found["duplicates"] == "error"
    assert "damage" not in found, "equal calls are no damage"
    shutil.copy(source, tmp_path / "c.tape")
    found = kinds(source, tmp_path / "c.tape")
    assert found["duplicates"] == "error"
    assert "damage" not in found


def test_missing_outputs_and_values_are_reported(tmp_path: Path) -> None:
    given = [
        Recorded(args=(torch.zeros(2),), outputs_missing="too large"),
        Recorded(args=(torch.zeros(3),)),
    ]
    path = write_tape(tmp_path / "a.tape", given, dropped={"queue_full": 7, "policy": 3})
    diagnosed = diagnosis(path)
    assert {s.kind: s.level for s in diagnosed.symptoms} == {
        "lost": "warning", "outputs_missing": "note"
    }  # fmt: skip
    assert "7 calls of the traffic" in str(diagnosed)
    assert "too large" in str(diagnosed)
    none = write_tape(tmp_path / "b.tape", calls((2,), (3,)), values="none")
    assert kinds(none)["values_missing"] == "note"
    assert kinds(write_tape(tmp_path / "c.tape", [])) == {"empty": "warning"}


def test_what_a_tape_lacks_since_it_was_made_of_another(tmp_path: Path) -> None:
    dropped = {"damaged": 2, "unknown (the tape was not sealed)": 1}
    path = write_tape(tmp_path / "a.tape", calls((2,), (3,)), dropped=dropped)
    damaged, unknown = (symptom for symptom in diagnosis(path).symptoms if symptom.kind == "lost")
    assert "2 calls of the traffic" in damaged.text
    assert "copy the original tape again" in damaged.advice
    assert "1 call missing for an unknown reason" in unknown.text
    assert "queue" not in damaged.advice + unknown.advice


def test_a_remainder_says_that_it_is_one(tmp_path: Path) -> None:
    path = recorded(tmp_path / "a.tape", [3, 4, 5, 6])
    data = path.read_bytes()
    (tmp_path / "cut.tape").write_bytes(data[: data.index(b"blobs/00000003") + 700])
    with open_tape(tmp_path / "cut.tape") as tape:
        assert recover_tape(tape, tmp_path / "b.tape").calls == 3
    diagnosed = diagnosis(tmp_path / "b.tape")
    (symptom,) = (one for one in diagnosed.symptoms if one.kind == "open_end")
    assert symptom.level == "warning"
    assert "an unknown number of calls may have followed" in symptom.text
    assert "open_end" not in {one.kind for one in diagnosis(path).symptoms}


def test_calls_that_raised(tmp_path: Path) -> None:
    given = [Recorded(args=(torch.zeros(n),), error=("builtins:ValueError", "no")) for n in (2, 3)]
    diagnosed = diagnosis(write_tape(tmp_path / "a.tape", given))
    assert "all_raised" in {symptom.kind for symptom in diagnosed.symptoms}


def test_unknown_classes_are_named_until_they_are_given(tmp_path: Path) -> None:
    given = [Recorded(args=(OddCache(), Pair(torch.zeros(n, 2), 1)), outputs=None) for n in (2, 3)]
    path = write_tape(tmp_path / "a.tape", given)
    diagnosed = diagnosis(path)
    assert "OddCache" in str(diagnosed)
    assert ":Pair" in str(diagnosed), "that it is loaded is no permission"
    with open_tape(path, classes=[OddCache, Pair]) as tape:
        assert "OddCache" not in str(diagnose(tape))
        assert ":Pair" not in str(diagnose(tape))


def test_no_advice_names_a_class_that_is_never_made(tmp_path: Path) -> None:
    url = urllib.parse.urlsplit("https://example.org/a")
    path = write_tape(tmp_path / "a.tape", [((torch.zeros(n), url), {}) for n in (2, 3)])
    found = {symptom.kind: symptom for symptom in diagnosis(path).symptoms}
    assert "unknown_classes" not in found
    never = found["classes_not_made"]
    assert "urllib.parse:SplitResult" in never.text
    assert "open_tape" not in never.advice
    with open_tape(path) as tape, pytest.raises(TapeError) as refused:
        tape.infer_arguments()
    assert "--classes" not in str(refused.value)
    assert "classes=" not in str(refused.value)


class Secretive:
    pass


class Taker(torch.nn.Module):
    def forward(self, x: Any, odd: Any = None, text: str = "", sparse: Any = None) -> Any:
        return x


def test_values_that_could_not_be_stored_are_warnings(tmp_path: Path) -> None:
    path = tmp_path / "a.tape"
    model = Taker()
    with record(model, path):
        model(torch.zeros(2, 3), Secretive())
        model(torch.zeros(3, 3), text="a" * 2**24, sparse=torch.eye(3).to_sparse())
        model(torch.zeros(4, 3), (i for i in range(3)))
    found = {symptom.kind: symptom for symptom in diagnosis(path).symptoms}
    classes = found["classes_not_stored"]
    assert f"odd ({__name__}:Secretive), odd (builtins:generator)" in classes.text
    assert "register the class" in classes.advice
    texts = found["values_not_stored"]
    assert "too long for a tape: text (builtins:str)" in texts.text
    assert "pass something shorter" in texts.advice
    tensors = found["tensors_not_stored"]
    assert "layout sparse_coo: sparse" in tensors.text
    assert "to_dense()" in tensors.advice
    assert all(found[kind].level == "warning" for kind in (classes.kind, texts.kind, tensors.kind))


def test_withheld_values_could_have_been_stored(tmp_path: Path) -> None:
    path = tmp_path / "a.tape"
    model = Taker()
    with record(model, path, values="none"):
        for rows in (2, 3):
            model(torch.zeros(rows, 3), text="a text")
    assert set(kinds(path)) == {"values_missing"}


def test_missing_files_are_a_warning(tmp_path: Path) -> None:
    files = sorted(recorded_in_segments(tmp_path))
    found = kinds(files[0], files[2])
    assert found["missing_files"] == "warning"


def recorded_in_segments(folder: Path) -> list[Path]:
    model = Model()
    with record(model, f"{folder}/r/", segment_bytes=8192) as recorder:
        for size in range(1, 40):
            model(torch.randn(size % 9 + 1, 4))
            recorder.flush()
    return list((folder / "r").glob("*.tape"))


@pytest.mark.parametrize("path", WITH_CALLS, ids=lambda path: path.stem)
def test_every_golden_tape_has_a_diagnosis(path: Path) -> None:
    found = kinds(path)
    expected = expected_of(path)
    assert ("damage" in found) == bool(expected["damage"])
    assert ("unsealed" in found) != expected["sealed"]


def test_only_tapes_have_a_diagnosis() -> None:
    with pytest.raises(UsageError):
        diagnose("a.tape")  # type: ignore[arg-type]
