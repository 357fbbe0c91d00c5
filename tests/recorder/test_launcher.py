"""Recording a server whose code knows nothing of it."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from calltape_analyzer import open_tape
from calltape_analyzer.cli import app
from calltape_recorder import launcher, lifecycle
from calltape_recorder.launcher import STARTUP, main, prepare
from calltape_recorder.startup import calltape_startup
from tests.recorder.models import Add
from tests.recorder.reading import read

ROOT = Path(__file__).parents[2]

SOURCE = """
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

def predict(x):
    return x + 1

model = Net()
engine = Engine()
late = None
number = 3
"""


class Stage:
    """A module that is not yet imported, and a directory for tapes."""

    def __init__(self, directory: Path, name: str) -> None:
        self.name = name
        self.lookouts: list[calltape_startup._Lookout] = []
        self.tapes = directory / "tapes"
        self.file = directory / f"{name}.py"
        self.file.write_text(SOURCE, encoding="utf-8")

    def look_out(self, attribute: str, **settings: Any) -> None:
        """What happens at the start of an interpreter with ``CALLTAPE`` set."""
        chosen = {"target": f"{self.name}:{attribute}", "tape": str(self.tapes), **settings}
        lookout = calltape_startup._Lookout(
            chosen, self.name, attribute, float(settings.get("wait", 60))
        )
        self.lookouts.append(lookout)
        lookout.begin()

    def load(self) -> Any:
        return importlib.import_module(self.name)

    def close(self) -> list[str]:
        """Ends what was begun; the names of the tapes."""
        for recorder in list(lifecycle._open):
            recorder.close()
        return sorted(path.name for path in self.tapes.glob("*")) if self.tapes.exists() else []

    def calls(self) -> dict[str, int]:
        return {name: len(read(self.tapes / name).calls) for name in self.close()}


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: Any) -> Iterator[Stage]:
    name = f"staged_{abs(hash(request.node.name))}"
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    stage = Stage(tmp_path, name)
    yield stage
    stage.close()
    for lookout in stage.lookouts:
        lookout._done = True  # its thread ends
    sys.modules.pop(name, None)


def wait_for(what: Callable[[], Any]) -> None:
    """Polls until it is so; pytest-timeout ends what never is."""
    pause = threading.Event()
    while not what():
        pause.wait(0.01)


ONE = torch.ones(2)
PID = os.getpid()


# --- the target, once it is there ----------------------------------------------------------------


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


def test_instances_are_recorded_up_to_a_number(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(launcher, "_MAX_INSTANCES", 2)
    stage.look_out("Net")
    module = stage.load()
    models = [module.model, *[module.Net() for _ in range(3)]]
    for model in models:
        model(ONE, ONE)
    assert list(stage.calls().values()) == [1, 1]
    assert caplog.text.count("2 instances of Net are recorded") == 1


@pytest.mark.parametrize("attribute", ["engine.generate", "Engine.generate"])
def test_a_method_of_anything(stage: Stage, attribute: str) -> None:
    stage.look_out(attribute)
    module = stage.load()
    engine = module.engine if attribute.startswith("engine") else module.Engine()
    assert str(inspect.signature(engine.generate)) == "(x, times=1)"
    assert torch.equal(engine.generate(ONE, times=3), ONE * 3)
    names = stage.close()  # of a class there is one for the instance that the module made, too
    assert len(names) == (1 if attribute.startswith("engine") else 2)
    tape = read(stage.tapes / names[0])  # the last one's, by its name
    assert tape.manifest.target is not None
    assert tape.manifest.target.method == "generate"
    assert len(tape.calls) == 1


def test_a_function_of_a_module(stage: Stage) -> None:
    stage.look_out("predict")
    module = stage.load()
    assert torch.equal(module.predict(ONE), ONE + 1)
    assert stage.calls() == {f"predict-{PID}.tape": 1}


def test_a_dotted_path(stage: Stage) -> None:
    stage.look_out("engine.net")
    stage.load().engine.net(ONE, ONE)
    assert stage.calls() == {f"Add-{PID}.tape": 1}


@pytest.mark.parametrize("attribute", ["late", "engine.state.model", "engine.late"])
def test_what_appears_later(stage: Stage, attribute: str) -> None:
    stage.look_out(attribute)
    module = stage.load()
    model = Add()
    model(ONE, ONE)
    module.engine.state = types.SimpleNamespace(model=model)
    module.engine.late = module.late = model
    wait_for(lambda: model._forward_hooks)
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
    wait_for(lambda: model._forward_hooks)
    for _ in range(2):
        model(ONE, ONE)
    (name,) = stage.close()
    with open_tape(stage.tapes / name) as tape:
        (observed,) = tape.observed.values()
        assert observed.reason == "when the target was found"
        assert before <= observed.since_ns <= tape[0].record.time_ns
        assert (tape.coverage.seen, tape.coverage.kept) == (2, 2)
    shown = CliRunner().invoke(app, ["info", str(stage.tapes / name)]).stdout
    assert re.search(r"2 of 2 calls seen since \S+Z, when the target was found, were kept", shown)
    document = json.loads(CliRunner().invoke(app, ["info", "--json", str(stage.tapes)]).stdout)
    (since,) = document["coverage"]["since"]
    assert (since["tape"], since["reason"]) == (tape.manifest.tape.hex(), observed.reason)


def test_an_instance_is_seen_from_its_birth_on(stage: Stage) -> None:
    """What was made before the recorder came may have been called; what it saw made was not."""
    stage.look_out("Net")
    module = stage.load()
    module.Net()
    found = [read(stage.tapes / name).manifest.observed for name in stage.close()]
    assert [observed is None for observed in found] == [True, False]


def test_a_model_that_appears_in_a_fork(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
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
                wait_for(lambda: module.late._forward_hooks)
                module.late(ONE, ONE)
                stage.close()
                status = 0
            finally:
                os._exit(status)
        children.append(pid)
    # The parent of workers is no server: it is no news that it records nothing.
    stage.lookouts[0]._miss("before the process ended", PID)
    assert not caplog.records
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
        ("nothing", {"wait": 0.05}, "did not appear within 0.05 s"),
    ],
)
def test_what_goes_wrong_is_said_once_and_the_server_runs(
    stage: Stage, caplog: pytest.LogCaptureFixture, attribute: str, settings: Any, said: str
) -> None:
    stage.look_out(attribute, **settings)
    module = stage.load()
    wait_for(lambda: caplog.records)
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


# --- the command ---------------------------------------------------------------------------------


def test_the_environment_of_the_command(tmp_path: Path) -> None:
    settings = {"target": "a.b:c.d", "tape": str(tmp_path / "tapes"), "keep": "novelty()"}
    environment = prepare(settings, {"PYTHONPATH": "/x:/y", "OTHER": "1"})
    assert environment["PYTHONPATH"] == f"{STARTUP}:/x:/y"
    assert environment["OTHER"] == "1"
    said = calltape_startup.split(environment["CALLTAPE"])
    assert said == {**settings, "pid": PID}
    assert (tmp_path / "tapes").is_dir()
    assert prepare(said, environment)["PYTHONPATH"] == f"{STARTUP}:/x:/y"
    assert {"sitecustomize.py", "calltape_startup.py"} <= set(os.listdir(STARTUP))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--target", "a:b", "--tape", "{}"], "no command"),
        (["--target", "a.b", "--tape", "{}", "--", "true"], "package.module:attribute"),
        (["--target", "a:b c", "--tape", "{}", "--", "true"], "package.module:attribute"),
        (["--tape", "{}", "--", "true"], "package.module:attribute"),
        (["--target", "a:b", "--", "true"], "no tape="),
        (["--target", "a:b", "--tape", "/dev/null", "--", "true"], "/dev/null"),
        (["--target", "a:b", "--tape", "{}", "--keep", "often()", "--", "true"], "often"),
        (["--target", "a:b", "--tape", "{}", "--wait", "soon", "--", "true"], "soon"),
    ],
)
def test_wrong_usage_is_said_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main([argument.replace("{}", str(tmp_path)) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("calltape-record: ")
    assert said in error


def test_print_path(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--print-path"]) == 0
    assert capsys.readouterr().out == f"{STARTUP}\n"


def test_a_command_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    arguments = ["--target", "a:b", "--tape", str(tmp_path), "--"]
    assert main([*arguments, "/nowhere/python"]) == 127
    assert main([*arguments, str(tmp_path)]) == 126
    assert "/nowhere/python: No such file" in capsys.readouterr().err


# --- whole processes -----------------------------------------------------------------------------

QUICK = """
import os, sys
mine = {"torch", "pydantic", "threading", "logging", "json", "calltape_recorder"} & set(sys.modules)
print(sorted(mine), getattr(sys, "host", None), sys.argv[1:], len(sys.path[0]))
"""


def test_a_process_that_is_no_server_does_not_notice(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.host = 'customized'")
    outputs = []
    for environment in (
        {"PYTHONPATH": f"{tmp_path}"},
        {
            "PYTHONPATH": f"{STARTUP}:{tmp_path}",
            "CALLTAPE": f"target=some.server:model;tape={tmp_path}",
        },
        {"PYTHONPATH": f"{STARTUP}:{tmp_path}"},
    ):
        done = subprocess.run(
            [sys.executable, "-c", QUICK, "--a", "b"], capture_output=True, text=True, check=True,
            env={**os.environ, **environment},
        )  # fmt: skip
        assert not done.stderr
        outputs.append(done.stdout)
    assert outputs[0].startswith("[] customized ['--a', 'b']")
    assert outputs[1:] == outputs[:1] * 2


def test_settings_that_say_nothing_are_told_once_for_all_processes(tmp_path: Path) -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'pass'], check=True)"
    for text in ("whatever", "target=serve;tape=/x", "{", "target=a:b;wait=soon"):
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONPATH": STARTUP, "CALLTAPE": text},
        )  # fmt: skip
        assert done.stderr.count("calltape: CALLTAPE: ") == 1
        assert done.stderr.count("\n") == 1


IMPORTERS = ("itself", "in a worker", "in a fork")
IMPORTS = """
import os, subprocess, sys
if sys.argv[1:] == ["itself"]:
    import server_module
