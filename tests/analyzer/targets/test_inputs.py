from __future__ import annotations

import pytest
import torch

from calltape_analyzer import TapeError, Variant
from calltape_analyzer.targets.inputs import tensors_given
from tests.analyzer.targets.conftest import decoder_call


def test_tensors_are_the_ones_that_were_given(decoder: Variant) -> None:
    args, _ = decoder_call(2, 3, 5)
    found = tensors_given(decoder, args[:1], {"mask": args[2], "past": args[1]})
    assert [id(tensor) for tensor in found] == [id(tensor) for tensor in args]


def test_other_arguments_are_refused(decoder: Variant) -> None:
    with pytest.raises(TapeError, match="does not take these arguments"):
        tensors_given(decoder, (torch.ones(2),), {})
