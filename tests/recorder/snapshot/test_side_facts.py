"""What one look at the tensors of a side finds: sizes, shared memory, flags."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from calltape_analyzer import open_tape
from calltape_recorder import record
from calltape_recorder.snapshot import facts
from calltape_recorder.snapshot.facts import Alias, facts_of
from calltape_recorder.snapshot.side_facts import read_facts
from tests.counted_work import work_of
from tests.recorder.models import Identity
from tests.recorder.reading import read


def test_a_view_that_reaches_beyond_its_storage_is_not_read(tmp_path: Path) -> None:
    model = Identity()
    size = 2**16
    view = torch.ones(2 * size, dtype=torch.uint8)[size:]
    with record(model, tmp_path / "t.tape") as recorder:
        for _ in range(4):
            model(torch.ones(2 * size, dtype=torch.uint8)[size:])
        view.untyped_storage().resize_(size)
        model(view)
    assert recorder.stats().kept == 5
    facts = read(tmp_path / "t.tape").calls[-1].record.inputs.facts()
    assert facts[0].missing == "its storage was freed"


def test_a_view_of_nothing_is_a_tensor_of_nothing(tmp_path: Path) -> None:
    """As a detector has it that found nothing: its view begins behind the end of the memory."""
    found = torch.ones(0, 5)
    model = Identity()
    with record(model, tmp_path / "t.tape"):
        model([found[:, 4], found[:, 1:]])
    with open_tape(tmp_path / "t.tape") as tape:
        column, rest = tape[0].inputs.args[0]
    assert (column.shape, rest.shape) == ((0,), (0, 4))


def test_inference_tensors_below_autograd_are_marked(tmp_path: Path) -> None:
    model = Identity()
    with record(model, tmp_path / "t.tape", outputs=False):

        @torch.library.custom_op("calltape_tests::below", mutates_args=())
        def below(x: torch.Tensor) -> torch.Tensor:
            model(x)
            return x.clone()

        below.register_autograd(lambda ctx, grad: grad)
        for _ in range(4):
            below(torch.zeros(3))
        with torch.inference_mode():
            inference = torch.zeros(3)
        below(inference)
    calls = read(tmp_path / "t.tape").calls
    assert [call.record.inputs.facts()[0].inference for call in calls] == [False] * 4 + [True]


def kinds_of_tensors() -> list[torch.Tensor]:
    """Tensors of one shape that differ in one trait each."""
    plain = torch.rand(1, 3)
    with torch.inference_mode():
        inference = torch.rand(1, 3)
    return [
        plain, inference, plain.double(), plain.clone().requires_grad_(), plain.to("meta"),
        torch._neg_view(plain), torch.rand(1, 3, dtype=torch.complex64).conj(),
        torch.rand(1, 3, dtype=torch.complex64).conj().imag, torch.rand(3, 1).T,
        plain.expand(1, 3), torch.rand(1, 6)[:, ::2], plain.long(), torch.nn.Parameter(plain),
        plain.to_sparse(), torch.quantize_per_tensor(plain, 0.1, 0, torch.qint8),
        torch._efficientzerotensor((1, 3)), torch.func.functionalize(lambda x: x)(plain),
    ]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("has_keys", [True, False])
def test_the_facts_that_equal_tensors_share_are_their_own(
    has_keys: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if has_keys:
        # Another torch may have no keys. This one has them, and a name of it that is wrong would
        # only make each call slower.
        assert facts.dispatch_keys is torch._C._dispatch_keys
    else:
        monkeypatch.setattr(facts, "dispatch_keys", None)
    for _ in range(3):  # what one of them left behind is not taken for another
        for one in kinds_of_tensors():
            (fact,) = read_facts([one], True).per_leaf
            read, _ = facts_of(one)
            assert fact._replace(missing=None) == read._replace(missing=None)
            assert fact.missing in (read.missing, "it has no memory")
    assert (
        read_facts([torch.rand(1, 3)], True).per_leaf[0]
        is read_facts([torch.rand(1, 3)], True).per_leaf[0]
    )


def test_the_facts_of_a_wrapper_are_not_kept_for_a_tensor() -> None:
    missing: list[str | None] = []

    def seen(x: torch.Tensor) -> torch.Tensor:
        missing.append(read_facts([x], True).per_leaf[0].missing)  # it has no storage
        return x

    for _ in range(2):
        torch.func.vmap(seen)(torch.rand(2, 1, 3))
        (fact,) = read_facts([torch.rand(1, 3)], True).per_leaf
        assert fact == facts_of(torch.rand(1, 3))[0]
    assert missing == ["not readable: NotImplementedError"] * 2


def test_only_wanted_leaves_have_bytes_and_integers_of_middle_size_for_their_range() -> None:
    sizes = (4, 1 << 10, 1 << 18)  # a range of few says what they are, of many it takes long
    leaves = [torch.randn(4), torch.randn(4), *(torch.zeros(size).long() for size in sizes)]
    assert read_facts(leaves, True).sizes == (16, 16, 32, 8 << 10, 8 << 18)
    assert read_facts(leaves, False).sizes == (0, 0, 0, 8 << 10, 0)
    assert read_facts(leaves, (False, True, False, True, False)).sizes == (0, 16, 0, 8 << 10, 0)


def test_a_wanted_leaf_does_not_lean_on_an_unwanted_one() -> None:
    base = torch.randn(4)
    leaves = [base, base.view(4), base.view(4)]
    seen = read_facts(leaves, (False, True, True))
    assert seen.same == (0, 1, 1)
    assert seen.sizes == (0, 16, 0)
    assert seen.storages == (Alias(0, 0),) * 3


def test_many_views_of_one_tensor_take_linear_time() -> None:
    few, many = (list(torch.zeros(count, 1)) for count in (100, 800))
    # Eight times as many are eight times the work, and 64 times with one pass per view.
    assert work_of(lambda: read_facts(many, True)) < 10 * work_of(lambda: read_facts(few, True))
    seen = read_facts(many, True)
    assert seen.storages == tuple(Alias(0, 4 * number) for number in range(len(many)))
    assert seen.same == tuple(range(len(many)))