elif sys.argv[1:] == ["in a worker"]:
    subprocess.run([sys.executable, "-c", "import server_module; server_module.work()"], check=True)
elif sys.argv[1:] == ["in a fork"]:
    if os.fork() == 0:
        import server_module
        server_module.work()
        sys.exit()
    os.wait()
"""
MODULE = """
import torch
model = torch.nn.Linear(2, 2)
def work():
    model(torch.ones(2))
"""


@pytest.mark.parametrize(
    "who",
    ["nobody", *(pytest.param(who, marks=pytest.mark.integration) for who in IMPORTERS)],
)
def test_a_module_that_nobody_imports_is_said_at_the_end(tmp_path: Path, who: str) -> None:
    (tmp_path / "serve.py").write_text(IMPORTS)
    (tmp_path / "server_module.py").write_text(MODULE)
    command = [
        sys.executable, "-m", "calltape_recorder.launcher", "--target", "server_module:model",
        "--tape", str(tmp_path / "tapes"), "--", sys.executable, str(tmp_path / "serve.py"), who,
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=100,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"},
    )  # fmt: skip
    assert ("nobody imported server_module" in done.stderr) == (who == "nobody")
    assert len(done.stderr.splitlines()) == (who == "nobody")


SERVER = """
import multiprocessing, os, signal, sys, time
import torch
from tests.recorder.models import Add

