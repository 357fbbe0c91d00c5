"""Reads ``CALLTAPE``, and looks for the target that it names, in every Python process that has it.

Python loads this file when it starts, from its directory and outside of any package. So it imports
only the standard library, and as little of it as possible. A process that never imports the target
pays for one comparison per import. Only a process in which the target appears imports
calltape_recorder, and torch with it.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from _thread import RLock, allocate_lock, get_ident, start_new_thread
from _weakref import ref
from time import sleep  # the application may put another one into the module later

TYPE_CHECKING = False  # importing typing takes longer than all of this
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType
    from typing import Any, TypeAlias

    Found: TypeAlias = tuple[Any, str, Any]
    """The object that has the attribute, the attribute's name, and its value."""

VARIABLE = "CALLTAPE"
"""The environment variable that has the settings."""

_MAX_TEXT = 65536  # characters of it
_MAX_NAMES = 5  # models that are named
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

_ENTRY = "calltape_recorder.launch.attaching"  # it imports all others, and they import this file
_SAID = "CALLTAPE_SAID"
_WAIT = 600.0  # seconds that an attribute may take to appear
POLL_SECONDS = 0.2
_EARLY = (2.0, 0.02)  # scripts mostly assign early: poll faster at first (seconds, interval)
_PATIENCE = 1.0  # seconds that an import waits for the recorder that begins in another thread
IMPORT_SECONDS = 10.0  # that forks and the end of the process wait for the import of the recorder
_MISSING = object()


def split(text: str) -> dict[str, Any]:
    """The settings in ``CALLTAPE``: ``key=value`` items with ``;`` between them, or a JSON object,
    whose values may have a ``;`` in them.

    Raises:
        ValueError: the text is neither of the two, or too long.
    """
    if len(text) > _MAX_TEXT:
        raise ValueError(f"{VARIABLE} has {len(text)} characters; the limit is {_MAX_TEXT}")
    text = text.strip()
    if text.startswith("{"):
        import json

        return dict(json.loads(text))  # text that starts with a brace is an object or an error
    settings: dict[str, Any] = {}
    for item in filter(None, map(str.strip, text.split(";"))):
        key, equals, value = item.partition("=")
        key = key.strip()
        if not equals or not key:
            raise ValueError(f"{item[:100]!r} is not of the form key=value")
        if key in settings:
            raise ValueError(f"{key} is given twice")
        settings[key] = value.strip()
    return settings


def seconds(value: object) -> float:
    """A duration in seconds, from a number or from text such as ``90``, ``1.5h``, ``10m``, ``7d``.

    Raises:
        ValueError: the value is anything else, negative, or not finite.
    """
    number = "" if isinstance(value, bool) else str(value).strip()
    unit = number.lstrip("0123456789.")
    try:
        result = float(number.removesuffix(unit)) * _UNITS[unit]
    except (ValueError, KeyError):
        result = -1
    if not 0 <= result < float("inf"):
        raise ValueError(f"{value!r:.100} is not a duration")
    return result


def begin() -> Lookout | None:
    """Reads ``CALLTAPE`` and starts to look for its target. It is called once, when Python
    starts.

    Returns:
        What looks for the target; None if none is named.
    """
    text = os.environ.get(VARIABLE)
    if not text or not _is_main_interpreter():
        return None
    try:
        settings = split(text)
        module, colon, attribute = str(settings.get("target", "")).partition(":")
        if not colon or not module or not all(attribute.split(".")):
            raise ValueError("the target is not of the form module:attribute")
        wait = seconds(settings.get("wait", _WAIT))
    except ValueError as error:
        if _SAID not in os.environ:  # the processes that this one starts do not repeat it
            os.environ[_SAID] = "1"
            sys.stderr.write(f"calltape: {VARIABLE}: {error}. Nothing is recorded.\n")
        return None
    lookout = Lookout(settings, module, attribute, wait)
    lookout.begin()
    return lookout


