"""Parts of a model, exported beside it, and a model that runs by its programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import Programs, export, load_programs, open_tape
from calltape_analyzer.errors import UsageError
from calltape_recorder import record
from tests.analyzer.exported import call, taped
from tests.analyzer.exporting.models import t


class Model(torch.nn.Module):
    """An encoder that callers also call on their own, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())
        self.head = torch.nn.Linear(4, 2)
        self.unused = torch.nn.Linear(1, 1)

    def forward(self, x: Any = None, encoded: Any = None) -> Any:
        return self.head(self.encoder(x) if encoded is None else encoded)

    def generate(self, x: Any) -> Any:
        return self(encoded=self.encoder(x))


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model().eval()


def test_parts_are_recorded_while_the_calls_are_run_again(tmp_path: Path, model: Model) -> None:
    tape = taped(tmp_path, model, [call(t(n, 3)) for n in (2, 5, 2, 4)])
    programs = export(tape, model, parts=["encoder"])
    assert list(programs.parts) == ["encoder"]
    report = programs.parts["encoder"].verify()
    assert report.ok
    assert len(report) == 3  # one call of each size
    x = t(7, 3)
    assert torch.equal(programs.parts["encoder"](x), model.encoder(x))


@pytest.mark.integration
def test_what_the_recorded_calls_do_not_reach_is_driven(tmp_path: Path, model: Model) -> None:
    tape = taped(tmp_path, model, [call(encoded=t(n, 4)) for n in (2, 5)])
    with pytest.raises(UsageError, match=r"the part 'encoder' was not called.*drive="):
        export(tape, model, parts=["encoder"])
    programs = export(
        tape, model, parts=["encoder"], drive=lambda: [model.generate(t(n, 3)) for n in (2, 3)]
    )
    assert programs.parts["encoder"].verify().ok
    assert programs.verify().ok


@pytest.mark.parametrize("parts", ["encoder", ["decoder"], [""], []])
def test_parts_that_the_model_lacks_are_rejected(tmp_path: Path, model: Model, parts: Any) -> None:
    tape = taped(tmp_path, model, [call(t(n, 3)) for n in (2, 5)])
    with pytest.raises(UsageError):
        export(tape, model, parts=parts, drive=lambda: None)


class Counting:
    """Programs that count their calls."""

    def __init__(self, programs: Programs) -> None:
        self.programs = programs
        self.calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.programs(*args, **kwargs)


@pytest.mark.integration
def test_a_model_runs_by_its_programs_and_is_as_before(tmp_path: Path, model: Model) -> None:
    tape = taped(tmp_path, model, [call(encoded=t(n, 4)) for n in (2, 5)])
    programs = export(
        tape, model, parts=["encoder"], drive=lambda: [model.generate(t(n, 3)) for n in (2, 3)]
    )
    programs.parts["encoder"] = Counting(programs.parts["encoder"])  # type: ignore[assignment]
    x = t(6, 3)
    expected = model.generate(x)
    before = dict(vars(model))
    with programs.installed(model), torch.no_grad():
        assert torch.equal(model.generate(x), expected)
    assert programs.parts["encoder"].calls == 1  # type: ignore[attr-defined]
    assert vars(model) == before
    assert "forward" not in vars(model.encoder)
    with pytest.raises(UsageError, match="no part 'encoder'"), programs.installed(model.head):
        pass


class Encoding(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 4)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).tanh()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.encode(x).sum(1)


def test_loaded_programs_take_the_place_of_the_method_that_is_named(tmp_path: Path) -> None:
    model, x = Encoding(), t(6, 3)
    with record(model, tmp_path / "t.tape", method="encode"), torch.no_grad():
        for n in (2, 3):
            model.encode(t(n, 3))
    with open_tape(tmp_path / "t.tape") as tape:
        programs = export(tape, model)
    programs.save(tmp_path / "saved")
    loaded = load_programs(tmp_path / "saved", trusted=True)
    with torch.no_grad():
        expected = model(x)
        for installed in (programs.installed(model), loaded.installed(model, method="encode")):
            with installed:
                assert isinstance(vars(model)["encode"], Programs)
                assert "forward" not in vars(model)
                torch.testing.assert_close(model(x), expected)
            assert not {"encode", "forward"} & vars(model).keys()
    with pytest.raises(UsageError, match="no method 'decode'"):
        loaded.installed(model, method="decode").__enter__()


@pytest.mark.integration
def test_an_encoder_decoder_generates_by_its_programs(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=64, d_model=32, d_ff=64, d_kv=8, num_layers=2, num_heads=4,
        decoder_start_token_id=0,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config).eval()

    def generate(batch: int, length: int) -> torch.Tensor:
        ids = torch.arange(batch * length).reshape(batch, length) % 50 + 3
        found: torch.Tensor = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, do_sample=False
        )
        return found

    def drive() -> None:
        for size in ((1, 5), (2, 7), (3, 9)):
            generate(*size)

    with record(model, tmp_path / "t5.tape"):
        drive()
    with open_tape(tmp_path / "t5.tape") as tape:
        programs = export(tape, model, parts=["encoder"], drive=drive)
        assert programs.verify().ok
        expected = generate(2, 11)
        with programs.installed(model):
            assert torch.equal(generate(2, 11), expected)
