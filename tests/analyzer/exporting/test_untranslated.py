"""What no ONNX model does is rejected by its name, with a way out, and never converted wrongly."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from calltape_analyzer import ExportError, UsageError, export
from calltape_analyzer.exporting.onnx.conversion import checks_kept
from calltape_analyzer.exporting.onnx.untranslated import reject_untranslated
from calltape_analyzer.exporting.torch_fixes.kept_assertions import kept_assertions
from calltape_analyzer.exporting.torch_fixes.python_values import real_values
from tests.analyzer.exported import call, made, taped

pytest.importorskip("onnxruntime")


class Calls(nn.Module):
    """Calls a function, or a module in the mode that it is in."""

    def __init__(self, called: Callable[[Tensor], Any], training: bool = False) -> None:
        super().__init__()
        self.called = called
        self.train(training)

    def forward(self, x: Tensor) -> Any:
        return self.called(x)


def decides_by_a_float(x: Tensor) -> Tensor:
    if x.mean().item() > 0.2:
        return x * 2
    return x - 1


REJECTED = {
    "median": (Calls(lambda x: x.median()), r"torch\.median has no ONNX .* \(sort"),
    "median of rows": (Calls(lambda x: x.median(-1).values), r"torch\.median has no ONNX"),
    "kthvalue": (Calls(lambda x: x.kthvalue(2, -1)[0]), r"torch\.kthvalue has no ONNX"),
    "attention": (
        Calls(lambda x: nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.001)),
        r"attention with dropout has no ONNX .* after eval\(\)",
    ),
    "batch_norm": (
        Calls(nn.BatchNorm1d(4), training=True), r"batch_norm in training mode .* after eval\(\)",
    ),
    "instance_norm": (
        Calls(nn.InstanceNorm1d(4, track_running_stats=True), training=True),
        r"instance_norm in training mode .* after eval\(\)",
    ),
    "adaptive_max_pool1d": (
        Calls(nn.AdaptiveMaxPool1d(3)), r"adaptive_max_pool1d to more .* \(use max_pool1d with",
    ),
    "adaptive_max_pool2d": (
        Calls(nn.AdaptiveMaxPool2d((1, 2))), r"adaptive_max_pool2d to more .* \(use max_pool2d",
    ),
    "adaptive_max_pool3d": (
        Calls(nn.AdaptiveMaxPool3d(2, return_indices=True)), "adaptive_max_pool3d to more than",
    ),
    "a float": (
        Calls(decides_by_a_float),
        r"decides by a float at test_untranslated\.py:\d+, in decides_by_a_float: if x\.mean\(\)",
    ),
}  # fmt: skip
_SHAPES = {
    "attention": (2, 4), "instance_norm": (4, 6), "adaptive_max_pool1d": (4, 6),
    "adaptive_max_pool2d": (4, 6, 5), "adaptive_max_pool3d": (2, 4, 6, 5),
}  # fmt: skip


@pytest.mark.integration
@pytest.mark.parametrize("name", REJECTED)
def test_an_export_says_what_has_no_translation(tmp_path: Path, name: str) -> None:
    model, said = REJECTED[name]
    shape = _SHAPES.get(name, (4,))
    tape = taped(tmp_path, model, [call(torch.rand(n, *shape) / 10) for n in (2, 3, 5)])
    with pytest.raises(ExportError, match=said) as caught:
        export(tape, model, to="onnx")
    assert "export to torch" in str(caught.value)


def traced(model: nn.Module, *shape: int) -> Any:
    with kept_assertions(), real_values(True):
        return torch.export.export(model, (torch.rand(3, *shape) / 10,), strict=False)


@pytest.mark.parametrize("name", REJECTED)
def test_a_program_is_rejected_before_it_is_converted(name: str) -> None:
    model, said = REJECTED[name]
    with pytest.raises(NotImplementedError, match=said):
        reject_untranslated(traced(model, *_SHAPES.get(name, (4,))))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_float_that_is_read_as_an_int_is_exact(dtype: torch.dtype) -> None:
    def rows(x: Tensor) -> Tensor:
        count = int(x.amax().item())
        return x.new_zeros(count) if count > 0 else x

    model = Calls(rows)
    with kept_assertions(), real_values(True):
        program = torch.export.export(model, (torch.full((3,), 2.5, dtype=dtype),), strict=False)
    if dtype is torch.float32:
        reject_untranslated(program)
    else:
        with pytest.raises(NotImplementedError, match="decides by a float"):
            reject_untranslated(program)


def test_a_translation_of_the_caller_counts() -> None:
    reject_untranslated(traced(REJECTED["kthvalue"][0], 4), {torch.ops.aten.kthvalue.default})


def in_a_branch(x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x.median(), lambda x: x.sum(), (x,))


def test_a_branch_of_a_program_is_looked_at() -> None:
    with pytest.raises(NotImplementedError, match=r"torch\.median"):
        reject_untranslated(traced(Calls(in_a_branch), 4))


def test_an_assertion_about_a_float_is_never_converted() -> None:
    program = traced(Calls(decides_by_a_float), 4)
    with checks_kept(), pytest.raises(Exception, match="decides by a float"):
        torch.onnx.export(program, (), None, dynamo=True, verbose=False)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (Calls(nn.BatchNorm1d(4)), (4,)),
        (Calls(nn.BatchNorm1d(4, track_running_stats=False), training=True), (4,)),
        (Calls(nn.InstanceNorm1d(4), training=True), (4, 6)),
        (Calls(nn.AdaptiveMaxPool1d(1)), (4, 6)),
    ],
    ids=["eval", "without statistics", "instances", "all of it"],
)
def test_what_is_common_is_converted(tmp_path: Path, model: Any, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    calls = [call(torch.randn(n, *shape)) for n in (2, 3, 5)]
    made(tmp_path, model, calls, [call(torch.randn(7, *shape))], to="onnx")


def test_a_package_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [
        module for module in sys.modules if module.startswith("calltape_analyzer.exporting.onnx.")
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    tape = taped(tmp_path, nn.ReLU(), [call(torch.ones(2))])
    with pytest.raises(UsageError, match="needs onnxscript, which is not installed"):
        export(tape, nn.ReLU(), to="onnx")
