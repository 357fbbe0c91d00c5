"""Arguments and results whose own code must not run in the host's call, or not be noticed there."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import logging
import signal
import sys
from collections import UserDict, namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree

from calltape_recorder import First, Novelty, record
from calltape_recorder.write.notices import Notices
from tests.recorder.models import Echo
from tests.recorder.reading import read

RAN: list[str] = []


def trap(name: str) -> Callable[..., Any]:
    """Code that notes that it ran, and raises what no ``except Exception`` catches."""

    def run(*args: Any, **kwargs: Any) -> Any:
        RAN.append(name)
        raise asyncio.CancelledError(f"secret of {name}")

    return run


def trapped(name: str, bases: tuple[type, ...] = (), *traps: str, **more: Any) -> type:
    return type(name, bases, {**{trap_: trap(trap_) for trap_ in traps}, **more})


def traps(*names: str) -> dict[str, Any]:
    return {name: property(trap(name)) for name in names}


@dataclasses.dataclass
class Data:
    x: Any
    n: int = 3


class Backed:
    """Becomes a dataclass whose field is a property."""

    __annotations__ = {"x": int}
    x = property(trap("x"))


class Color(enum.Enum):
    RED = 1


Color.__getattribute__ = trap("enum.__getattribute__")  # type: ignore[assignment, method-assign]


def metaclass(**code: Any) -> Any:
    return type("Meta", (type,), code)


def of_metaclass(bases: tuple[type, ...] = (), **code: Any) -> Any:
    return metaclass(**code)("Made", bases, {})


def tensor_of(cls: Any) -> torch.Tensor:
    made: torch.Tensor = torch.ones(3).as_subclass(cls)
    return made


def with_attribute(name: str) -> torch.Tensor:
    made = torch.ones(5)
    made.__dict__[name] = trap(name)
    return made


def with_keys(*keys: Any) -> Any:
    made = Data(1)
    made.__dict__.update(dict.fromkeys(keys, 1))
    return made


class Odd:
    """A key that must not be asked for its hash again."""

    armed = False

    def __hash__(self) -> int:
        return trap("__hash__")() if Odd.armed else 7  # type: ignore[no-any-return]

    __eq__ = trap("__eq__")


EVERYTHING = (
    "__getattribute__", "__getattr__", "__iter__", "__len__", "__bool__", "__repr__", "__str__",
    "__eq__", "__int__", "__float__", "__index__", "__add__", "__contains__", "items", "keys",
    "values", "__getitem__", "__reduce_ex__", "__format__", "__instancecheck__",
)  # fmt: skip


def made() -> dict[str, Any]:
    Odd.armed = False
    return {
        "getattribute": trapped("Data", (Data,), "__getattribute__")(torch.ones(2)),
        "class": trapped("Data", (Data,), **traps("__class__"))(torch.ones(2)),
        "dict": trapped("Data", (Data,), **traps("__dict__"))(torch.ones(2)),
        "property field": dataclasses.dataclass(init=False)(Backed)(),
        "everything": trapped("Plain", (), *EVERYTHING, **traps("__class__"))(),
        "list": trapped("List", (list,), *EVERYTHING)([1, torch.ones(2)]),
        "mapping": trapped("Dict", (dict,), *EVERYTHING)({"a": torch.ones(2)}),
        "user dict": _user_dict(),
        "named tuple": trapped("T", (namedtuple("T", "a b"),), *EVERYTHING)(1, torch.ones(1)),
        "int": trapped("Int", (int,), *EVERYTHING)(3),
        "float": trapped("Float", (float,), *EVERYTHING)(3.5),
        "text": trapped("Str", (str,), *EVERYTHING, "isascii", "encode")("abc"),
        "set": trapped("Set", (set,), *EVERYTHING)([1]),
        "enum": Color.__members__["RED"],
        "cache": trapped("MyCache", (), "__getattribute__", **traps("__class__"))(),
        "shape": tensor_of(trapped("T", (torch.Tensor,), **traps("shape", "dtype", "device"))),
        "tensor's class": tensor_of(trapped("T", (torch.Tensor,), **traps("__class__"))),
        "tensor's getattribute": tensor_of(trapped("T", (torch.Tensor,), "__getattribute__")),
        "tensor's methods": tensor_of(
            trapped("T", (torch.Tensor,), "detach", "untyped_storage", "is_contiguous", "stride")
        ),
        "attribute data_ptr": with_attribute("data_ptr"),
        "attribute is_contiguous": with_attribute("is_contiguous"),
        "attribute untyped_storage": with_attribute("untyped_storage"),
        "metaclass's hash": of_metaclass(__hash__=trap("hash"))(),
        "metaclass's eq": of_metaclass(__eq__=trap("eq"))(),
        "metaclass's getattribute": of_metaclass(__getattribute__=trap("meta"))(),
        "metaclass's names": of_metaclass(**traps("__module__", "__name__", "__mro__"))(),
        "metaclass's fields": of_metaclass(**traps("_fields", "__dataclass_fields__"))(),
        "list of a metaclass": of_metaclass((list,), __hash__=trap("hash"))([1]),
        "a class": of_metaclass(__hash__=trap("hash"), __getattribute__=trap("meta")),
        "false array": trapped("ndarray", (), __module__="numpy", **traps("dtype", "shape"))(),
        "false scalar": trapped("integer", (), "item", __module__="numpy")(),
        "false nested tensor": trapped(
            "NestedTensor", (), __module__="torch.nested.x", **traps("_values", "requires_grad")
        )(),
        "key of a class": {of_metaclass(__hash__=trap("hash"))(): 1, "b": 2},
        "key": {Odd(): 1},
        "attribute's name": with_keys(Odd()),
        "slice": slice(trapped("Start", (), *EVERYTHING)(), None),
        "tuple": (1, [trapped("Data", (Data,), "__getattribute__")(3)]),
    }


def _user_dict() -> Any:
    cls = trapped("UserDict", (UserDict,))
    held = cls({"a": 1})
    cls.__getattribute__ = trap("__getattribute__")  # type: ignore[method-assign, assignment]
    return held


@pytest.mark.parametrize(
    "options", [{}, {"values": "none"}, {"keep": Novelty()}, {"keep": First(0)}]
)
@pytest.mark.parametrize("name", list(made()))
def test_no_code_of_an_argument_runs(
    name: str, options: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    value = made()[name]
    Odd.armed = True
    model, path = Echo(value), tmp_path / "t.tape"
    RAN.clear()
    with record(model, path, **options) as recorder:
        for _ in range(3):
            assert model(torch.ones(1), other=value) is value  # it is a result as well
            assert model(value) is value
        recorder.flush()
        stats = recorder.stats()
    assert RAN == []
    assert stats.seen == 6
    assert not stats.lost
    assert "secret" not in caplog.text
    assert not [r for r in caplog.records if r.levelno > logging.INFO], caplog.text
    Odd.armed = False
    assert not read(path).damage


class Registered:
    def __init__(self, error: BaseException) -> None:
        self.error = error


def _flatten(value: Registered) -> Any:
    raise value.error


_pytree.register_pytree_node(Registered, _flatten, lambda *_: None)


class TextError(Exception):
    def __str__(self) -> str:
        sys.exit(3)


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt("secret"), SystemExit("secret"), asyncio.CancelledError("secret"),
              GeneratorExit("secret"), TextError(), ValueError("secret")],
)  # fmt: skip
def test_what_code_of_an_argument_raises_is_caught(
    error: BaseException, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """torch's pytree knows the class by a function of the host, which is the only way to look."""
    caplog.set_level(logging.DEBUG)
    model = Echo()
    with record(model, tmp_path / "t.tape", values="none") as recorder:
        model(torch.ones(1), other=Registered(error))
    assert recorder.stats().kept == 1
    assert "secret" not in caplog.text


