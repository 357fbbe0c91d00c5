"""Shapes and arguments of a variant, as torch.export takes them."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example
from hypothesis import given as with_values
from hypothesis import strategies as st
from torch.export import Dim

from calltape_analyzer import open_tape, register_flattening_functions
from tests.analyzer.arguments.generating import Generating, step
from tests.analyzer.observed import (
    Given,
    Optional,
    given,
    named_columns,
    tape_of,
    zeros,
)
from tests.analyzer.tapes import write_tape
from tests.analyzer.variants.caches import WindowCache
from tests.analyzer.variants.named import named, reasons


def test_arguments_are_fit_for_tracing_and_relations_hold(tmp_path: Path) -> None:
    steps = [step(1, 1, 5), step(1, 1, 8), step(3, 1, 6), step(1, 2, 11)]
    (variant,) = tape_of(tmp_path, steps, Generating()).variants()
    _, kwargs = variant.infer_arguments()
    (batch, new), (_, total) = kwargs["input_ids"].shape, kwargs["attention_mask"].shape
    past = {tensor.shape for layer in kwargs["past_key_values"] for tensor in layer}
    assert past == {(batch, 2, total - new, 4)}
    assert len({batch, new, total, total - new}) == 4
    assert min(batch, new, total - new) >= 2
    assert kwargs["input_ids"].min() >= 3
    assert kwargs["input_ids"].max() <= 9
    assert kwargs["attention_mask"].unique().tolist() == [1]
    # And the program that is exported with them is meant for every recorded call.
    assert variant.accepts((), kwargs)


def test_a_recorded_call_that_is_fit_is_given_as_it_was(tmp_path: Path) -> None:
    calls = [step(1, 1, 5), step(2, 3, 5)]
    (variant,) = tape_of(tmp_path, calls, Generating()).variants()
    _, kwargs = variant.infer_arguments()
    assert torch.equal(kwargs["input_ids"], calls[1][1]["input_ids"])
    recorded = calls[1][1]["past_key_values"]
    for layer, own in zip(kwargs["past_key_values"], recorded, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(layer, own, strict=True))


@pytest.mark.parametrize("name", ["arg_scale", "arg_2", "arg_7", "arg_"])
@pytest.mark.parametrize("has_rest", [False, True])
def test_a_keyword_may_have_the_name_of_a_position(
    tmp_path: Path, name: str, has_rest: bool
) -> None:
    class WithKeywords(torch.nn.Module):
        def forward(self, x: Any, **more: Any) -> Any: ...

    class WithRest(torch.nn.Module):
        def forward(self, x: Any, *rest: Any, **more: Any) -> Any: ...

    rest = [zeros(1), zeros(1)] if has_rest else []
    calls = [given(zeros(n, 3), *rest, **{name: zeros(n)}) for n in (2, 3)]
    (variant,) = tape_of(tmp_path, calls, WithRest() if has_rest else WithKeywords()).variants()
    args, kwargs = variant.infer_arguments()
    assert len(args) == 1 + len(rest)
    assert list(kwargs) == [name]


def test_positions_beyond_the_signature_stay_positions(tmp_path: Path) -> None:
    class OfOne(torch.nn.Module):
        def forward(self, x: Any) -> Any: ...

    calls = [given([zeros(n)], zeros(n), zeros(2 * n)) for n in (2, 3)]
    with open_tape(write_tape(tmp_path / "a.tape", calls, target=OfOne())) as tape:
        (variant,) = tape.variants()
        args, kwargs = variant.infer_arguments()
    assert [type(argument) for argument in args] == [list, torch.Tensor, torch.Tensor]
    assert kwargs == {}


def test_a_tape_of_shapes_gives_arguments_too(tmp_path: Path) -> None:
    def arguments(length: int) -> tuple[Any, ...]:
        numbers = 3 + torch.arange(2 * length).reshape(2, length)
        calls = [given(numbers[:n], torch.ones(n, length, dtype=torch.bool), steps=n + 2)
                 for n in (1, 2)]  # fmt: skip
        (variant,) = tape_of(tmp_path, calls, Optional(), values="none").variants()
        args, kwargs = variant.infer_arguments()
        assert [tuple(a.shape) for a in args] == [(2, length), (2, length)]
        assert args[1].dtype == torch.bool
        assert kwargs == {"steps": 4}
        return args

    # Of few different ids there is no range on the tape: what any vocabulary has.
    assert set(arguments(4)[0].flatten().tolist()) <= {0, 1}
    many = arguments(1024)[0]
    assert many.min() >= 3
    assert many.max() < 3 + 2048


@pytest.mark.integration
@with_values(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(1, 4), st.sampled_from([0, 0, 1, 2, 5, 6])),
        min_size=1,
        max_size=6,
    )
)
@example([(1, 1, 0), (3, 2, 1), (3, 3, 1)])  # the cache was seen with one batch size only
def test_arguments_of_any_variant_are_fit_consistent_and_accepted(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int, int]]
) -> None:
    calls = [step(*given) for given in steps]
    tape = tape_of(tmp_path_factory.mktemp("a"), calls, Generating())
    for variant in tape.variants():
        args, kwargs = variant.infer_arguments()
        assert args == ()
        (batch, new), (rows, total) = kwargs["input_ids"].shape, kwargs["attention_mask"].shape
        assert rows == batch
        assert kwargs["input_ids"].min() >= 3
        assert kwargs["input_ids"].max() <= 9
        assert set(kwargs["attention_mask"].unique().tolist()) <= {1}
        past = [tensor for layer in kwargs.get("past_key_values", ()) for tensor in layer]
        if past:
            assert {tuple(t.shape) for t in past} == {(batch, 2, past[0].shape[2], 4)}
        sizes = {s.columns[0]: s for s in variant.facts.symbols}
        known = {"input_ids[0]": batch, "input_ids[1]": new, "attention_mask[1]": total}
        known |= {"past_key_values.0.0[2]": past[0].shape[2]} if past else {}
        columns = named_columns(variant.facts)
        dynamic = [size for name, size in known.items() if columns[name] in sizes]
        assert min(dynamic, default=2) >= 2
        assert len(set(dynamic)) == len(dynamic)
        for call in variant.calls:
            assert variant.accepts(*call.inputs)
        # A sum that holds in all of these calls holds in what they are exported with.
        found = {s.columns[0]: s for s in variant.facts.symbols if s.relation is not None}
        if past and columns["attention_mask[1]"] in found:
            relation = found[columns["attention_mask[1]"]].relation
            if relation is not None and len(relation.terms) == 2 and relation.constant == 0:
                assert total == new + past[0].shape[2]


def test_a_counter_follows_its_tensor_in_resized_arguments(tmp_path: Path) -> None:
    calls = [given(zeros(1, 1), last=WindowCache(seen, 8, batch=1)) for seen in (1, 3, 5)]
    tape = tape_of(tmp_path, calls, Optional(), classes=[WindowCache])
    (variant,) = tape.variants()
    assert reasons(variant)["last.cumulative_length"] == "counter"
    assert variant.findings.ints[0].counts == "last.keys[2]"
    _, kwargs = variant.infer_arguments()
    cache = kwargs["last"]
    assert cache.cumulative_length == cache.keys.shape[2] >= 2


def test_dimensions_are_declared_by_name_position_or_all(tmp_path: Path) -> None:
    (variant,) = tape_of(tmp_path, [given(zeros(2, 3), zeros(2))], Optional()).variants()
    auto = Dim.AUTO
    assert variant.infer_dynamic_shapes() == ({}, {})
    assert variant.infer_dynamic_shapes({"mask"}) == ({}, {0: auto})
    assert variant.infer_dynamic_shapes({0}) == ({0: auto}, {})
    assert variant.infer_dynamic_shapes(True) == ({0: auto}, {0: auto})
    assert variant.infer_dynamic_shapes(True, dim="dynamic")[0] == {0: Dim.DYNAMIC}
    names = variant.infer_dynamic_shapes(True, dim="names")
    assert all(isinstance(shape[0], str) for shape in names)
    # The variant itself stays what it was.
    assert variant.infer_dynamic_shapes() == ({}, {})


Two = namedtuple("Two", ["left", "right"])


class Sum(torch.nn.Module):
    """Adds up whatever tensors it is given, along their first axis."""

    def forward(
        self, x: Any, y: Any = None, *rest: Any, flag: Any = True, last: Any = None, **more: Any
    ) -> torch.Tensor:
        total = torch.zeros(())
        found = torch.utils._pytree.tree_leaves([x, y, rest, last, more])
        for tensor in found:
            if isinstance(tensor, torch.Tensor):
                total = total + (tensor * 2).sum()
            elif isinstance(tensor, int | torch.SymInt) and not isinstance(tensor, bool):
                total = total + tensor
        return total if flag else -total


# Each is a calling convention; called with two sizes.
CONVENTIONS: dict[str, Callable[[int], Given]] = {
    "positional": lambda n: given(zeros(n, 3), zeros(n + 1)),
    "by name": lambda n: given(x=zeros(n, 3), y=zeros(n + 1)),
    "mixed": lambda n: given(zeros(n, 3), y=zeros(n + 1), last=zeros(n + 2)),
    "by name in another order": lambda n: given(last=zeros(n + 2), y=zeros(n), x=zeros(n + 1)),
    "a gap": lambda n: given(zeros(n, 3), last=zeros(n + 1)),
    "a None in the middle": lambda n: given(zeros(n, 3), None, zeros(n + 1)),
    "star args": lambda n: given(zeros(n, 3), zeros(n), zeros(n + 1), zeros(4)),
    "star args and named": lambda n: given(zeros(n), zeros(n), zeros(n), last=zeros(n)),
    "other names": lambda n: given(zeros(n, 3), alpha=zeros(n), beta=[zeros(n)]),
    "all at once": lambda n: given(zeros(n), zeros(n), zeros(n + 3), last=zeros(n), a=zeros(n)),
    "a bool": lambda n: given(zeros(n, 3), flag=False),
    "an int that varies": lambda n: given(zeros(n, 3), n + 7),
    "an int that does not": lambda n: given(zeros(n, 3), 7, last=3.5),
    "list": lambda n: given([zeros(n), (zeros(n + 1), zeros(2))]),
    "dict": lambda n: given({"b": zeros(n), "a": zeros(n + 1)}),
    "named tuple": lambda n: given(Two(zeros(n), zeros(n + 1))),
    "tuple with None": lambda n: given((zeros(n), None), last=zeros(n)),
    "ints in a list": lambda n: given([zeros(n), n + 5], last={"k": n}),
    "the same tensor twice": lambda n: given(*[zeros(n)] * 2),
}


@pytest.mark.integration
@pytest.mark.parametrize("name", CONVENTIONS)
def test_torch_takes_the_shapes_and_arguments_as_they_are(tmp_path: Path, name: str) -> None:
    make, model = CONVENTIONS[name], Sum()
    tape = tape_of(tmp_path, [make(4), make(7), make(2)], model, classes=[Two])
    (variant,) = tape.variants()
    args, kwargs = variant.infer_arguments()
    shapes = variant.infer_dynamic_shapes()
    program = torch.export.export(model, args, kwargs, dynamic_shapes=shapes, strict=False)
    called, named_arguments = make(9)
    found = program.module()(*called, **named_arguments)
    assert torch.equal(found, model(*called, **named_arguments))
    ranges = program.range_constraints
    assert ranges, "nothing became dynamic"


@pytest.mark.integration
def test_torch_takes_those_of_a_language_model(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    from calltape_analyzer import open_tape
    from calltape_recorder import record

    path = tmp_path / "a.tape"
    with record(model, path), torch.no_grad():
        for batch, prompt in ((1, 4), (3, 6)):
            model.generate(torch.randint(3, 30, (batch, prompt)), max_new_tokens=4,
                           do_sample=False, eos_token_id=None, pad_token_id=0)  # fmt: skip
    tape = open_tape(path)
    variants = named(tape)
    assert set(variants) == {"prefill", "decode"}
    assert sum(map(len, variants.values())) == 8
    with register_flattening_functions(patch_transformers=True), torch.no_grad():
        decode = variants["decode"]
        args, kwargs = decode.infer_arguments()
        shapes = decode.infer_dynamic_shapes()
        program = torch.export.export(model, args, kwargs, dynamic_shapes=shapes, strict=False)
        for call in decode.calls:
            given_args, given_kwargs = call.inputs
            out = program.module()(*given_args, **{k: given_kwargs[k] for k in kwargs})
            expected = call.outputs
            torch.testing.assert_close(out.logits, expected.logits)
        assert all(decode.accepts(*call.inputs) for call in decode.calls)
        assert not any(variants["prefill"].accepts(*call.inputs) for call in decode.calls)
