"""Whole processes that start with CALLTAPE set: servers, their forks, and programs that are no
server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from calltape_recorder.launch.launcher import STARTUP
from tests.recorder.reading import read

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]


def python(
    *words: Any, calltape: str | None = None, paths: tuple[Any, ...] = (), code: int = 0
) -> subprocess.CompletedProcess[str]:
    """Runs an interpreter that reads ``CALLTAPE``, if there is one."""
    startup = () if calltape is None else (STARTUP,)
    environment = {**os.environ, "PYTHONPATH": ":".join(map(str, (*startup, *paths)))}
    done = subprocess.run(
        [sys.executable, *map(str, words)], capture_output=True, text=True, timeout=250,
        env={**environment, "CALLTAPE": calltape} if calltape else environment,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done


def launched(
    folder: Path, script: str, *words: str, target: str = "model", options: Any = (), code: int = 0
) -> subprocess.CompletedProcess[str]:
    """Runs a script under ``calltape-record``; the tapes are in ``tapes``."""
    name = target if ":" in target else f"{Path(script).stem}:{target}"
    command = ["--target", name, "--tape", folder / "tapes", *options, "--", sys.executable]
    launcher = ("-m", "calltape_recorder.launch.launcher")
    return python(*launcher, *command, folder / script, *words, paths=(ROOT, folder), code=code)


def calls_in(folder: Path) -> list[int]:
    """How many calls each tape has."""
    return sorted(len(read(path).calls) for path in (folder / "tapes").glob("*.tape"))


def trouble(printed: str) -> list[str]:
    """The lines of a process, but for what is recorded where, and that no call came."""
    return [
        line
        for line in printed.splitlines()
        if ": recording " not in line and "no call of" not in line
    ]


QUICK = """
import os, sys
mine = {"torch", "pydantic", "threading", "logging", "json", "calltape_recorder"} & set(sys.modules)
print(sorted(mine), getattr(sys, "host", None), sys.argv[1:], len(sys.path[0]))
"""


def test_a_process_that_is_no_server_does_not_notice(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.host = 'customized'")
    outputs = []
    for calltape in (None, f"target=some.server:model;tape={tmp_path}", ""):
        done = python("-c", QUICK, "--a", "b", calltape=calltape, paths=(tmp_path,))
        assert not done.stderr
        outputs.append(done.stdout)
    assert outputs[0].startswith("[] customized ['--a', 'b']")
    assert outputs[1:] == outputs[:1] * 2


def test_settings_that_say_nothing_are_told_once_for_all_processes(tmp_path: Path) -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'pass'], check=True)"
    for text in ("whatever", "target=serve;tape=/x", "{", "target=a:b;wait=soon"):
        said = python("-c", program, calltape=text).stderr
        assert said.count("calltape: CALLTAPE: ") == said.count("\n") == 1


IMPORTS = """
import os, subprocess, sys
who = sys.argv[1]
if who == "itself":
    import server_module
elif who == "in a worker":
    subprocess.run([sys.executable, "-c", "import server_module; server_module.work()"], check=True)
elif who == "in a fork":
    if os.fork() == 0:
        import server_module
        server_module.work()
        sys.exit()
    os.wait()
elif who == "in a fork, later":  # gunicorn --preload: imported here, made in each worker
    import server_module
    server_module.model, made = None, server_module.model
    if os.fork() == 0:
        server_module.model = made
        while not made._forward_hooks:
            server_module.time.sleep(0.01)
        server_module.work()
        sys.exit()
    os.wait()
"""
IMPORTERS = re.findall('who == "(.*)"', IMPORTS)
MODULE = """
import time
import torch
model = torch.nn.Linear(2, 2)
def work():
    model(torch.ones(2))
"""


@pytest.mark.parametrize("who", ["nobody", *IMPORTERS])
def test_a_module_that_nobody_imports_is_said_at_the_end(tmp_path: Path, who: str) -> None:
    """The parent of workers is no server: it is no news that it records nothing."""
    (tmp_path / "serve.py").write_text(IMPORTS)
    (tmp_path / "server_module.py").write_text(MODULE)
    done = launched(tmp_path, "serve.py", who, target="server_module:model")
    assert ("server_module was never imported" in done.stderr) == (who == "nobody")
    assert len(trouble(done.stderr)) == (who == "nobody")


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


@pytest.mark.parametrize("target", ["__main__:model", "server:model"])
def test_a_script_its_forks_and_what_it_spawns_are_recorded(tmp_path: Path, target: str) -> None:
    """The module is run as a script, and imported by the spawned child under a third name."""
    ways = "def work_in_child(way):\n    wait_for_hooks()\n    work(4 if way == 'fork' else 5)\n"
    script = SERVER.replace("model = Add()\n", f"{ways}\nmodel = Add()\n")
    (tmp_path / "server.py").write_text(script)
    # It ends by itself, not by somebody in between.
    done = launched(tmp_path, "server.py", "--port", "1", target=target, code=-signal.SIGTERM)
    assert done.stdout == "served ['--port', '1']\n", done.stderr
    assert not trouble(done.stderr)
    assert calls_in(tmp_path) == [3, 4, 5]
    # The fork went on, beside its parent's.
    assert sum("-p" in path.name for path in (tmp_path / "tapes").glob("*.tape")) == 1


TWICE = """
import os, time
import torch
from tests.recorder.models import Add

model = Add()
if __name__ == "__main__":
    while not model._forward_hooks:
        time.sleep(0.01)
    import twice
    while not twice.model._forward_hooks:
        time.sleep(0.01)
    twice.model(torch.ones(2), torch.ones(2))
