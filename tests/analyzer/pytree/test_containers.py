"""Mappings and sequences of any class are recorded by what they hold, and made again."""

from __future__ import annotations

from collections import OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
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

__all__ = ["CONTAINERS", "ByKey", "Slots", "Store"]


class Named(UserDict[str, Any]):
    @property
    def total(self) -> int:
        return len(self.data)


class Features(dict[str, Any]):
    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Store(MutableMapping[str, Any]):
    def __init__(self, items: Any) -> None:
        self._data = dict(items)
        self.version = 2

    def __getitem__(self, key: str) -> Any:
        return self._data[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._data[key] = value

    def __delitem__(self, key: str) -> None:
        del self._data[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)


class Slots(Mapping[str, Any]):
    __slots__ = ("held",)

    def __init__(self, items: Any) -> None:
        self.held = dict(items)

    def __getitem__(self, key: str) -> Any:
        return self.held[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.held)

    def __len__(self) -> int:
        return len(self.held)


class Rows(Sequence[Any]):
    def __init__(self, items: Any) -> None:
        self.rows = list(items)

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)


class Several(list[Any]):
    pass


class ByKey(torch.nn.Module):
    """Takes a mapping, or a sequence of two."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, features: Any) -> Any:
        is_mapping = isinstance(features, Mapping)
        x, mask = (features["x"], features["mask"]) if is_mapping else (features[0], features[1])
        return self.linear(x) * mask.unsqueeze(-1)


def _named(make: Callable[[dict[str, Any]], Any]) -> Callable[[Any, Any], Any]:
    return lambda x, mask: make({"x": x, "mask": mask})


def _listed(make: Callable[[list[Any]], Any]) -> Callable[[Any, Any], Any]:
    return lambda x, mask: make([x, mask])


def _defaults(items: dict[str, Any]) -> Any:
    made: defaultdict[str, Any] = defaultdict(list)
    made.update(items)
    return made


CONTAINERS: dict[str, tuple[Callable[[Any, Any], Any], list[type]]] = {
    "UserDict": (_named(UserDict), []),
    "OrderedDict": (_named(OrderedDict), []),
    "defaultdict": (_named(_defaults), []),
    "view": (_named(MappingProxyType), []),
    "UserList": (_listed(UserList), []),
    "deque": (_listed(deque), []),
    "subclass of UserDict": (_named(Named), [Named]),
    "subclass of dict": (_named(Features), [Features]),
    "subclass of list": (_listed(Several), [Several]),
    "mapping": (_named(Store), [Store]),
    "mapping with slots": (_named(Slots), [Slots]),
    "sequence": (_listed(Rows), [Rows]),
    "UserDict of an OrderedDict": (_named(lambda items: UserDict(OrderedDict(items))), []),
}
"""By name: makes one that holds x and a mask, and the classes to be passed to open_tape."""


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
def test_a_container_is_rebuilt_and_its_sizes_are_dynamic(
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
    (argument,) = tape.calls[0].inputs.args
    assert isinstance(argument, Placeholder)
    assert argument.is_of_unknown_class
    assert argument["_data"]["x"].shape == (2, 3, 4)


def test_containers_within_containers_are_rebuilt(tmp_path: Path) -> None:
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
    (argument,) = open_tape(tmp_path / "a.tape").calls[0].inputs.args
    assert isinstance(argument, Placeholder)
    assert "holds no plain dict" in argument.reason
