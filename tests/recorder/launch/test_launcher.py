"""The target of a server whose code knows nothing of the recorder: it is found once it is there."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import open_tape
from calltape_recorder.host import lifecycle
from calltape_recorder.launch import attaching
from calltape_recorder.launch.startup import calltape_startup
from tests.analyzer.cli.commands import run
from tests.recorder.models import Add
from tests.recorder.reading import read
from tests.recorder.waiting import until

SOURCE = """
from typing import Protocol
import torch
from tests.recorder.models import Add, Identity

class Net(Add):
    def __init__(self, scale: float = 1.0, *, name: str = "net") -> None:
        super().__init__()
        self.scale = scale

class Small(Net):
    pass

class Engine:
    def __init__(self) -> None:
        self.net = Add()
    def generate(self, x, times=1):
        return x * times
    @property
    def model(self):
        raise RuntimeError("not to be run by anybody but the host")

class Sized(tuple):
    def generate(self, x):
        return x * len(self)

class New:
    def __new__(cls, size):
        one = super().__new__(cls)
        one.size = size
        return one
    def generate(self, x):
        return x * self.size

class Mixin:
    def generate(self, x):
        return x * self.size

class WithSize:
    def __init__(self, size=3):
        self.size = size

class Mixed(Mixin, WithSize):
    pass

class MixedAndInit(Mixin, WithSize):
    def __init__(self):
        super().__init__(size=3)

class Engines(Protocol):
    def generate(self, x): ...

class Implements(Engines, WithSize):
    def generate(self, x):
        return x * self.size

class NewAndInit(New):
    def __init__(self, size):
        super().__init__(size)

def predict(x):
    return x + 1

