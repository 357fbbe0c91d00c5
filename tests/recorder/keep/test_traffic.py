"""Counters over all calls stand in the trailer, however few are kept."""

from __future__ import annotations

import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from calltape_recorder.keep.traffic import TrafficCounter
from hypothesis import given
from hypothesis import strategies as st

from calltape_recorder import First, Rate, Recorder, record
from calltape_recorder.capture.structures import Structure
from calltape_recorder.counting import value_of
from calltape_recorder.keep import traffic
from calltape_recorder.snapshot import repeats
from calltape_recorder.snapshot.repeats import Repeats
from calltape_schema.tree import encode_structure
from tests.recorder.models import Add, Echo
from tests.recorder.reading import read


def zeros(*sizes: int) -> torch.Tensor:
    return torch.zeros(sizes)


def traffic_of(path: Path) -> Any:
    trailer = read(path).trailer
    assert trailer is not None
    assert trailer.traffic is not None
    return trailer.traffic


def test_sizes_of_every_axis_and_ints(tmp_path: Path) -> None:
    model = Echo()
    with record(model, tmp_path / "t.tape", keep=First(1)) as recorder:
        for n in range(2, 12):
            model(zeros(2, n), n, flag=True, name="x", scale=0.5)
        model(zeros(2, 5), 7, flag=True, name="y", scale=0.5)
        model([zeros(3)])
        model([zeros(3).long()])
    assert recorder.stats().kept == 1
    found = traffic_of(tmp_path / "t.tape")
    assert found.other_calls == 0
    assert [group.calls for group in found.groups] == [11, 1, 1]
    main = found.groups[0]
    assert main.spec().leaves == 1
    assert main.dtypes == ("float32",)
    batch, length = main.leaves[0]
    assert (batch.min, batch.max, batch.sizes) == (2, 2, ((2, 11),))
    assert (length.min, length.max, length.other_calls) == (2, 11, 0)
    assert dict(length.sizes) == {n: 2 if n == 5 else 1 for n in range(2, 12)}
    number, name, scale = main.scalars
    assert (number.min, number.max) == (2, 11)
    assert name is scale is None
    assert {group.dtypes for group in found.groups[1:]} == {("float32",), ("int64",)}


def test_calls_while_it_is_paused_widen_no_range(tmp_path: Path) -> None:
    """So calls with which a server warms up are left out."""
    model = Echo()
    with Recorder(tmp_path / "t.tape").attach(model) as recorder:
        recorder.pause()
        model(zeros(4096))
        recorder.resume()
        for n in (3, 14):
            model(zeros(n))
    assert recorder.stats().dropped == {"paused": 1}
    (group,) = traffic_of(tmp_path / "t.tape").groups
    assert (group.leaves[0][0].min, group.leaves[0][0].max) == (3, 14)


def test_many_sizes_are_summed_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "_FOLD", 16)
    model = Echo()
    with record(model, tmp_path / "t.tape", keep=First(0)):
        for n in range(500):
            model(zeros(n))
    (group,) = traffic_of(tmp_path / "t.tape").groups
    (axis,) = group.leaves[0]
    assert (axis.min, axis.max, len(axis.sizes), axis.other_calls) == (0, 499, 32, 468)


def new_counter() -> TrafficCounter:
    return TrafficCounter(Repeats())


def structure(leaves: int) -> Structure:
    nodes = [{"kind": "tensor", "leaf": n} for n in range(leaves)]
    root = {"kind": "tuple", "children": [
        {"kind": "tuple", "children": nodes}, {"kind": "dict", "keys": [], "children": []},
    ]}  # fmt: skip
    encoded = encode_structure({"root": root, "leaves": leaves, "scalars": 0})
    return Structure(encoded, tuple(f"args.{n}" for n in range(leaves)), {})


def test_where_nobody_folds_memory_is_bounded_and_no_call_is_forgotten() -> None:
    counter, one = new_counter(), structure(1)
    for n in range(120_000):
        counter.count(one, (torch.float32, torch.Size([n])))
    assert len(counter._waiting) == 100_000  # two parts each
    found = counter.drain()
    assert sum(group.calls for group in found.groups) + found.other_calls == 120_000
    assert counter.drain().groups == ()


def test_a_trailer_stays_small() -> None:
    counter = new_counter()
    for leaves in range(360, 400):
        one = structure(leaves)
        for n in range(40):
            counter.count(one, (torch.float32, torch.Size([n, n, n, n])) * leaves)
        counter.fold(always=True)
    found = counter.drain()
    values = sum(
        6 + 3 * len(axis.sizes) for group in found.groups for leaf in group.leaves for axis in leaf
    )
    assert values < 450_000
    assert sum(group.calls for group in found.groups) + found.other_calls == 40 * 40
    assert any(axis.sizes for axis in found.groups[0].leaves[0])


def test_from_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "_FOLD", 4)
    counter, one = new_counter(), structure(1)
    done = threading.Event()

    def fold() -> None:
        while not done.is_set():
            counter.fold()

    def count() -> None:
        for n in range(5000):
            counter.count(one, (torch.float32, torch.Size([n % 10])))

    folding = threading.Thread(target=fold)
    folding.start()
    threads = [threading.Thread(target=count) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    folding.join()
    (group,) = counter.drain().groups
    assert Counter(dict(group.leaves[0][0].sizes)) == Counter(dict.fromkeys(range(10), 3000))


def test_leaves_without_a_shape_are_counted_by_type(tmp_path: Path) -> None:
    model = Echo()
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    sparse = torch.eye(3).to_sparse()
    with record(model, tmp_path / "t.tape") as recorder:
        model(nested)
        model(sparse)
    assert recorder.stats().dropped == {}
    found = traffic_of(tmp_path / "t.tape")
    assert sum(group.calls for group in found.groups) == 2


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
    for group in traffic_of(path).groups:
        sizes = tuple(axis.sizes for leaf in group.leaves for axis in leaf)
        found[group.structure, group.dtypes, sizes] += group.calls
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
        patch.setattr(repeats, "_Guards", None)
        assert found == counts(Path(other), order, **options)


def test_a_repeat_that_is_traced_is_no_call(tmp_path: Path) -> None:
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    model, x, y = Add(), torch.ones(3), torch.ones(3)
    with record(model, tmp_path / "t.tape", values="none") as recorder:
        for _ in range(20):
            model(x, y)
        assert recorder._handler.pipeline is not None
        repeat = recorder._handler.pipeline.repeats.call
        assert repeat is not None
        before = value_of(repeat.calls)
        assert before > 10
        torch.jit.trace(model, (x, y), check_trace=False)
        make_fx(model)(x, y)
        torch.func.vmap(model)(x, y)
        torch.func.grad(lambda value: model(value, y).sum())(x)
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            model(mode.from_tensor(x), y)
            model(x, y)
        assert value_of(repeat.calls) == before
        assert recorder.stats().dropped == {"tracing": 6}
        model(x, y)
        assert value_of(repeat.calls) == before + 1
    assert sum(group.calls for group in traffic_of(tmp_path / "t.tape").groups) == 21
