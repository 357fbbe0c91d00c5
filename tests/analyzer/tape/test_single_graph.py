"""A tape as one program: the answer of its only variant, or of all variants united."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from calltape_analyzer import InferenceError, Tape, dynamic_axes, open_tape
from calltape_analyzer.errors import UsageError
from tests.analyzer.tapes import Recorded, write_tape

D = torch.export.Dim.DYNAMIC


def t(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def tape_of(tmp_path: Path, function: Any, *calls: Any, classes: Any = (), **options: Any) -> Tape:
    path = write_tape(tmp_path / "a.tape", calls, target=function, **options)
    return open_tape(path, classes=classes)


def plain(x, y=None, z=None, n=1):
    return x


def step(input_ids, attention_mask=None, past_key_values=None, use_cache=None):
    return input_ids


class Layer:
    """Like a layer of a cache of transformers, which makes its keys when it is first updated."""

    def __init__(self, length: int, is_static: bool = False, batch: int = 2) -> None:
        size = 8 if is_static else length
        self.keys = t(batch, 2, size, 4) if length else None
        self.values = t(batch, 2, size, 4) if length else None
        self.cumulative_length = torch.tensor(length) if is_static else length


class OwnCache:
    """Like a cache of transformers; this test's own, so it is registered nowhere."""

    def __init__(self, *lengths: int, **options: Any) -> None:
        self.layers = [Layer(length, **options) for length in lengths]