class Lookout:
    """Waits for one target, and attaches a recorder to it once.

    Attributes:
        module: the name of the target's module.
        done: whether there is nothing more to wait for. The thread that polls ends then.
        importing: held while the thread that polls imports and attaches, and by forks and the end
            of the process meanwhile. An exception of a signal handler may come anywhere in them, so
            the lock knows who has it.
        patience: seconds that a fork waits for this lock; 0 once one waited in vain.
    """

    def __init__(
        self, settings: Mapping[str, Any], module: str, attribute: str, wait: float
    ) -> None:
        self.module = module
        self._settings = settings
        self._attribute = attribute
        self._wait = wait
        self.done = False
        self._is_found = False
        self._waiting: list[Found] = []
        self._attached: list[tuple[Any, Any]] = []  # weak references to owners and values
        self._arrived = False
        self._busy = allocate_lock()
        self.importing: Any = RLock()
        self._importer = 0  # the number of the thread that polls, while it imports and may fork
        self.patience = IMPORT_SECONDS
        self._pauses = False  # whether forks wait
        self._ended = False
        self._watching = 0  # the process in which a thread polls
        self._follows = False  # whether forks and the end of the process are followed
        self._has_forked = False

    def begin(self) -> None:
        if self.module != "__main__":
            sys.meta_path.insert(0, _Finder(self))
        if self._may_be_main():
            self.watch()
        elif self._settings.get("pid") == os.getpid():
            atexit.register(self._never, os.getpid(), time.time())

    def _never(self, pid: int, since: float) -> None:
        """Says at the end of the command that the module was not imported. Before the end, a
        mistyped name looks like a module that is imported later. A process that starts workers need
        not import the module itself, so this looks for a tape as well."""
        if self.done or pid != os.getpid() or self.module in sys.modules:
            return
        tape = str(self._settings.get("tape"))
        if not has_tape(tape, since):
            said = f"{self.module} was never imported, and {tape} has no tape: nothing is recorded"
            _say(said + models_there())

    def arrived(self, module: ModuleType) -> None:
        """An import executed the module. It may be the script as well, and the script's own copy
        may be recorded already; a framework calls the copy that it imports by name."""
        if self._arrived:
            return  # a reload executed it again
        self._arrived = True
        if not self._try(sys.modules.get(self.module, module)):
            self.watch()

    def watch(self) -> None:
        """Polls from a thread, because Python does not tell when a script assigns a name. Never
        raises."""
        try:
            self._watch()
        except Exception as error:  # a limit of threads
            self._fail(error)

    def _watch(self) -> None:
        if self.done or self._watching == os.getpid():
            return
        self._watching = os.getpid()
        start_new_thread(self._poll, ())
        if not self._follows:
            self._follows = True
            os.register_at_fork(
                after_in_parent=lambda: setattr(self, "_has_forked", True),
                after_in_child=self._forked,
            )
            atexit.register(self._end, os.getpid())

    def pause(self) -> None:
        """Waits until the thread that polls does not import, and keeps it from importing.
        Otherwise, the child of a fork would have half a module, and wait forever for the thread
        that imports the rest. And the end of the process would stop that thread anywhere, and may
        crash."""
        if get_ident() != self._importer and not self.importing.acquire(True, self.patience):
            self.patience = 0.0  # once is enough

    def go_on(self) -> None:
        """Ends what :meth:`pause` began."""
        if get_ident() != self._importer:
            while self.importing._is_owned():
                self.importing.release()

    def _end(self, pid: int) -> None:
        """Attaches nothing more, waits for an attachment that is under way, and says what was not
        attached to."""
        self._ended = True
        try:
            self.pause()
        except BaseException:  # of a signal handler. The process ends already
            self.pause()
        self.go_on()
        # What was attached meanwhile comes too late for the function of atexit that seals it.
        lifecycle = sys.modules.get("calltape_recorder.host.lifecycle")
        if lifecycle is not None and hasattr(lifecycle, "close_all"):
            lifecycle.close_all()
        self._miss("before the process ended", pid)

    def _forked(self) -> None:
        self._has_forked = False
        # Other fork hooks may still have to run. A raw thread that sleeps first does not disturb
        # them: it waits for nothing and takes no lock.
        self._busy = allocate_lock()
        self.importing = RLock()
        self._importer = 0
        try:
            self._watch()
        except Exception:
            self._watching = 0  # no thread starts: the process ends, or is at its limit

    def _poll(self) -> None:
        begun = time.monotonic()
        passed = 0.0
        while not self.done and (self._is_found or passed < self._wait):
            sleep(_EARLY[1] if passed < _EARLY[0] else POLL_SECONDS)
            if self._ended or self._try():
                return
            passed = time.monotonic() - begun
        self._miss(f"within {self._wait:g} s", os.getpid())

    def _miss(self, when: str, pid: int) -> None:
        """Says that nothing was recorded, if a recording was expected in this process: it imported
        the module, or it is the command itself. A process that has forked says nothing, because its
        workers may be the servers."""
        if self.done or self._has_forked or pid != os.getpid():
            return
        self.done = True
        if self._settings.get("pid") == pid or (self.module != "__main__" and self._modules()):
            what = "was not attached to" if self._is_found else "did not appear"
            if self._is_found and not _has_torch():
                when += ", which did not import torch"
            there = "" if self._is_found else models_there()
            _say(f"{self.module}:{self._attribute} {what} {when}: nothing is recorded{there}")

    def _try(self, module: ModuleType | None = None) -> bool:
        """Attaches if the target exists. A ``module`` that was just imported is attached to even if
        another copy was before. Never raises.

        Returns:
            Whether there is nothing more to wait for.
        """
        try:
            is_new = module is not None
            if self.done and not is_new:
                return True
            modules = self._modules() if module is None else [module]
            targets = (resolve(candidate, self._attribute) for candidate in modules)
            target = next((target for target in targets if target is not None), None)
            if target is None:
                return self.done
            self._is_found = True
            if not is_new:
                return self._attach_alone(target)
            if _has_torch() is None:  # the target is a module of torch, or torch imported it
                return False
            # This imports, and is called within an import, which waits for other imports. With the
            # lock held, two threads could wait for each other.
            attach = _recorder()
            # If the lock takes too long, the thread that has it attaches to this one as well.
            self._waiting.append(target)
            if self._busy.acquire(True, _PATIENCE):
                self._attach_all(attach, target)
            return True
        except Exception as error:
            self._fail(error)
        return True

    def _attach_alone(self, target: Found) -> bool:
        """Imports the recorder and attaches it, in the thread that polls. It waits until the
        application has imported torch: before, no module of torch can be called. The import of
        torch takes seconds, runs C++, and may be the first one of threading, which takes the thread
        that imports it first for the main thread.

        Returns:
            Whether there is nothing more to wait for.
        """
        if not _has_torch():
            return False
        if not self._pauses:
            # What is registered last runs first before a fork. logging takes its lock there, and is
            # known since torch is: the import, which uses logging, must not wait for the fork.
            os.register_at_fork(before=self.pause, after_in_parent=self.go_on)
            self._pauses = True
        self.importing.acquire(True, IMPORT_SECONDS)
        self._importer = get_ident()
        try:
            if self._ended:
                return True
            attach = _recorder()
            if self._busy.acquire(False):
                self._attach_all(attach, target)
            return self.done
        finally:
            self._importer = 0
            if self.importing._is_owned():
                self.importing.release()

    def _attach_all(self, attach: Callable[..., None], target: Found) -> None:
        """Attaches to this target, and to all that wait to be attached to. The caller has the lock;
        this function releases it."""
        while True:
            try:
                if not self.done and not self._waiting:
                    self._attach(attach, target)
                while self._waiting:
                    self._attach(attach, self._waiting.pop())
            except Exception as error:
                self._fail(error)
            finally:
                self._busy.release()
            if not self._waiting or not self._busy.acquire(False):
                return

    def _attach(self, attach: Callable[..., None], target: Found) -> None:
        owner, _, value = target
        if self._ended:
            return
        if not any(_is_same(target, *other) for other in self._attached):
            attach(self._settings, *target)
            self._attached.append((_reference(owner), _reference(value)))
        self.done = True

    def _fail(self, error: Exception) -> None:
        _say(f"{self.module}:{self._attribute} is not recorded: {error}")
        self.done = self._arrived = True  # so that it is logged once

    def _modules(self) -> list[ModuleType]:
        """The modules that may have the target: its module, and the script if it is this module."""
        # multiprocessing's spawn runs the script again, as __mp_main__.
        names = ("__mp_main__", "__main__")
        mains = [module for module in map(sys.modules.get, names) if module is not None]
        if self.module == "__main__":
            return mains
        mains = [
            main
            for main in mains
            if getattr(getattr(main, "__spec__", None), "name", None) == self.module
            or self._names(str(getattr(main, "__file__", None) or ""))
        ]
        module = sys.modules.get(self.module)
        # While the module is being imported, a later line of it may still replace the target.
        if module is None or not _is_executed(module):
            return mains
        return [module, *mains]

    def _names(self, path: str) -> bool:
        """Whether this is the path of the target's module."""
        stem, extension = os.path.splitext(path)
        ending = os.sep + self.module.replace(".", os.sep)
        return extension == ".py" and (os.sep + stem).endswith(ending)

    def _may_be_main(self) -> bool:
        """Whether the command line says that the target's module runs as a script."""
        if self.module == "__main__":
            return True
        words = sys.orig_argv[1:]
        return "--multiprocessing-fork" in words or any(
            self.module in (word, f"{word}.__main__") or self._names(word) for word in words
        )


