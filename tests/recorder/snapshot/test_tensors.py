"""Tensors and arrays of each kind read back as they were, or say why they cannot."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from calltape_recorder import record
from tests.recorder.calls import ORDINARY, bits, taped
from tests.recorder.models import Identity
from tests.recorder.reading import read


def test_a_tensor_that_left_vmap_has_no_bytes(tmp_path: Path) -> None:
    left: list[torch.Tensor] = []
    torch.vmap(lambda x: left.append(x) or x)(torch.ones(3, 2))  # type: ignore[func-returns-value]
    call = taped(tmp_path, left, result=left)
    assert call.record.inputs.facts()[0].missing.startswith("not readable")


@pytest.mark.parametrize("dtype", ORDINARY, ids=str)
@pytest.mark.parametrize("strided", [False, True])
def test_every_dtype_reads_back_bit_identical(
    tmp_path: Path, dtype: torch.dtype, strided: bool
) -> None:
    source = torch.randint(0, 256, (4, 6 * dtype.itemsize), dtype=torch.uint8)
    if dtype is torch.bool:
        source = source % 2
    tensor = source.view(dtype)
    tensor = tensor.t() if strided else tensor
    call = taped(tmp_path, tensor, result=tensor)
    facts = call.record.inputs.facts()[0]
    assert getattr(torch, facts.dtype) is dtype
    assert facts.shape == tuple(tensor.shape)
    assert facts.strides == (tuple(tensor.stride()) if strided else None)
    assert bits(call.input(0)) == bits(tensor)
    assert bits(call.output(0)) == bits(tensor)


def test_every_dtype_of_this_torch_is_recorded_or_says_why(tmp_path: Path) -> None:
    model = Identity()
    with warnings.catch_warnings(), record(model, tmp_path / "t.tape") as recorder:
        warnings.simplefilter("ignore")
        dtypes = sorted({d for d in vars(torch).values() if type(d) is torch.dtype}, key=str)
        for dtype in dtypes:
            if str(dtype).startswith("torch.q"):
                model(torch._empty_affine_quantized((2, 4), scale=0.5, zero_point=0, dtype=dtype))
            else:
                model(torch.empty(2, 4, dtype=dtype))
    assert recorder.stats().kept == len(dtypes)
    for call in read(tmp_path / "t.tape").calls:
        facts = call.record.inputs.facts()[0]
        assert facts.missing is None or facts.dtype in ("quint4x2", "quint2x4")


@pytest.mark.parametrize("dtype", [torch.qint8, torch.quint8, torch.qint32], ids=str)
def test_quantized_tensors_are_recorded_with_scale_and_zero_point(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensor = torch.quantize_per_tensor(torch.randn(3, 5), 0.1, 0, dtype)
    call = taped(tmp_path, tensor, result=tensor)
    quantizer = call.record.inputs.facts()[0].quantizer
    assert quantizer is not None
    assert (quantizer.scale, quantizer.zero_point) == (tensor.q_scale(), tensor.q_zero_point())
    assert torch.equal(call.input(0), tensor.int_repr())


def test_views_are_recorded_with_values_and_strides(tmp_path: Path) -> None:
    base = torch.arange(48, dtype=torch.float32).reshape(2, 3, 2, 4)
    views = {
        "channels_last": base.contiguous(memory_format=torch.channels_last),
        "sliced": base[:, 1:, :, ::2],
        "expanded": torch.arange(3.0).reshape(1, 3, 1).expand(4, 3, 5),
        "overlapping": torch.arange(10.0).unfold(0, 4, 2),
        "scalar": torch.tensor(7.0),
        "empty": torch.empty(0, 5),
        "empty_strided": torch.empty(4, 0).t(),
        "offset": base.reshape(-1)[5:9],
    }
    call = taped(tmp_path, **views)
    for (name, view), facts in zip(views.items(), call.record.inputs.facts(), strict=False):
        leaf = call.kwargs[name].leaf
        assert torch.equal(call.input(leaf), view), name
        assert facts.strides == (None if view.is_contiguous() else tuple(view.stride())), name
    assert call.record.inputs.facts()[call.kwargs["expanded"].leaf].expanded == (0, 2)
    assert call.stored(call.record.inputs, call.kwargs["expanded"].leaf).shape == (1, 3, 1)


def test_conjugate_and_negative_views_are_recorded_as_such(tmp_path: Path) -> None:
    z = torch.randn(3, 4, dtype=torch.complex64)
    call = taped(tmp_path, z.conj(), z.conj().imag, z.mH)
    facts = call.record.inputs.facts()
    assert [(f.conj, f.neg) for f in facts] == [(True, False), (False, True), (True, False)]
    for leaf, value in enumerate([z.conj(), z.conj().imag, z.mH]):
        assert torch.equal(call.input(leaf), value)


def test_gradient_and_inference_flags_are_recorded(tmp_path: Path) -> None:
    with torch.inference_mode():
        inference = torch.ones(2)
    weight = torch.nn.Parameter(torch.randn(2))
    call = taped(tmp_path, torch.ones(2, requires_grad=True), inference, weight)
    facts = call.record.inputs.facts()
    assert [f.requires_grad for f in facts] == [True, False, True]
    assert [f.inference for f in facts] == [False, True, False]
    assert facts[2].subclass == "torch.nn.parameter:Parameter"


class Tagged(torch.Tensor):
    """Intercepts everything, and fails."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"the recorder called {func}")


