"""Models that read values with Python: ``int()``, ``tolist()``, slices and ``if``."""

from __future__ import annotations

import builtins
import importlib
import math
import sys
from pathlib import Path

import numpy
import pytest
import sympy
import torch
from torch import zeros
from torch.utils._sympy.functions import CeilToInt, FloorDiv, FloorToInt, IntTrueDiv

from calltape_analyzer import export
from calltape_analyzer.errors import ExportError, NoVariant
from calltape_analyzer.exporting.torch_fixes.known_maxima import bounds
from calltape_analyzer.exporting.torch_fixes.python_values import symbolic_numbers, symbolic_sizes
from tests.analyzer.exported import Call, assert_as_module, call, made, taped
from tests.analyzer.exporting.models import Model, t


class Pooled(Model):
    """How many graphs there are, only the values tell."""

    def forward(self, x, batch):
        count = int(batch.max()) + 1
        return x.new_zeros(count, x.shape[1]).index_add(0, batch, x)


class Cut(Model):
    """Leaves out the padding that no row needs."""

    def forward(self, x, lengths):
        longest = int(lengths.max())
        return x[:, :longest] * 2


class Listed(Model):
    def forward(self, x, lengths):
        first, second = lengths.tolist()
        return x[: first + second].cumsum(0)


def batch(*counts: int) -> torch.Tensor:
    return torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))


@pytest.mark.parametrize("to", ["torch", pytest.param("onnx", marks=pytest.mark.integration)])
def test_a_size_that_values_tell_is_open(tmp_path: Path, to: str) -> None:
    groups = [(2, 3), (4, 1, 3), (1, 2, 2, 2)]
    calls = [call(t(sum(c), 3), batch(*c)) for c in groups]
    unseen = [call(t(9, 3), batch(2, 2, 2, 2, 1))]
    model = Pooled()
    programs = made(tmp_path, model, calls, to=to)
    assert len(programs) == 1
    assert_as_module(programs, model, unseen, rtol=1e-3)


@pytest.mark.parametrize("model", [Cut(), Listed()], ids=lambda m: type(m).__name__)
def test_lengths_that_are_read_are_open(tmp_path: Path, model: Model) -> None:
    pairs = [(3, 5), (6, 2), (4, 4)]
    if isinstance(model, Cut):
        calls = [call(t(2, 8 + p[0], 3), torch.tensor(p)) for p in pairs]
        unseen = [call(t(2, 9, 3), torch.tensor((7, 1)))]
    else:
        calls = [call(t(12 + p[0], 3), torch.tensor(p)) for p in pairs]
        unseen = [call(t(13, 3), torch.tensor((2, 5)))]
    assert len(made(tmp_path, model, calls, unseen)) == 1


class Branching(Model):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x - 1


def test_each_side_of_an_if_gets_a_program(tmp_path: Path) -> None:
    calls = [call(sign * torch.ones(n, 3)) for n, sign in ((2, 1), (3, 1), (4, -1), (5, -1))]
    unseen = [call(torch.ones(7, 3)), call(-torch.ones(6, 3))]
    assert len(made(tmp_path, Branching(), calls, unseen)) == 2


class Growing(Model):
    """Registers a buffer in its first call, as rotary tables do."""

    def forward(self, x):
        if not hasattr(self, "table"):
            self.register_buffer("table", torch.arange(64.0))
        return x * self.table[: x.shape[0], None]


def test_a_buffer_that_grew_in_the_first_call_is_exported_for_other_sizes(tmp_path: Path) -> None:
    made(tmp_path, Growing(), [call(t(n, 3)) for n in (3, 5, 4)], [call(t(9, 3))])