class Point(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


@dataclass
class Options:
    bias: torch.Tensor
    mask: torch.Tensor | None = None


def test_positional_and_keyword_are_one_parameter(tmp_path: Path) -> None:
    tape = tape_of(
        tmp_path, plain, ((t(2, 3), t(7)), {}), ((t(4, 3),), {"y": t(7)}), {"x": t(5, 3)}
    )
    assert tape.infer_dynamic_shapes() == ({0: D}, {})
    args = tape.infer_arguments(2).args
    assert args[0].shape == (5, 3)
    assert torch.equal(args[1], torch.zeros(7))


def test_an_argument_that_some_calls_lack_is_in_the_arguments(tmp_path: Path) -> None:
    calls = [((t(n, 5), *([t(n, 3)] if n > 3 else [])), {}) for n in (2, 3, 4, 6)]
    tape = tape_of(tmp_path, plain, *calls)
    assert tape.infer_dynamic_shapes(dim_names=True) == ({0: "x_dim_0"}, {0: "x_dim_0"})
    assert torch.equal(tape.infer_arguments().args[1], calls[2][0][1])
    # As long as the dimension that it always equalled.
    assert torch.equal(tape.infer_arguments(0).args[1], torch.zeros(2, 3))
    assert tape.single.findings.calls == 4


def test_sizes_that_divide_calls_divide_no_answer(tmp_path: Path) -> None:
    calls = [((t(n, 4), t(m, 4)), {}) for n, m in ((2, 2), (3, 3), (5, 1), (7, 1))]
    tape = tape_of(tmp_path, plain, *calls)
    assert len(tape.variants()) == 2
    assert tape.infer_dynamic_shapes() == ({0: D}, {0: D})
    args = tape.infer_arguments().args
    assert [len(argument) for argument in args] == [2, 2]  # of a call: the model takes no 2 and 3
    part = tape.only(variant=0)
    assert part.infer_arguments().args[1].shape[0] > 1


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
    shapes: Any = tape.infer_dynamic_shapes()
    assert shapes == {
        "input_ids": {1: D}, "past_key_values": [{2: D}] * 4, "use_cache": None
    }  # fmt: skip
    arguments = tape.infer_arguments().kwargs
    assert arguments["input_ids"].shape == (2, 3)
    assert arguments["past_key_values"].layers[0].cumulative_length == 6
    first = tape.infer_arguments(0).kwargs["past_key_values"]
    assert isinstance(first, OwnCache)
    assert [tuple(layer.keys.shape) for layer in first.layers] == [(2, 2, 0, 4)] * 2
    assert first.layers[0].cumulative_length == 0


def test_tensors_that_a_cache_has_not_yet_are_inferred_as_zeros(tmp_path: Path) -> None:
    caches = [OwnCache(length, length, is_static=True) for length in (0, 5, 6)]
    calls = [{"input_ids": t(2, n), "past_key_values": c} for n, c in zip((5, 1, 2), caches)]  # noqa: B905
    tape = tape_of(tmp_path, step, *calls, classes=[OwnCache, Layer])
    assert tape.infer_dynamic_shapes() == {"input_ids": {1: D}, "past_key_values": [{}] * 6}
    first = tape.infer_arguments(0).kwargs["past_key_values"]
    for layer in first.layers:
        assert int(layer.cumulative_length) == 0
        assert torch.equal(layer.keys, torch.zeros(2, 2, 8, 4))


def test_a_partly_filled_cache_of_other_ranks_is_not_completed(tmp_path: Path) -> None:
    """As on a damaged tape: the keys of one layer have rank 1, and the other layer has none."""
    partly = OwnCache(0, 0)
    partly.layers[1].keys = t(3)
    tape = tape_of(
        tmp_path,
        step,
        {"input_ids": t(2, 5), "past_key_values": partly},
        {"input_ids": t(2, 1), "past_key_values": OwnCache(5, 5)},
        classes=[OwnCache, Layer],
    )
    with pytest.raises(InferenceError):
        tape.infer_dynamic_shapes()
    assert len(tape.variants()) == 2


NOT_ONE: dict[str, tuple[list[Any], str]] = {
    "dtypes": ([((t(2),), {}), ((t(3).long(),), {})], "x is int64, not float32"),
    "ranks": ([((t(2),), {}), ((t(2, 3),), {})], "x is of rank 2, not 1"),
    "parts of a dict": ([(({"a": t(2)},), {}), (({"a": t(2), "b": t(2)},), {})], "call 0, x"),
    "constants": ([((t(2),), {"y": True}), ((t(2),), {"y": False})], "y is False, not True"),
    "one and the other": ([((t(2),), {"y": t(3)}), ((t(2),), {"z": t(3)})], "y is missing"),
}


@pytest.mark.parametrize(("calls", "words"), NOT_ONE.values(), ids=NOT_ONE)
def test_what_no_program_serves_is_said(calls: list[Any], words: str, tmp_path: Path) -> None:
    tape = tape_of(tmp_path, plain, *calls)
    with pytest.raises(InferenceError, match=words) as caught:
        tape.infer_dynamic_shapes()
    for variant in tape.variants():
        assert variant.name in str(caught.value)


def test_every_container_has_the_form_that_export_takes(tmp_path: Path) -> None:
    class Module(torch.nn.Module):
        def forward(self, p: Point, d: Any, o: Options, c: int) -> torch.Tensor:
            return p.x + p.y + d["k"] + o.bias

    calls = [
        ((Point(t(n, 2), t(n, 2)), OrderedDict(k=t(n, 2)), Options(t(n, 2)), 3), {}) for n in (3, 5)
    ]
    tape = tape_of(tmp_path, Module(), *calls, classes=[Point, Options])
    shapes: Any = tape.infer_dynamic_shapes()
    assert shapes == (Point({0: D}, {0: D}), {"k": {0: D}}, [{0: D}], None)  # type: ignore[arg-type]
    assert isinstance(shapes[0], Point)
    assert tape.infer_arguments().args[3] == 3


def test_calls_that_raised_are_left_out(tmp_path: Path) -> None:
    error = "builtins:ValueError", "no"
    failed = Recorded((t(9, 9, 9),), error=error)
    tape = tape_of(tmp_path, plain, ((t(2, 3),), {}), failed, ((t(4, 3),), {}))
    assert tape.infer_dynamic_shapes() == ({0: D},)
    with pytest.raises(InferenceError, match="another structure"):
        tape.infer_arguments(1)
    assert tape.infer_arguments(2).args[0].shape == (4, 3)
    alone = tape_of(tmp_path, plain, failed)
    assert alone.infer_dynamic_shapes() == ({},)


def test_calls_without_a_signature_have_args_and_kwargs(tmp_path: Path) -> None:
    tape = tape_of(tmp_path, None, ((t(2), t(3)), {"k": t(1)}), ((t(4), t(3)), {"k": t(1)}))
    args, kwargs = tape.infer_arguments()
    assert [a.shape for a in args] == [(2,), (3,)]
    assert list(kwargs) == ["k"]
    assert tape.infer_dynamic_shapes() == {"args": ({0: D}, {}), "kwargs": {"k": {}}}


def test_removed_inputs_stay_out(tmp_path: Path) -> None:
    calls = [((t(n, 3), t(1)), {"n": n, "z": "a" if n > 2 else "b"}) for n in (2, 3, 4, 5)]
    tape = tape_of(tmp_path, plain, *calls)
    assert tape.remove_inputs(["z", "y"]) == 8
    assert tape.remove_inputs(["y", "nothing"]) == 0
    assert tape.infer_dynamic_shapes() == {"x": {0: D}, "n": D}
    for name in ("args", "kwargs"):
        with pytest.raises(UsageError, match="Cannot remove variadic"):
            tape_of(tmp_path, None, *calls).remove_inputs([name])


def test_a_tape_without_calls_has_no_shapes(tmp_path: Path) -> None:
    with pytest.raises(InferenceError, match=r"No inputs were captured\. Record"):
        tape_of(tmp_path, plain).infer_dynamic_shapes()


@pytest.mark.parametrize(
    "question",
    [
        lambda tape: tape.infer_dynamic_shapes(dim_names="x"),
        lambda tape: tape.infer_dynamic_shapes(dim_names=5),
        lambda tape: tape.infer_dynamic_shapes(dim_names={"x": ["batch"]}),
        lambda tape: tape.infer_dynamic_shapes(dim_names={"x": {0: 1}}),
        lambda tape: tape.infer_dynamic_shapes(dim_names={"no": {0: "batch"}}),
        lambda tape: tape.infer_dynamic_shapes(dim_names={7: {0: "batch"}}),
        lambda tape: tape.infer_dynamic_shapes(set_batch_dimension_for="x"),
        lambda tape: tape.infer_dynamic_shapes(set_batch_dimension_for=5),
        lambda tape: tape.infer_dynamic_shapes(set_batch_dimension_for=[None]),
        lambda tape: dynamic_axes(tape, set_batch_dimension_for="x"),
        lambda tape: dynamic_axes(tape, dim_names="x"),
        lambda tape: dynamic_axes(tape, dim_names={"no": {0: "batch"}}),
        lambda tape: tape.remove_inputs("x"),
        lambda tape: tape.remove_inputs(5),
        lambda tape: tape.remove_inputs(None),
        lambda tape: tape.infer_arguments(True),
    ],
)
def test_what_names_nothing_is_refused_on_one_line(question: Any, tmp_path: Path) -> None:
    tape = tape_of(
        tmp_path, plain, Recorded((t(2, 3),), outputs=t(2)), Recorded((t(4, 3),), outputs=t(4))
    )
    with pytest.raises(UsageError) as caught:
        question(tape)
    assert "\n" not in str(caught.value)
    assert tape.infer_dynamic_shapes(
        dim_names={0: {0: "rows"}, "z": {}}, set_batch_dimension_for=["y", 3]
    ) == ({0: "rows"},)


def test_objects_of_unknown_classes_are_no_arguments(tmp_path: Path) -> None:
    calls = [((Options(t(n, 3)), [Options(t(1))]), {}) for n in (2, 4)]
    tape = tape_of(tmp_path, plain, *calls)
    assert tape.infer_dynamic_shapes() == ([{0: D}], [[{}]])
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
