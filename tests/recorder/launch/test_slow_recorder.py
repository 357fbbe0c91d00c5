"""What a process does while the recorder is imported and attached, which takes long here: it may
end, fork, import or be interrupted meanwhile."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from calltape_recorder.launch.launcher import STARTUP

pytestmark = pytest.mark.integration


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