model = Net()
engine = Engine()
late = None
number = 3
"""


class Stage:
    """A module that is not yet imported, and a directory for tapes."""

    def __init__(self, directory: Path, name: str, patch: pytest.MonkeyPatch) -> None:
        self.name = name
        self.lookouts: list[calltape_startup.Lookout] = []
        self.tapes = directory / "tapes"
        self.file = directory / f"{name}.py"
        self.file.write_text(SOURCE, encoding="utf-8")
        self.patch = patch

    def look_out(self, attribute: str, **settings: Any) -> calltape_startup.Lookout:
        """What happens at the start of an interpreter with ``CALLTAPE`` set."""
        chosen = {"target": f"{self.name}:{attribute}", "tape": str(self.tapes), **settings}
        self.patch.setenv("CALLTAPE", json.dumps(chosen))
        lookout = calltape_startup.begin()
        assert lookout is not None
        self.lookouts.append(lookout)
        return lookout

    def load(self) -> Any:
        return importlib.import_module(self.name)

    def close(self) -> list[str]:
        """Ends what was begun; the names of the tapes."""
        lifecycle.close_all()
        return sorted(path.name for path in self.tapes.glob("*")) if self.tapes.exists() else []

    def calls(self) -> dict[str, int]:
        return {name: len(read(self.tapes / name).calls) for name in self.close()}


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: Any) -> Iterator[Stage]:
    name = f"staged_{abs(hash(request.node.name))}"
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    stage = Stage(tmp_path, name, monkeypatch)
    yield stage
    stage.close()
    for lookout in stage.lookouts:
        lookout.done = True  # its thread ends
    sys.modules.pop(name, None)


ONE = torch.ones(2)


PID = os.getpid()


def test_a_model_is_recorded_from_its_import_on(stage: Stage) -> None:
    stage.look_out("model", keep="first(2)", outputs="false")
    module = stage.load()
    for _ in range(3):
        assert torch.equal(module.model(ONE, ONE), ONE + ONE)
    assert stage.calls() == {f"Net-{PID}.tape": 2}
    # The import machinery looks as it would have without us.
    assert type(module.__loader__).__name__ == "SourceFileLoader"
    assert "exec_module" not in vars(module.__loader__)
    assert "class Net" in inspect.getsource(module)


def test_a_tape_that_is_there_stays(stage: Stage) -> None:
    # Process numbers come again: in a container the server is 1 or 7 at every start.
    stage.tapes.mkdir()
    (stage.tapes / f"Net-{PID}.tape").write_text("of another time")
    (stage.tapes / f"Net-{PID}.2-00001.tape").write_text("its first segments were deleted")
    stage.look_out("model")
    stage.load().model(ONE, ONE)
    assert f"Net-{PID}.3.tape" in stage.close()
    assert (stage.tapes / f"Net-{PID}.tape").read_text() == "of another time"


def test_every_instance_of_a_class_is_recorded(stage: Stage) -> None:
    stage.look_out("Net")
    module = stage.load()  # it made an instance itself
    assert (
        str(inspect.signature(module.Net)) == "(scale: float = 1.0, *, name: str = 'net') -> None"
    )
    assert module.Net.__init__.__qualname__ == "Net.__init__"
    first, second, small = module.Net(2.0), module.Net(name="x"), module.Small()
    assert first.scale == 2.0
    for model, times in ((module.model, 4), (first, 1), (second, 2), (small, 3)):
        for _ in range(times):
            assert torch.equal(model(ONE, ONE), ONE + ONE)
    calls = stage.calls()
    nets = {f"Net-{PID}.tape": 4, f"Net-{PID}.2.tape": 1, f"Net-{PID}.3.tape": 2}
    assert calls == {**nets, f"Small-{PID}.tape": 3}
    with pytest.raises(TypeError, match="unexpected keyword"):
        module.Net(nothing=1)


def test_classes_without_an_init_are_recorded(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """object.__init__ takes what __new__ took, but not behind an __init__ of another class. What
    a mixin inherits is not what the class with the mixin would run."""
    for name in ("Sized", "New", "Mixin", "Implements"):
        stage.look_out(f"{name}.generate")
    module = stage.load()
    assert str(inspect.signature(module.New)) == "(size)"
    assert str(inspect.signature(module.Mixin)) == "()"
    made = [module.Sized("abc"), module.New(3), module.New(size=3)]
    made += [module.Mixed(), module.Mixed(3), module.MixedAndInit(), module.Implements(3)]
    for model in made:
        assert torch.equal(model.generate(ONE), ONE * 3)
    refused: list[tuple[Callable[[], Any], str]] = [
        (lambda: module.NewAndInit(3), "exactly one argument"),
        (module.New, "missing 1 required"),
        (lambda: module.Sized(1, 2), "at most 1 argument"),
        (lambda: module.Mixin(3), r"^Mixin\(\) takes no arguments"),
    ]
    for make, said in refused:
        with pytest.raises(TypeError, match=said):
            make()
    assert list(stage.calls().values()) == [1] * 6
    assert "an instance of Sized is not recorded: cannot create weak reference" in caplog.text


def test_instances_of_a_protocol_are_not_followed(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.look_out("Engines.generate")
    assert stage.load().Implements(3).size == 3
    assert "instances of Engines cannot be recorded: the class is a protocol" in caplog.text


def test_instances_are_recorded_up_to_a_number(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(attaching, "MAX_INSTANCES", 2)
    stage.look_out("Net")
    module = stage.load()
    models = [module.model, *[module.Net() for _ in range(3)]]
    for model in models:
        model(ONE, ONE)
    assert list(stage.calls().values()) == [1, 1]
    assert caplog.text.count("2 instances of Net are recorded") == 1


@pytest.mark.parametrize("attribute", ["engine.generate", "Engine.generate"])
def test_a_method_of_any_object_is_recorded(stage: Stage, attribute: str) -> None:
    stage.look_out(attribute)
    module = stage.load()
    engine = module.engine if attribute.startswith("engine") else module.Engine()
    assert str(inspect.signature(engine.generate)) == "(x, times=1)"
    assert torch.equal(engine.generate(ONE, times=3), ONE * 3)
    names = stage.close()  # of a class there is one for the instance that the module made, too
    assert len(names) == (1 if attribute.startswith("engine") else 2)
    tape = read(stage.tapes / names[0])  # the last one's, by its name
    assert tape.target.method == "generate"
    assert len(tape.calls) == 1


@pytest.mark.parametrize(
    ("attribute", "ask", "answer", "name"),
    [
        ("predict", lambda module: module.predict(ONE), ONE + 1, "predict"),
        ("engine.net", lambda module: module.engine.net(ONE, ONE), ONE + ONE, "Add"),
    ],
    ids=["a function", "a dotted path"],
)
def test_a_target_in_a_module_is_recorded(
    stage: Stage, attribute: str, ask: Callable[[Any], Any], answer: torch.Tensor, name: str
) -> None:
    stage.look_out(attribute)
    assert torch.equal(ask(stage.load()), answer)
    assert stage.calls() == {f"{name}-{PID}.tape": 1}


@pytest.mark.parametrize("attribute", ["late", "engine.state.model", "engine.late"])
def test_a_target_that_appears_later_is_recorded(stage: Stage, attribute: str) -> None:
    stage.look_out(attribute)
    module = stage.load()
    model = Add()
    model(ONE, ONE)
    module.engine.state = types.SimpleNamespace(model=model)
    module.engine.late = module.late = model
    until(lambda: model._forward_hooks)
    model(ONE, ONE)
    assert stage.calls() == {f"Add-{PID}.tape": 1}


def test_what_came_before_it_was_found_is_not_known(stage: Stage) -> None:
    """52 calls before the target was found, 148 after: "148 of 148 calls seen" was all it said."""
    stage.look_out("late")
    module = stage.load()
    model = Add()
    for _ in range(3):
        model(ONE, ONE)
    before = time.time_ns()
    module.late = model
    until(lambda: model._forward_hooks)
    for _ in range(2):
        model(ONE, ONE)
    (name,) = stage.close()
    with open_tape(stage.tapes / name) as tape:
        (observed,) = tape.observed.values()
        assert observed.reason == "when the target was found"
        assert before <= observed.since_ns <= tape[0].record.time_ns
        assert (tape.coverage.seen, tape.coverage.kept) == (2, 2)
    shown = run("info", stage.tapes / name).out
    assert re.search(r"2 of 2 calls seen since \S+Z, when the target was found, were kept", shown)
    document = json.loads(run("info", "--json", stage.tapes).out)
    (since,) = document["seen_since"]
    assert (since["tape"], since["reason"]) == (tape.manifest.tape.hex(), observed.reason)


def test_an_instance_is_seen_from_its_birth_on(stage: Stage) -> None:
    """What was made before the recorder came may have been called; what it saw made was not."""
    stage.look_out("Net")
    module = stage.load()
    module.Net()
    observeds = [read(stage.tapes / name).manifest.observed for name in stage.close()]
    assert [observed is None for observed in observeds] == [True, False]


def test_a_model_that_appears_in_a_fork_is_recorded_there(stage: Stage) -> None:
    """gunicorn --preload: imported in the parent, loaded in each worker."""
    stage.look_out("late")
    module = stage.load()
    children = []
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                module.late = Add()
                until(lambda: module.late._forward_hooks)
                module.late(ONE, ONE)
                stage.close()
                status = 0
            finally:
                os._exit(status)
        children.append(pid)
    for pid in children:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert stage.calls() == {f"Add-{pid}.tape": 1 for pid in sorted(children)}


def test_a_property_is_not_run(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.look_out("engine.model")
    stage.load()
    assert stage.close() == []
    assert "model is a property of Engine" in caplog.text


def test_a_module_s_own_getattr_is_not_run(stage: Stage) -> None:
    stage.file.write_text("def __getattr__(name):\n    raise SystemExit(name)\n")
    stage.look_out("model")
    stage.load()
    assert stage.close() == []


@pytest.mark.parametrize(
    ("attribute", "settings", "said"),
    [
        ("number", {}, "int"),
        ("model", {"keep": "often()"}, "no policy 'often'"),
        ("model", {"method": "nothing"}, "has no method 'nothing'"),
        ("model", {"tape": "/dev/null/x"}, "is not recorded"),
        ("nothing", {"wait": 0.05}, "did not appear within 0.05 s: nothing is recorded. There are"),
    ],
)
def test_what_goes_wrong_is_said_once_and_the_server_runs(
    stage: Stage, caplog: pytest.LogCaptureFixture, attribute: str, settings: Any, said: str
) -> None:
    stage.look_out(attribute, **settings)
    module = stage.load()
    until(lambda: caplog.records)
    assert torch.equal(module.model(ONE, ONE), ONE + ONE)
    assert len(caplog.records) == 1
    assert said in caplog.text
    assert stage.close() == []


def test_an_import_that_fails_fails_as_it_would(stage: Stage) -> None:
    stage.file.write_text("raise RuntimeError('at import')")
    stage.look_out("model")
    with pytest.raises(RuntimeError, match="at import"):
        stage.load()
    assert stage.name not in sys.modules
    stage.file.write_text(SOURCE + "# mended\n")
    importlib.invalidate_caches()
    stage.load().model(ONE, ONE)
    assert stage.calls() == {f"Net-{PID}.tape": 1}


def test_a_fork_does_not_wait_for_long(stage: Stage) -> None:
    """For 10 s, as docs/recording.md says, and only once."""
    lookout = stage.look_out("model")
    assert lookout.patience == 10
    lookout.patience = 0.05
    held, go = threading.Event(), threading.Event()

    def imports() -> None:
        with lookout.importing:
            held.set()
            go.wait(60)

    thread = threading.Thread(target=imports)
    thread.start()
    assert held.wait(60)
    lookout.pause()  # before a fork
    lookout.go_on()
    assert lookout.patience == 0
    lookout.patience = 60
    go.set()
    lookout.pause()  # it waits until the import is over
    assert lookout.importing._is_owned()
    lookout.go_on()
    assert not lookout.importing._is_owned()
    thread.join()
