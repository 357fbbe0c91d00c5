"""Objects of any class among outputs are recorded by what they hold, and nothing of them runs."""

from __future__ import annotations

import dataclasses
import threading
from collections import OrderedDict, UserDict
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from calltape_analyzer.pytree.description import describe_result
from calltape_schema.objects import MAX_NESTED, MAX_VALUES, attributes_of
from tests.recorder.calls import taped


class Forbidden(BaseException):
    """What no recording survives that runs the host's code."""


class Dist:
    """Whatever asks this object for anything but its state ends the test."""

    def __init__(self, **state: Any) -> None:
        vars(self).update(state)

    @property
    def mode(self) -> Any:
        raise Forbidden

    def __getattr__(self, name: str) -> Any:
        raise Forbidden

    def __iter__(self) -> Any:
        raise Forbidden

    def __len__(self) -> int:
        raise Forbidden

    __bool__ = __repr__ = __hash__ = __len__  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise Forbidden


class Slotted:
    __slots__ = ("__weakref__", "mean", "unset")

    def __init__(self, mean: Any) -> None:
        self.mean = mean


class Grown(Slotted):
    """Has a dict beside the slots."""

    def __init__(self, mean: Any) -> None:
        super().__init__(mean)
        self.more = 1


class Hiding:
    """Its ``__dict__`` is the class's own business."""

    __dict__: Any = property(lambda self: Forbidden())


class FailureError(Exception):
    """Has state that is in no attribute."""


def test_an_object_is_its_attributes(tmp_path: Path) -> None:
    held = Dist(mean=torch.ones(3), scale=2.5, names=["a"], _kept=torch.zeros(2))
    (node,) = taped(tmp_path, result={"latent": held}).outputs.children
    assert (node.kind, node.type) == ("object", f"{__name__}:Dist")
    assert node.fields == ("mean", "scale", "names", "_kept")
    assert [child.kind for child in node.children] == ["tensor", "float", "list", "tensor"]


@pytest.mark.parametrize(("made", "fields"), [(Slotted, ("mean",)), (Grown, ("more", "mean"))])
def test_slots_are_attributes(made: Any, fields: tuple[str, ...], tmp_path: Path) -> None:
    node = taped(tmp_path, result=made(torch.ones(1))).outputs
    assert (node.kind, node.fields) == ("object", fields)


def test_what_cannot_be_described_is_named_and_the_rest_is_kept(tmp_path: Path) -> None:
    generator = (i for i in range(3))
    held = Dist(
        mean=torch.ones(1),
        function=torch.relu,
        method=held_method,
        generator=generator,
        lock=threading.Lock(),
        module=torch.nn.Linear(1, 1),
        library=torch,
        failure=FailureError("x"),
        random=torch.Generator(),
        hiding=Hiding(),
        stream=(tmp_path / "file").open("w"),
    )
    vars(held)["itself"] = held
    node = taped(tmp_path, result=held).outputs
    vars(held)["stream"].close()
    found = dict(zip(node.fields, node.children, strict=True))
    assert found.pop("mean").kind == "tensor"
    assert {child.kind for child in found.values()} == {"opaque"}
    assert all(child.reason for child in found.values())
    assert found["itself"].reason == "contains itself"
    assert found["module"].reason == "a module"
    assert next(generator) == 0  # nobody asked it for anything


def held_method() -> None:
    """Stands in an attribute."""


def test_objects_of_inputs_are_not_looked_into(tmp_path: Path) -> None:
    assert taped(tmp_path, Dist(mean=torch.ones(1))).args[0].kind == "opaque"


def test_what_is_looked_at_is_bounded(tmp_path: Path) -> None:
    deep: Any = torch.ones(1)
    for _ in range(30):
        deep = Dist(inner=deep)
    wide = Dist(**{f"a{i}": i for i in range(MAX_VALUES + 1)})
    many: Any = Dist(leaf=1)
    for _ in range(40):
        many = Dist(a=[many], b=[many])  # 2^40 of them, if each is followed
    result = {"deep": deep, "wide": wide, "many": many, "x": Dist(y=1)}
    node = taped(tmp_path, result=result).outputs
    found = dict(zip(node.keys, node.children, strict=True))
    levels = 0
    at = found["deep"]
    while at.kind == "object":
        (at,) = at.children
        levels += 1
    assert levels == MAX_NESTED
    assert at.kind == "opaque"
    assert found["wide"].kind == "opaque"
    assert str(MAX_VALUES) in found["wide"].reason
    assert count(found["many"]) < 3 * MAX_VALUES
    assert found["x"].kind == "object"  # the bound is that of one object


def count(node: Any) -> int:
    return 1 + sum(map(count, getattr(node, "children", ())))


class Listed(list):
    pass


class Mapped(dict):
    pass


class Counted(int):
    pass


class Said(str):
    __slots__ = ("mean",)


class Pair(NamedTuple):
    a: Any
    b: Any


class Grouped(Pair):
    pass


class Tupled(tuple):
    pass


@dataclasses.dataclass
class Declared:
    a: Any


class Marked(torch.Tensor):
    pass


BESIDE = {
    "list": lambda: Listed([1]),
    "dict": lambda: Mapped(a=1),
    "ordered": lambda: OrderedDict(a=1),
    "user dict": lambda: UserDict(a=1),
    "set": lambda: type("Own", (set,), {})([1]),
    "int": lambda: Counted(1),
    "text with slots": lambda: Said("a"),
    "named tuple": lambda: Grouped(1, 2),
    "tuple": lambda: Tupled([1]),
    "dataclass": lambda: Declared(1),
    "tensor": lambda: torch.zeros(2),
    "parameter": lambda: torch.nn.Parameter(torch.zeros(2)),
    "tensor of a subclass": lambda: torch.zeros(2).as_subclass(Marked),
}


@pytest.mark.parametrize("made", BESIDE.values(), ids=BESIDE)
@pytest.mark.parametrize("inside", [False, True])
def test_what_is_set_on_a_value_of_another_kind_is_named(
    made: Any, inside: bool, tmp_path: Path
) -> None:
    plain, held = made(), made()
    held.mean = torch.ones(1)
    node = taped(tmp_path, result=[held, plain] if inside else held).outputs
    if inside:
        node, other = node.children
        assert other.beside is None
    assert node.beside == ("mean",)
    assert node.kind != "opaque"
    assert describe_result(held).node.beside == ("mean",)  # the same look at a live value
    assert describe_result(plain).node.beside is None


def test_what_torch_notes_on_a_tensor_is_no_part_of_it(tmp_path: Path) -> None:
    noted = torch.ones(2)
    noted._dynamo_dynamic_indices = {0}  # type: ignore[attr-defined]
    assert taped(tmp_path, result=noted).outputs.beside is None


def test_a_class_that_a_call_made_is_not_described(tmp_path: Path) -> None:
    node = taped(tmp_path, result=[type("Made", (), {"mean": torch.ones(1)}), Dist]).outputs
    assert [child.kind for child in node.children] == ["opaque", "class"]


def test_names_that_are_no_text_are_refused() -> None:
    held = Dist()
    vars(held)[1] = 2  # type: ignore[index]
    assert attributes_of(held).reason == "attributes whose names are not texts"


def test_an_object_whose_attributes_another_thread_sets_is_described() -> None:
    held = Dist(mean=1)
    stop = threading.Event()

    def write() -> None:
        for i in range(MAX_VALUES - 1):
            vars(held)[f"n{i}"] = i
            if stop.is_set():
                return

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(200):
            assert attributes_of(held).attributes["mean"] == 1
    finally:
        stop.set()
        thread.join()