class _Finder:
    """Stands first on ``sys.meta_path``. It lets the other finders find a module, and learns when
    one module is imported."""

    def __init__(self, lookout: Lookout) -> None:
        self._lookout = lookout
        self._module = lookout.module
        self._asking: set[int] = set()  # numbers of the threads that ask the other finders

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self._module or get_ident() in self._asking:
            return None
        self._asking.add(get_ident())
        try:
            for finder in sys.meta_path:
                find = None if finder is self else getattr(finder, "find_spec", None)
                spec = find(name, path, target) if find else None
                if spec is not None:
                    self._follow(spec.loader)
                    return spec
        finally:
            self._asking.discard(get_ident())
        return None

    def _follow(self, loader: Any) -> None:
        """Replaces ``exec_module`` of this one loader, so that its end is noticed."""
        execute: Callable[[ModuleType], None] | None = getattr(loader, "exec_module", None)
        if execute is None or isinstance(loader, type):
            self._lookout.watch()
            return

        def exec_module(module: ModuleType) -> None:
            ours = module.__name__ == self._module
            if ours:
                vars(loader).pop("exec_module", None)
            execute(module)
            if ours:
                self._lookout.arrived(module)

        try:
            loader.exec_module = exec_module
        except Exception:
            self._lookout.watch()