"""


def test_both_copies_of_a_script_that_imports_itself_are_recorded(tmp_path: Path) -> None:
    """``python app.py`` whose framework imports ``app:model``: both copies are recorded, as the one
    in the script is found first, and the other one is called."""
    (tmp_path / "twice.py").write_text(TWICE)
    done = launched(tmp_path, "twice.py")
    assert not trouble(done.stderr)
    assert calls_in(tmp_path) == [0, 1]


AT_ONCE = """
import sys, time, types
import torch

model = types.SimpleNamespace(forward=print)
if __name__ == "__main__":
    while "calltape_recorder" not in sys.modules:  # being imported by the one that found it
        time.sleep(0.001)
"""


def test_a_script_that_ends_before_it_is_recorded_says_so(tmp_path: Path) -> None:
    (tmp_path / "at_once.py").write_text(AT_ONCE)
    done = launched(tmp_path, "at_once.py", options=("--method", "forward"))
    # By the end of the process, or by the recorder that can no longer begin.
    assert re.search("at_once:model (was not attached to before|is not recorded)", done.stderr)


NO_THREADS = """
import _thread, sys
def none(*_): raise RuntimeError("can't start new thread")
sys.modules["calltape_startup"].start_new_thread = none
import late_module
print("served", flush=True)
"""


def test_a_limit_of_threads_does_not_reach_the_import(tmp_path: Path) -> None:
    (tmp_path / "late_module.py").write_text("model = None")
    (tmp_path / "serve.py").write_text(NO_THREADS)
    calltape = f"target=late_module:model;tape={tmp_path}"
    done = python(tmp_path / "serve.py", calltape=calltape, paths=(tmp_path,))
    assert done.stdout == "served\n"
    assert "late_module:model is not recorded: can't start new thread" in done.stderr


THIRD = """
import torch
from tests.recorder.models import Add as Net

model = Net()
"""


def test_what_both_copies_have_from_a_third_module_is_recorded_once(tmp_path: Path) -> None:
    (tmp_path / "third.py").write_text(THIRD)
    (tmp_path / "twice.py").write_text(TWICE.replace("model = Add()", "from third import model"))
    assert not trouble(launched(tmp_path, "twice.py").stderr)
    assert calls_in(tmp_path) == [1]


IN_ITS_FIRST_CALL = """
import sys, time

def predict():
    import torch
    return torch.ones(2)

if __name__ == "__main__":
    plain = predict
    predict()
    while predict is plain:  # until it is recorded
        time.sleep(0.01)
    for _ in range(3):
        predict()
"""


def test_a_method_that_imports_torch_is_recorded_from_its_second_call_on(tmp_path: Path) -> None:
    (tmp_path / "lazily.py").write_text(IN_ITS_FIRST_CALL)
    assert not trouble(launched(tmp_path, "lazily.py", target="predict").stderr)
    assert calls_in(tmp_path) == [3]


SUB_INTERPRETER = """
import sys
try:
    import _interpreters as interpreters
    run = interpreters.exec
except ImportError:  # before Python 3.13
    import _xxsubinterpreters as interpreters
    run = interpreters.run_string
says = "import sys; print('_Finder' in str(sys.meta_path), flush=True)"
exec(says)
run(interpreters.create(), says)
"""


def test_in_sub_interpreters_nothing_is_looked_for(tmp_path: Path) -> None:
    done = python("-c", SUB_INTERPRETER, calltape=f"target=some.server:model;tape={tmp_path}")
    assert done.stdout.split() == ["True", "False"]
    assert not done.stderr


READ_ONCE = """
import os, sys
os.environ["CALLTAPE"] = os.environ["CALLTAPE"].replace("first", "second")
import second
print("calltape_recorder" in sys.modules, flush=True)
import first
print("calltape_recorder" in sys.modules, flush=True)
"""


def test_the_variable_is_read_once_at_the_start(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / f"{name}.py").write_text(MODULE)
    calltape = f"target=first:model;tape={tmp_path}/tapes"
    done = python("-c", READ_ONCE, calltape=calltape, paths=(tmp_path,))
    assert done.stdout.split() == ["False", "True"]


# --- a target that was not found ------------------------------------------------------------------


SERVES = """
import sys
import time
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return x

class Unused(torch.nn.Module):
    pass

alive = []

def main():
    model = Net()
    alive.append(model)  # when the process ends
    model(torch.ones(2))
    print("served")
    sys.exit(5)

if __name__ == "__main__":
    import server
    while sys.argv[1:] == ["Unused"] and "__init__" not in vars(server.Unused):
        time.sleep(0.01)  # until it is followed
    server.main()
"""


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("server:model", "server:model did not appear before the process ended"),
        ("server:Unused", "no instance of server:Unused was created"),
        ("sevrer:Net", "sevrer was never imported, and .*/tapes has no tape"),
    ],
)
def test_the_command_says_it_at_the_end_and_changes_nothing(
    tmp_path: Path, target: str, says: str
) -> None:
    (tmp_path / "server.py").write_text(SERVES)
    attribute = target.partition(":")[2]
    done = launched(tmp_path, "server.py", attribute, target=target, code=5)
    assert done.stdout == "served\n"
    there = ": nothing is recorded. There are models of the classes server:Net\n$"
    assert re.search(says + there, done.stderr), done.stderr
    assert re.match(r"calltape, process \d+: ", done.stderr)
    assert done.stderr.count("\n") == 1
