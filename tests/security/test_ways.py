"""Promise: the rule of which classes are made is one for everything that reads a tape: the API,
``replay``, ``export``, ``minimise``, the pytest plugin and notebooks. A model that imports a class
gives no permission, and neither does one whose package defines a class with a ``__del__``."""

from __future__ import annotations

import contextlib
import gc
import importlib
import shlex
import sys
import urllib.request  # the class of the forged tapes is loaded
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from calltape_analyzer import (
    Placeholder,
    UsageError,
    check,
    export,
    load_programs,
    open_tape,
    render,
    replay,
)
from calltape_analyzer.errors import ExportError
from calltape_analyzer.testing import assert_replays
from tests.analyzer.cli.commands import run
from tests.forging.strangers import TEXT, commanding, forged_failure

pytest_plugins = ["pytester"]

URLopener = getattr(urllib.request, "URLopener", None)
PACKAGE = {
    "house/__init__.py": "",
    "house/model.py": """
import urllib.request
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import torch
from beside import Beside

made, got = [], []


def factory():
    made.append("factory")


@dataclass
class Plain:
    a: object
    b: int = 2


@dataclass(frozen=True, slots=True)
class Frozen:
    a: object


class Pair(NamedTuple):
    a: object


class Mode(Enum):
    ON = "on"


@dataclass
class Made:
    a: object
    more: object = field(default_factory=factory)


@dataclass
class Plugged:
    a: object

    def __del__(self):
        made.append("del")


@dataclass
class New:
    a: object

    def __new__(cls, *args):
        made.append("new")
        return object.__new__(cls)


@dataclass
class Getting:
    a: object

    def __getattr__(self, name):
        made.append(name)


@dataclass
class Setting:
    a: object

    def __setattr__(self, name, value):
        made.append(name)


@dataclass
class Reduced:
    a: object

    def __reduce__(self):
        return made.append, ("reduce",)


class Meta(type):
    def __instancecheck__(cls, one):
        made.append("meta")
        return False

    __hash__ = None


@dataclass
class OfMeta(metaclass=Meta):
    a: object


@dataclass
class Computed:
    a: object


Computed.a = property(lambda self: None, lambda self, value: made.append("set"))


class Ordinary:
    pass


class Passes(torch.nn.Module):
    def forward(self, *args, **kwargs):
        got.extend(args[1:])
        return args[0]


def build_model():
    return Passes()
""",
    "beside.py": """
from dataclasses import dataclass


@dataclass
class Beside:
    a: object
""",
}
ALLOWED = ("Plain", "Frozen", "Pair")
FORBIDDEN = (
    "Made", "Plugged", "New", "Getting", "Setting", "Reduced", "OfMeta", "Computed", "Ordinary"
)  # fmt: skip


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The package of a model, and the working directory."""
    (tmp_path / "house").mkdir()
    for name, source in PACKAGE.items():
        (tmp_path / name).write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("house.model")
    for name in ("house.model", "house", "beside"):
        sys.modules.pop(name, None)


def dataclass_node(name: str) -> dict[str, Any]:
    kind = "namedtuple" if name.endswith(":Pair") else "dataclass"
    return {"kind": kind, "type": name, "fields": ("a",), "children": (TEXT,)}


def received(house: ModuleType, tape: Path, **options: Any) -> tuple[Any, ...]:
    """What the model gets in a replay."""
    model = house.build_model()
    with open_tape(tape, **options) as opened:
        replay(opened, model, expect="success")
    got = tuple(house.got)
    house.got.clear()
    return got


def test_the_package_of_the_model_brings_its_plain_classes(house: ModuleType) -> None:
    nodes = [dataclass_node(f"house.model:{name}") for name in ALLOWED]
    nodes.append({"kind": "enum", "type": "house.model:Mode", "name": "ON", "value": "on"})
    got = received(house, forged_failure(Path("a.tape"), nodes))
    assert [type(one).__name__ for one in got] == [*ALLOWED, "Mode"]
    assert got[0] == house.Plain("touch FOUND", 2)
    assert got[3] is house.Mode.ON
    # Without the model they are placeholders.
    with open_tape("a.tape") as tape:
        assert all(isinstance(one, Placeholder) for one in tape[0].inputs.args[1:])


@pytest.mark.parametrize("name", [*(f"house.model:{one}" for one in FORBIDDEN), "beside:Beside"])
def test_the_package_of_the_model_brings_no_other_classes(name: str, house: ModuleType) -> None:
    path = forged_failure(Path("a.tape"), [dataclass_node(name)])
    model = house.build_model()
    with open_tape(path) as tape:
        report = replay(tape, model, expect="success")
        assert not report.ok
        assert house.got == [], "a call with a placeholder is not tried"
        assert name in report.unmade
    gc.collect()
    assert house.made == []


@pytest.mark.parametrize("name", ["New", "Getting", "Reduced", "Ordinary", "Made"])
def test_the_person_may_name_it(name: str, house: ModuleType) -> None:
    kind = "object" if name == "Ordinary" else "dataclass"
    node = {**dataclass_node(f"house.model:{name}"), "kind": kind}
    cls = getattr(house, name)
    (got,) = received(house, forged_failure(Path("a.tape"), [node]), classes=[cls])
    assert type(got) is cls
    assert vars(got)["a"] == "touch FOUND"


def test_nobody_may_name_a_class_that_does_something_in_the_end(house: ModuleType) -> None:
    names = ["house.model:Plugged", "urllib.request:URLopener", "tempfile:_TemporaryFileCloser"]
    import tempfile

    classes = [house.Plugged, tempfile._TemporaryFileCloser, *([URLopener] if URLopener else [])]
    nodes = [
        {**dataclass_node(name), "kind": kind} for name in names for kind in ("object", "dataclass")
    ]
    path = forged_failure(Path("a.tape"), nodes)
    with open_tape(path, classes=classes) as tape:
        for value in tape[0].inputs.args[1:]:
            assert isinstance(value, Placeholder)
            assert not value.is_of_unknown_class, "no advice to name it"
        report = replay(tape, house.build_model(), expect="success")
        assert "--classes" not in str(report)
        assert "classes=" not in str(report)
    gc.collect()
    assert house.made == []


def test_a_name_is_that_of_the_class(house: ModuleType) -> None:
    house.Other = house.Plain  # type: ignore[attr-defined]
    assert (
        received(house, forged_failure(Path("a.tape"), [dataclass_node("house.model:Other")])) == ()
    )
    assert received(house, forged_failure(Path("b.tape"), [dataclass_node("house:Plain")])) == ()


def test_a_flag_that_is_no_member_is_made_by_no_call(house: ModuleType) -> None:
    node = {"kind": "enum", "type": "house.model:Mode", "name": "NONE", "value": "on"}
    assert received(house, forged_failure(Path("a.tape"), [node])) == ()
    (got,) = received(house, forged_failure(Path("a.tape"), [node]), classes=[house.Mode])
    assert got is house.Mode.ON


def test_a_stand_in_gives_way_to_the_class_of_the_model(house: ModuleType) -> None:
    nodes = [dataclass_node("house.model:Plain"), dataclass_node("gone:Batch")]
    plain, gone = received(house, forged_failure(Path("a.tape"), nodes), stand_ins=True)
    assert type(plain) is house.Plain
    assert type(gone).__name__ == "StandIn"
    assert gone.a == "touch FOUND"


@pytest.mark.parametrize("kind", ["namedtuple", "dataclass", "object"])
def test_a_stand_in_has_fields_that_a_class_may_have(kind: str, house: ModuleType) -> None:
    given = ("_a", "def", "__del__", "__class__", "1", "a b", "self", "é", "a", "count", "x" * 999)
    nodes = [
        {"kind": kind, "type": f"gone:{at}", "fields": (name,), "children": (TEXT,)}
        for at, name in enumerate(given)
    ]
    with open_tape(forged_failure(Path("a.tape"), nodes), stand_ins=True) as tape:
        got = tape[0].inputs.args[1:]
        assert render(tape[0].inputs)
    names = {name for name, one in zip(given, got, strict=True) if type(one) is not Placeholder}
    long = {"x" * 999}
    assert names - long == {"self", "a", "count", *(() if kind == "namedtuple" else ("_a",))}


@pytest.mark.parametrize("stand_ins", [False, True])
def test_no_command_is_run(stand_ins: bool, house: ModuleType, tmp_path: Path) -> None:
    """By replay, check of what they say, and notebooks."""
    marker = tmp_path / "RAN"
    path = commanding(tmp_path / "a.tape", "touch", str(marker))
    model = house.build_model().eval()
    with open_tape(path, stand_ins=stand_ins) as tape:
        shown = [tape, tape[0], tape[0].inputs, tape.calls]
        assert all(one._repr_html_() for one in shown if hasattr(one, "_repr_html_"))
        assert render(tape[0].inputs)
        for one in (tape[0].inputs, tape[0].record):
            repr(one)
        assert replay(tape, model, expect="success") is not None
        with pytest.raises(AssertionError):
            assert_replays(tape, model)
    gc.collect()
    assert not marker.exists()


def test_the_commands_run_none(house: ModuleType, tmp_path: Path) -> None:
    marker = tmp_path / "RAN"
    path = commanding(tmp_path / "a.tape", "touch", str(marker))
    for words in (
        ("info", path), ("show", path, 0), ("variants", path, "--python"),
        ("replay", path, "--model", "house.model:build_model"),
    ):  # fmt: skip
        done = run(*words)
        assert done.code in (0, 1), done
        assert "\x1b" not in done.out + done.err
    gc.collect()
    assert not marker.exists()


@pytest.mark.integration
def test_export_and_minimise_run_none(house: ModuleType, tmp_path: Path) -> None:
    marker = tmp_path / "RAN"
    path = commanding(tmp_path / "a.tape", "touch", str(marker))
    for stand_ins in (False, True):
        with open_tape(path, stand_ins=stand_ins) as tape, contextlib.suppress(ExportError):
            assert export(tape, house.build_model().eval()).verify() is not None
    assert run("export", path, "--model", "house.model:build_model", "-o", "out").code in (0, 1)
    gc.collect()
    has_calls = "import sys, calltape_analyzer as c; sys.exit(len(c.open_tape(sys.argv[1])) > 0)"
    check_ = shlex.join([sys.executable, "-c", has_calls])
    done = run("minimise", path, "-o", "small.tape", "--check", check_)
    assert done.code == 0, done.err
    assert "\x1b" not in done.out + done.err
    assert not marker.exists()


@pytest.mark.integration
def test_the_pytest_plugin_runs_none(house: ModuleType, pytester: pytest.Pytester) -> None:
    marker = pytester.path / "RAN"
    commanding(pytester.path / "a.tape", "touch", str(marker))
    for name, source in PACKAGE.items():
        target = pytester.path / name
        target.parent.mkdir(exist_ok=True)
        target.write_text(source)
    pytester.makepyfile(
        test_it="""
        import gc
        import pytest
        from calltape_analyzer import Placeholder
        from calltape_analyzer.testing import assert_replays
        from house.model import build_model

        @pytest.mark.tape("a.tape")
        def test_placeholders(tape):
            assert all(isinstance(one, Placeholder) for one in tape[0].inputs.args[1:])

        @pytest.mark.tape("a.tape")
        def test_replay(tape):
            assert_replays(tape, build_model())
        """
    )
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    done.assert_outcomes(passed=1, failed=1)
    assert not marker.exists()


@pytest.mark.parametrize("trusted", ["no", 1, 0, None, "", [True]])
def test_trust_is_true_or_false(trusted: Any, house: ModuleType, tmp_path: Path) -> None:
    path = forged_failure(tmp_path / "a.tape", [])
    with open_tape(path) as tape:
        for ask in (
            lambda: load_programs(tmp_path, trusted=trusted),
            lambda: replay(tape, house.build_model(), trusted=trusted),
            lambda: check(tape, tmp_path / "a.pt2", trusted=trusted),
            lambda: assert_replays(tape, house.build_model(), trusted=trusted),
        ):
            with pytest.raises(UsageError, match="trusted="):
                ask()


@pytest.mark.parametrize("name", ["onnx", "int32", "load", "complex64", "strided"])
def test_a_dtype_is_of_a_table(
    name: str, house: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(asked: str) -> Any:
        if asked == name:
            raise BaseException(asked)
        raise AttributeError(asked)

    monkeypatch.setattr(torch, "__getattr__", refused, raising=False)
    context = {
        "default_dtype": name, "autocast": ({"device": "cpu", "dtype": name},),
        "grad": False, "inference": False,
    }  # fmt: skip
    path = forged_failure(Path("a.tape"), [], context=context)
    before = torch.get_default_dtype()
    with open_tape(path) as tape:
        assert tape[0].record.inputs.spec().context is not None
        report = replay(tape, house.build_model(), expect="success")
    assert report.ok
    assert torch.get_default_dtype() is before


def test_only_classes_are_classes(house: ModuleType) -> None:
    path = forged_failure(Path("a.tape"), [])
    for given in (["house.model:Plain"], {"house.model:Plain": "Plain"}, [house.Plain(1)]):
        with pytest.raises(UsageError, match="is not a class"):
            open_tape(path, classes=given)  # type: ignore[arg-type]
