from __future__ import annotations

from typing import Any

import pytest
import torch

from calltape_analyzer import TapeError, Variant
from calltape_analyzer.targets.exporters import (
    additional_inputs,
    shapes_collection,
    tensors_in,
)
from tests.analyzer.targets.conftest import Decoder, VariantsOf, decoder_call


class Nested(torch.nn.Module):
    def forward(self, x: torch.Tensor, parts: dict[str, Any], scale: int = 1) -> torch.Tensor:
        first, *rest = parts["list"]
        return x * scale + first.sum() + rest[0].sum() + parts["deep"]["y"] * parts["deep"]["z"]


def nested_calls() -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    calls = []
    for n, m, scale in ((4, 7, 2), (6, 3, 5), (9, 2, 7)):
        deep = {"y": torch.ones(n, 1), "z": m * n}
        parts = {"deep": deep, "list": [torch.ones(m), torch.ones(2, 2)]}
        calls.append(((torch.ones(n, 3), parts), {"scale": scale}))
    return calls


def check(program: Any, model: torch.nn.Module, args: Any, kwargs: Any) -> None:
    expected = torch.utils._pytree.tree_leaves(model(*args, **kwargs))
    got = torch.utils._pytree.tree_leaves(program.module()(*args, **kwargs))
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_a_collection_makes_an_export_dynamic(decoder: Variant) -> None:
    shapes, args, kwargs = shapes_collection(decoder)
    assert len(shapes) == 3
    program = torch.export.export(Decoder(), args, kwargs, dynamic_shapes=shapes)
    check(program, Decoder(), *decoder_call(5, 8, 11))


def test_a_shapes_collection_exports_nested_arguments_and_an_int(variants_of: VariantsOf) -> None:
    model = Nested()
    (variant,) = variants_of(model, nested_calls())
    shapes, args, kwargs = shapes_collection(variant)
    assert len(shapes) == 5, "three tensors and two ints"
    program = torch.export.export(model, args, kwargs, dynamic_shapes=shapes)
    for call in nested_calls():
        check(program, model, *call)


def test_a_collection_of_constants_is_empty(variants_of: VariantsOf) -> None:
    (variant,) = variants_of(torch.nn.ReLU(), [((torch.ones(2, 3),), {})] * 2)
    shapes, args, kwargs = shapes_collection(variant)
    assert len(shapes) == 0
    torch.export.export(torch.nn.ReLU(), args, kwargs, dynamic_shapes=shapes)


def test_additional_inputs_make_an_export_dynamic(decoder: Variant) -> None:
    args, kwargs = decoder.infer_arguments()
    given = additional_inputs(decoder, limit=3)
    assert len(given._examples) == 3
    program = torch.export.export(Decoder(), args, kwargs, dynamic_shapes=given)
    check(program, Decoder(), *decoder_call(5, 8, 11))


def test_additional_inputs_export_nested_arguments_and_an_int(variants_of: VariantsOf) -> None:
    model = Nested()
    (variant,) = variants_of(model, nested_calls())
    args, kwargs = variant.infer_arguments()
    program = torch.export.export(model, args, kwargs, dynamic_shapes=additional_inputs(variant))
    for call in nested_calls():
        check(program, model, *call)


def test_calls_that_show_what_varies_come_first(variants_of: VariantsOf) -> None:
    class Add(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    frequent = [(4, n) for n in range(3, 12)] * 2
    sizes = [*frequent, (7, 3)]
    (variant,) = variants_of(Add(), [((torch.ones(size),), {}) for size in sizes])
    given = additional_inputs(variant, limit=3)
    assert [tuple(args[0].shape) for args, _ in given._examples] == [(4, 3), (4, 4), (7, 3)]


def test_tensors_are_the_ones_that_were_given(decoder: Variant) -> None:
    args, _ = decoder_call(2, 3, 5)
    found = tensors_in(decoder, args[:1], {"mask": args[2], "past": args[1]})
    assert [id(tensor) for tensor in found] == [id(tensor) for tensor in args]


def test_other_arguments_are_refused(decoder: Variant) -> None:
    with pytest.raises(TapeError, match="does not take these arguments"):
        tensors_in(decoder, (torch.ones(2),), {})
