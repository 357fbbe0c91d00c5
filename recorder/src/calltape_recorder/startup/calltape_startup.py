"""Looks for the target of a recording, in every Python process that has ``CALLTAPE`` set.

Loaded at interpreter start from its directory, outside of any package: standard library only, and
as little of it as possible. A process that never imports the target pays for one comparison per
import; only where the target turns up is calltape_recorder imported, and torch with it.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from _thread import allocate_lock, get_ident, start_new_thread
from _weakref import ref

TYPE_CHECKING = False  # typing's own takes longer to import than all of this
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType
    from typing import Any, TypeAlias

    Found: TypeAlias = tuple[Any, str, Any]
    """The object that has the attribute, the attribute's name, and its value."""

__all__ = ["begin", "resolve", "seconds", "split"]

_VARIABLE = "CALLTAPE"
_SAID = "CALLTAPE_SAID"
_MAX_TEXT = 65536
_WAIT = 600.0  # seconds that an attribute may take to appear
_POLL = 0.2  # seconds
_EARLY = (2.0, 0.02)  # what a script assigns, it mostly assigns first: this long, this often
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PATIENCE = 1.0  # seconds that an import waits for the recorder that begins in another thread
_MISSING = object()


def split(text: str) -> dict[str, Any]:
    """The settings in ``CALLTAPE``: ``key=value`` items with ``;`` between them, or a JSON object,
    which can say everything (a ``;`` in a path).

    Raises:
        ValueError: neither of the two.
    """
    if len(text) > _MAX_TEXT:
        raise ValueError(f"{_VARIABLE} has {len(text)} characters, at most {_MAX_TEXT} are read")
    text = text.strip()
    if text.startswith("{"):
        import json

        return dict(json.loads(text))  # what starts with a brace is an object or an error
    settings: dict[str, Any] = {}
    for item in filter(None, map(str.strip, text.split(";"))):
        key, equals, value = item.partition("=")
        key = key.strip()
        if not equals or not key:
            raise ValueError(f"{item[:100]!r} is no key=value")
        if key in settings:
            raise ValueError(f"{key} is there twice")
        settings[key] = value.strip()
    return settings


def seconds(value: object) -> float:
    """A duration in seconds: a number, or text such as ``90``, ``1.5h``, ``10m``, ``7d``.

    Raises:
        ValueError: anything else, negative or not finite.
    """
    number = "" if isinstance(value, bool) else str(value).strip()
    unit = number.lstrip("0123456789.")
    try:
        result = float(number.removesuffix(unit)) * _UNITS[unit]
    except (ValueError, KeyError):
        result = -1
    if not 0 <= result < float("inf"):
        raise ValueError(f"{value!r:.100} is no duration")
    return result


def begin() -> None:
    """Reads ``CALLTAPE``, and looks out for its target. Called once, at interpreter start."""
    text = os.environ.get(_VARIABLE)
    if not text:
        return
    try:
        settings = split(text)
        module, colon, attribute = str(settings.get("target", "")).partition(":")
        if not colon or not module or not all(attribute.split(".")):
            raise ValueError("target is to be module:attribute")
        wait = seconds(settings.get("wait", _WAIT))
    except ValueError as error:
        if _SAID not in os.environ:  # by this process, not again by all that it starts
            os.environ[_SAID] = "1"
            sys.stderr.write(f"calltape: {_VARIABLE}: {error}. Nothing is recorded.\n")
        return
    _Lookout(settings, module, attribute, wait).begin()


