from __future__ import annotations

import json

import pytest
import torch

from calltape_analyzer import Variant
from calltape_analyzer.targets.coreml import RangeDimension, coreml_shapes, range_dimensions
from tests.analyzer.targets.conftest import Decoder, VariantsOf, decoder_call


def test_ranges(decoder: Variant) -> None:
    shapes = range_dimensions(decoder)
    batch = decoder.findings.tensors[0].dimensions[0].symbol
    assert shapes["past"][0] == RangeDimension(lower=1, upper=3, default=2, symbol=batch or "")
    assert shapes["past"][2] == 4
    defaults = [d if isinstance(d, int) else d["default"] for d in shapes["mask"]]
    assert defaults == [2, 8]
    assert shapes["ids"][0] == shapes["mask"][0], "one symbol"
    json.dumps(shapes)


def test_a_size_is_at_least_one(variants_of: VariantsOf) -> None:
    sizes = [(2, 5, 0), (2, 5, 0), (3, 2, 4), (4, 3, 6)]
    variants = variants_of(Decoder(), [decoder_call(*given) for given in sizes])
    for variant in variants:
        for shape in range_dimensions(variant).values():
            for d in shape:
                if not isinstance(d, int):
                    assert 1 <= d["lower"] <= d["default"] <= d["upper"]


@pytest.mark.integration
def test_coremltools_takes_them(decoder: Variant) -> None:
    ct = pytest.importorskip("coremltools", reason="coremltools is not installed")

    for _ in range(2):  # names are global to coremltools
        shapes = coreml_shapes(range_dimensions(decoder))
        made = [ct.TensorType(name=name, shape=shape) for name, shape in shapes.items()]
        assert [given.shape.default for given in made] == [(2, 1), (2, 7, 4), (2, 8)]
        ids, past, mask = (given.shape.symbolic_shape for given in made)
        assert ids[0] == past[0] == mask[0]
        assert past[1] != mask[1]
        assert past[2] == 4


@pytest.mark.integration
def test_a_model_is_converted(variants_of: VariantsOf) -> None:
    ct = pytest.importorskip("coremltools", reason="coremltools is not installed")

    class Add(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x + y

    calls = [((torch.ones(n, 4), torch.ones(n, 4)), {}) for n in (3, 8, 3)]
    (variant,) = variants_of(Add(), calls)
    shapes = coreml_shapes(range_dimensions(variant))
    made = ct.convert(
        torch.jit.trace(Add().eval(), calls[0][0]),
        inputs=[ct.TensorType(name=name, shape=shape) for name, shape in shapes.items()],
        convert_to="mlprogram",
        skip_model_load=True,  # it runs on macOS only
    )
    for given in made.get_spec().description.input:
        ranges = given.type.multiArrayType.shapeRange.sizeRanges
        assert [(r.lowerBound, r.upperBound) for r in ranges] == [(3, 8), (4, 4)]
