"""Models that pad to whole windows: one program for sizes of any remainder."""

from __future__ import annotations

from pathlib import Path

import pytest
import sympy
import torch
from torch.fx.experimental import proxy_tensor, sym_node
from torch.nn import functional
from torch.utils._sympy.functions import FloorDiv, Mod, PythonMod

from calltape_analyzer.exporting.torch_fixes.memory_formats import no_memory_formats
from calltape_analyzer.exporting.torch_fixes.open_operators import OpenOperators
from calltape_analyzer.exporting.torch_fixes.padded_strides import (
    padded_strides,
    without_remainders,
)
from tests.analyzer.exported import assert_as_module, call, made
from tests.analyzer.exporting.models import Model, t

_N = sympy.Symbol("n", integer=True, positive=True)


class Windows(Model):
    """Pads a picture to whole windows, computes in each, and cuts it to its size again; twice."""

    def within(self, x, window):
        batch, high, wide = x.shape
        down, right = (window - high % window) % window, (-wide) % window
        x = functional.pad(x, (0, right, 0, down))
        rows, columns = x.shape[1] // window, x.shape[2] // window
        x = x.view(batch, rows, window, columns, window).permute(0, 1, 3, 2, 4).contiguous()
        x = x.view(-1, window, window).softmax(-1)
        x = x.view(batch, rows, columns, window, window).permute(0, 1, 3, 2, 4).contiguous()
        x = x.view(batch, rows * window, columns * window)
        return x[:, :high, :wide].contiguous()

    def forward(self, x):
        x = self.within(x, 4)
        x = functional.pad(x, (0, x.shape[2] % 2, 0, x.shape[1] % 2))
        return self.within(x[:, ::2, ::2] + x[:, 1::2, 1::2], 3).flatten(1)


@pytest.mark.parametrize("sizes", [((16, 24), (24, 48)), ((17, 22), (16, 24), (30, 19))])
def test_one_program_pads_any_size(tmp_path: Path, sizes: tuple[tuple[int, int], ...]) -> None:
    calls = [call(t(2 + i, *size)) for i, size in enumerate(sizes)]
    programs = made(tmp_path, Windows(), calls)
    assert len(programs) == 1
    unseen = [call(t(2, *size)) for size in ((18, 21), (24, 24), (31, 40), (48, 12))]
    assert_as_module(programs, Windows(), unseen)


class Lengthening(Model):
    """Pads a series to whole windows of each layer, and leaves it so."""

    def forward(self, x):
        for window in (4, 3):
            x = functional.pad(x, (0, -x.shape[1] % window))
            x = x.view(-1, x.shape[1] // window, window).softmax(-1).flatten(1)
        return x


def test_a_padded_size_is_not_doubled_by_each_layer() -> None:
    with padded_strides():
        program = torch.export.export(
            Lengthening(), (t(2, 50),), dynamic_shapes=({1: torch.export.Dim.AUTO},), strict=False
        )
    (result,) = program.graph.output_node().args[0]
    assert not result.meta["val"].shape[1].node.expr.has(Mod, PythonMod)


@pytest.mark.parametrize(
    "total",
    [
        _N + Mod(4 - Mod(_N, 4), 4),
        _N + PythonMod(-_N, 7),
        _N + Mod(_N, 2),
        FloorDiv(_N, 2) + 2 * _N + 3 + PythonMod(-FloorDiv(_N, 2), 5),
        3 + _N + PythonMod(-_N - 3, 8),
    ],
)
def test_a_sum_without_remainders_has_the_same_values(total: sympy.Expr) -> None:
    found = without_remainders(total)
    assert found is not None
    assert not found.has(Mod, PythonMod)
    for n in range(1, 200):
        assert found.subs(_N, n) == total.subs(_N, n)


@pytest.mark.parametrize("total", [_N + 2, _N + Mod(_N, 3), Mod(_N, 4) + Mod(_N, 5), Mod(_N, 4)])
def test_other_sums_stay_as_they_are(total: sympy.Expr) -> None:
    assert without_remainders(total) is None


def test_torch_is_as_before_afterwards() -> None:
    added, noted = sym_node._optimized_add, proxy_tensor._extract_tensor_metadata
    with padded_strides(), no_memory_formats():
        pass
    assert sym_node._optimized_add is added
    assert proxy_tensor._extract_tensor_metadata is noted


def test_without_symbols_contiguous_is_as_it_was() -> None:
    x = torch.arange(24.0).view(2, 3, 4)
    with OpenOperators():
        assert x.contiguous() is x
        assert x.transpose(0, 1).contiguous().is_contiguous()
        picture = x[None].contiguous(memory_format=torch.channels_last)
    assert picture.is_contiguous(memory_format=torch.channels_last)
