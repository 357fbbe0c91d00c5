"""What ``torch.onnx.export`` alone gets right, ONNX models of ours get right as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from calltape_analyzer import export
from tests.analyzer.exported import call, made, taped
from tests.analyzer.exporting.models import Model, t

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.integration


class Squeezing(Model):
    """Drops dimensions of size 1, of which a batch of one is one."""

    def __init__(self, dims: Any) -> None:
        super().__init__()
        self.dims = dims

    def forward(self, x: Tensor) -> Tensor:
        return (x.squeeze() if self.dims is None else x.squeeze(self.dims)) * 2


@pytest.mark.parametrize("dims", [None, 0, (0, 1), (-2, -3)])
def test_a_batch_of_one_is_squeezed(tmp_path: Path, dims: Any) -> None:
    calls = [call(t(n, 1, k)) for n, k in ((2, 10), (3, 16), (1, 12), (5, 7))]
    unseen = [call(t(n, 1, k)) for n, k in ((4, 21), (1, 30))]
    assert len(made(tmp_path, Squeezing(dims), calls, unseen, to="onnx")) == 1


def test_a_batch_is_squeezed_to_a_number(tmp_path: Path) -> None:
    class Mean(Model):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean(1).squeeze()

    calls = [call(t(n, 4)) for n in (2, 3, 1)]
    made(tmp_path, Mean(), calls, [call(t(7, 4))], to="onnx")


class Scaled(Model):
    """Computes in float32 what is held as float8."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        return (x.to(torch.float32) * 0.5).to(self.dtype)


_FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("given", _FLOAT8)
@pytest.mark.parametrize("returned", [torch.float32, *_FLOAT8])
def test_float8_goes_in_and_comes_out(
    tmp_path: Path, given: torch.dtype, returned: torch.dtype
) -> None:
    torch.manual_seed(0)
    calls = [call(torch.randn(n, 4).to(given)) for n in (2, 3, 5)]
    model = Scaled(returned)
    programs = export(taped(tmp_path, model, calls), model, to="onnx")
    assert programs.verify().ok
    unseen = torch.randn(7, 4).to(given)
    got = programs(unseen)
    assert got.dtype is returned
    assert torch.equal(got.float(), model(unseen).float())


class Inverse(Model):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options
        self.register_buffer("window", torch.hann_window(16))

    def forward(self, spectrum: Tensor) -> Tensor:
        window: Any = self.window
        return torch.istft(spectrum, 16, 4, window=window, **self.options)


def spectrum(batch: int, length: int, *, onesided: bool = True) -> Tensor:
    torch.manual_seed(batch)
    return torch.stft(
        torch.randn(batch, length), 16, 4, window=torch.hann_window(16), return_complex=True,
        onesided=onesided,
    )  # fmt: skip


@pytest.mark.parametrize(
    "options", [{}, {"normalized": True}, {"length": 40}, {"onesided": False}], ids=str
)
def test_an_inverse_stft_is_exported_for_any_length(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    onesided = options.get("onesided", True)
    calls = [call(spectrum(b, n, onesided=onesided)) for b, n in ((2, 80), (3, 96), (4, 120))]
    unseen = [call(spectrum(5, 160, onesided=onesided))]
    assert len(made(tmp_path, Inverse(**options), calls, unseen, to="onnx")) == 1


def test_int32_places_are_put_and_taken(tmp_path: Path) -> None:
    class Placing(Model):
        def forward(self, x: Tensor, places: Tensor) -> Tensor:
            return x[places] + x.index_put((places,), x[places] * 2)[places]

    def rows(n: int, k: int) -> Any:
        return call(t(n, 6), torch.arange(k, dtype=torch.int32) % n)

    made(tmp_path, Placing(), [rows(3, 2), rows(4, 5), rows(6, 3)], [rows(5, 4)], to="onnx")
