"""What is said of the calls holds for each of them, however many they are."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given as with_values
from hypothesis import strategies as st

from calltape_analyzer import Tape, Variant, diff, open_tape
from calltape_analyzer.errors import InferenceError
from calltape_analyzer.observing.size_table import value_in
from calltape_analyzer.targets.engines import optimization_profile, partial_shapes
from calltape_analyzer.variants.variant_findings import VariantTable
from tests.analyzer.observed import Given, Optional, given, named_columns, tape_of, zeros
from tests.analyzer.tapes import write_tape

MANY = 4000


def empty(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Tape:
    """More distinct sizes than a sample has, the extremes of which came once."""
    chance = random.Random(7)
    sizes = [(chance.randint(2, 30), chance.randint(5, 599)) for _ in range(MANY)]
    sizes[1234], sizes[3456] = (31, 4), (1, 600)
    calls: list[Any] = [{"x": empty(a, b), "y": empty(a + b)} for a, b in sizes]
    calls[2345] = {"x": empty(7, 7), "y": empty(15)}  # not the sum of the two
    return open_tape(write_tape(tmp_path_factory.mktemp("a") / "a.tape", calls, sealed=False))


@pytest.mark.integration
def test_every_call_is_counted_and_within_the_ranges(crowded: Tape) -> None:
    (variant,) = crowded.variants()
    findings = variant.findings
    assert (len(variant), findings.calls, len(variant.calls)) == (MANY, MANY, MANY)
    assert [(d.min, d.max) for d in findings.tensors[0].dimensions] == [(1, 31), (4, 600)]
    assert sum(size.calls for size in findings.symbols[0].sizes) == MANY


def test_targets_take_every_call(crowded: Tape) -> None:
    (variant,) = crowded.variants()
    profile = optimization_profile(variant)
    assert profile.calls == MANY
    assert (profile.inputs["x"].min, profile.inputs["x"].max) == ((1, 4), (31, 600))
    assert partial_shapes(variant)["x"] == [(1, 31), (4, 600)]


def test_a_relation_that_one_call_refutes_is_none(crowded: Tape) -> None:
    (variant,) = crowded.variants()
    assert [symbol.expression for symbol in variant.findings.symbols] == [None] * 3
    assert len(variant.facts.rows) < MANY / 2  # it was learned from few, and checked with all


def test_what_was_broadcast_once_is_a_variant(tmp_path: Path) -> None:
    same: list[Any] = [{"x": empty(n + 2, 4), "m": empty(n + 2, 4)} for n in range(2000)]
    same[999] = {"x": empty(40, 4), "m": empty(1, 4)}
    found = {v.name: len(v) for v in open_tape(write_tape(tmp_path / "b.tape", same)).variants()}
    assert found == {"m[0] > 1": 1999, "m[0] = 1": 1}


def test_a_difference_is_not_one_of_samples(crowded: Tape, tmp_path: Path) -> None:
    calls: list[Any] = [{"x": empty(9, 9), "y": empty(18)}] * 3
    calls.append({"x": empty(9, 601), "y": empty(610)})
    difference = diff(crowded, open_tape(write_tape(tmp_path / "a.tape", calls)))
    assert [(c.kind, c.where, c.text) for c in difference.appeared if c.kind == "size"] == [
        ("size", "x[1]", "now 601; 4..600 before, in main")
    ]
    assert difference.notes == ()


def test_text_that_varies_makes_no_variants(tmp_path: Path) -> None:
    calls = [given(zeros(2 + n % 3), mode=f"tell me of {n}") for n in range(40)]
    (variant,) = tape_of(tmp_path, calls, Optional()).variants()
    assert (variant.name, len(variant)) == ("main", 40)
    assert variant.findings.constants == {}
    assert variant.findings.varying == {"mode": "str"}
    assert variant.accepts((zeros(9),), {"mode": "anything"})
    _, kwargs = variant.infer_arguments()
    assert kwargs["mode"].startswith("tell me of ")
    assert list(variant.findings.warnings()) == ["mode (str) varies: a trace has that of one call"]


@pytest.mark.parametrize(
    ("modes", "variants"),
    [
        (["mean", "sum"] * 3, 2),
        (["mean"] * 9 + ["sum"], 2),
        (["mean"], 1),
        (["mean", "sum", "max"], 1),  # each once
        ([f"m{n}" for n in range(9)] * 9, 1),  # too many
        ([f"m{n}" for n in range(8)] * 2, 8),
        (["of two words", "or more"] * 9, 1),
        (["x" * 65, "y" * 65] * 9, 1),
        ([0.5, 1.5] * 2, 1),
        ([float(n) for n in range(30)], 1),
        ([b"a", b"b"] * 2, 2),
    ],
    ids=repr,
)
def test_few_texts_that_repeat_are_a_switch(
    tmp_path: Path, modes: list[Any], variants: int
) -> None:
    calls = [given(zeros(2), other=mode) for mode in modes]
    random.Random(3).shuffle(calls)
    found = tape_of(tmp_path, calls, Optional()).variants()
    assert len(found) == variants
    assert sum(map(len, found)) == len(modes)


def test_of_two_texts_only_one_is_a_switch_if_both_would_be_too_many(tmp_path: Path) -> None:
    calls = [given(zeros(2), mode=f"m{n}", last=f"l{m}") for n in range(8) for m in range(8)]
    variants = tape_of(tmp_path, calls, Optional()).variants()
    assert len(variants) == 8
    assert {tuple(v.findings.varying) for v in variants} in ({("last",)}, {("mode",)})


def test_private_text_is_nowhere_but_in_the_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from calltape_analyzer.cli.variants import variants as command
    from calltape_analyzer.scripting import script

    one = [given(zeros(2), mode="the one secret")] * 2
    two = [given(zeros(2), mode=f"secret:{n}!") for n in (1, 2)] * 3
    for calls in (one, two, [*one, *two]):
        tape = tape_of(tmp_path, calls, Optional())
        said = [script(tape), str(tape.explain("mode")), *(v.name for v in tape.variants())]
        for variant in tape.variants():
            said += variant.findings.warnings()
            said.append(variant.accepts((zeros(2),), {"mode": "my secret"}).reason or "")
        said += [str(diff(tape, tape_of(tmp_path, two[:1], Optional())))]
        command([tape.paths[0]])
        said.append(capsys.readouterr().out)
        assert not [text for text in said if "secret" in text]


# --- shapes and variants ------------------------------------------------------------------------

SIZES = st.integers(1, 4)
TENSORS = st.one_of(
    st.builds(zeros, SIZES),
    st.builds(zeros, SIZES, st.just(3)),
    st.builds(zeros, SIZES, st.just(2), SIZES),
    st.builds(zeros, SIZES, dtype=st.just(torch.int64)),
)


def lists(length: int) -> st.SearchStrategy[list[Any]]:
    element = st.builds(zeros, SIZES, st.sampled_from([2, 5]))
    return st.lists(element, min_size=length, max_size=length)


@st.composite
def traffic(draw: st.DrawFn) -> list[Given]:
    """Calls that are somewhat alike: each argument is of one kind, and sometimes left out."""
    some = draw(st.sampled_from([st.builds(zeros, SIZES, st.just(3)), TENSORS]))
    pair = st.tuples(lists(draw(st.integers(1, 3))), some)
    mapped = pair.map(lambda parts: {"a": parts[0], "b": parts[1]})
    first = draw(st.sampled_from([some, pair, mapped]))
    options: dict[str, st.SearchStrategy[Any]] = {
        "mask": TENSORS,
        "last": lists(draw(st.integers(1, 3))),
        "steps": st.integers(0, 3),
        "mode": st.sampled_from(["mean", "sum", "a prompt", "another one"]),
        "scale": st.sampled_from([0.5, 1.5, 2.5]),
        "add": st.booleans(),
    }
    names = draw(st.sets(st.sampled_from(sorted(options)), max_size=3))
    chosen = {name: options[name] for name in sorted(names)}
    always = draw(st.booleans())
    if always:
        named = st.fixed_dictionaries(chosen)
    else:
        named = st.fixed_dictionaries({}, optional=chosen)
    return draw(st.lists(st.tuples(st.tuples(first), named), min_size=1, max_size=7))


@pytest.mark.integration
@with_values(traffic())
def test_what_varied_in_any_variant_is_dynamic_in_one_program_of_all(
    tmp_path_factory: pytest.TempPathFactory, calls: list[Given]
) -> None:
    tape = tape_of(tmp_path_factory.mktemp("a"), calls, Optional(), values="none")
    variants = tape.variants()
    check_counts(tape, variants)
    try:
        findings = tape.single.findings
    except InferenceError:
        assert len(variants) > 1
        return
    assert findings.calls == len(tape)
    dynamic = {
        (tensor.argument, tensor.path, dimension.axis): dimension.dynamic
        for tensor in findings.tensors
        for dimension in tensor.dimensions
    }
    seen: dict[Any, set[int]] = defaultdict(set)
    for variant in variants:
        for place, column in dimensions_of(variant):
            seen[place] |= variant.facts.all_rows.distinct(column)
    assert all(dynamic[place] for place, values in seen.items() if len(values) > 1)


def dimensions_of(variant: Variant) -> list[tuple[tuple[str, str, int], Any]]:
    tensors = variant.facts.group.layout.tensors
    return [
        ((tensors[column.index].argument, tensors[column.index].path, column.axis), column)
        for column in variant.facts.all_rows.columns
        if column.axis is not None
    ]


def check_counts(tape: Tape, variants: list[Variant]) -> None:
    """Each call is in one variant, whose ranges it is within, and names are unique."""
    assert sum(map(len, variants)) == len(tape)
    assert sorted(c.number for v in variants for c in v.calls) == [c.number for c in tape.calls]
    assert len({variant.name for variant in variants}) == len(variants)
    for variant in variants:
        facts, found = variant.facts, variant.findings
        assert len(variant.calls) == found.calls
        assert len({symbol.name for symbol in found.symbols}) == len(found.symbols)
        rows = [row[0] for row in VariantTable.of(variant).arguments]
        assert len(set(rows)) == len(rows)
        for call in variant.calls:
            row = variant.sorter.sorted(call.record.inputs).row
            assert facts.rejects(row) is None
            for column in named_columns(facts).values():
                span = facts.all_rows.span(column)
                assert span.min <= value_in(row, column) <= span.max
