"""``check`` says of a redacted tape what it says of the tape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import Programs, check, export, open_tape, redact
from calltape_recorder import record
from tests.analyzer.redacting.answers import answers, differing, programs_of
from tests.analyzer.redacting.leaks import leaked
from tests.unpacked import readable


class Model(torch.nn.Module):
    def forward(self, x: Any, scale: float = 1.0, mode: str = "mean", note: str = "") -> Any:
        y = x * scale
        return y.mean(0) if mode == "mean" else y.sum(0)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Programs]:
    folder = tmp_path_factory.mktemp("programs")
    model = Model()
    with record(model, folder / "few.tape"):
        for rows in (2, 3, 5):
            model(torch.randn(rows, 4), note=f"secret {rows}")
    with open_tape(folder / "few.tape") as tape:
        return folder, export(tape, model)


def rows(path: Path, programs: Any) -> list[Any]:
    with open_tape(path) as tape:
        # The text of an error may quote a call.
        return [
            row.model_dump() | {"error": row.error and getattr(row.error, "dimension", "")}
            for row in check(tape, programs).rows
        ]


def test_check_of_an_onnx_program_says_the_same(tmp_path: Path) -> None:
    model = Model()
    with record(model, tmp_path / "few.tape"):
        for size in (2, 3, 5):
            model(torch.randn(size, 4), note=f"secret {size}")
    with open_tape(tmp_path / "few.tape") as tape:
        (program,) = programs_of(tape)
    with record(model, tmp_path / "a.tape"):
        model(torch.randn(7, 4), note="secret of bob")
        model(torch.randn(7, 5))  # a size that is constant
        model(torch.randn(7, 4).double())
    with open_tape(tmp_path / "a.tape") as tape:
        redact(tape, tmp_path / "b.tape")
    found = rows(tmp_path / "a.tape", program)
    assert [row["ok"] for row in found] == [True, False, False]
    assert found[1]["error"] == "x[1]"
    assert rows(tmp_path / "b.tape", program) == found


@pytest.mark.integration
def test_a_redacted_llama_is_exported_like_the_original(tmp_path: Path) -> None:
    from benchmarks.models import DecodeStep

    model: Any = DecodeStep().module
    with torch.no_grad(), record(model, tmp_path / "a.tape"):
        for length in (3, 5, 8):
            ids = torch.randint(3, 250, (1, length))
            model.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0)
    source, result = tmp_path / "a.tape", tmp_path / "b.tape"
    with open_tape(source) as tape:
        redact(tape, result)
    assert leaked(source, result) == []
    with open_tape(source) as old, open_tape(result) as new:
        programs = programs_of(old)
        before, after = (answers(t, programs) for t in (old, new))
        assert len(programs) == 2
        assert '"ok": true' in before["check"]
        assert '"ok": false' in before["check"]
    assert differing(before, after) == []


def test_check_says_the_same(programs: tuple[Path, Programs], tmp_path: Path) -> None:
    model = Model()
    with record(model, tmp_path / "a.tape"):
        model(torch.randn(7, 4), note="secret of bob")
        model(torch.randn(7, 5))  # a size that is constant
        model(torch.randn(7, 4).double())
        model(torch.randn(9, 4), 2.0)
        model(torch.randn(9, 4), mode="sum")
        model(torch.randn(1, 4), mode="mean")
    with open_tape(tmp_path / "a.tape") as tape:
        redact(tape, tmp_path / "b.tape")
    assert b"secret" not in readable((tmp_path / "b.tape").read_bytes())
    found = rows(tmp_path / "a.tape", programs[1])
    assert {row["ok"] for row in found} == {True, False}
    assert rows(tmp_path / "b.tape", programs[1]) == found
