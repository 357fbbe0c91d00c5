"""Tensors come back bit by bit: every dtype, every layout, and the facts around them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import Placeholder, TapeError, open_tape
from calltape_analyzer.pytree.tensors import tensor_of, valueless
from calltape_schema.blob import STORED_DTYPES
from calltape_schema.tree import Leaf
from tests.analyzer.tapes import write_tape

DTYPES = [
    name
    for name in STORED_DTYPES
    if isinstance(getattr(torch, name, None), torch.dtype)
    and not name.startswith(("qint", "quint"))
]


def read_back(tmp_path: Path, *tensors: Any, **options: Any) -> Any:
    path = write_tape(tmp_path / "a.tape", [(tensors, {})], **options)
    with open_tape(path) as tape:
        args = tape[0].inputs.args
        assert tape.damage == []
    return args[0] if len(args) == 1 else args


def bits(tensor: torch.Tensor) -> list[int]:
    plain = tensor.detach().contiguous() if tensor.is_contiguous() else tensor.detach().clone()
    return list(plain.untyped_storage())[: tensor.numel() * tensor.element_size()]


@pytest.mark.parametrize("name", DTYPES)
def test_tensors_of_every_dtype_keep_their_bits(tmp_path: Path, name: str) -> None:
    dtype = getattr(torch, name)
    patterns = torch.arange(48, dtype=torch.uint8) * 37 % (2 if name == "bool" else 251)
    patterns[4:8] = 255 if name != "bool" else 1  # a NaN with a payload, in floats of every width
    tensor = patterns.view(dtype)[: 48 // dtype.itemsize]
    got = read_back(tmp_path, tensor)
    assert got.dtype == dtype
    assert got.shape == tensor.shape
    assert bits(got) == bits(tensor)


@pytest.mark.filterwarnings("ignore:.*support is experimental")
@pytest.mark.parametrize("name", DTYPES)
def test_empty_and_0d_tensors_of_every_dtype_are_read(tmp_path: Path, name: str) -> None:
    dtype = getattr(torch, name)
    empty = torch.empty(0, 3, dtype=dtype)
    scalar = torch.zeros(dtype.itemsize, dtype=torch.uint8).view(dtype)[0]
    got_empty, got_scalar = read_back(tmp_path, empty, scalar)
    assert (got_empty.dtype, tuple(got_empty.shape)) == (dtype, (0, 3))
    assert (got_scalar.dtype, got_scalar.ndim) == (dtype, 0)


@pytest.mark.parametrize("dtype", [torch.qint8, torch.quint8, torch.qint32])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_quantized_tensors_keep_scale_and_zero_point(tmp_path: Path, dtype: torch.dtype) -> None:
    tensor = torch.quantize_per_tensor(torch.randn(3, 4), 0.25, 3, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        path = write_tape(tmp_path / "b.tape", [((tensor,), {})], values="none")
        with open_tape(path) as tape:
            # torch cannot print a quantized meta tensor
            assert isinstance(tape[0].inputs.args[0], Placeholder)
        got = read_back(tmp_path, tensor)
    assert got.is_quantized
    assert (got.q_scale(), got.q_zero_point()) == (0.25, 3)
    assert torch.equal(got.int_repr(), tensor.int_repr())


LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "channels_last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "channels_last_3d": lambda: torch.randn(2, 3, 2, 4, 5).to(memory_format=torch.channels_last_3d),
    "transposed": lambda: torch.randn(3, 4).t(),
    "permuted": lambda: torch.randn(2, 3, 4).permute(2, 0, 1),
    "expanded": lambda: torch.randn(3, 1).expand(3, 5),
    "expanded in front": lambda: torch.randn(4).expand(2, 3, 4),
    "expanded 0-d": lambda: torch.tensor(3.0).expand(4, 4),
    "expanded and transposed": lambda: torch.randn(3, 4).t().unsqueeze(0).expand(6, 4, 3),
    "size 1": lambda: torch.randn(2, 1, 4, 5).permute(2, 1, 0, 3),
}


@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex128, torch.int8])
def test_dense_and_expanded_layouts_come_back(
    tmp_path: Path, make: Callable[[], torch.Tensor], dtype: torch.dtype
) -> None:
    made = make()
    tensor = made.to(dtype) if 0 not in made.stride() else made
    got = read_back(tmp_path, tensor)
    assert torch.equal(got, tensor)
    assert got.stride() == tensor.stride()
    assert got.storage_offset() == 0


GAPS: dict[str, Callable[[], torch.Tensor]] = {
    "every other": lambda: torch.arange(20)[::2],
    "a slice": lambda: torch.randn(4, 6)[:, 1:3],
    "overlapping": lambda: torch.arange(6.0).unfold(0, 3, 1),
}


@pytest.mark.parametrize("make", GAPS.values(), ids=GAPS)
def test_views_with_gaps_come_back(tmp_path: Path, make: Callable[[], torch.Tensor]) -> None:
    tensor = make()
    got = read_back(tmp_path, tensor)
    assert torch.equal(got, tensor)
    assert got.stride() == tensor.stride()
    assert got.storage_offset() == 0


def test_a_view_with_gaps_far_larger_than_its_elements_comes_back_contiguous(
    tmp_path: Path,
) -> None:
    tensor = torch.arange(10_000_000.0)[::9_999_999]
    got = read_back(tmp_path, tensor)
    assert torch.equal(got, tensor)
    assert got.is_contiguous()


def test_conj_and_neg_are_resolved(tmp_path: Path) -> None:
    z = torch.randn(3, dtype=torch.complex64)
    got_conj, got_neg = read_back(tmp_path, z.conj(), z.conj().imag)
    assert torch.equal(got_conj, z.conj())
    assert torch.equal(got_neg, z.conj().imag)
    assert not got_conj.is_conj()
    assert not got_neg.is_neg()


def test_requires_grad_is_as_recorded(tmp_path: Path) -> None:
    got, plain, counted = read_back(
        tmp_path, torch.randn(2, requires_grad=True), torch.randn(2), torch.arange(2)
    )
    assert got.requires_grad
    assert got.is_leaf
    assert not plain.requires_grad
    assert not counted.requires_grad


def test_one_tensor_twice_is_one_tensor(tmp_path: Path) -> None:
    x = torch.randn(2)
    first, second, other = read_back(tmp_path, x, x, x.clone())
    assert first is second
    assert other is not first
    path = write_tape(tmp_path / "b.tape", [((x,), {"y": x})])
    with open_tape(path) as tape:
        args, kwargs = tape[0].inputs
        assert args[0] is kwargs["y"]
        node = tape[0].record.inputs.spec().root
        shared: dict[int, Any] = {}
        one = tape[0].build("inputs", node, shared)
        assert tape[0].build("inputs", node, shared)[0][0] is one[0][0]


def test_tensors_without_values_keep_shape_and_strides(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    got, expanded = read_back(tmp_path, x, torch.ones(3, 1).expand(3, 9), values="none")
    assert got.is_meta
    assert (got.shape, got.dtype, got.stride()) == (x.shape, x.dtype, x.stride())
    assert expanded.stride() == (1, 0)


def test_a_value_that_could_not_be_kept_is_no_meta_tensor() -> None:
    freed = valueless(Leaf(dtype="float32", shape=(2,), missing="its storage was freed"))
    assert isinstance(freed, Placeholder)
    assert freed.reason == "its storage was freed"
    assert valueless(Leaf(dtype="float32", shape=(2,), missing="meta", device="meta")).is_meta


def test_sparse_is_a_placeholder(tmp_path: Path) -> None:
    got = read_back(tmp_path, torch.eye(3).to_sparse())
    assert isinstance(got, Placeholder)
    assert "float32" in got.type_name


def test_a_tensor_of_an_unknown_dtype_is_a_placeholder(tmp_path: Path) -> None:
    leaf = Leaf(dtype="float32", shape=(2,), key="x")
    got = tensor_of(leaf.model_copy(update={"dtype": "float1024"}), bytearray(8))
    assert isinstance(got, Placeholder)


def test_bytes_that_do_not_fit_the_facts() -> None:
    leaf = Leaf(dtype="float32", shape=(2,), key="x")
    with pytest.raises(TapeError) as caught:
        tensor_of(leaf, bytearray(4))
    assert caught.value.kind == "invalid"