class Text(str):
    """A text with code of its own, which an exception may have."""

    __slots__ = ()

    def __len__(self) -> int:
        sys.exit("secret")

    def __getitem__(self, index: Any) -> Any:
        return 5

    __add__ = __format__ = encode = isascii = trap("text")


class OwnTextError(Exception):
    def __str__(self) -> str:
        return Text("a text")


class Raises(torch.nn.Module):
    def forward(self, *args: Any) -> Any:
        raise OwnTextError


class Named(str, enum.Enum):
    X = "xyz"


class Word(str):
    __slots__ = ()


@pytest.mark.parametrize("kind", [Named, Word])
def test_names_of_keywords_may_have_a_class_of_the_host(kind: type[str], tmp_path: Path) -> None:
    model, value, path = Echo(), torch.ones(1), tmp_path / "t.tape"
    with record(model, path) as recorder:
        for name in ("xyz", kind("xyz"), "xyz", kind("xyz")):
            model(**{name: value})
    assert recorder.stats().kept == 4
    for call in read(path).calls:
        assert list(call.kwargs) == ["xyz"]


@pytest.mark.parametrize("via", ["hook", "method"])
@pytest.mark.parametrize("values", ["all", "none"])
def test_the_text_of_an_exception_may_have_code(
    values: Any, via: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    RAN.clear()
    model = Raises()
    with record(model, tmp_path / "t.tape", values=values, via=via) as recorder:
        for _ in range(2):
            with pytest.raises(OwnTextError):
                model(torch.ones(1))
    assert recorder.stats().kept == 2
    assert RAN == []
    assert not [r for r in caplog.records if r.levelno > logging.INFO], caplog.text
    wanted = "a text" if values == "all" else "6 characters"
    assert all(wanted in call.error.message for call in read(tmp_path / "t.tape").calls)


def test_the_log_has_frames_but_not_the_cause_of_an_exception(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """On the level DEBUG the frames are logged, and nothing of what the error came of."""
    caplog.set_level(logging.DEBUG)
    notices = Notices(omits_values=False)
    try:
        try:
            raise TextError
        except TextError:
            raise ValueError("second")  # noqa: B904 - the first one stays its context
    except ValueError as error:
        notices.complain("a call could not be recorded", error)
    assert "test_the_log_has_frames_but_not_the_cause_of_an_exception" in caplog.text


class Wraps(torch.Tensor):
    """A tensor whose shape is asked of Python code."""

    error: BaseException

    @staticmethod
    def __new__(cls, error: BaseException) -> Any:
        make = torch.Tensor._make_wrapper_subclass  # type: ignore[attr-defined]
        return make(cls, (2,), dispatch_sizes_strides_policy="sizes", dtype=torch.float32)

    def __init__(self, error: BaseException) -> None:
        self.error = error

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise args[0].error


@pytest.mark.parametrize("error", [KeyboardInterrupt("secret"), asyncio.CancelledError("secret")])
@pytest.mark.parametrize("via", ["hook", "method"])
def test_what_code_of_a_tensor_raises_is_caught(
    error: BaseException, via: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    value = Wraps(error)
    model = Echo(value)
    with record(model, tmp_path / "t.tape", values="none", via=via) as recorder:
        assert model(value) is value
        model(torch.ones(1))
    stats = recorder.stats()
    assert stats.seen == stats.kept + sum(stats.dropped.values()) == 2
    assert stats.dropped.keys() <= {"internal"}
    assert stats.last_error is None or "secret" not in stats.last_error
    assert "secret" not in caplog.text


def test_an_interrupt_while_code_of_an_argument_runs_reaches_the_host(tmp_path: Path) -> None:
    def handler(number: int, frame: Any) -> None:
        raise TimeoutError if number == signal.SIGALRM else StopServing

    class StopServing(BaseException):
        pass

    class Slow:
        signal = signal.SIGINT

    def flatten(value: Slow) -> Any:
        signal.raise_signal(value.signal)
        return [], None

    _pytree.register_pytree_node(Slow, flatten, lambda *_: None)
    before = signal.signal(signal.SIGUSR1, handler)
    model = Echo()
    try:
        with record(model, tmp_path / "t.tape") as recorder:
            with pytest.raises(KeyboardInterrupt):
                model(torch.ones(1), other=Slow())
            Slow.signal = signal.SIGUSR1
            with pytest.raises(StopServing):
                model(torch.ones(1), other=Slow())
            model(torch.ones(1))
    finally:
        signal.signal(signal.SIGUSR1, before)
        _pytree.SUPPORTED_NODES.pop(Slow)
    assert recorder.stats().dropped == {"interrupted": 2}
    assert recorder.stats().kept == 1


@pytest.mark.parametrize("kind", [dict.fromkeys, list, set, UserDict])
def test_what_is_too_large_is_not_looked_into(
    kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("calltape_recorder.capture.walk.why_unfit", asked.append)
    monkeypatch.setattr("calltape_recorder.capture.walk.key_token", asked.append)
    model, many = Echo(), map(str, range(100_000))
    value = kind(dict.fromkeys(many) if kind is UserDict else many)
    with record(model, tmp_path / "t.tape") as recorder:
        for _ in range(3):
            model(torch.ones(1), other=value)
    assert not asked
    assert recorder.stats().kept == 3
