"""The table of counted inputs has all calls, however few are kept: those that are kept by their
inputs, the others by kind."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

from calltape_recorder import First, Rate, Recorder, record
from calltape_recorder.capture.structures import Structure
from calltape_recorder.keep.ledger import Ledger, UnkeptCounter
from calltape_recorder.snapshot import side_cache
from calltape_recorder.snapshot.side_cache import SideCache
from calltape_schema.drop_reasons import DropReason
from calltape_schema.inputs_document import pack_inputs, unpack_inputs
from calltape_schema.inputs_table import Axis, InputsTable, Kind
from calltape_schema.tree import decode_leaves, decode_structure, encode_structure
from tests.pytree_nodes import deregister
from tests.recorder.models import Add, Echo
from tests.recorder.parts import recording
from tests.recorder.reading import read


def zeros(*sizes: int) -> torch.Tensor:
    return torch.zeros(sizes)


def table_of(path: Path) -> InputsTable:
    return read(path).table


def span(axis: Axis | None) -> tuple[int, int]:
    assert axis is not None
    return min(axis.sizes), axis.max


class Points(torch.Tensor):
    def first(self) -> torch.Tensor:
        return self[:1]


class Holder:
    def __init__(self, points: Any) -> None:
        self.points = points


def test_counted_calls_are_seen_as_kept_ones_are(tmp_path: Path) -> None:
    """The function that flattens the class uses a method of a tensor subclass."""
    pytree.register_pytree_node(
        Holder, lambda holder: ([holder.points[:2].first()], None), lambda *_: Holder(None)
    )
    model = Echo()
    try:
        with record(model, tmp_path / "t.tape", keep=First(1)):
            for _ in range(6):
                model(Holder(torch.rand(3, 4).as_subclass(Points)))
    finally:
        deregister(Holder)
    table = table_of(tmp_path / "t.tape")
    (row,), (kind,) = table.rows.values(), table.kinds.values()
    assert (row.seen, kind.seen) == (1, 5)
    assert kind.structure == row.structure


def test_calls_that_are_not_kept_are_counted_by_sizes_and_ints(tmp_path: Path) -> None:
    model = Echo()
    with record(model, tmp_path / "t.tape", keep=First(1)) as recorder:
        for n in range(2, 12):
            model(zeros(2, n), n, flag=True, name="x", scale=0.5)
        model(zeros(2, 5), 7, flag=True, name="y", scale=0.5)
        model([zeros(3)])
        model([zeros(3).long()])
    assert recorder.stats().kept == 1
    table = table_of(tmp_path / "t.tape")
    assert table.other.seen == 0
    (row,) = table.rows.values()  # the call that was kept
    assert (row.seen, row.kept, row.first, row.last, row.example) == (1, 1, 0, 0, 0)
    assert [leaf.shape for leaf in decode_leaves(row.leaves)] == [(2, 2)]
    assert sorted(kind.seen for kind in table.kinds.values()) == [1, 1, 10]
    assert not any(kind.kept for kind in table.kinds.values())
    main = max(table.kinds.values(), key=lambda kind: kind.seen)
    assert main.structure == row.structure
    assert decode_structure(main.structure).leaves == 1
    assert (main.dtypes, main.ranks) == (["float32"], [2])
    batch, length, number, name, scale = main.axes
    assert batch is not None
    assert length is not None
    assert (batch.sizes, span(batch)) == ({2: 10}, (2, 2))
    assert (span(length), length.other) == ((3, 11), 0)
    assert length.sizes == {n: 2 if n == 5 else 1 for n in range(3, 12)}
    assert span(number) == (3, 11)
    assert name is scale is None
    others = [kind for kind in table.kinds.values() if kind is not main]
    assert {tuple(kind.dtypes) for kind in others} == {("float32",), ("int64",)}


def test_a_call_that_is_not_kept_is_not_copied(tmp_path: Path) -> None:
    model, large = Echo(), zeros(100_000)
    with recording(model, tmp_path / "t.tape", keep=First(1)) as parts:
        model(zeros(3))
        for x in (large, large, zeros(3)):
            model(x)
        assert parts.buffers.nbytes == 0  # where copies of large tensors lie
        assert parts.writer.flush(None)
        assert parts.stats("recording").queued_bytes == parts.ledger.shared_bytes == 0


def test_kept_calls_are_counted_by_their_inputs(tmp_path: Path) -> None:
    model = Echo()
    with record(model, tmp_path / "t.tape"):
        for n in (3, 4, 3, 3):
            model(zeros(n), 1)
    table = table_of(tmp_path / "t.tape")
    assert not table.kinds
    assert not table.other.seen
    counted = {row.example: (row.seen, row.kept, row.last) for row in table.rows.values()}
    assert counted == {0: (3, 3, 3), 1: (1, 1, 1)}


def test_calls_while_it_is_paused_widen_no_range(tmp_path: Path) -> None:
    """So calls with which a server warms up are left out."""
    model = Echo()
    with Recorder(tmp_path / "t.tape", keep=Rate(0)).attach(model) as recorder:
        recorder.pause()
        model(zeros(4096))
        recorder.resume()
        for n in (3, 14):
            model(zeros(n))
    assert recorder.stats().dropped == {"paused": 1, "policy": 2}
    (kind,) = table_of(tmp_path / "t.tape").kinds.values()
    assert span(kind.axes[0]) == (3, 14)


def structure(leaves: int) -> Structure:
    nodes = [{"kind": "tensor", "leaf": n} for n in range(leaves)]
    root = {"kind": "tuple", "children": [
        {"kind": "tuple", "children": nodes}, {"kind": "dict", "keys": [], "children": []},
    ]}  # fmt: skip
    encoded = encode_structure({"root": root, "leaves": leaves, "scalars": 0})
    return Structure(encoded, tuple(f"args.{n}" for n in range(leaves)), {})


def test_where_nobody_folds_memory_is_bounded_and_no_call_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(side_cache, "MAX_WAITING_WEIGHT", 6_000)
    cache = SideCache()
    counter, one = UnkeptCounter(cache), structure(1)
    for n in range(4_000):
        counter.count(one, (torch.float32, torch.Size([n])))
    assert cache.evicted == 1_000  # six parts each
    assert counter.drain().totals().seen == 4_000
    assert counter.drain().totals().seen == 0


def test_a_table_stays_small() -> None:
    counter = UnkeptCounter(SideCache())
    for leaves in range(60, 90, 2):
        one = structure(leaves)
        for n in range(40):
            shapes = (torch.Size([n, n, n, n]),) * leaves
            counter.count(one, (torch.float32,) * leaves + shapes)
        counter.fold(always=True)
    found = counter.drain()
    assert found.totals().seen == 15 * 40
    assert found.kinds
    assert sum(len(kind.axes) for kind in found.kinds.values()) <= 4096
    assert all(len(axis.sizes) <= 32 for kind in found.kinds.values() for axis in kind.axes if axis)
    assert len(pack_inputs(found)) < 2_000_000
    read = unpack_inputs(pack_inputs(found))
    assert read.totals().seen == 15 * 40


def test_a_file_never_counts_more_inputs_than_calls(tmp_path: Path) -> None:
    """A thread may be between the two counters when a file is sealed: the inputs of its call are
    counted in the next file."""
    model = Echo()
    with recording(model, tmp_path / "t.tape", keep=Rate(0)) as parts:
        model(zeros(3))
        model(zeros(4))
        row = (torch.float32, torch.Size([5]))
        parts.unkept.count(structure(1), row)  # and then it is interrupted
        assert parts.writer.ask(parts.segments.roll, 20)
        first = read(tmp_path / "t.tape")
        assert (first.end.coverage.seen, first.table.totals().seen) == (2, 0)
        parts.ledger.next_number()
        parts.ledger.skip()
        model(zeros(3))
    found = read(tmp_path / "t-00001.tape")
    assert found.end.coverage.seen == 2
    assert not found.damage


def test_a_call_that_comes_after_the_end_is_in_no_account() -> None:
    accounts = Ledger(10**9)
    assert accounts.next_number() == 0
    accounts.close(DropReason.UNFINISHED)
    assert accounts.next_number() is None
    accounts.pause(True)
    assert accounts.next_number() is None
    assert accounts.seen == 1


def test_leaves_without_a_shape_are_counted_by_type(tmp_path: Path) -> None:
    model = Echo()
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    sparse = torch.eye(3).to_sparse()
    with record(model, tmp_path / "t.tape", keep=First(2)) as recorder:
        for _ in range(2):
            model(nested)
            model(sparse)
    assert recorder.stats().dropped == {"policy": 2}
    table = table_of(tmp_path / "t.tape")
    assert len(table.rows) == 2
    assert (table.totals().seen, table.totals().kept) == (4, 2)


# --- calls that look like earlier ones are counted without being walked -------------------------

_x, _y = torch.ones(2, 3), torch.ones(2, 3)
_wide = torch.ones(2, 4)
CALLS: list[Any] = [
    lambda m: m(_x),
    lambda m: m(_x, _y),
    lambda m: m(_x, _x),
    lambda m: m(_y, _wide),
    lambda m: m(_x, _y.double()),
    lambda m: m(a=_x, b=_y),
    lambda m: m(b=_x, a=_y),
    lambda m: m(a=_x, b=_x),
    lambda m: m(_x, b=_y),
    lambda m: m(_x, None),
    lambda m: m([_x], _y),
    lambda m: m(_x, 2),
    lambda m: m(torch.nn.Parameter(_x), _y),
    lambda m: m(_x.t(), _y),
    lambda m: m(_x, _x[:]),
]


def counts(folder: Path, order: list[int], **options: Any) -> Counter[Any]:
    model = Echo()
    path = folder / "t.tape"
    with record(model, path, overwrite=True, **options):
        for index in order:
            for _ in range(3):  # it becomes a repeat
                CALLS[index](model)
    found: Counter[Any] = Counter()
    table = table_of(path)
    kinds: list[Kind] = [*table.kinds.values(), *(row.kind() for row in table.rows.values())]
    for kind in kinds:
        sizes = tuple(axis and tuple(axis.sizes.items()) for axis in kind.axes)
        found[kind.structure, tuple(kind.dtypes), sizes] += kind.seen
    return found


@given(st.lists(st.integers(0, len(CALLS) - 1), max_size=40), st.booleans())
def test_repeats_are_counted_as_what_they_are(order: list[int], skipped: bool) -> None:
    options: dict[str, Any] = {"keep": Rate(0)} if skipped else {"values": "none"}
    with (
        tempfile.TemporaryDirectory() as one,
        tempfile.TemporaryDirectory() as other,
        pytest.MonkeyPatch.context() as patch,
    ):
        found = counts(Path(one), order, **options)
        assert sum(found.values()) == 3 * len(order)
        patch.setattr(side_cache, "Guards", None)
        assert found == counts(Path(other), order, **options)


def test_a_repeat_that_is_traced_is_no_call(tmp_path: Path) -> None:
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    model, x, y = Add(), torch.ones(3), torch.ones(3)
    with record(model, tmp_path / "t.tape", keep=Rate(0)) as recorder:
        for _ in range(20):
            model(x, y)
        torch.jit.trace(model, (x, y), check_trace=False)
        make_fx(model)(x, y)
        torch.func.vmap(model)(x, y)
        torch.func.grad(lambda value: model(value, y).sum())(x)
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            model(mode.from_tensor(x), y)
            model(x, y)
        assert recorder.stats().dropped == {"policy": 20, "tracing": 6}
        model(x, y)
    assert table_of(tmp_path / "t.tape").totals().seen == 21
