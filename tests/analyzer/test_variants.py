"""Calls split into the programs that can serve them, and what these are exported with."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given as with_values
from hypothesis import settings
from hypothesis import strategies as st
from torch.export import Dim

from calltape_analyzer import Tape, Variant, register_flattening_functions
from calltape_analyzer.symbols import Column

from .observing import (
    Anything,
    Given,
    Optional,
    by_name,
    given,
    named_columns,
    tape_of,
    zeros,
)
from .test_samples import Generating, step
from .test_splitting import WindowCache


def named(tape: Tape) -> dict[str, Variant]:
    found = {variant.name: variant for variant in tape.variants()}
    assert len(found) == len(tape.variants())
    return found


def numbers(tape: Tape) -> dict[str, list[int]]:
    """The calls of each variant."""
    return {name: [call.number for call in variant.calls] for name, variant in named(tape).items()}


def reasons(variant: Variant) -> dict[str, str]:
    return by_name(variant.facts)


# --- which variants there are --------------------------------------------------------------------


def test_prefill_and_decode_are_two(tmp_path: Path) -> None:
    tape = tape_of(tmp_path, [step(1, 5, 0), step(1, 1, 5), step(2, 4, 0), step(2, 1, 6)],
                   Generating())  # fmt: skip
    assert numbers(tape) == {"prefill": [0, 2], "decode": [1, 3]}


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([given(zeros(2)), given(zeros(3))], {"main": [0, 1]}),
        (
            [given(zeros(2)), given(zeros(2), zeros(2)), given(zeros(3), mask=None)],
            {"no mask": [0, 2], "mask present": [1]},
        ),
        ([given(zeros(2), add=False), given(zeros(3))], {"add=False": [0], "add=True": [1]}),
        (
            [given(zeros(size), mode=mode) for size in (2, 3) for mode in ("sum", "max")],
            {"mode='sum'": [0, 2], "mode='max'": [1, 3]},
        ),
        (
            [given(zeros(size), scale=scale) for size in (2, 3) for scale in (0.5, 0.25)],
            {"scale=0.5": [0, 2], "scale=0.25": [1, 3]},
        ),
        # Each came once: nothing says that they select anything.
        ([given(zeros(2), mode="sum"), given(zeros(3), mode="max")], {"main": [0, 1]}),
        ([given(zeros(2), scale=0.5), given(zeros(3), scale=0.25)], {"main": [0, 1]}),
        ([given(zeros(2), steps=2), given(zeros(3), steps=3)], {"main": [0, 1]}),
        (
            [given(zeros(2)), given(zeros(2, dtype=torch.float64))],
            {"x float32": [0], "x float64": [1]},
        ),
        ([given(zeros(2)), given(zeros(2, 2))], {"x of rank 1": [0], "x of rank 2": [1]}),
        (
            [given([zeros(2)]), given([zeros(2), zeros(3)])],
            {"1 tensor in x": [0], "2 tensors in x": [1]},
        ),
        (
            [given(zeros(4), zeros(4)), given(zeros(5), zeros(1)), given(zeros(6), zeros(6))],
            {"mask[0] > 1": [0, 2], "mask[0] = 1": [1]},
        ),
        (
            [
                given(zeros(2), add=add, **mask)
                for add in (True, False)
                for mask in ({}, {"mask": zeros(2)})
            ],
            {
                "add=True, no mask": [0],
                "add=True, mask present": [1],
                "add=False, no mask": [2],
                "add=False, mask present": [3],
            },
        ),
    ],
    ids=lambda value: None if isinstance(value, list) else ",".join(value),
)
def test_variants_and_their_names(
    tmp_path: Path, calls: list[Given], expected: dict[str, list[int]]
) -> None:
    def in_any_order(by_name: dict[str, list[int]]) -> dict[frozenset[str], list[int]]:
        return {frozenset(name.split(", ")): calls for name, calls in by_name.items()}

    tape = tape_of(tmp_path, calls, Optional())
    assert in_any_order(numbers(tape)) == in_any_order(expected)


def test_names_are_unique_even_where_nothing_readable_tells_variants_apart(tmp_path: Path) -> None:
    calls = [given([zeros(1), (zeros(1),)]), given([(zeros(1),), zeros(1)]),
             given(((zeros(1),), zeros(1)))]  # fmt: skip
    assert len(named(tape_of(tmp_path, calls, Optional()))) == 3


def test_the_variants_stand_in_the_order_of_their_first_call(tmp_path: Path) -> None:
    calls = [given(zeros(2)), given(zeros(2), zeros(2)), given(zeros(3)), given([zeros(2)])]
    variants = tape_of(tmp_path, calls, Optional()).variants()
    assert [variant.calls[0].number for variant in variants] == [0, 1, 3]
    assert [len(variant) for variant in variants] == [2, 1, 1]


def test_calls_that_raised_are_left_out_unless_all_did(tmp_path: Path) -> None:
    class Raising(Optional):
        def forward(self, x: Any, fail: Any = None) -> torch.Tensor:  # type: ignore[override]
            if fail is not None:
                raise ValueError
            return torch.zeros(())

    def tape(*fails: Any) -> Tape:
        from calltape_analyzer import open_tape
        from calltape_recorder import record

        model, path = Raising(), tmp_path / f"{len(fails)}.tape"
        with record(model, path):
            for fail in fails:
                try:
                    model(zeros(2), fail)
                except ValueError:
                    continue
        return open_tape(path)

    (variant,) = tape(None, zeros(2)).variants()
    assert [str(place) for place in variant.facts.group.layout.tensors] == ["x"]
    assert [call.number for call in variant.calls] == [0]
    (only_failed,) = tape(zeros(3)).variants()
    assert len(only_failed) == 1
    assert [call.number for call in only_failed.calls] == [0]


# --- what became of the dimensions ---------------------------------------------------------------


def test_what_varied_is_dynamic_and_what_did_not_is_constant(tmp_path: Path) -> None:
    tape = tape_of(tmp_path, [given(zeros(2, 3), steps=2), given(zeros(4, 3), steps=3)],
                   Optional())  # fmt: skip
    (variant,) = tape.variants()
    assert reasons(variant) == {"x[0]": "varied", "x[1]": "constant", "steps": "varied"}


def test_dynamism_is_pooled_over_variants(tmp_path: Path) -> None:
    calls = [given(zeros(2, 3)), given(zeros(5, 3)), given(zeros(4, 3), zeros(4)),
             given(zeros(1, 3), add=False)]  # fmt: skip
    _, masked, subtracting = tape_of(tmp_path, calls, Optional()).variants()
    assert reasons(masked) == {"x[0]": "pooled", "x[1]": "constant", "mask[0]": "neighbour"}
    # It is always 1 here, which torch takes for a constant.
    assert reasons(subtracting)["x[0]"] == "one"


def test_an_element_of_a_list_that_never_varied_is_constant(tmp_path: Path) -> None:
    calls = [given([zeros(2, 3), zeros(2, 4)]), given([zeros(2, 3), zeros(2, 5)])]
    (variant,) = tape_of(tmp_path, calls, Optional()).variants()
    assert reasons(variant) == {
        "x.0[0]": "constant", "x.0[1]": "constant", "x.1[0]": "constant", "x.1[1]": "varied"
    }  # fmt: skip


def test_elements_of_different_size_did_not_vary(tmp_path: Path) -> None:
    calls = [given([zeros(2), zeros(3), zeros(3, 4)])]
    (variant,) = tape_of(tmp_path, calls, Optional()).variants()
    assert set(reasons(variant).values()) == {"constant"}
    assert list(variant.findings.warnings()) == []


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        (lambda n: [zeros(n), zeros(n + 1)], "pooled"),
        (lambda n: [zeros(n), zeros(7)], "constant"),  # one of them is known to be constant
        (lambda n: [zeros(7), zeros(7)], "constant"),
        (lambda n: [zeros(n, 2), zeros(n, 3)], "constant"),  # of another rank
    ],
)
def test_an_element_that_was_seen_once_is_as_its_siblings_are(
    tmp_path: Path, others: Callable[[int], list[torch.Tensor]], expected: str
) -> None:
    calls = [given(others(4)), given(others(6)), given([*others(5), zeros(9)])]
    variant = tape_of(tmp_path, calls, Optional()).variants()[-1]
    assert reasons(variant)["x.2[0]"] == expected


def test_another_rank_is_another_dimension(tmp_path: Path) -> None:
    calls = [given(zeros(2)), given(zeros(3)), given(zeros(7, 7))]
    variants = named(tape_of(tmp_path, calls, Optional()))
    assert reasons(variants["x of rank 2"]) == {"x[0]": "constant", "x[1]": "constant"}


def test_dynamism_is_pooled_into_the_part_that_does_not_broadcast(tmp_path: Path) -> None:
    tape = tape_of(tmp_path, [given(zeros(4), zeros(4)), given(zeros(5), zeros(1))], Optional())
    variants = named(tape)
    # Its only call has 4, but what is known is that it is not 1.
    assert reasons(variants["mask[0] > 1"]) == {"x[0]": "pooled", "mask[0]": "pooled"}
    assert not variants["mask[0] = 1"].facts.dimensions[Column(1, 0)].dynamic


def test_sizes_that_are_equal_here_but_not_elsewhere_are_two_symbols(tmp_path: Path) -> None:
    calls = [given(zeros(3), zeros(5)), given(zeros(4), zeros(7)),
             given(zeros(7), zeros(7), add=False)]  # fmt: skip
    _, single = tape_of(tmp_path, calls, Optional()).variants()
    assert reasons(single) == {"x[0]": "pooled", "mask[0]": "pooled"}
    assert [symbol.ambiguous for symbol in single.facts.symbols] == [True, True]
    args, kwargs = single.infer_arguments()
    assert kwargs == {"add": False}
    assert args[0].shape != args[1].shape


def test_sizes_that_are_equal_everywhere_are_one_symbol(tmp_path: Path) -> None:
    calls = [given(zeros(3), zeros(3)), given(zeros(4), zeros(4)),
             given(zeros(7), zeros(7), add=False)]  # fmt: skip
    for variant in tape_of(tmp_path, calls, Optional()).variants():
        (symbol,) = variant.facts.symbols
        assert not symbol.ambiguous


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (zeros(4), "neighbour"),
        (zeros(7), "constant"),  # another size
        (zeros(1), "constant"),
        (zeros(2, 4), "constant"),  # another axis
    ],
)
def test_an_argument_seen_once_follows_its_neighbour(
    tmp_path: Path, mask: torch.Tensor, expected: str
) -> None:
    calls = [given(zeros(2, 3)), given(zeros(4, 3), mask)]
    variant = next(v for v in tape_of(tmp_path, calls, Optional()).variants() if v.calls[0].number)
    assert reasons(variant)[f"mask[{mask.dim() - 1}]"] == expected


def test_an_argument_seen_twice_does_not(tmp_path: Path) -> None:
    calls = [given(zeros(2, 3)), given(zeros(4, 3), zeros(4)), given(zeros(6, 3), zeros(4))]
    variant = tape_of(tmp_path, calls, Optional()).variants()[1]
    assert reasons(variant)["mask[0]"] == "constant"


def test_findings_have_the_ranges_of_integer_tensors(tmp_path: Path) -> None:
    tape = tape_of(tmp_path, [given(torch.tensor([3, 9])), given(torch.tensor([4, 5, 6]))],
                   Optional())  # fmt: skip
    (variant,) = tape.variants()
    (tensor,) = variant.findings.tensors
    assert tensor.range == (3, 9)
    assert tensor.shape == (variant.findings.symbols[0].name,)
    assert variant.findings.model_dump_json()


def test_findings_name_symbols_and_relations(tmp_path: Path) -> None:
    steps = [step(1, 2, 5), step(2, 1, 8), step(3, 3, 6), step(2, 4, 11)]
    (variant,) = tape_of(tmp_path, steps, Generating()).variants()
    found = {symbol.name: symbol for symbol in variant.findings.symbols}
    assert set(found) == {
        "batch_size", "sequence_length", "total_sequence_length", "past_sequence_length"
    }  # fmt: skip
    total = found["total_sequence_length"]
    assert total.expression in (
        "sequence_length + past_sequence_length", "past_sequence_length + sequence_length"
    )  # fmt: skip
    assert total.dimensions == ("attention_mask[1]",)
    assert (total.min, total.max, total.distinct) == (7, 15, 3)
    assert len(found["batch_size"].dimensions) == 6
    assert [size.size for size in total.sizes] == [7, 9, 15]
    assert [size.calls for size in total.sizes] == [1, 2, 1]


# --- accepts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (given(zeros(9, 3), zeros(8), steps=7), None),
        (given(x=zeros(9, 3), mask=zeros(8), steps=2), None),
        (given(zeros(9, 3), zeros(8), steps=7, scale=1.0, last=None), None),
        (given(zeros(9, 4), zeros(8), steps=7), "x[1] is 4; this program has 3"),
        (given(zeros(9, 3), steps=7), "mask is missing"),
        (given(zeros(9, 3), zeros(8)), "steps is missing"),
        (given(zeros(9, 3), zeros(8), steps=7, last=zeros(1)), "last is not expected"),
        (given(zeros(9, 3), [zeros(8)], steps=7), "mask has another structure"),
        (given(zeros(9), zeros(8), steps=7), "x is float32 of rank 1, not float32 of 2"),
        (given(zeros(9, 3).double(), zeros(8), steps=7), "x is float64"),
        (given(zeros(9, 3), zeros(8), steps=7, add=False), "add is not expected"),
        (given(zeros(9, 3), zeros(8), steps=7.0), "steps has another structure"),
    ],
    ids=repr,
)
def test_accepts_with_a_reason_where_not(tmp_path: Path, call: Given, reason: str | None) -> None:
    calls = [given(zeros(2, 3), zeros(4), steps=2), given(zeros(5, 3), zeros(6), steps=3)]
    (variant,) = tape_of(tmp_path, calls, Optional()).variants()
    found = variant.accepts(*call)
    assert bool(found) is found.accepted is (reason is None)
    assert (found.reason or "").startswith(reason or "")
    if reason is not None:
        assert found.reason


def test_another_constant_is_a_reason(tmp_path: Path) -> None:
    (variant,) = tape_of(tmp_path, [given(zeros(2), mode="sum")], Optional()).variants()
    assert variant.accepts((zeros(2),), {"mode": "sum"})
    refused = variant.accepts((zeros(2),), {"mode": "max"})
    assert not refused
    assert refused.reason == "mode is 'max', not 'sum'"


def test_a_condition_is_a_reason(tmp_path: Path) -> None:
    calls = [given(zeros(4), zeros(4)), given(zeros(5), zeros(1)), given(zeros(6), zeros(6))]
    variants = named(tape_of(tmp_path, calls, Optional()))
    one, more = variants["mask[0] = 1"], variants["mask[0] > 1"]
    assert one.accepts((zeros(9), zeros(1)))
    assert one.accepts((zeros(9), zeros(9))).reason == "not mask[0] = 1"
    assert more.accepts((zeros(9), zeros(9)))
    assert more.accepts((zeros(9), zeros(1))).reason == "not mask[0] > 1"


def test_every_recorded_call_is_accepted_by_its_variant_and_no_other(tmp_path: Path) -> None:
    calls = [
        given(zeros(4, 2), zeros(4, 2)), given(zeros(5, 2), zeros(1, 2)), given(zeros(6, 2)),
        given(zeros(6, 2), steps=3), given(zeros(7, 2), steps=4), given([zeros(2)], add=False),
        given([zeros(3)], add=False, last={"a": zeros(2)}), given(zeros(8, 2), zeros(8, 2)),
    ]  # fmt: skip
    variants = tape_of(tmp_path, calls, Optional()).variants()
    for number, call in enumerate(calls):
        accepting = [variant for variant in variants if variant.accepts(*call)]
        assert len(accepting) == 1
        assert number in [recorded.number for recorded in accepting[0].calls]


# --- what to export with -------------------------------------------------------------------------


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


@settings(max_examples=40, deadline=None)
@with_values(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(1, 4), st.sampled_from([0, 0, 1, 2, 5, 6])),
        min_size=1,
        max_size=6,
    )
)
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


def test_an_int_that_is_passed_by_nobody_twice_alike_is_one_symbol(tmp_path: Path) -> None:
    calls = [given(zeros(n), a=n, b=n + 3) for n in (2, 5, 7)]
    (variant,) = tape_of(tmp_path, calls, Anything()).variants()
    (size, other) = variant.facts.symbols
    assert len(size.columns) == 2
    assert other.relation is not None
    assert other.relation.constant == 3
