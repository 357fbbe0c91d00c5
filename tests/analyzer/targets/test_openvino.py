from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from calltape_analyzer import Variant
from calltape_analyzer.targets.engines import as_text, openvino_shapes, partial_shapes
from tests.analyzer.targets.conftest import VariantsOf


def test_partial_shapes_are_bounded_by_recorded_sizes(decoder: Variant) -> None:
    shapes = partial_shapes(decoder)
    assert shapes == {
        "ids": [(1, 3), (1, 5)],
        "past": [(1, 3), (2, 10), 4],
        "mask": [(1, 3), (7, 12)],
    }
    assert as_text(shapes["past"]) == "[1..3,2..10,4]"
    assert json.loads(json.dumps(shapes))["past"] == [[1, 3], [2, 10], 4]
    unbounded = partial_shapes(decoder, bounded=False)
    assert as_text(unbounded["past"]) == "[?,?,4]"


def test_one_size_bounds_nothing(variants_of: VariantsOf) -> None:
    class Optional(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
            return x if y is None else x + y

    calls = [((torch.ones(n, 3),), {}) for n in (4, 9)]
    calls.append(((torch.ones(5, 3), torch.ones(5, 3)), {}))
    _, with_y = variants_of(Optional(), calls)
    assert partial_shapes(with_y)["x"] == [-1, 3]


@pytest.mark.integration
def test_openvino_agrees(decoder: Variant) -> None:
    openvino = pytest.importorskip("openvino", reason="openvino is not installed")
    shapes = partial_shapes(decoder)
    for name, made in openvino_shapes(shapes).items():
        assert made == openvino.PartialShape(as_text(shapes[name]))
        assert made.is_dynamic
    assert openvino.PartialShape("[..3]") == openvino.PartialShape([(0, 3)])


@pytest.mark.integration
def test_a_model_is_reshaped(variants_of: VariantsOf, tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino", reason="openvino is not installed")
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")

    class Add(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x + y

    calls = [((torch.ones(n, m, 3), torch.ones(m, 3)), {}) for n, m in ((2, 5), (4, 7), (3, 0))]
    (variant,) = [v for v in variants_of(Add(), calls) if len(v) > 1]
    helper, f32 = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "y"], ["z"])],
        "g",
        [
            helper.make_tensor_value_info("x", f32, ["a", "b", 3]),
            helper.make_tensor_value_info("y", f32, ["b", 3]),
        ],
        [helper.make_tensor_value_info("z", f32, ["a", "b", 3])],
    )
    opset = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), tmp_path / "a.onnx")
    core = openvino.Core()
    model = core.read_model(tmp_path / "a.onnx")
    model.reshape(openvino_shapes(partial_shapes(variant)))
    found = {port.any_name: str(port.partial_shape) for port in model.inputs}
    assert found == {"x": "[2..4,..7,3]", "y": "[..7,3]"}
    compiled = core.compile_model(model, "CPU")
    for args, _ in calls:
        (out,) = compiled([arg.numpy() for arg in args]).values()
        assert torch.equal(torch.from_numpy(out.copy()), Add()(*args))