def resolve(module: ModuleType, attribute: str) -> Found | None:
    """The object that a dotted name leads to. None if the name is missing or is None: ``model =
    None`` at the top of a file is a name that will be assigned.

    Raises:
        ValueError: a part of the name is a property. Reading it would run the application's code.
    """
    parent: Any = module
    value: Any = module
    for name in attribute.split("."):
        parent, value = value, _member(value, name)
        if value is None:
            return None
    return parent, attribute.rpartition(".")[2], value


def _reference(value: Any) -> Callable[[], Any]:
    try:
        return ref(value)
    except TypeError:  # its class has no weak references
        return object


def _is_same(target: Found, owner: Callable[[], Any], value: Callable[[], Any]) -> bool:
    """Whether recording one target records the other: two modules may import it from a third."""
    if target[0] is owner():
        return True
    # A function is recorded for one module only: calls by that module's name are seen.
    return target[2] is value() and not isinstance(target[2], type(_is_same))


def _member(owner: Any, name: str) -> Any:
    """``owner.name``. It does not run the application's properties or a module's
    ``__getattr__``."""
    if isinstance(owner, type(sys)):
        return vars(owner).get(name)
    for cls in type(owner).__mro__:
        descriptor = vars(cls).get(name, _MISSING)
        if isinstance(descriptor, property):
            raise ValueError(f"{name} is a property of {cls.__name__}; name the object it returns")
        if type(descriptor).__name__ == "cached_property":
            return vars(owner).get(name)
    try:
        return getattr(owner, name, None)
    except Exception:  # the application's own __getattr__
        return None


def _recorder() -> Callable[..., None]:
    try:
        __import__(_ENTRY)
    except ImportError as error:
        raise ImportError(f"{error}; install the recorder for {sys.executable}") from None
    return sys.modules[_ENTRY].attach  # type: ignore[no-any-return]


def _has_torch() -> bool | None:
    """Whether this process has imported torch. None while it does."""
    torch = sys.modules.get("torch")
    return torch is not None and _is_executed(torch)


def _is_executed(module: ModuleType) -> bool | None:
    """Whether the code of a module ran. None while it runs. An attribute of a module that is
    imported lazily would run it."""
    if type(module).__name__ == "_LazyModule":
        return False
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else True


def _is_main_interpreter() -> bool:
    """Whether this is no sub-interpreter. torch cannot be imported in one, and a thread in it ends
    the process when it is destroyed."""
    name = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
    try:
        interpreters = __import__(name)
        return bool(interpreters.get_current() == interpreters.get_main())
    except (ImportError, AttributeError):
        return True


def _say(text: str) -> None:
    text = f"calltape, process {os.getpid()}: {text}"
    logging = sys.modules.get("logging")
    try:
        if logging is None:  # its import would be seen by the application, as that of threading
            sys.stderr.write(f"{text}\n")
        else:
            logging.getLogger("calltape").warning("%s", text)
    except Exception:
        return  # of a handler of the application


def has_tape(folder: str, since: float) -> bool:
    """Whether a tape was written in the folder after ``since``, in seconds since 1970. In doubt,
    True."""
    try:
        for name in os.listdir(folder):
            # Some file systems keep the time of a file in whole seconds.
            if name.endswith(".tape") and os.stat(f"{folder}/{name}").st_mtime >= since - 2:
                return True
    except FileNotFoundError:  # the folder is missing, or a file was deleted meanwhile
        return os.path.isdir(folder)
    except (OSError, ValueError):
        return True
    return False


def models_there() -> str:
    """The classes of the models that are not part of another model, for a message. It reads names
    and runs no code of the application."""
    base = getattr(getattr(sys.modules.get("torch"), "nn", None), "Module", None)
    if base is None:
        return ""
    import gc

    models = [value for value in gc.get_objects() if issubclass(type(value), base)]
    inner = {id(part) for value in models for part in (vars(value).get("_modules") or {}).values()}
    classes = {type(value) for value in models if id(value) not in inner}
    names = sorted(f"{cls.__module__}:{cls.__qualname__}"[:100] for cls in classes)
    if len(names) > _MAX_NAMES:
        names[_MAX_NAMES:] = [f"and {len(names) - _MAX_NAMES} more"]
    return f". There are models of the classes {', '.join(names)}" if names else ""
