"""Mappings and sequences of any class are recorded by what they hold, and made again."""

from __future__ import annotations

from collections import UserDict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch

from calltape_analyzer import (
    export,
    open_tape,
    register_flattening_functions,
    replay,
)
from calltape_analyzer.pytree.placeholder import Placeholder
from calltape_analyzer.tape import Tape
from calltape_recorder import record
from tests.analyzer.pytree.containers import CONTAINERS, ByKey, Slots, Store

SIZES = [(2, 3), (4, 5), (3, 7)]
every_container = pytest.mark.parametrize(("make", "classes"), CONTAINERS.values(), ids=CONTAINERS)


def call(make: Any, batch: int, length: int) -> Any:
    torch.manual_seed(batch * length)
    return make(torch.randn(batch, length, 4), torch.rand(batch, length))


def recorded(folder: Path, make: Any, classes: list[type]) -> Tape:
    model = ByKey()
    with record(model, folder / "a.tape"), torch.no_grad():
        for size in SIZES:
            model(call(make, *size))
    return open_tape(folder / "a.tape", classes=classes)


@every_container
def test_it_is_made_again_and_its_sizes_are_dynamic(
    tmp_path: Path, make: Any, classes: list[type]
) -> None:
    tape = recorded(tmp_path, make, classes)
    (again,) = tape.calls[0].inputs.args
    want = call(make, *SIZES[0])
    assert type(again) is type(want)
    assert len(again) == len(want)
    assert replay(tape, ByKey()).ok
    (variant,) = tape.variants()
    assert variant.accepts((call(make, 5, 9),))
    dynamic = [symbol.name for symbol in variant.facts.symbols]
    assert len(dynamic) == 2
    for source in (tape, variant):
        (shapes,) = source.infer_dynamic_shapes()
        leaves = list(shapes.values() if isinstance(shapes, dict) else shapes)
        assert [set(leaf) for leaf in leaves] == [{0, 1}, {0, 1}]
    assert "is dynamic" in str(tape.explain("features"))


@pytest.mark.integration
@every_container
def test_a_program_takes_it(tmp_path: Path, make: Any, classes: list[type]) -> None:
    tape = recorded(tmp_path, make, classes)
    programs = export(tape, ByKey())
    assert len(programs) == 1
    assert programs.verify().ok
    for size in [*SIZES, (6, 2)]:
        given = call(make, *size)
        torch.testing.assert_close(programs(given), ByKey()(given))


@pytest.mark.integration
@pytest.mark.parametrize("name", ["UserDict", "view", "subclass of dict", "mapping", "UserList"])
def test_torch_exports_what_was_inferred(tmp_path: Path, name: str) -> None:
    make, classes = CONTAINERS[name]
    tape = recorded(tmp_path, make, classes)
    (variant,) = tape.variants()
    args, kwargs = variant.infer_arguments()
    shapes = variant.infer_dynamic_shapes()
    with register_flattening_functions(tape=tape):
        program = torch.export.export(ByKey(), args, kwargs, dynamic_shapes=shapes).module()
        given = call(make, 6, 2)
        torch.testing.assert_close(program(given), ByKey()(given))


def test_a_class_that_is_not_passed_is_asked_for(tmp_path: Path) -> None:
    make, _ = CONTAINERS["mapping"]
    tape = recorded(tmp_path, make, [])
    (found,) = tape.calls[0].inputs.args
    assert isinstance(found, Placeholder)
    assert found.is_of_unknown_class
    assert found["_data"]["x"].shape == (2, 3, 4)


def test_containers_within_containers(tmp_path: Path) -> None:
    class Inner(torch.nn.Module):
        def forward(self, batch: Any) -> Any:
            return batch["in"]["x"].sum(-1) + batch["more"]["y"]

    def nested(n: int) -> Any:
        inner = UserDict({"x": torch.randn(n, 3)})
        return Store({"in": inner, "more": MappingProxyType({"y": torch.randn(n)})})

    model = Inner()
    with record(model, tmp_path / "a.tape"):
        for n in (2, 3):
            model(nested(n))
    tape = open_tape(tmp_path / "a.tape", classes=[Store])
    assert replay(tape, Inner()).ok
    (again,) = tape.calls[1].inputs.args
    assert type(again["in"]) is UserDict
    assert type(again["more"]) is MappingProxyType
    (variant,) = tape.variants()
    assert variant.accepts((nested(7),))


def test_what_a_wrapper_holds_may_be_no_plain_container(tmp_path: Path) -> None:
    class Odd(UserDict[str, Any]):
        def __init__(self) -> None:
            self.data = Slots({"x": torch.zeros(2)})

    class Any_(torch.nn.Module):
        def forward(self, features: Any) -> Any:
            return features["x"]

    model = Any_()
    with record(model, tmp_path / "a.tape"):
        model(Odd())
    (found,) = open_tape(tmp_path / "a.tape").calls[0].inputs.args
    assert isinstance(found, Placeholder)
    assert "holds no plain dict" in found.reason