class Sized(Model):
    """Makes numbers of sizes."""

    def forward(self, x, how: str = "len"):
        high, wide = x.shape[1:]
        if how == "len":
            return x[0, : len(x[0]) // 2]
        if how == "sqrt":
            return torch.arange(int(math.sqrt(high * wide))) + x.sum()
        if how == "int":
            return x[:, : int(high / 2)]
        size = high if isinstance(high, int | str) else 1  # a symbol is no int to Python
        return x.flatten(1)[:, :size]


@pytest.mark.integration
@pytest.mark.parametrize("how", ["len", "int", "sqrt", "isinstance"])
def test_a_size_stays_open_where_the_model_reads_it(tmp_path: Path, how: str) -> None:
    calls = [call(t(2, n, 5 + n), how=how) for n in (6, 9, 12)]
    model = Sized()
    programs = made(tmp_path, model, calls)
    assert len(programs) == 1
    assert_as_module(programs, model, [call(t(2, 8, 11), how=how), call(t(2, 20, 3), how=how)])


class Padded(Model):
    """Pads to whole strides, as ``"same"`` does: as much as the size needs."""

    def forward(self, x):
        for width, stride in ((3, 2), (5, 2), (1, 2), (7, 3), (3, 2)):
            n = x.shape[-1]
            lack = max((math.ceil(n / stride) - 1) * stride + width - n, 0)
            x = torch.nn.functional.pad(x, (lack // 2, lack - lack // 2))
            x = x.unfold(-1, width, stride).sum(-1)
        return x


def test_padding_to_whole_strides_is_for_any_size(tmp_path: Path) -> None:
    calls = [call(t(2, 3, n)) for n in (96, 127, 200)]
    unseen = [call(t(2, 3, n)) for n in (97, 98, 99, 100, 101, 113, 250)]
    programs = made(tmp_path, Padded(), calls, unseen)
    assert len(programs) == 1
    assert len(programs.attempts) == 1


class PaddedInFloats(Model):
    """Pads to whole strides as torchvision's detectors do, and pools."""

    def forward(self, x):
        size = int(math.ceil(float(x.shape[1] // 4) / 32.0) * 32.0)
        return torch.nn.functional.max_pool1d(x.new_ones(2, size), 3, 2, 1)


def test_a_size_that_is_rounded_as_a_float_stays_open(tmp_path: Path) -> None:
    calls = [call(t(2, n)) for n in (40, 64, 90)]
    assert len(made(tmp_path, PaddedInFloats(), calls, [call(t(2, 300))])) == 1


def test_the_larger_of_two_sizes_is_told_where_it_is_so_for_every_size() -> None:
    n, m = (sympy.Symbol(name, integer=True, positive=True) for name in "nm")
    up, deep = FloorDiv(n + 1, 2), FloorDiv(FloorDiv(n + 1, 2) + 2, 3)
    rounded = CeilToInt(IntTrueDiv(n, 2))
    for expression, low, high in (
        (2 * up - n, 0, 1),
        (2 * up - n - 1, -1, 0),
        (n - 7 * FloorDiv(n, 7), 0, 6),
        (3 * deep - up, 0, 2),
        (6 * deep - n + 4, 4, 9),
        (2 * rounded - n, 0, 1),
        (4 * CeilToInt(IntTrueDiv(rounded, 2)) - n - 1, -1, 2),
        (3 * FloorToInt(IntTrueDiv(n, 3)) - n, -2, 0),
        (sympy.Integer(5), 5, 5),
    ):
        assert bounds(expression) == (low, high)
        for value in range(1, 60):
            assert low <= expression.subs(n, value) <= high
    for expression in (n, n - m, up, 3 * up - n, 2 * FloorDiv(n, m) - n):
        assert bounds(expression) == (None, None)


class InParts(Model):
    """Sums parts of four rows; a loop over parts has as many turns for 10 rows as for 11."""

    def forward(self, x):
        parts = range(0, x.shape[0], 4)
        assert isinstance(parts, range)
        return sum(x[start : min(start + 4, x.shape[0])].sum(0) * len(parts) for start in parts)


@pytest.mark.integration
def test_a_loop_in_steps_is_for_a_range_of_sizes(tmp_path: Path) -> None:
    calls = [call(t(n, 3)) for n in (10, 11, 14)]
    model = InParts()
    programs = made(tmp_path, model, calls)
    assert len(programs) == 2
    assert_as_module(programs, model, [call(t(15, 3)), call(t(10, 3))])


class Finding(Model):
    """Returns early if it finds nothing, as detectors do."""

    def forward(self, x):
        found = x[x > 0]
        if found.numel() == 0:
            return x.new_zeros(1)
        return found.cumsum(0)


@pytest.mark.integration
def test_an_empty_result_is_rejected_if_the_model_asks_whether_it_is(tmp_path: Path) -> None:
    model = Finding()
    programs = made(tmp_path, model, [call(t(n, 3)) for n in (5, 8, 9)])
    assert len(programs) == 1
    assert_as_module(programs, model, [call(t(7, 3)), call(t(12, 3))])
    with pytest.raises(
        NoVariant, match="nothing is found, and the model asks"
    ):  # and no wrong value
        programs(-torch.ones(4, 3))


class PooledIfAny(Model):
    """Pools what is left of the nodes, if anything is: graph networks ask how many there are."""

    def forward(self, x, batch):
        kept = batch[x[:, 0] > 0]
        count = int(kept.max()) + 1 if kept.numel() > 0 else 0
        return x.new_zeros(count).index_add(0, kept, x[:, 0][x[:, 0] > 0])


@pytest.mark.integration
def test_a_count_of_what_may_be_empty(tmp_path: Path) -> None:
    model = PooledIfAny()
    calls = [call(t(sum(c), 3), batch(*c)) for c in ((3, 4), (4, 2, 5), (6, 3))]
    programs = made(tmp_path, model, calls)
    assert len(programs) == 1
    assert_as_module(programs, model, [call(t(13, 3), batch(5, 8))])


class CheckedEdges(Model):
    """Takes the second row of a pair of rows, and refuses indices that are not sorted."""

    def forward(self, x, edges):
        source, target = edges[0], edges[1]
        if not torch.all(target[:-1] <= target[1:]):
            raise ValueError("not sorted")
        return x.index_add(0, target, x[source])


@pytest.mark.integration
def test_a_check_of_values_leaves_sizes_open(tmp_path: Path) -> None:
    model = CheckedEdges()
    calls = [
        call(t(nodes, 3), torch.stack([torch.zeros_like(batch(*of)), batch(*of)]))
        for nodes, of in ((4, (3, 4)), (5, (4, 2, 5)), (6, (6, 2)))
    ]
    programs = made(tmp_path, model, calls)
    assert len(programs) == 1
    wrong = torch.tensor([[0, 0, 0], [1, 0, 1]])
    with pytest.raises(NoVariant, match="is for calls in which"):
        programs(t(4, 3), wrong)


class Typed(Model):
    """Means ``int`` as a dtype."""

    def forward(self, x, keep=1):
        first = torch.zeros(1, dtype=int) + x.to(int).sum()
        return x[:keep] + first


@pytest.mark.integration
def test_int_is_a_dtype_as_well(tmp_path: Path) -> None:
    calls = [call(t(n, 3), keep=k) for n, k in ((5, 2), (7, 3), (9, 5))]
    made(tmp_path, Typed(), calls, [call(t(8, 3), keep=6)])


class Counted(Model):
    """Reads how many groups there are, and means ``int`` as a dtype besides."""

    def forward(self, x, batch):
        count = int(batch.max()) + 1
        sizes = zeros(count, dtype=int).index_add(0, batch, torch.ones_like(batch, dtype=int))
        steps = torch.tensor([2, 3], dtype=int).sum(dtype=int) + torch.zeros((), dtype=int)
        return sizes.to(int) * steps, x.sum(0).to(dtype=int), batch.new_ones(count, dtype=int)


@pytest.mark.parametrize("to", ["torch", pytest.param("onnx", marks=pytest.mark.integration)])
def test_int_is_a_dtype_where_ints_of_tensors_are_open(tmp_path: Path, to: str) -> None:
    groups = [(2, 3), (4, 1, 3), (1, 2, 2, 2)]
    calls = [call(t(sum(c), 3), batch(*c)) for c in groups]
    programs = made(tmp_path, Counted(), calls, [call(t(9, 3), batch(2, 2, 2, 2, 1))], to=to)
    assert len(programs) == 1
    assert any("ints of" in attempt.what for attempt in programs.attempts)


def test_what_stands_for_int_is_a_dtype_and_equal_to_int() -> None:
    names = vars(sys.modules[__name__])
    before = {name: vars(torch.Tensor).get(name) for name in ("to", "sum", "new_zeros")}
    with symbolic_numbers(Counted(), ints=True):
        stands, seen = names["int"], names["torch"]
        assert stands is not builtins.int
        assert names["zeros"](2, dtype=stands).dtype is torch.int64
        assert seen.full((2,), 1.5, dtype=stands).tolist() == [1, 1]
        assert seen.ones(2).to(stands).dtype is torch.int64
        assert seen.ones(2).cumsum(0, dtype=stands).dtype is torch.int64
        assert seen.ones(2).sum(0, dtype=stands).dtype is torch.int64
        assert seen.ones(2).to(torch.float64).dtype is seen.float64
        assert numpy.zeros(2, dtype=stands).dtype == numpy.dtype(builtins.int)
        assert {builtins.int: "an int"}[stands] == "an int"
        assert builtins.int == stands
    assert names["torch"] is torch
    assert names["zeros"] is torch.zeros
    assert {name: vars(torch.Tensor).get(name) for name in before} == before


def test_a_file_beside_that_of_the_model_is_the_models_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As scripts have it: ``models.py`` imports ``pools.py``."""
    (tmp_path / "beside_pools.py").write_text("def groups(batch):\n    return int(batch.max()) + 1")
    (tmp_path / "beside_models.py").write_text(
        "import torch\nfrom beside_pools import groups\n\n\nclass Pool(torch.nn.Module):\n"
        "    def forward(self, x, batch):\n"
        "        return x.new_zeros(groups(batch), 3).index_add_(0, batch, x)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    model = importlib.import_module("beside_models").Pool()

    def pooled(*batch: int) -> Call:
        return call(torch.rand(len(batch), 3), torch.tensor(batch))

    own = [pooled(0, 0, 1), pooled(0, 1, 1, 2), pooled(0, 1, 2, 3, 4)]
    assert len(made(tmp_path, model, own, [pooled(0, 0), pooled(0, 5, 9, 9)])) == 1


def test_the_names_of_a_model_are_as_before() -> None:
    names = vars(sys.modules[__name__])
    before, sqrt = dict(names), math.sqrt
    model = Pooled()
    with symbolic_sizes(model), symbolic_numbers(model, ints=True):
        assert math.sqrt(16.0) == 4.0
        assert names["len"](torch.zeros(3, 2)) == names["len"]("abc") == 3
        assert torch.as_tensor([2, 3], dtype=torch.int32).dtype is torch.int32
        assert isinstance(7, int | str)
        assert not isinstance("7", int)
        stands = names["int"]
        assert stands("7") == 7
        assert stands("ff", 16) == 255
        assert isinstance(7, stands)
        assert not isinstance("7", stands)
        assert issubclass(bool, stands)
        assert int(torch.tensor(3.7)) == 3
        assert torch.tensor([[1, 2], [3, 4]]).tolist() == [[1, 2], [3, 4]]
        assert torch.arange(9)[torch.tensor(2) : torch.tensor(5)].tolist() == [2, 3, 4]
    assert names == before
    assert math.sqrt is sqrt


@pytest.mark.integration
def test_a_failed_trace_prints_no_graph(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    class Never(Model):
        def forward(self, x):
            return x[: int((x.sum() * 0).item()) + len(str(x.sum().item()))]

    module = Never()
    with pytest.raises(ExportError):
        export(taped(tmp_path, module, [call(t(n, 3)) for n in (30, 40)]), module, to="onnx")
    printed = "".join(capfd.readouterr())
    assert "def forward(" not in printed
    assert "torch.ops" not in printed


class Looked(Model):
    """Looks numbers of a tensor up in a dict, and adds the lengths of what was cut."""

    def forward(self, x, kinds, lengths):
        steps = {0: x.sum(), 1: x.amax()}
        added = sum(steps[kind] for kind in kinds.tolist())
        parts = torch.split(x, lengths.tolist())
        ends = torch.tensor([part.shape[0] + kinds.max() for part in parts])
        return ends.cumsum(0, dtype=torch.int32) // 2 + added, [part.sum() for part in parts]


def test_numbers_of_tensors_are_keys_and_lengths(tmp_path: Path) -> None:
    kinds, lengths = torch.tensor([1, 0, 1]), torch.tensor([2, 3], dtype=torch.int32)
    model = Looked()
    programs = made(tmp_path, model, [call(t(5), kinds, lengths)])
    assert_as_module(programs, model, [call(t(5) + 1, kinds, lengths)])
    with pytest.raises(NoVariant):  # and no wrong value
        programs(t(5), torch.tensor([1, 1, 1]), lengths)


def test_float_is_a_dtype_as_well() -> None:
    names = vars(sys.modules[__name__])
    with symbolic_numbers(Counted(), ints=True, floats=True):
        stands, seen = names["float"], names["torch"]
        assert seen.ones(2).to(stands).dtype is torch.float64
        assert seen.zeros(2, dtype=stands).dtype is torch.float64
        assert numpy.zeros(2, dtype=stands).dtype == numpy.dtype(builtins.float)
        assert stands("1.5") == 1.5
        assert isinstance(2.5, stands)
        assert not isinstance(2, stands)
        assert builtins.float == stands
    assert "float" not in names
