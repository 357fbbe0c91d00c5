from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from calltape_analyzer import TapeError, Variant
from calltape_analyzer.targets.torch_compile import Mark, mark_dynamic
from tests.analyzer.targets.conftest import Decoder, VariantsOf, decoder_call


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled_times(variant: Variant, model: Callable[..., Any], mark: bool) -> int:
    """How often a compiled model compiles over the recorded calls that torch can take for one."""
    torch._dynamo.reset()  # it remembers which sizes of a function varied
    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter)
    for call in variant.calls:
        args, kwargs = call.inputs
        if any(size < 2 for arg in args for size in arg.shape):
            continue
        if mark:
            mark_dynamic(variant, args, kwargs)
        compiled(*args, **kwargs)
    return int(counter.frame_count)


class Scale(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(0) * 2


@pytest.mark.parametrize(("mark", "times"), [(True, 1), (False, 2)])
def test_marks_save_the_second_compilation(variants_of: VariantsOf, mark: bool, times: int) -> None:
    calls = [((torch.ones(n, 4),), {}) for n in (4, 9, 2, 7)]
    (variant,) = variants_of(Scale(), calls)
    assert compiled_times(variant, Scale(), mark) == times


def test_related_sizes_compile_once(decoder: Variant) -> None:
    assert compiled_times(decoder, Decoder(), mark=True) == 1
    assert compiled_times(decoder, Decoder(), mark=False) > 1


def test_marks_as_data(decoder: Variant) -> None:
    args, kwargs = decoder_call(2, 5, 2)
    marks = mark_dynamic(decoder, args, kwargs)
    assert marks[:2] == [
        Mark(name="ids", axis=0, mark="dynamic", min=2, max=3),
        Mark(name="ids", axis=1, mark="dynamic", min=2, max=5),
    ]
    assert marks[4] == Mark(name="past", axis=2, mark="none")
    assert marks[0].model_dump(mode="json")["mark"] == "dynamic"
    static = mark_dynamic(decoder, *decoder_call(2, 5, 2), static=True)
    assert static[4] == Mark(name="past", axis=2, mark="static")


def test_sizes_that_torch_compiles_on_their_own_get_no_mark(decoder: Variant) -> None:
    args, kwargs = decoder_call(1, 5, 2)
    marks = {(m.name, m.axis): m.mark for m in mark_dynamic(decoder, args, kwargs)}
    assert marks["ids", 0] == "none"
    assert marks["ids", 1] == "dynamic"
    torch.compile(Decoder(), backend="eager")(*args)  # is not refused


def test_torch_refuses_a_mark_on_a_size_of_one() -> None:
    x = torch.ones(1, 4)
    torch._dynamo.mark_dynamic(x, 0, min=1, max=9)
    with pytest.raises(Exception, match="dynamic but your code specialized"):
        torch.compile(Scale(), backend="eager")(x)


def test_a_range_has_room_for_the_size_at_hand(decoder: Variant) -> None:
    args, kwargs = decoder_call(20, 5, 2)
    marks = mark_dynamic(decoder, args, kwargs)
    assert (marks[0].min, marks[0].max) == (2, 20)
    torch.compile(Decoder(), backend="eager")(*args)


def test_ranges_are_optional(decoder: Variant) -> None:
    marks = mark_dynamic(decoder, *decoder_call(2, 5, 2), bounds=False)
    assert {(mark.min, mark.max) for mark in marks} == {(None, None)}


def test_pooled_evidence_is_not_enforced(variants_of: VariantsOf) -> None:
    class Optional(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
            return x if y is None else x + y

    calls = [((torch.ones(n, 3),), {}) for n in (4, 9)]
    calls.append(((torch.ones(5, 3), torch.ones(5, 3)), {}))
    _, with_y = variants_of(Optional(), calls)
    marks = {(m.name, m.axis): m.mark for m in mark_dynamic(with_y, *calls[-1])}
    assert marks["x", 0] == "maybe"


def test_other_arguments_are_refused(decoder: Variant) -> None:
    with pytest.raises(TapeError, match="does not take"):
        mark_dynamic(decoder, (torch.ones(3),))
