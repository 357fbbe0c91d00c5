"""The process that runs checks: ``python -m calltape_analyzer.minimising.judge_process``.

It imports torch and the user's code once, and forks for each run, so that a run which exits, hangs
or takes all memory is an answer and not the end. Where a fork is not safe (the user's code started
threads or a CUDA device), each run is a fresh process instead. In come lines of JSON, out go lines
of JSON.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from calltape_analyzer.exporting.session.free_memory import own_memory
from calltape_schema.remedies import told_to

__all__ = ["main"]

_ONCE = "--once"
_PARENT_DEATH_SIGNAL = 1
_MODULE = "calltape_analyzer.minimising.judge_process"


def main() -> None:
    """Answers questions until there are no more."""
    questions, answers = _own_streams()
    config = json.loads(questions.readline())
    sys.path[:] = config["path"]
    with told_to(config["reader"]):
        _serve(config, questions, answers)


def _serve(config: dict[str, Any], questions: Any, answers: Any) -> None:
    check, threads, hello = _loaded(config)
    if sys.argv[1:] == [_ONCE]:
        if check is None:
            sys.exit(1)
        _run(check, json.loads(questions.readline()), threads)
    answers.write(json.dumps(hello) + "\n")
    answers.flush()
    if check is None:
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    for line in questions:
        question = json.loads(line)
        with suppress(FileNotFoundError):
            os.unlink(question["answer"])
        process = _forked(check, question, threads) if _may_fork() else _fresh(config, question)
        answer = _watched(process, question)
        _import_all(answer.pop("modules", ()))
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _import_all(names: Iterable[str]) -> None:
    """Imports what a run imported, so that the next ones need not: torch's compiler takes
    seconds."""
    for name in names if _may_fork() else ():
        with suppress(BaseException):
            importlib.import_module(name)


def _own_streams() -> tuple[Any, Any]:
    """Streams for questions and answers; what the user's code prints goes nowhere."""
    questions, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1) if os.environ.get("CALLTAPE_DEBUG") else (0, 1, 2):
        os.dup2(nowhere, stream)
    return questions, answers


def _loaded(config: dict[str, Any]) -> tuple[Any, int, dict[str, Any]]:
    """The check, the number of threads that torch would use, and what to say first."""
    import torch

    from calltape_analyzer.minimising.checks import Check
    from calltape_analyzer.model.factories import UnfitNameError

    # A pool of threads does not outlive a fork: the runs make their own.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        check = Check.model_validate(config["check"])
        check.load()
        return check, threads, {}
    except BaseException as error:  # importing runs anything
        if os.environ.get("CALLTAPE_DEBUG"):
            traceback.print_exc()
        reason = getattr(error, "reason", None) or str(error) or type(error).__name__
        advice = getattr(error, "advice", None)
        said = {"error": reason, "advice": None if advice is None else str(advice)}
        return None, threads, {**said, "unfit": isinstance(error, UnfitNameError)}


def _may_fork() -> bool:
    import torch

    is_alone = threading.active_count() == 1 and not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return sys.platform == "linux" and is_alone


def _forked(check: Any, question: dict[str, Any], threads: int) -> int:
    process = os.fork()
    if process:
        return process
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _run(check, question, threads)
    finally:
        os._exit(1)


def _fresh(config: dict[str, Any], question: dict[str, Any]) -> int:
    command = [sys.executable, "-m", _MODULE, _ONCE]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.write(f"{json.dumps(config)}\n{json.dumps(question)}\n".encode())
        process.stdin.close()
    return process.pid


def _run(check: Any, question: dict[str, Any], threads: int) -> NoReturn:
    """Runs the check, writes the answer to its file, and ends the process."""
    import torch

    with suppress(OSError):
        os.setsid()  # so that what it starts ends with it
    _end_with_parent()
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    random.seed(0)
    known = set(sys.modules)
    try:
        document = check.run(question["tape"], question["settled"]).model_dump(mode="json")
    except Exception as error:  # ours: the user's errors are in the outcome
        document = {"end": "unusable", "reasons": [f"{type(error).__name__}: {error}"]}
    document["modules"] = [name for name in sys.modules if name not in known]
    written = Path(f"{question['answer']}.new")
    written.write_text(json.dumps(document))
    written.replace(question["answer"])
    os._exit(0)


def _end_with_parent() -> None:
    """Ends this process when the one that watches it is ended; Linux has a way."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _watched(process: int, question: dict[str, Any]) -> dict[str, Any]:
    """Waits for a run, and ends it if it takes more than it may.

    Returns:
        An outcome as plain data.
    """
    began, parent, pause = time.monotonic(), os.getppid(), 0.002
    before, ended = own_memory(process), 0
    try:
        while True:
            ended, status = os.waitpid(process, os.WNOHANG)
            seconds = time.monotonic() - began
            if ended:
                return {**_answer(status, question), "seconds": seconds}
            if seconds > question["seconds"]:
                return {"end": "time", "seconds": seconds}
            if own_memory(process) - before > question["bytes"]:
                return {"end": "memory", "seconds": seconds}
            if os.getppid() != parent:
                sys.exit(1)
            time.sleep(pause)
            pause = min(pause * 1.5, 0.02)
    finally:
        _end(process, reaped=bool(ended))


def _answer(status: int, question: dict[str, Any]) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        found: dict[str, Any] = json.loads(Path(question["answer"]).read_text())
        return found
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return {"end": "failed", "reasons": [f"the process ended with exit code {code}"]}
    with suppress(ValueError):
        name = signal.Signals(-code).name
        return {"end": "failed", "reasons": [f"the process was ended by {name}"]}
    return {"end": "failed", "reasons": [f"the process was ended by signal {-code}"]}


def _end(process: int, *, reaped: bool) -> None:
    """Ends a run and everything that it started."""
    with suppress(OSError):
        os.killpg(process, signal.SIGKILL)
    if not reaped:
        with suppress(OSError):
            os.kill(process, signal.SIGKILL)
        with suppress(OSError):
            os.waitpid(process, 0)


if __name__ == "__main__":
    code: Any = 1
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code
    finally:
        # Threads of the user's code, and what it registered for the end, keep nobody waiting.
        os._exit(code if isinstance(code, int) else int(code is not None))
