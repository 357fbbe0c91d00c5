from __future__ import annotations

import pytest
import torch

from calltape_analyzer import TapeError, Variant
from calltape_analyzer.targets.inputs import arguments_of_row, tensors_given
from tests.analyzer.targets.conftest import decoder_call


def test_tensors_are_the_ones_that_were_given(decoder: Variant) -> None:
    args, _ = decoder_call(2, 3, 5)
    found = tensors_given(decoder, args[:1], {"mask": args[2], "past": args[1]})
    assert [id(tensor) for tensor in found] == [id(tensor) for tensor in args]


def test_other_arguments_are_refused(decoder: Variant) -> None:
    with pytest.raises(TapeError, match="does not take these arguments"):
        tensors_given(decoder, (torch.ones(2),), {})


def test_arguments_of_a_row_are_recorded_ones(decoder: Variant) -> None:
    for r, (row, seen) in enumerate(decoder.facts.rows.items()):
        args, kwargs = arguments_of_row(decoder, r)
        assert tuple(tuple(arg.shape) for arg in args) == row.shapes
        assert kwargs == {}
        (call,) = (call for call in decoder.calls if call.ref == seen.first)
        for arg, recorded in zip(args, call.inputs.args, strict=True):
            assert torch.equal(arg, recorded)
