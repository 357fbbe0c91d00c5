"""Arguments, and tensors of a cache, that only some of the calls have."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from calltape_analyzer import (
    InferenceError,
    register_flattening_functions,
)
from tests.analyzer.inference.functions import (
    D,
    Layer,
    Options,
    OwnCache,
    plain,
    step,
    t,
    tape_of,
)


def test_a_prepared_cache_counts_as_missing(tmp_path: Path) -> None:
    """What generate() passes: an empty cache with the prompt, then one token at a time."""
    tape = tape_of(
        tmp_path,
        step,
        {"input_ids": t(2, 5), "past_key_values": OwnCache(0, 0), "use_cache": True},
        {"input_ids": t(2, 1), "past_key_values": OwnCache(5, 5), "use_cache": True},
        {"input_ids": t(2, 3), "past_key_values": OwnCache(6, 6), "use_cache": True},
        classes=[OwnCache, Layer],
    )
    assert tape.infer_dynamic_shapes() == {"input_ids": {1: D}, "past_key_values": [{2: D}] * 4}
    # The first complete call has a size of 1 where it is dynamic; the next one has not.
    arguments = tape.infer_arguments().kwargs
    assert arguments["input_ids"].shape == (2, 3)
    assert "use_cache" not in arguments
    first = tape.infer_arguments(0).kwargs["past_key_values"]
    assert isinstance(first, OwnCache)
    assert [tuple(layer.keys.shape) for layer in first.layers] == [(2, 2, 0, 4)] * 2
    assert int(first.layers[0]._private) == 5
    assert first.layers[0].cumulative_length == 0
    assert arguments["past_key_values"].layers[0].cumulative_length == 6
    assert any("no tensors yet" in note for note in tape.inference().findings().notes)


def test_the_complete_call_with_the_fewest_small_sizes_stands_for_all(tmp_path: Path) -> None:
    """One conversation, then another with a batch of 2: no call has at least 2 everywhere."""
    tape = tape_of(
        tmp_path,
        step,
        {"input_ids": t(1, 5), "past_key_values": OwnCache(0)},
        {"input_ids": t(1, 1), "past_key_values": OwnCache(5, batch=1)},
        {"input_ids": t(2, 1), "past_key_values": OwnCache(7)},
        {"input_ids": t(2, 1), "past_key_values": OwnCache(8)},
        classes=[OwnCache, Layer],
    )
    findings = tape.shape_findings()
    assert findings.representative == 2
    assert tape.infer_arguments().kwargs["past_key_values"].layers[0].keys.shape == (2, 2, 7, 4)
    assert findings.notes[-1] == (
        "call 2 stands for all and has size 1 on the dynamic axis 1 of input_ids; torch.export "
        "specializes 0 and 1: record a call with at least 2 there (a second turn of a "
        "conversation, a batch of 2)"
    )


def test_small_sizes_of_the_observers_choice_are_noted(tmp_path: Path) -> None:
    tape = tape_of(tmp_path, plain, ((t(1, 3), t(1, 3)), {}), ((t(4, 3), t(4, 3)), {}))
    findings = tape.shape_findings()
    assert findings.representative == 0
    assert findings.notes == (
        "call 0 stands for all and has size 1 on the dynamic axis 0 of x, size 1 on the dynamic "
        "axis 0 of y; torch.export specializes 0 and 1: export with "
        "infer_arguments(tape.find(1).index), which has at least 2 there",
    )
    declared = tape_of(tmp_path, plain, ((t(1, 3),), {}))
    assert declared.shape_findings().notes == ()
    (note,) = declared.shape_findings(set_batch_dimension_for=True).notes
    assert "size 1 on the dynamic axis 0 of x; " in note
    assert "record a call" in note


class LazyLayer:
    """Like a layer of transformers' static cache, which makes its keys when it is first updated."""

    def __init__(self, length: int, is_filled: bool) -> None:
        self.keys = t(2, 2, 8, 4) if is_filled else None
        self.values = t(2, 2, 8, 4) if is_filled else None
        self.cumulative_length = torch.tensor(length)


class LazyCache:
    def __init__(self, length: int, is_filled: bool = True) -> None:
        self.layers = [LazyLayer(length, is_filled) for _ in range(2)]


def test_a_cache_that_has_only_some_of_its_tensors_yet(tmp_path: Path) -> None:
    tape = tape_of(
        tmp_path,
        step,
        {"input_ids": t(2, 5), "past_key_values": LazyCache(0, is_filled=False)},
        {"input_ids": t(2, 1), "past_key_values": LazyCache(5)},
        {"input_ids": t(2, 2), "past_key_values": LazyCache(6)},
        classes=[LazyCache, LazyLayer],
    )
    assert tape.infer_dynamic_shapes() == {"input_ids": {1: D}, "past_key_values": [{}] * 6}
    assert tape.shape_findings().representative == 2
    first = tape.infer_arguments(0).kwargs["past_key_values"]
    for layer in first.layers:
        assert int(layer.cumulative_length) == 0
        assert torch.equal(layer.keys, torch.zeros(2, 2, 8, 4))
    with register_flattening_functions(tape=tape):
        again = tape.infer_arguments(0).kwargs["past_key_values"]
        assert tape.infer_dynamic_shapes()["past_key_values"] == [{}] * 6
    assert int(again.layers[1].cumulative_length) == 0
    assert torch.equal(again.layers[1].values, torch.zeros(2, 2, 8, 4))


def test_a_container_that_has_only_some_of_its_tensors_is_another_program(tmp_path: Path) -> None:
    tape = tape_of(tmp_path, plain, (({"a": t(2)},), {}), (({"a": t(2), "b": t(2)},), {}))
    with pytest.raises(InferenceError, match=r"previously got 2 tensors.*each of tape\.variants"):
        tape.infer_dynamic_shapes()


def test_objects_of_unknown_classes_are_no_arguments(tmp_path: Path) -> None:
    calls = [((Options(t(2, 3)), [Options(t(1))]), {}), ((Options(t(4, 3)), [Options(t(1))]), {})]
    tape = tape_of(tmp_path, plain, *calls)
    assert tape.infer_dynamic_shapes() == ([{0: D}, None], [[{}, None]])
    with pytest.raises(
        InferenceError, match=r"x and y hold a .*:Options.*classes=\[Options\]"
    ) as caught:
        tape.infer_arguments()
    assert "register_flattening_functions(tape=tape)" in str(caught.value)
    assert tape.remove_inputs(["x"]) == 2
    with pytest.raises(InferenceError, match="y holds a"):
        tape.infer_arguments(1)
    known = tape_of(tmp_path, plain, *calls, classes=[Options])
    assert isinstance(known.infer_arguments().args[0], Options)
