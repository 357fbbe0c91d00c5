"""Control from outside: a small file that the user writes and the recorder looks at.

::

    {"paused": false, "rate": 0.1, "seal": 1, "dump": {"id": 3, "reason": "latency alarm"}}

``paused`` and ``rate`` are states: they hold from the moment that the file says so, also when it
says so before recording begins; ``"rate": null`` is every call again. ``seal`` and ``dump`` are
counters: a change makes it happen once, and what is there when recording begins is no change. A
state that the file brought about ends when its key is left out; a vanished file changes nothing.
A file that others than this user or root may write, or put another in its place, is not followed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from collections.abc import Callable
from typing import Annotated, Any, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from calltape_recorder.permissions import foreign_hand
from calltape_schema import TapeError

__all__ = ["ControlFile", "Controlled"]

_MAX_BYTES = 64 * 1024
_MAX_SHOWN = 300
_MAX_SAID = 50

_log = logging.getLogger("calltape")


class Controlled(Protocol):
    """What a control file can do to a recorder."""

    def pause(self) -> Any: ...

    def resume(self) -> Any: ...

    def set_rate(self, fraction: float | None) -> Any: ...

    def seal(self) -> Any: ...

    def dump(self, reason: str) -> Any: ...


class _Refused(Exception):  # noqa: N818 - a decision, not an error
    """Somebody else may have written the file."""


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="allow")


class _Dump(_Record):
    id: int | str
    reason: Annotated[str, Field(max_length=1000)] = "control file"


class _Wishes(_Record):
    paused: bool | None = None
    rate: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    seal: int | str | None = None
    dump: _Dump | int | str | None = None

    @property
    def dump_id(self) -> int | str | None:
        return self.dump.id if isinstance(self.dump, _Dump) else self.dump


_Seen = tuple[int, int, int]  # mtime in nanoseconds, size, inode


class ControlFile:
    """Follows one file. A broken, half-written, too large (64 KiB) or vanished file changes nothing
    and is said once through ``logging.getLogger("calltape")``. Several processes may follow one.

    Args:
        path: the file; it need not exist yet.

    Attributes:
        trouble: why it is not followed; None where it is, or there is none.

    Raises:
        TapeError: ``usage`` if this is no path.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        try:
            self.path = os.fsdecode(path)
        except TypeError:
            reason = f"control={path!r:.100}"
            raise TapeError("usage", reason, advice="pass the path of a JSON file") from None
        self._seen: _Seen | None = None  # the file as it was last read
        self._bad: _Seen | None = None  # read, and of no use: once more before it is said
        self._said: set[str] = set()
        self.trouble: str | None = None
        self._fresh = True  # nothing read yet: what is there is no change
        self._paused: bool | None = None
        self._rate: tuple[float | None] | None = None
        self._seal: int | str | None = None
        self._dump: int | str | None = None
        self._first = self._read()
        if self._seen is None and self._bad is None:
            self._fresh = False  # no file: whatever it will say is news

    def poll(self, recorder: Controlled) -> None:
        """Does what the file asks for since it was last looked at. Costs one ``stat`` where nothing
        changed. Never raises; to be called by one thread at a time."""
        try:
            first, self._first = self._first, None
            for wishes in (first, self._read()):
                if wishes is not None:
                    self._apply(wishes, recorder)
        except Exception as error:
            self._say("control", f"the control file {self.path} was not followed: {error!r:.300}")

    def renewed(self) -> ControlFile:
        """For a fork, before its first call: this one may have been in the middle of something. The
        states that it brought about hold there, too; ``seal`` and ``dump`` of before are the
        parent's."""
        new = ControlFile(self.path)
        new._paused, new._rate = self._paused, self._rate
        return new

    def _read(self) -> _Wishes | None:
        """What the file says, if it changed and can be read."""
        try:
            seen = _look(self.path)
            if seen is None:
                self.trouble = None
            if seen == self._seen:
                return None
            if seen is None:
                if self._seen is not None:
                    self._say(
                        "vanished", f"the control file {self.path} is gone: all stays as it is"
                    )
                self._seen = None
                return None
            text = _load(self.path)
            if _look(self.path) != seen:
                return None  # it is being written: next time
            wishes = _Wishes.model_validate_json(text)
        except _Refused as refused:
            # Looked at again every time: its permissions may change, and what it says not.
            self.trouble = f"refused: {refused}"
            self._say("refused", f"the control file {self.path} is refused: {refused}")
            return None
        except (OSError, ValueError) as error:
            self._doubt(error)
            return None
        self._seen, self._bad, self.trouble = seen, None, None
        unknown = ", ".join(map(repr, list(wishes.model_extra or ())[:5]))
        if unknown:
            self._say("unknown", f"the control file {self.path} has unknown keys: {unknown[:300]}")
        return wishes

    def _doubt(self, error: Exception) -> None:
        """Says that the file cannot be read, unless it was just caught half-written."""
        seen: _Seen | None = None
        with contextlib.suppress(OSError, ValueError):
            seen = _look(self.path)
        if seen is None or seen == self._bad:
            self.trouble = _one_line(error)
            self._say("broken", f"the control file {self.path} is not followed: {_one_line(error)}")
            self._seen = seen
        self._bad = seen or (0, 0, 0)

    def _apply(self, wishes: _Wishes, recorder: Controlled) -> None:
        given = wishes.model_fields_set
        if self._fresh:
            self._fresh = False
            self._seal, self._dump = wishes.seal, wishes.dump_id
        # What the file no longer asks for is taken back; what it never asked for is left alone.
        paused = wishes.paused
        if paused is None and self._paused:
            paused = False
        if paused is not None and paused != self._paused:
            self._do(recorder.pause if paused else recorder.resume)
            self._paused = paused  # afterwards: a fork in between does it again
        if ("rate" in given or self._rate is not None) and (wishes.rate,) != self._rate:
            self._do(recorder.set_rate, wishes.rate)
            self._rate = (wishes.rate,)
        if wishes.dump_id is not None and wishes.dump_id != self._dump:
            self._dump = wishes.dump_id
            reason = wishes.dump.reason if isinstance(wishes.dump, _Dump) else "control file"
            self._do(recorder.dump, reason)
        if wishes.seal is not None and wishes.seal != self._seal:
            self._seal = wishes.seal
            self._do(recorder.seal)

    def _do(self, action: Callable[..., Any], *args: Any) -> None:
        """One action that fails does not keep the others from happening."""
        try:
            action(*args)
        except Exception as error:
            name = getattr(action, "__name__", "action")
            self._say(name, f"{name} from the control file {self.path}: {_one_line(error)}")

    def _say(self, what: str, text: str) -> None:
        """Each thing once; another mistake in the file is another thing."""
        if text not in self._said and len(self._said) < _MAX_SAID:
            self._said.add(text)
            with contextlib.suppress(Exception):  # a handler of the host's that raises
                _log.warning(text)


def _look(path: str) -> _Seen | None:
    """None where there is no such file.

    Raises:
        OSError: it cannot be looked at.
        ValueError: it is no regular file (opening a pipe would wait), or too large.
    """
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("it is no regular file")
    if found.st_size > _MAX_BYTES:
        raise ValueError(f"it has {found.st_size} bytes, at most {_MAX_BYTES} are read")
    return found.st_mtime_ns, found.st_size, found.st_ino


def _load(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        reason = foreign_hand(path, os.fstat(descriptor))
        if reason is not None:
            raise _Refused(reason)
        return file.read(_MAX_BYTES)


def _one_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        return f"{where}: {first['msg']}"[:_MAX_SHOWN] if where else str(first["msg"])[:_MAX_SHOWN]
    return " ".join(str(error).split())[:_MAX_SHOWN]
