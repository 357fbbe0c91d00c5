"""Which value of a call is which input of a model."""

from __future__ import annotations

import pytest

from calltape_analyzer.errors import InferenceError
from calltape_analyzer.replaying.replaying import CallValue, match_inputs

X = CallValue("x", "", "tensor", 0)
Y = CallValue("y", "", "tensor", 1)
KEYS = CallValue("cache", ".layers.0.keys", "tensor", 2)
N = CallValue("n", "", "int", 0)
CALL = (X, Y, KEYS, N)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["y", "x"], [Y, X]),
        (["cache_layers_0_keys", "n"], [KEYS, N]),
        (["y_0", "cache_0"], [Y, KEYS]),
        # The exporter renames an input that is also a value within the graph.
        (["y_orig", "x"], [Y, X]),
        (["y_orig", "x", "cache_layers_0_keys"], [Y, X, KEYS]),
    ],
)
def test_inputs_are_found_by_their_names(names: list[str], found: list[CallValue]) -> None:
    assert match_inputs(names, CALL) == dict(zip(names, found, strict=True))


def test_inputs_are_matched_by_order_if_there_are_as_many() -> None:
    assert match_inputs(["a", "b", "c"], CALL) == {"a": X, "b": Y, "c": KEYS}
    with pytest.raises(InferenceError, match="3 tensors for 2 inputs"):
        match_inputs(["a", "b"], CALL)
