"""Layouts in memory: recorded, rebuilt, copied, made for other sizes; and what shares memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calltape_analyzer import open_tape
from calltape_analyzer.pytree.memory import (
    Place,
    as_laid_out,
    contiguous_strides,
    copies,
    extent,
    is_dense,
    overlap,
    place_of,
    place_together,
    relaid,
)
from calltape_analyzer.reading.call import Call
from calltape_recorder import record
from calltape_schema.tree import Leaf


class Any_(torch.nn.Module):
    def forward(self, *values: torch.Tensor) -> None:
        return None


def recorded(tmp_path: Path, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
    model, path = Any_(), tmp_path / "a.tape"
    with record(model, path):
        model(*values)
    call: Call = open_tape(path).calls[0]
    return call.inputs.args


LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "contiguous": lambda: torch.randn(4, 5),
    "transposed": lambda: torch.randn(4, 5).t(),
    "permuted": lambda: torch.randn(2, 3, 4).permute(2, 0, 1),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "a step": lambda: torch.randn(4, 10)[:, ::2],
    "a slice": lambda: torch.randn(4, 10)[1:3, 2:7],
    "a step of rows": lambda: torch.randn(9, 4)[::3],
    "steps, transposed": lambda: torch.randn(6, 10)[::2, ::3].t(),
    "expanded": lambda: torch.randn(1, 5).expand(4, 5),
    "expanded and transposed": lambda: torch.randn(5, 4).t()[None].expand(3, 4, 5),
    "overlapping": lambda: torch.randn(20).unfold(0, 6, 2),
    "all overlapping": lambda: torch.randn(9).as_strided((5, 5), (1, 1)),
    "half precision": lambda: torch.randn(4, 10).half()[:, ::2],
    "booleans": lambda: (torch.randn(4, 10) > 0)[:, 1::3],
    "eight bits": lambda: torch.randn(4, 6).to(torch.float8_e4m3fn).t(),
    "complex": lambda: torch.randn(4, 6, dtype=torch.complex64)[:, ::2],
    "a scalar": lambda: torch.tensor(3.0),
    "empty": lambda: torch.randn(0, 3).t(),
}


def bits(tensor: torch.Tensor) -> list[object]:
    plain: list[object] = tensor.to(torch.complex128).tolist()
    return plain


@pytest.mark.parametrize("kind", LAYOUTS)
def test_what_is_read_lies_as_what_was_recorded(kind: str, tmp_path: Path) -> None:
    given = LAYOUTS[kind]()
    (found,) = recorded(tmp_path, given)
    assert not given.numel() or found.stride() == given.stride()
    assert bits(found) == bits(given)


@pytest.mark.parametrize("kind", LAYOUTS)
def test_a_copy_lies_as_the_original_and_has_its_own_memory(kind: str) -> None:
    given = LAYOUTS[kind]()
    (made,) = copies([given])
    assert bits(made) == bits(given)
    assert made._base is None
    assert made.untyped_storage().data_ptr() != given.untyped_storage().data_ptr() or not len(
        given.untyped_storage()
    )
    if given.numel():
        assert made.stride() == given.stride()
        assert made.storage_offset() == given.storage_offset()
        (from_zero,) = copies([given], from_zero=True)
        assert from_zero.stride() == given.stride()
        assert from_zero.storage_offset() == 0
        assert bits(from_zero) == bits(given)


@pytest.mark.parametrize("kind", LAYOUTS)
def test_other_sizes_lie_in_the_same_way(kind: str) -> None:
    old = LAYOUTS[kind]()
    if not old.numel() or "overlapping" in kind:
        return
    new = torch.randn([size + 2 for size in old.shape]).to(old.dtype)
    made = relaid(new, place_of(old))
    order = sorted(range(old.dim()), key=lambda axis: (-old.stride()[axis], axis))
    assert order == sorted(range(old.dim()), key=lambda axis: (-made.stride()[axis], axis))
    assert made.is_contiguous() is old.is_contiguous()
    assert is_dense(made.shape, made.stride()) is is_dense(old.shape, old.stride())
    axes = [axis for axis, step in enumerate(old.stride()) if step == 0 and old.shape[axis] > 1]
    for axis in axes:
        new = new.narrow(axis, 0, 1)
    assert bits(made) == bits(new.expand(made.shape))


def test_memory_of_other_leaves_is_shared_again(tmp_path: Path) -> None:
    store = torch.randn(4, 10)
    given = (store, store[:, :4], store.t(), store[1:3, ::2], torch.randn(2), store, store[:0])
    found = recorded(tmp_path, *given)
    for one, other in zip(given, found, strict=True):
        assert torch.equal(one, other)
        assert one.stride() == other.stride()
    assert found[0] is found[5]
    assert found[0] is not found[2]
    found[0][:, :2] = 7
    assert (found[1][:, :2] == 7).all()
    assert (found[2][:2] == 7).all()
    assert (found[3][:, 0] == 7).all()
    made = copies(list(found))
    made[0].zero_()
    assert not made[1].any()
    assert made[0] is made[5]
    assert found[1].any()


def test_memory_of_several_dtypes_is_shared_again(tmp_path: Path) -> None:
    store = torch.randn(4, 10)
    words = store.view(torch.int32)
    found = recorded(tmp_path, store[1:], words[:2], store.view(torch.uint8)[:, 3:7])
    found[1].zero_()
    assert not found[0][0].any()
    assert not found[2][:2].any()
    assert found[0][1:].any()


def test_strides_of_a_stranger_allocate_nothing_large() -> None:
    plain = torch.randn(2, 3)
    assert as_laid_out(plain, (2**62, 1)) is plain
    assert as_laid_out(plain, (2**30, 1)) is plain


def test_elements_that_contradict_each_other_stay_as_they_are() -> None:
    plain = torch.arange(6.0).view(2, 3)
    assert as_laid_out(plain, (1, 1)) is plain
    agreeing = torch.tensor([[0.0, 1, 2], [1, 2, 3]])
    assert as_laid_out(agreeing, (1, 1)).stride() == (1, 1)


places = st.builds(
    lambda sizes, steps, offset, width: Place(
        tuple(sizes), tuple(steps[: len(sizes)]), offset * width, width
    ),
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.lists(st.integers(0, 12), min_size=3, max_size=3),
    st.integers(0, 20),
    st.sampled_from([1, 2, 4]),
)


def touched(place: Place) -> set[int]:
    found = {place.offset}
    for size, step in zip(place.shape, place.strides, strict=True):
        found = {at + i * step * place.width for at in found for i in range(size)}
    return {at + i for at in found for i in range(place.width)}


@given(places, places)
def test_overlap_is_a_byte_in_common(one: Place, other: Place) -> None:
    assert overlap(one, other) is bool(touched(one) & touched(other))


def test_slices_of_one_tensor_that_interleave_do_not_overlap() -> None:
    fused = torch.randn(7, 64, 3 * 512)
    query, key, value = map(place_of, fused.chunk(3, -1))
    assert not overlap(query, key)
    assert not overlap(key, value)
    assert overlap(query, place_of(fused[..., 511:600]))
    assert not overlap(place_of(fused[..., ::2]), place_of(fused[..., 1::2]))


def test_extent_and_contiguous_strides_are_those_of_torch() -> None:
    for layout in LAYOUTS.values():
        tensor = layout()
        if tensor.numel():
            last = sum((s - 1) * t for s, t in zip(tensor.shape, tensor.stride(), strict=True))
            assert extent(tensor.shape, tensor.stride()) == last + 1
        assert contiguous_strides(tensor.shape) == torch.empty(tensor.shape).stride()


def test_expanded_tensors_in_one_memory_cost_what_is_stored() -> None:
    size = 2**62
    facts = [
        Leaf(dtype="uint8", shape=(size,), key=name, strides=(0,), expanded=(0,), storage=0)
        for name in "ab"
    ]
    tensors: dict[int, Any] = {i: torch.ones(1, dtype=torch.uint8).expand(size) for i in (0, 1)}
    place_together(facts, tensors)
    one, other = tensors[0], tensors[1]
    assert one.shape == other.shape == (size,)
    assert one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    assert one[:3].tolist() == [1, 1, 1]