class _Lookout:
    """Waits for one target, and has the recorder attached to it once."""

    def __init__(
        self, settings: Mapping[str, Any], module: str, attribute: str, wait: float
    ) -> None:
        self.module = module
        self._settings = settings
        self._attribute = attribute
        self._wait = wait
        self._done = False
        self._found = False
        self._waiting: list[Found] = []
        self._attached: list[tuple[Any, Any]] = []  # owners and values, held by nobody for us
        self._arrived = False
        self._busy = allocate_lock()
        self._watching = 0  # the process in which a thread polls
        self._follows = False  # forks, and the end of the process
        self._has_forked = False

    def begin(self) -> None:
        if self.module != "__main__":
            sys.meta_path.insert(0, _Finder(self))
        if self._may_be_main():
            self.watch()
        elif self._settings.get("pid") == os.getpid():
            atexit.register(self._never, os.getpid(), time.time())

    def _never(self, pid: int, since: float) -> None:
        """Says, at the end of the command, that nobody imported the module: a mistyped name looks
        like one that is used later. A process that starts workers need not import it itself."""
        if self._done or pid != os.getpid() or self.module in sys.modules:
            return
        tape = str(self._settings.get("tape"))
        if not _has_tape(tape, since):
            _say(f"nobody imported {self.module}, and no tape is in {tape}: nothing is recorded")

    def arrived(self, module: ModuleType) -> None:
        """The module was executed, by an import. Also where it is the script as well, whose own
        copy may be recorded already: a framework calls the one that it imports by name."""
        if self._arrived:
            return  # again, by a reload
        self._arrived = True
        if not self._try(sys.modules.get(self.module, module)):
            self.watch()

    def watch(self) -> None:
        """Polls from a thread: nothing tells when a script has run, or a name is assigned."""
        if self._done or self._watching == os.getpid():
            return
        self._watching = os.getpid()
        start_new_thread(self._poll, ())
        if not self._follows:
            self._follows = True
            os.register_at_fork(after_in_parent=self._forks, after_in_child=self._forked)
            atexit.register(self._miss, "before the process ended", os.getpid())

    def _forks(self) -> None:
        self._has_forked = True

    def _forked(self) -> None:
        self._has_forked = False
        # A raw thread, that sleeps first: it waits for nothing and takes no lock while the hooks of
        # others are still to run.
        self._busy = allocate_lock()
        try:
            self.watch()
        except Exception:
            self._watching = 0  # no thread can be had: the process ends, or is at its limit

    def _poll(self) -> None:
        begun = time.monotonic()
        passed = 0.0
        while not self._done and passed < self._wait:
            time.sleep(_EARLY[1] if passed < _EARLY[0] else _POLL)
            if self._try():
                return
            passed = time.monotonic() - begun
        self._miss(f"within {self._wait:g} s", os.getpid())

    def _miss(self, when: str, pid: int) -> None:
        """Says that nothing was recorded, where something was expected: in the process that
        imported the module, or that was named as the script. Children are no servers, and the
        parent of workers need not be one."""
        if self._done or self._has_forked or pid != os.getpid():
            return
        self._done = True
        if self._settings.get("pid") == pid or (self.module != "__main__" and self._modules()):
            what = "was not attached to" if self._found else "did not appear"
            _say(f"{self.module}:{self._attribute} {what} {when}: nothing is recorded")

    def _try(self, module: ModuleType | None = None) -> bool:
        """Attaches, if the target is there; what was just imported, in any case. Never raises."""
        try:
            is_new = module is not None
            if self._done and not is_new:
                return True
            found = self._find(self._modules() if module is None else [module])
            if found is None:
                return self._done
            self._found = True
            # Before the lock: an import waits for other imports, and this may be called in one.
            attach = _recorder()
            if is_new:
                self._waiting.append(found)  # for whoever has the lock, if it takes too long here
            if self._busy.acquire(is_new, _PATIENCE if is_new else -1):
                self._attach_all(attach, found)
            return is_new or self._done
        except Exception as error:
            self._fail(error)
        return True

    def _attach_all(self, attach: Callable[..., None], found: Found) -> None:
        """Attaches to this, and to what others wait to be attached to; has the lock, and gives it
        back."""
        while True:
            try:
                if not self._done and not self._waiting:
                    self._attach(attach, found)
                while self._waiting:
                    self._attach(attach, self._waiting.pop())
            except Exception as error:
                self._fail(error)
            finally:
                self._busy.release()
            if not self._waiting or not self._busy.acquire(False):
                return

    def _attach(self, attach: Callable[..., None], found: Found) -> None:
        owner, _, value = found
        if not any(_is_same(found, *other) for other in self._attached):
            attach(self._settings, *found)
            self._attached.append((_reference(owner), _reference(value)))
        self._done = True

    def _fail(self, error: Exception) -> None:
        _say(f"{self.module}:{self._attribute} is not recorded: {error}")
        self._done = self._arrived = True  # once is enough

    def _find(self, modules: list[ModuleType]) -> Found | None:
        for module in modules:
            found = resolve(module, self._attribute)
            if found is not None:
                return found
        return None

    def _modules(self) -> list[ModuleType]:
        """Where the target may be: its module, and the script that is this module."""
        # multiprocessing's spawn runs the script again, as __mp_main__.
        names = ("__mp_main__", "__main__")
        mains = [module for module in map(sys.modules.get, names) if module is not None]
        if self.module == "__main__":
            return mains
        mains = [main for main in mains if self._is_main(main)]
        module = sys.modules.get(self.module)
        # Not while it is being imported: what is there now may be replaced by its last line.
        if module is None or getattr(getattr(module, "__spec__", None), "_initializing", False):
            return mains
        return [module, *mains]

    def _is_main(self, main: ModuleType) -> bool:
        if getattr(getattr(main, "__spec__", None), "name", None) == self.module:
            return True
        return self._names(str(getattr(main, "__file__", None) or ""))

    def _names(self, path: str) -> bool:
        """Whether this is the path of the target's module."""
        stem, extension = os.path.splitext(path)
        ending = os.sep + self.module.replace(".", os.sep)
        return extension == ".py" and (os.sep + stem).endswith(ending)

    def _may_be_main(self) -> bool:
        """Told by the command line: is the target's module run as a script?"""
        if self.module == "__main__":
            return True
        words = sys.orig_argv[1:]
        return "--multiprocessing-fork" in words or any(
            self.module in (word, f"{word}.__main__") or self._names(word) for word in words
        )


