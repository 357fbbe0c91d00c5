"""``calltape-record`` runs a server with a recorder in it, without a change to its code.

::

    calltape-record --target package.module:attribute --tape DIR -- python serve.py

The command runs in place of this process, so signals and exit codes are its own. It, and every
Python process that it starts, finds ``startup/sitecustomize.py`` first on PYTHONPATH and the
settings in ``CALLTAPE``. A process in which the target appears calls :func:`attach`.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import functools
import gc
import inspect
import json
import logging
import os
import signal
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from calltape_recorder.bounds import MAX_INSTANCES, OWNER_ONLY
from calltape_recorder.launch.startup.calltape_startup import (
    VARIABLE,
    has_tape,
    models_there,
    seconds,
    split,
)
from calltape_recorder.options import help_of, parse_options
from calltape_recorder.recorder import Recorder, record
from calltape_recorder.threads import RLock
from calltape_recorder.write.disk_file import make_folders
from calltape_recorder.write.notices import say
from calltape_schema import TapeError

_OF_PROTOCOLS = "_no_init_or_replace_init"
"""The ``__init__`` that typing gives to protocols."""

STARTUP = os.fspath(Path(__file__).with_name("startup"))
"""The directory that makes Python processes read ``CALLTAPE``, when it is on PYTHONPATH."""

_NO_OPTIONS = ("target", "tape", "wait", "pid")  # settings that are not for the recorder


# --- in the server ------------------------------------------------------------------------------


def attach(settings: Mapping[str, Any], owner: Any, name: str, value: Any) -> None:
    """Records ``value``, which was found at the target's name: it is ``owner.name``.

    A module is recorded as :func:`~calltape_recorder.record` does it. Of a class, every instance is
    recorded, each on a tape of its own. Of a method or function, its calls are recorded.

    Raises:
        TapeError: ``usage`` if a setting is wrong or the value cannot be recorded, ``io`` if the
            tape cannot be written.
    """
    options = options_in(settings)
    tape = _directory(settings)
    is_command = settings.get("pid") == os.getpid()
    if isinstance(value, type):
        _follow_instances(value, tape, options, is_command)
    elif isinstance(owner, type) and inspect.isfunction(value):
        _follow_instances(owner, tape, {**options, "method": name}, is_command)
    elif not isinstance(value, torch.nn.Module) and inspect.isroutine(value):
        _start(owner, tape, {**options, "method": name}, running=True)
    elif isinstance(value, torch.nn.Module) or options.keys() & {"method", "via"}:
        _start(value, tape, options, running=True)
    else:
        raise TapeError(
            "usage", f"the target is a {type(value).__name__}, not a module, class or method",
            advice="name the method that the server calls: package.module:object.method",
        )  # fmt: skip


def options_in(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of a recorder, from settings that are also those of this launcher.

    Raises:
        TapeError: ``usage`` if a setting is unknown or wrong.
    """
    return parse_options({key: settings[key] for key in settings if key not in _NO_OPTIONS})


def _directory(settings: Mapping[str, Any]) -> str:
    tape = settings.get("tape")
    if not isinstance(tape, str) or not tape:
        raise TapeError("usage", "no tape= is given", advice="name a directory")
    return os.path.abspath(tape)


def _start(target: Any, directory: str, options: Mapping[str, Any], *, running: bool) -> Recorder:
    """Begins a tape. A target that was found ``running`` may have been called before."""
    return record(target, os.path.join(directory, ""), running=running, **options)


def _follow_instances(
    cls: type, directory: str, options: Mapping[str, Any], is_command: bool = False
) -> None:
    """Records every instance of the class and its subclasses: the ones that exist, and the ones
    that are made from now on. Copies are not recorded, because a copy does not run ``__init__``.
    If there was none, ``is_command`` tells that this process says so at its end."""
    known: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
    lock = RLock()  # a finalizer may make an instance while this thread has the lock
    count = 0

    def renew() -> None:
        nonlocal lock
        lock = RLock()

    # A thread that does not exist in the child may have held the lock.
    os.register_at_fork(after_in_child=renew)

    def born(instance: Any, *, running: bool = False) -> None:
        nonlocal count
        try:
            with lock:
                if known.get(id(instance)) is instance or count >= MAX_INSTANCES:
                    return
                known[id(instance)] = instance
                count += 1
                last = count == MAX_INSTANCES
            _start(instance, directory, options, running=running)
        except Exception as error:
            _warn("an instance of %s is not recorded: %s", cls.__name__, error)
        else:
            if last:
                _warn(
                    "%d instances of %s are recorded, and no more: later instances are not",
                    MAX_INSTANCES, cls.__name__,
                )  # fmt: skip

    pid, since = os.getpid(), time.time()

    def say_if_none() -> None:  # a worker may have recorded
        if pid == os.getpid() and not count and not has_tape(directory, since):
            name = f"{cls.__module__}:{cls.__qualname__}"
            _warn("no instance of %s was made: nothing is recorded%s", name, models_there())

    _after_init(cls, born)
    for found in gc.get_objects():
        if issubclass(type(found), cls):
            born(found, running=True)
    if is_command:  # not before all were looked at: the process may end meanwhile
        atexit.register(say_if_none)


def _warn(text: str, *values: object) -> None:
    with contextlib.suppress(Exception):  # the text of a value is the host's
        say(logging.WARNING, text % values if values else text)


