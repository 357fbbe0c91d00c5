"""Outputs of programs that are views of arguments, where the program got copies of these."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from calltape_analyzer.arguments.samples import Sample
from calltape_analyzer.programs.memory_as_traced import in_given_memory, views_of
from calltape_analyzer.pytree.memory import in_other_order

View = Callable[[torch.Tensor], torch.Tensor]


def values(*shape: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape)


VIEWS: dict[str, View] = {
    "itself": lambda x: x,
    "a slice": lambda x: x[1:],
    "rows": lambda x: x[:, 1],
    "steps": lambda x: x[..., ::2],
    "transposed": lambda x: x.transpose(1, -1)[1],
    "flat": lambda x: x.flatten(2)[:, 1:],
    "steps of what is flat": lambda x: x.flatten(2)[..., 1::3],
    "expanded": lambda x: x[:1].unsqueeze(1).expand(1, 5, *x.shape[1:]),
    "a diagonal": lambda x: x.diagonal(0, 0, 1),
    "windows": lambda x: x.unfold(2, 2, 1),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("layout", ["channels_last", "with gaps"])
def test_a_view_of_a_copy_is_the_same_view_of_the_original(name: str, layout: str) -> None:
    own = in_other_order(values(2, 3, 4, 5))
    if layout == "with gaps":
        own = values(4, 6, 8, 5)[::2, ::2, ::2]
    copy = own.contiguous().clone()
    found = in_given_memory(Sample([own], []), Sample([copy], []), VIEWS[name](copy))
    expected = VIEWS[name](own)
    assert torch.equal(found, expected)
    if expected.untyped_storage()._cdata == own.untyped_storage()._cdata:
        assert (found.stride(), found.data_ptr()) == (expected.stride(), expected.data_ptr())
    else:  # the model copies it
        assert found.untyped_storage()._cdata == copy.untyped_storage()._cdata


def test_what_is_no_view_of_the_original_is_left_alone() -> None:
    own = values(4, 3).t()
    copy = own.contiguous().clone()
    flat, bits = copy.view(-1), copy.view(torch.int32)
    for one in (flat, bits, torch.ones(2), 3, copy[:0]):
        assert in_given_memory(Sample([own], []), Sample([copy], []), one) is one
    assert in_given_memory(Sample([own], []), Sample([own], []), flat) is flat


def test_outputs_that_share_memory_with_arguments() -> None:
    x, y = values(3, 2), values(3, 2)
    leaves = {"a": x[1:], "b": y + 1, "c": 3, "d": y.t(), "e": x[:0]}
    found = views_of(leaves, Sample([x, y, x.view(-1)], []))
    assert found == {"a": frozenset({0, 2}), "d": frozenset({1})}