class Hidden(torch.Tensor):
    """Has no bytes of its own."""

    @staticmethod
    def __new__(cls, shape: tuple[int, ...]) -> Hidden:
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.float16)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"the recorder called {func}")


def test_subclasses_are_recorded_by_name_with_values_if_they_have_any(tmp_path: Path) -> None:
    value = torch.randn(3, 4)
    tagged = value.as_subclass(Tagged)
    turned = value.t().as_subclass(Tagged)
    call = taped(tmp_path, tagged, turned, Hidden((2, 3)))
    facts = call.record.inputs.facts()
    assert [f.subclass for f in facts[:2]] == ["tests.recorder.snapshot.test_tensors:Tagged"] * 2
    assert torch.equal(call.input(0), value)
    assert torch.equal(call.input(1), value.t())
    assert (facts[2].missing or "").startswith("a tensor subclass")
    assert (facts[2].dtype, facts[2].shape) == ("float16", (2, 3))


def test_what_cannot_be_stored_is_a_leaf_with_a_reason(tmp_path: Path) -> None:
    freed = torch.randn(8)
    freed.untyped_storage().resize_(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = {
            "coo": torch.eye(3).to_sparse(),
            "csr": torch.eye(3).to_sparse_csr(),
            "meta": torch.empty(2, 3, device="meta"),
            "mkldnn": torch.randn(2, 3).to_mkldnn(),
            "freed": freed,
            "per_channel": torch.quantize_per_channel(
                torch.randn(2, 3), torch.ones(2), torch.zeros(2), 0, torch.qint8
            ),
        }
        call = taped(tmp_path, **values)
    facts = {name: call.record.inputs.facts()[call.kwargs[name].leaf] for name in values}
    assert all(fact.key is None and fact.missing for fact in facts.values())
    assert facts["coo"].shape == (3, 3)
    assert facts["coo"].layout == "sparse_coo"
    assert facts["meta"].device == "meta"
    assert facts["mkldnn"].layout == "_mkldnn"
    assert facts["freed"].missing == "its storage was freed"


def test_one_tensor_twice_is_one_leaf_and_two_views_share_a_key(tmp_path: Path) -> None:
    x = torch.randn(4, 4)
    call = taped(tmp_path, x, [x, x.view(4, 4)], x[0], x.t(), torch.ones(1))
    leaves = [call.args[0].leaf, *(child.leaf for child in call.args[1].children)]
    facts = call.record.inputs.facts()
    assert leaves == [0, 0, 1]
    assert facts[0].key == facts[1].key == "args.0"
    assert [fact.storage for fact in facts] == [0, 0, 0, 0, None]
    assert len({fact.key for fact in facts}) == 4
    assert torch.equal(call.input(3), x.t())


def test_the_same_memory_conjugated_is_stored_for_itself(tmp_path: Path) -> None:
    z = torch.randn(3, dtype=torch.complex64)
    call = taped(tmp_path, z, z.conj())
    assert torch.equal(call.input(0), z)
    assert torch.equal(call.input(1), z.conj())


def test_only_integers_have_ranges(tmp_path: Path) -> None:
    values = [
        torch.tensor([5, -3, 9]),
        torch.tensor([2**64 - 1, 7], dtype=torch.uint64),
        torch.arange(5000, dtype=torch.int32).flip(0),
        torch.cat([torch.arange(20_000), torch.tensor([65_535])]).to(torch.uint16),
        torch.tensor([200, 3], dtype=torch.uint8).expand(2, 2),
        torch.ones(2),
        torch.zeros(0, dtype=torch.int64),
    ]
    assert taped(tmp_path, *values).ranges == {
        0: (-3, 9), 1: (7, 2**64 - 1), 2: (0, 4999), 3: (0, 65_535), 4: (3, 200),
    }  # fmt: skip


def test_numpy_arrays_and_scalars_are_recorded(tmp_path: Path) -> None:
    arrays = [
        np.arange(6, dtype=np.int16).reshape(2, 3),
        np.asfortranarray(np.random.rand(3, 4)),
        np.array(["a"], dtype=object),
        np.arange(3, dtype=">i4"),
        np.random.rand(40_000),
    ]
    call = taped(tmp_path, *arrays, np.float64(1.5), np.int32(7), np.bool_(True))
    facts = call.record.inputs.facts()
    assert [node.kind for node in call.args[:5]] == ["ndarray"] * 5
    for leaf in (0, 1, 4):
        assert np.array_equal(call.input(leaf).numpy(), arrays[leaf])
    assert facts[2].missing == "dtype object"
    assert facts[3].missing is not None
    assert [call.scalar(node) for node in call.args[5:7]] == [1.5, 7]
    assert [node.type for node in call.args[5:7]] == ["numpy:float64", "numpy:int32"]
    assert call.args[7].value is True


def test_to_read_a_lazy_clone_gives_it_memory_of_its_own(tmp_path: Path) -> None:
    """As writing to it would; without values nothing is read."""
    model, x = Identity(), torch.arange(5000.0)
    for values, is_shared in (("none", True), ("all", False)):
        lazy = torch._lazy_clone(x)  # type: ignore[attr-defined, unused-ignore]
        with record(model, tmp_path / f"{values}.tape", values=values):  # type: ignore[arg-type]
            assert model(lazy) is lazy
        assert torch._C._is_cow_tensor(lazy) == is_shared  # type: ignore[attr-defined, unused-ignore]
        assert torch.equal(lazy, x)
    (call,) = read(tmp_path / "all.tape").calls
    assert torch.equal(call.input(0), x)