def _after_init(cls: type, born: Callable[[Any], None]) -> None:
    advice = "name an instance, or the method that the server calls"
    if getattr(cls, "_is_protocol", False):  # typing gives one __init__ to all that implement it
        reason = f"instances of {cls.__name__} cannot be followed: the class is a protocol"
        raise TapeError("usage", reason, advice=advice)
    init: Callable[..., None] = cls.__init__  # type: ignore[misc]
    inherits = "__init__" not in vars(cls)

    @functools.wraps(init)
    def __init__(self: Any, /, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if inherits:
            _inherited_init(cls, self, __init__)(*args, **kwargs)
        else:
            init(self, *args, **kwargs)
        born(self)

    if inherits:
        with contextlib.suppress(TypeError, ValueError):  # no signature is known
            seen = inspect.signature(cls)
            given = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)]
            given += seen.parameters.values()
            __init__.__signature__ = seen.replace(parameters=given)  # type: ignore[attr-defined]
    try:
        cls.__init__ = __init__  # type: ignore[misc]
    except TypeError:
        reason = f"instances of {cls.__name__} cannot be followed: the class is built in"
        raise TapeError("usage", reason, advice=advice) from None


def _inherited_init(cls: type, instance: Any, ours: object) -> Callable[..., None]:
    """What an instance would run if ``cls`` had no ``__init__``: in a subclass, other classes may
    stand before the one from which ``cls`` inherits."""
    kind: Any = type(instance)
    before: Any = cls
    for base in kind.__mro__[kind.__mro__.index(cls) + 1 :]:
        if getattr(vars(base).get("__init__"), "__name__", None) == _OF_PROTOCOLS:
            before = base  # it would look for the next one, but not if the class has another one
        elif "__init__" in vars(base):
            break
    init: Callable[..., None] = super(before, instance).__init__
    if getattr(init, "__objclass__", None) is not object or kind.__init__ is not ours:
        return init

    # object.__init__ takes the arguments of a __new__, but only of a class that has no __init__.
    def refuse(*args: Any, **kwargs: Any) -> None:
        if kind.__new__ is object.__new__ and (args or kwargs):
            raise TypeError(f"{kind.__name__}() takes no arguments")

    return refuse


# --- on the command line ------------------------------------------------------------------------


def prepare(settings: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, str]:
    """The environment in which a command, and every Python process that it starts, is recorded.

    Raises:
        TapeError: ``usage`` if a setting is wrong, ``io`` if the directory of the tapes cannot be
            made or written.
    """
    target = str(settings.get("target") or "")
    module, _, attribute = target.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *attribute.split("."))):
        reason = f"target={target[:100]!r}"
        raise TapeError(
            "usage",
            reason,
            advice="write it like package.module:attribute; of a class, all instances are recorded",
        )
    directory = _directory(settings)
    options = options_in(settings)
    whole = {key: value for key, value in settings.items() if value is not None}
    whole["tape"] = directory
    try:
        seconds(whole.get("wait", 0))
        text = json.dumps({**whole, "pid": os.getpid()})
    except (TypeError, ValueError) as error:
        raise TapeError("usage", str(error), advice="write a duration like 90 or 10m") from None
    try:
        make_folders(directory, options.get("file_mode", OWNER_ONLY))
    except OSError as error:
        raise TapeError("io", error.strerror or str(error), path=directory) from None
    if not os.access(directory, os.W_OK | os.X_OK):
        raise TapeError("io", "the directory cannot be written", path=directory)
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    paths = [STARTUP, *(path for path in paths if path != STARTUP)]
    return {**environment, VARIABLE: text, "PYTHONPATH": os.pathsep.join(paths)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs ``calltape-record``. It returns only if the command was not run: 2 for wrong usage, 126
    if the command cannot be run, 127 if it is not found, as in a shell."""
    environment = dict(os.environ)
    parser = _parser()
    given = vars(parser.parse_args(arguments))
    command: list[str] = given.pop("command")
    if given.pop("print_path"):
        sys.stdout.write(f"{STARTUP}\n")
        return 0
    if command[:1] == ["--"]:
        del command[0]
    try:
        if not command:
            raise TapeError("usage", "there is no command", advice="end with: -- python serve.py")
        try:
            settings = split(environment.get(VARIABLE, ""))
        except ValueError as error:
            advice = "write it like target=serve:model;tape=/tapes"
            raise TapeError("usage", f"{VARIABLE}: {error}", advice=advice) from None
        settings.update({key: value for key, value in given.items() if value is not None})
        environment = prepare(settings, environment)
    except TapeError as error:
        sys.stderr.write(f"calltape-record: {error}\n")
        return 2
    # Python ignores these signals, and the command would inherit that.
    for name in ("SIGPIPE", "SIGXFSZ"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        sys.stderr.write(f"calltape-record: {command[0]}: {error.strerror}\n")
        return 127 if isinstance(error, FileNotFoundError) else 126


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="calltape-record",
        usage="calltape-record --target MODULE:ATTRIBUTE --tape DIR [options] -- COMMAND ...",
        description="Runs a command and records the calls of a model in it, and in every Python"
        " process that it starts, without a change to its code.",
        epilog="An option that is not given is taken from CALLTAPE, which has the same names:"
        ' CALLTAPE="target=serve:model;tape=/tapes;keep=novelty()", or a JSON object.',
        allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument(
        "--target", metavar="MODULE:ATTRIBUTE",
        help="what is recorded: a module (serve:model, main:app.state.model), a class (all its"
        " instances), a method (serve:engine.generate); in a script, __main__:name",
    )  # fmt: skip
    parser.add_argument("--tape", metavar="DIR", help="the directory for <Class>-<process>.tape")
    parser.add_argument("--wait", metavar="TIME", help="how long a name may take to appear: 10m")
    for name, says in help_of().items():
        says = says.replace("%", "%%")  # argparse puts values in
        parser.add_argument(f"--{name.replace('_', '-')}", metavar="…", help=says)
    parser.add_argument(
        "--print-path", action="store_true",
        help="print a directory: if it is on PYTHONPATH, Python reads CALLTAPE by itself",
    )  # fmt: skip
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
