"""The values that a program is traced and tried with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given as with_values
from hypothesis import strategies as st

from calltape_analyzer import TapeError, open_tape
from calltape_analyzer.arguments.samples import (
    Sample,
    completed,
    nudged,
    recorded_sample,
    resized,
    sample_in,
)
from calltape_analyzer.arguments.sizings import sizings_unseen
from calltape_analyzer.arguments.synthetic_values import synthetic
from calltape_analyzer.errors import InferenceError
from calltape_analyzer.observing.size_table import Span, value_in
from calltape_analyzer.variants.alternatives import can_merge, merged
from calltape_recorder import record
from tests.analyzer.arguments.generating import Generating, ids, sample_at, single, step
from tests.analyzer.observed import Given, Optional, given, sorter_of, tape_of, zeros
from tests.analyzer.variants.caches import WindowCache


def decoding(past: int, new: int, batch: int) -> Given:
    return given(
        ids(batch, new),
        torch.ones(batch, past + new, dtype=torch.int64),
        last=[torch.rand(batch, 2, past, 4)],
        steps=past + 5,
    )


@with_values(
    st.lists(
        st.builds(decoding, st.integers(0, 4), st.integers(1, 4), st.integers(1, 3)),
        min_size=2, max_size=4,
    ),
    st.data(),
)  # fmt: skip
def test_a_resized_sample_has_exactly_the_sizes_that_were_asked_for(
    tmp_path_factory: pytest.TempPathFactory, calls: list[Given], data: st.DataObject
) -> None:
    tape = tape_of(tmp_path_factory.mktemp("a"), calls, Optional())
    for variant in tape.variants():
        facts = variant.facts
        row = data.draw(st.integers(0, len(facts.rows) - 1))
        values = [data.draw(st.integers(0, 6)) for _ in facts.symbols]
        sample = sample_at(tape, variant, row)
        made = resized(sample, facts, row, values)
        expected = {c: v for s, v in zip(facts.symbols, values, strict=True) for c in s.columns}
        known = facts.rows.row(row)
        ints = [v for p, v in zip(facts.group.layout.scalars, made.scalars, strict=True)
                if p.kind == "int"]  # fmt: skip
        for column in facts.dimensions:
            want = expected.get(column, value_in(known, column))
            if column.axis is None:
                assert ints[column.index] == want
            else:
                assert made.tensors[column.index].shape[column.axis] == want
        for before, after in zip(sample.tensors, made.tensors, strict=True):
            assert after.dtype == before.dtype
            assert after.is_contiguous()
            assert after is not before
            kept, now = set(before.flatten().tolist()), set(after.flatten().tolist())
            if before.numel():
                # Token ids stay token ids, masks stay masks; other floats are moved a little.
                near = {min(kept, key=lambda one, value=value: abs(one - value)) for value in now}
                assert {value for value in now if value == round(value)} <= kept
                assert all(abs(min(abs(v - one) for one in near)) <= abs(v) / 500 for v in now)
                if all(a >= b for a, b in zip(after.shape, before.shape, strict=True)):
                    assert kept <= now


def test_tiling_is_cyclic_along_each_axis(tmp_path: Path) -> None:
    tape, variant = single(tmp_path, [given(ids(2, 3)), given(ids(4, 5))])
    made = resized(sample_at(tape, variant, 0), variant.facts, 0, [3, 5])
    expected = ids(2, 3)[[0, 1, 0]][:, [0, 1, 2, 0, 1]]
    assert torch.equal(made.tensors[0], expected)


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.uint8, torch.int16, torch.uint16, torch.float16, torch.bfloat16,
     torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2],
    ids=str,
)  # fmt: skip
def test_every_dtype_can_be_tiled_and_made_up(tmp_path: Path, dtype: torch.dtype) -> None:
    calls = [given((torch.arange(size) % 2).to(dtype)) for size in (2, 3)]
    tape, variant = single(tmp_path, calls)
    made = resized(sample_at(tape, variant, 0), variant.facts, 0, [5]).tensors[0]
    assert made.dtype == dtype
    assert made.to(torch.complex64).tolist() == [0, 1, 0, 1, 0]
    assert synthetic((4,), dtype).dtype == dtype


@pytest.mark.filterwarnings("ignore:torch.quantize")
def test_a_quantized_tensor_is_tiled_with_its_scale(tmp_path: Path) -> None:
    def made(size: int) -> torch.Tensor:
        return torch.quantize_per_tensor(torch.arange(float(size)), 0.5, 3, torch.quint8)

    tape, variant = single(tmp_path, [given(made(2)), given(made(3))])
    tensor = resized(sample_at(tape, variant, 0), variant.facts, 0, [5]).tensors[0]
    assert tensor.dequantize().tolist() == [0, 1, 0, 1, 0]


def test_what_has_no_element_to_tile_is_made_up_in_its_range(tmp_path: Path) -> None:
    calls = [given(torch.randint(50, 60, (size,))) for size in (0, 4, 6)]
    tape, variant = single(tmp_path, calls)
    empty = next(r for r, row in enumerate(variant.facts.rows) if row.shapes == ((0,),))
    made = resized(sample_at(tape, variant, empty), variant.facts, empty, [64]).tensors[0]
    assert made.shape == (64,)
    assert made.min() >= 50
    assert made.max() < 60


@with_values(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
def test_made_up_ints_are_in_their_range(one: int, other: int) -> None:
    span = Span(min(one, other), max(one, other))
    made = synthetic((50,), torch.int64, span)
    assert made.min() >= min(span.min, 2**63 - 2)
    assert made.max() <= span.max


def test_made_up_values_are_the_same_each_time_and_differ_by_place() -> None:
    one = synthetic((5,), torch.float32, seed="x")
    assert torch.equal(one, synthetic((5,), torch.float32, seed="x"))
    assert not torch.equal(one, synthetic((5,), torch.float32, seed="y"))
    assert set(synthetic((50,), torch.int64).tolist()) == {0, 1}
    assert synthetic((3,), torch.bool).all()
    assert torch.isfinite(synthetic((99,), torch.float16)).all()


def test_a_tape_of_shapes_gives_values_in_their_recorded_range(tmp_path: Path) -> None:
    ids = [40 + torch.arange(3 * size).reshape(size, 3) for size in (400, 500)]
    calls = [given(numbers, torch.rand(len(numbers))) for numbers in ids]
    tape, variant = single(tmp_path, calls, values="none")
    sample = recorded_sample(tape.calls[0], sorter_of(tape))
    assert sample.tensors[0].shape == (400, 3)
    assert sample.tensors[0].min() >= 40
    assert sample.tensors[0].max() < 1240
    assert sample.tensors[1].device.type == "cpu"
    args, kwargs = variant.infer_arguments()
    assert args[0].min() >= 40
    assert kwargs == {}


def test_a_tensor_that_was_not_kept_is_refused_with_advice(tmp_path: Path) -> None:
    tape, variant = single(tmp_path, [given(torch.eye(3).to_sparse())])
    with pytest.raises(InferenceError, match="Pass a dense tensor of a plain dtype there"):
        sample_at(tape, variant, 0)


def test_cloned_samples_share_nothing(tmp_path: Path) -> None:
    tape, variant = single(tmp_path, [given(ids(2, 3).t(), steps=3)])
    sample = sample_at(tape, variant, 0)
    clone = sample.cloned()
    clone.tensors[0].zero_()
    clone.scalars[0] = 9
    assert sample.tensors[0].min() > 0
    assert sample.scalars == [3]


def test_what_is_cloned_or_resized_lies_as_recorded(tmp_path: Path) -> None:
    def call(size: int) -> Given:
        return given(ids(3, size).t(), zeros(2, 3).t(), last=zeros(1, 3).expand(4, 3))

    tape, variant = single(tmp_path, [call(4), call(5)])
    sample = sample_at(tape, variant, 0)
    assert not any(tensor.is_contiguous() for tensor in sample.tensors)
    strides = [tensor.stride() for tensor in sample.tensors]
    assert [tensor.stride() for tensor in sample.cloned().tensors] == strides
    made = resized(sample, variant.facts, 0, [7])
    assert [tensor.stride() for tensor in made.tensors] == [(1, 7), (1, 3), (0, 1)]
    for tensor in variant.infer_arguments()[0]:
        assert tensor.is_contiguous()
    assert torch.equal(sample.cloned().tensors[0], sample.tensors[0])


def test_a_counter_is_resized_with_its_tensor(tmp_path: Path) -> None:
    calls = [given(zeros(1, 1), last=WindowCache(seen, 8, batch=1)) for seen in (3, 5)]
    tape, variant = single(tmp_path, calls)
    made = resized(sample_at(tape, variant, 0), variant.facts, 0, [7])
    assert made.tensors[1].shape == (1, 2, 7, 4)
    assert made.scalars == [7]


def test_a_sample_of_another_structure_is_refused(tmp_path: Path) -> None:
    tape = tape_of(tmp_path, [given(ids(2)), given([ids(2)])], Optional())
    one, _ = tape.variants()
    with pytest.raises(InferenceError, match="structure"):
        sample_in(one.facts, tape.calls[1], sorter_of(tape))


@pytest.mark.parametrize(
    "steps",
    [
        [(1, 5, 0), (1, 1, 5), (1, 1, 6), (3, 7, 0), (3, 1, 7), (3, 1, 8)],
        [(2, 5, 0), (2, 1, 5), (2, 1, 6)],
    ],
)
def test_a_prefill_is_completed_with_an_empty_cache_of_its_own_batch(
    tmp_path: Path, steps: list[tuple[int, int, int]]
) -> None:
    tape = tape_of(tmp_path, [step(*given) for given in steps], Generating())
    by_name = {variant.name: variant for variant in tape.variants()}
    small, large = by_name["prefill"].facts, by_name["decode"].facts
    assert can_merge(small, large)
    assert not can_merge(large, small)
    sorter = sorter_of(tape)
    whole_variant = merged(large, [small], sorter, tape.calls)
    (completion,) = whole_variant.completions.values()
    for call in by_name["prefill"].calls:
        sample = recorded_sample(call, sorter)
        row = sorter.sorted(call.record.inputs).row
        whole = completed(sample, completion, row)
        batch = sample.tensors[0].shape[0]
        assert [tuple(t.shape) for t in whole.tensors[2:]] == [(batch, 2, 0, 4)] * 4
        assert all(a is b for a, b in zip(whole.tensors[:2], sample.tensors, strict=True))
        assert completion.row(row).shapes == tuple(tuple(t.shape) for t in whole.tensors)
        assert all(tensor.dtype == torch.float32 for tensor in whole.tensors[2:])


def test_unseen_sizes_make_samples_that_no_call_had(tmp_path: Path) -> None:
    steps = [(1, 5, 6), (2, 3, 7), (3, 1, 8)]
    tape = tape_of(tmp_path, [step(*given) for given in steps], Generating())
    (variant,) = tape.variants()
    recorded = {row.shapes for row in variant.facts.rows}
    found = sizings_unseen(variant.facts, 3)
    assert len(found) == 3
    for sizing in found:
        made = resized(sample_at(tape, variant, sizing.row), variant.facts, sizing.row,
                       sizing.values)  # fmt: skip
        shapes = tuple(tuple(tensor.shape) for tensor in made.tensors)
        assert shapes not in recorded
        # The sum of what was there and what is new, as in every call.
        assert shapes[1] == (shapes[0][0], shapes[0][1] + shapes[2][2])


def test_rows_that_are_there_twice_are_nudged_different_ways() -> None:
    points = torch.randn(2, 8, 3)
    tiled = torch.cat([points, points], dim=1)  # as a sample that was resized
    (moved,) = nudged(Sample([tiled], [])).tensors
    apart = (moved[:, :8] != moved[:, 8:]).any(-1)
    assert apart.float().mean() > 0.7
    assert torch.allclose(moved, tiled, rtol=1e-6)


@pytest.mark.parametrize("of", ["tape", "variant"])
def test_an_expanded_argument_is_made_contiguous_within_the_limit_only(
    tmp_path: Path, of: str
) -> None:
    model = torch.nn.Identity()
    with record(model, tmp_path / "a.tape"):
        model(torch.ones(1).expand(2**26))
    tape = open_tape(tmp_path / "a.tape")
    source = tape if of == "tape" else tape.variants()[0]
    with pytest.raises(TapeError, match="would take 268,435,456 bytes") as caught:
        source.infer_arguments(layout="contiguous")
    assert caught.value.kind == "limit"
