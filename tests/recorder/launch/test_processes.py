"""Whole processes that start with CALLTAPE set: servers, their forks, and programs that are no
server."""

from __future__ import annotations

import json
import os
import re
import shlex
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


SLOW = """
import sys, time

def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)

def is_waited_for():  # by a fork or the end of the process
    for frame in sys._current_frames().values():
        while frame is not None:
            if frame.f_code.co_name == "pause":
                return True
            frame = frame.f_back

case = " ".join(sys.argv[1:])
if case in ("ends", "forks"):
    wait_until(is_waited_for)
elif case == "interrupts":
    wait_until(lambda: getattr(sys, "interrupted", 0) >= 1)
elif case == "interrupts often":
    wait_until(lambda: getattr(sys, "interrupted", 0) >= 20)
print("imported", flush=True)
sys.attached = 0

def attach(*given):
    sys.attaches = True
    if case == "attaches":
        wait_until(is_waited_for)
        lifecycle = sys.modules["calltape_recorder.host.lifecycle"] = type(sys)("lifecycle")
        lifecycle.close_all = lambda: print("sealed", flush=True)
    elif case == "blocks":
        wait_until(lambda: hasattr(sys, "imported"))
    print("attached", flush=True)
    sys.attached += 1
"""


UNTIL_ATTACHED = """
while not getattr(sys, "attached", 0):
    time.sleep(0.01)
"""


MEANWHILE = """
import atexit, os, sys, threading, time, torch, types

model = types.SimpleNamespace(forward=print)
if __name__ == "__main__":
    while "calltape_recorder.launch.attaching" not in sys.modules:
        time.sleep(0.001)
    if sys.argv[1:] == ["forks"]:
        if os.fork() == 0:
            import calltape_recorder.launch.attaching
            os._exit(0)
        print("the child ended with", os.wait()[1], flush=True)
"""


def _beside_a_slow_recorder(
    folder: Path, script: str, *arguments: str, **settings: str
) -> list[str]:
    """What a script, its torch and the recorder that it gets print."""
    package = folder / "calltape_recorder" / "launch"
    package.mkdir(parents=True)
    for empty in (package.parent / "__init__.py", package / "__init__.py", folder / "torch.py"):
        empty.touch()
    (package / "attaching.py").write_text(SLOW)
    (folder / "meanwhile.py").write_text(script)
    given = json.dumps({"target": "meanwhile:model", "tape": str(folder), **settings})
    command = shlex.join([sys.executable, str(folder / "meanwhile.py"), *arguments])
    done = subprocess.run(
        ["sh", "-c", f"CALLTAPE='{given[:-1]}, \"pid\": '$$'}}' exec {command}"],
        capture_output=True, text=True, check=True, timeout=250,
        env={**os.environ, "PYTHONPATH": f"{STARTUP}:{folder}"},
    )  # fmt: skip
    said = re.findall("(?:was not attached|did not appear|is not recorded).*", done.stderr)
    return done.stdout.splitlines() + said


def test_the_end_waits_for_what_the_recorder_imports(tmp_path: Path) -> None:
    """An end in the midst of the import of torch or pydantic was a segmentation fault at times."""
    said = _beside_a_slow_recorder(tmp_path, MEANWHILE, "ends")
    assert said[:1] == ["imported"]
    assert said[1].startswith("was not attached to before the process ended")
    assert len(said) == 2


def test_what_is_attached_while_the_process_ends_is_sealed(tmp_path: Path) -> None:
    script = MEANWHILE + "    while not hasattr(sys, 'attaches'): time.sleep(0.01)\n"
    assert _beside_a_slow_recorder(tmp_path, script, "attaches") == [
        "imported", "attached", "sealed"
    ]  # fmt: skip


TWO_COPIES = """
import sys, time, torch, types
model = types.SimpleNamespace(forward=print)
if __name__ == "__main__":
    while not hasattr(sys, "attaches"): time.sleep(0.01)
    import meanwhile  # while the recorder is attached to the script
    print("went on", flush=True)
    sys.imported = True
    while sys.attached < 2: time.sleep(0.01)
"""


def test_an_import_does_not_wait_for_long(tmp_path: Path) -> None:
    """Another thread attaches, and the disk is slow: the import goes on, and is not forgotten."""
    assert _beside_a_slow_recorder(tmp_path, TWO_COPIES, "blocks") == [
        "imported", "went on", "attached", "attached"
    ]  # fmt: skip


def test_a_fork_waits_for_what_the_recorder_imports(tmp_path: Path) -> None:
    """The child waited forever for the lock of the import, which no thread of it has."""
    said = _beside_a_slow_recorder(tmp_path, MEANWHILE, "forks")
    assert said == ["imported", "attached", "the child ended with 0"]