class _Finder:
    """First on ``sys.meta_path``: leaves finding to the others, and gets told of one module."""

    def __init__(self, lookout: _Lookout) -> None:
        self._lookout = lookout
        self._module = lookout.module
        self._asking: set[int] = set()  # threads

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
        """The loader stays what it is; on this one instance, ``exec_module`` is told of its end."""
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
    """What a dotted name leads to, or None while it is missing or None (``model = None`` at the top
    is a name that will be assigned).

    Raises:
        ValueError: the way leads through a property, which is the host's code to run.
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
    except TypeError:  # of a class that forbids it
        return object


def _is_same(found: Found, owner: Callable[[], Any], value: Callable[[], Any]) -> bool:
    """Whether recording the one records the other: both modules may have it from a third."""
    if found[0] is owner():
        return True
    # A module's function is recorded where it is called by this name.
    return found[2] is value() and not isinstance(found[2], type(_is_same))


def _member(owner: Any, name: str) -> Any:
    """``owner.name`` without running the host's properties, or a module's ``__getattr__``."""
    if isinstance(owner, type(sys)):
        return vars(owner).get(name)
    for cls in type(owner).__mro__:
        descriptor = vars(cls).get(name, _MISSING)
        if isinstance(descriptor, property):
            raise ValueError(f"{name} is a property of {cls.__name__}: name what it returns")
        if type(descriptor).__name__ == "cached_property":
            return vars(owner).get(name)
    try:
        return getattr(owner, name, None)
    except Exception:  # the host's own __getattr__
        return None


def _has_tape(folder: str, since: float) -> bool:
    """Whether one was written there from that time on, in seconds since 1970; in doubt, yes."""
    try:
        for name in os.listdir(folder):
            # A file system may keep time in steps of seconds.
            if name.endswith(".tape") and os.stat(f"{folder}/{name}").st_mtime >= since - 2:
                return True
    except FileNotFoundError:  # or one that was deleted meanwhile
        return os.path.isdir(folder)
    except (OSError, ValueError):
        return True
    return False


def _recorder() -> Callable[..., None]:
    try:
        from calltape_recorder.launcher import attach
    except ImportError as error:
        raise ImportError(f"{error}; install calltape-recorder for {sys.executable}") from None
    return attach


def _say(text: str) -> None:
    import logging

    logging.getLogger("calltape").warning(text)