def work(times):
    for _ in range(times):
        model(torch.ones(2), torch.ones(2))

def wait_for_hooks():
    while not model._forward_hooks:
        time.sleep(0.01)

model = Add()
if __name__ == "__main__":
    wait_for_hooks()
    work(3)
    for way in ("fork", "spawn"):
        child = multiprocessing.get_context(way).Process(target=work_in_child, args=(way,))
        child.start()
        child.join()
    print("served", sys.argv[1:], flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.integration
@pytest.mark.parametrize("target", ["__main__:model", "server:model"])
def test_a_script_its_forks_and_what_it_spawns(tmp_path: Path, target: str) -> None:
    """The module is run as a script, and imported by the spawned child under a third name."""
    ways = "def work_in_child(way):\n    wait_for_hooks()\n    work(4 if way == 'fork' else 5)\n"
    script = tmp_path / "server.py"
    script.write_text(SERVER.replace("model = Add()\n", f"{ways}\nmodel = Add()\n"))
    tapes = tmp_path / "tapes"
    command = [
        sys.executable, "-m", "calltape_recorder.launcher", "--target", target,
        "--tape", str(tapes), "--", sys.executable, str(script), "--port", "1",
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=200,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == -signal.SIGTERM  # its own end, not that of somebody in between
    assert done.stdout == "served ['--port', '1']\n", done.stderr
    assert not done.stderr
    counts = {path.name: len(read(path).calls) for path in tapes.iterdir()}
    assert sorted(counts.values()) == [3, 4, 5]
    assert sum("-p" in name for name in counts) == 1  # the fork went on, beside its parent's


TWICE = """
import os, time
import torch
from tests.recorder.models import Add

model = Add()
if __name__ == "__main__":
    while not model._forward_hooks:
        time.sleep(0.01)
    import twice
    twice.model(torch.ones(2), torch.ones(2))
"""


@pytest.mark.integration
def test_a_script_that_is_imported_as_well(tmp_path: Path) -> None:
    """``python app.py`` whose framework imports ``app:model``: both copies are recorded, as the one
    in the script is found first, and the other one is called."""
    (tmp_path / "twice.py").write_text(TWICE)
    done = _record(tmp_path, "twice.py")
    assert not done.stderr
    assert sorted(len(read(tape).calls) for tape in (tmp_path / "tapes").iterdir()) == [0, 1]


AT_ONCE = """
import sys, time, types

model = types.SimpleNamespace(forward=print)
if __name__ == "__main__":
    while "calltape_recorder" not in sys.modules:  # being imported by the one that found it
        time.sleep(0.001)
"""


@pytest.mark.integration
def test_a_script_that_ends_before_it_is_recorded_says_so(tmp_path: Path) -> None:
    (tmp_path / "at_once.py").write_text(AT_ONCE)
    done = _record(tmp_path, "at_once.py", "--method", "forward")
    # By the end of the process, or by the recorder that can no longer begin.
    assert re.search("at_once:model (was not attached to before|is not recorded)", done.stderr)


def _record(folder: Path, script: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable, "-m", "calltape_recorder.launcher", "--tape", str(folder / "tapes"),
        "--target", f"{Path(script).stem}:model", *options,
        "--", sys.executable, str(folder / script),
    ]  # fmt: skip
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=100,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{folder}"},
    )  # fmt: skip


THIRD = """
import torch
from tests.recorder.models import Add as Net

model = Net()
"""


@pytest.mark.integration
def test_what_both_copies_have_from_a_third_module_is_recorded_once(tmp_path: Path) -> None:
    (tmp_path / "third.py").write_text(THIRD)
    (tmp_path / "twice.py").write_text(TWICE.replace("model = Add()", "from third import model"))
    done = _record(tmp_path, "twice.py")
    assert not done.stderr
    assert [len(read(tape).calls) for tape in (tmp_path / "tapes").iterdir()] == [1]


def test_an_import_does_not_wait_for_long(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread attaches, and the disk is slow: the import goes on, and is not forgotten."""
    monkeypatch.setattr(calltape_startup, "_PATIENCE", 0.05)
    stage.look_out("model")
    (lookout,) = stage.lookouts
    assert lookout._busy.acquire(False)
    module = stage.load()
    assert not module.model._forward_hooks
    lookout._attach_all(calltape_startup._recorder(), (object(), "model", Add()))
    module.model(ONE, ONE)
    assert stage.calls() == {f"Net-{PID}.tape": 1}