SIGNALS = """
import os, random, signal, sys, time, torch

class Late(Exception): pass
def late(*_): raise Late
signal.signal(signal.SIGALRM, late)
sys.interrupted = 0
def printed(_): sys.interrupted += 1
sys.unraisablehook = printed
def interrupted_fork():
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 3e-4))
        if os.fork() == 0:
            os._exit(0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.wait()
    except (Late, OSError):
        pass
model = print
while not getattr(sys, "attached", 0):
    interrupted_fork()
for _ in range(300):
    interrupted_fork()
signal.signal(signal.SIGALRM, signal.SIG_IGN)
for _ in range(2):  # the first one may end a wait that was interrupted
    begun = time.monotonic()
    if os.fork() == 0:
        os._exit(0)
    taken = time.monotonic() - begun
print("waited" if taken >= 10 else "at once", flush=True)  # all that a fork ever waits
"""


def test_an_interrupted_fork_does_not_make_the_next_ones_wait(tmp_path: Path) -> None:
    said = _beside_a_slow_recorder(tmp_path, SIGNALS, "interrupts", "often")
    assert sorted(said) == ["at once", "attached", "imported"]


SAID_EARLY = """
import sys, time

class Engine:
    @property
    def model(self): raise RuntimeError("not to be run by anybody but the host")
model = Engine()
said = []
sys.stderr.write = said.append
while not said:
    time.sleep(0.01)
assert not {"logging", "threading"} & set(sys.modules)
print(*said, end="", flush=True)
"""


@pytest.mark.parametrize("settings", [{"target": "meanwhile:model.model"}, {"wait": "0.05"}])
def test_what_is_said_early_imports_nothing(tmp_path: Path, settings: dict[str, str]) -> None:
    script = SAID_EARLY if "target" in settings else SAID_EARLY.replace("model = Engine()", "")
    (said,) = _beside_a_slow_recorder(tmp_path, script, **settings)
    assert ("is a property" if "target" in settings else "did not appear within 0.05 s") in said


UNTIL_FOUND = """
import time

class Holder:
    looks = 0
    def __getattr__(self, name):
        if name != "model":
            raise AttributeError(name)
        Holder.looks += 1
        return print
holder = Holder()
while Holder.looks < 2:  # when it is looked at again, what it found is known
    time.sleep(0.01)
"""


LAZY_TORCH = (
    """
import importlib.util, sys

spec = importlib.util.find_spec("torch")
spec.loader = importlib.util.LazyLoader(spec.loader)
sys.modules["torch"] = torch = importlib.util.module_from_spec(spec)
spec.loader.exec_module(torch)
"""
    + UNTIL_FOUND
    + """
assert type(torch).__name__ == "_LazyModule"
"""
)


def test_a_lazy_import_of_torch_stays_lazy(tmp_path: Path) -> None:
    said = _beside_a_slow_recorder(tmp_path, LAZY_TORCH, target="meanwhile:holder.model")
    assert len(said) == 1
    assert "did not import torch" in said[0]


LATE_TORCH = (
    UNTIL_FOUND
    + """
import sys

assert not {"logging", "threading", "calltape_recorder"} & set(sys.modules)
import threading, torch
while "calltape_recorder.launch.attaching" not in sys.modules:
    time.sleep(0.001)
assert threading.main_thread() is threading.current_thread()
"""
)


def test_the_recorder_is_imported_after_torch(tmp_path: Path) -> None:
    target = "meanwhile:holder.model"
    said = _beside_a_slow_recorder(tmp_path, LATE_TORCH + UNTIL_ATTACHED, target=target)
    assert said == ["imported", "attached"]
    without = LATE_TORCH[: LATE_TORCH.index("import threading")]
    said = _beside_a_slow_recorder(tmp_path / "without", without, target=target)
    assert len(said) == 1
    assert "before the process ended, which did not import torch: nothing is recorded" in said[0]


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


INTERRUPTED = """
    import signal
    class Late(Exception): pass
    def late(_, frame):
        while frame is not None and frame.f_code.co_name != "pause":
            frame = frame.f_back
        if frame is not None:
            sys.interrupted = 1
            raise Late
        signal.setitimer(signal.ITIMER_REAL, 0.01)  # it does not wait yet
    def printed(what): print(what.exc_type.__name__, "is printed", flush=True)
    signal.signal(signal.SIGALRM, late)
    sys.unraisablehook = printed
    signal.setitimer(signal.ITIMER_REAL, 0.05)  # within the import, which waits for it
    if os.fork() == 0:
        os._exit(0)
    os.wait()
"""


def test_an_exception_in_the_wait_of_a_fork_goes_no_further(tmp_path: Path) -> None:
    script = MEANWHILE + INTERRUPTED + UNTIL_ATTACHED
    said = _beside_a_slow_recorder(tmp_path, script, "interrupts")
    assert sorted(said) == ["Late is printed", "attached", "imported"]


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


FORK_WARNS = """
import os, sys, time, torch, warnings
model = print
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    if os.fork() == 0:
        os._exit(0)
os.wait()
print(["is multi-threaded" in str(one.message) for one in caught], flush=True)
"""


def test_a_fork_warns_of_the_thread_from_python_3_12_on(tmp_path: Path) -> None:
    said = _beside_a_slow_recorder(tmp_path, FORK_WARNS + UNTIL_ATTACHED)
    assert ("[True]" if sys.version_info >= (3, 12) else "[]") in said


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
