"""Which dimensions of a variant are dynamic, and what they are called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from calltape_analyzer.observing.size_table import Column
from tests.analyzer.arguments.generating import Generating, step
from tests.analyzer.observed import (
    Anything,
    Optional,
    given,
    tape_of,
    zeros,
)
from tests.analyzer.variants.named import named, reasons


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


def test_an_int_that_is_passed_by_nobody_twice_alike_is_one_symbol(tmp_path: Path) -> None:
    calls = [given(zeros(n), a=n, b=n + 3) for n in (2, 5, 7)]
    (variant,) = tape_of(tmp_path, calls, Anything()).variants()
    (size, other) = variant.facts.symbols
    assert len(size.columns) == 2
    assert other.relation is not None
    assert other.relation.constant == 3


class Unregistered:
    """An object of which a tape has nothing."""

    def __init__(self) -> None:
        self.keys = zeros(2, 3)


def test_objects_that_the_tape_lacks_are_warned_of(tmp_path: Path) -> None:
    calls = [given(zeros(2, 3), cache=[Unregistered(), Unregistered()]) for _ in range(2)]
    (variant,) = tape_of(tmp_path, calls, Anything()).variants()
    name = f"{Unregistered.__module__}:Unregistered"
    assert list(variant.findings.warnings()) == [
        f"cache has 2 objects of {name} that the tape lacks (a class that calltape does not know)"
    ]
