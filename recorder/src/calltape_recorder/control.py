"""Controls a recorder from outside, with a small file that the user writes and the recorder reads.

::

    {"paused": false, "rate": 0.1, "seal": 1, "dump": {"id": 3, "reason": "latency alarm"}}

``paused`` and ``rate`` are states. They hold as long as the file says so, and it may say so before
recording begins. ``"rate": null`` means every call again. A state that the file set ends when its
key is left out. ``seal`` and ``dump`` are counters. A change of the value makes the action happen
once; the value that the file has when recording begins is not a change. If the file is deleted,
nothing changes. A file is rejected if anybody but this user or root may write or replace it.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from calltape_recorder.bounds import MAX_CONTROL_BYTES, MAX_TROUBLE_CHARACTERS
from calltape_recorder.write.notices import Notices


class Controlled(Protocol):
    """What a control file can do to a recorder."""

    def pause(self) -> Any: ...

    def resume(self) -> Any: ...

    def set_rate(self, fraction: float | None) -> Any: ...

    def seal(self) -> Any: ...

    def dump(self, reason: str) -> Any: ...


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="allow")


class _Dump(_Record):
    id: int | str
    reason: Annotated[str, Field(max_length=1000)] = "control file"


class _Settings(_Record):
    paused: bool | None = None
    rate: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    seal: int | str | None = None
    dump: _Dump | int | str | None = None

    @property
    def dump_request(self) -> _Dump | None:
        given = self.dump
        return given if given is None or isinstance(given, _Dump) else _Dump(id=given)


_FileState = tuple[int, int, int]  # mtime in nanoseconds, size, inode


class ControlFile:
    """Follows one file. If it is broken, half-written, larger than 64 KiB or deleted, nothing
    changes, and that is logged once through ``logging.getLogger("calltape")``. Several processes
    may follow one file.

    Args:
        path: the file. It need not exist yet.

    Attributes:
        trouble: why the file is not followed; None if it is followed or does not exist.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._seen: _FileState | None = None  # the file as it was last read
        self._bad: _FileState | None = None  # the file as it was when it could not be read once
        self._warn = Notices(omits_values=False).warn  # says each text once
        self.trouble: str | None = None
        self._fresh = True  # nothing was read yet, so the first values are not a change
        self._paused: bool | None = None
        self._rate: tuple[float | None] | None = None
        self._seal: int | str | None = None
        self._dump: int | str | None = None
        self._first = self._read()

    def poll(self, recorder: Controlled) -> None:
        """Does what the file newly asks for. It costs one ``stat`` if nothing changed. It never
        raises. Only one thread may call it at a time."""
        try:
            first, self._first = self._first, None
            for settings in (first, self._read()):
                if settings is not None:
                    self._apply(settings, recorder)
        except Exception as error:
            self._warn(f"the control file {self.path} could not be applied: {error!r:.300}")

    def renewed(self) -> ControlFile:
        """A new one for a forked child, before its first call: the fork may have interrupted a
        :meth:`poll`. The states that the file set hold in the child, too. Earlier ``seal`` and
        ``dump`` requests were for the parent."""
        new = ControlFile(self.path)
        new._paused, new._rate = self._paused, self._rate
        return new

    def _read(self) -> _Settings | None:
        """What the file says; None if it did not change or cannot be read."""
        try:
            seen = _state_of(self.path)
            if seen is None:
                self.trouble = None
                if self._seen is not None:
                    self._warn(
                        f"the control file {self.path} is gone; its last settings stay in effect"
                    )
                self._seen = None
                self._fresh = False  # all that a new file says is a change
                return None
            if seen == self._seen:
                return None
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
            with open(descriptor, "rb") as file:
                distrust = why_untrusted(self.path, os.fstat(descriptor))
                if distrust is not None:
                    # Every poll looks at it again, because its permissions may change while its
                    # text does not.
                    self.trouble = f"rejected: {distrust}"
                    self._warn(f"the control file {self.path} is rejected: {distrust}")
                    return None
                text = file.read(MAX_CONTROL_BYTES)
            if _state_of(self.path) != seen:
                return None  # it is being written; the next poll reads it
            settings = _Settings.model_validate_json(text)
        except (OSError, ValueError) as error:
            # It is logged the second time in a row: the first time, the file may be half-written.
            now: _FileState | None = None
            with contextlib.suppress(OSError, ValueError):
                now = _state_of(self.path)
            if now is None or now == self._bad:
                self.trouble = _one_line(error)
                self._warn(f"the control file {self.path} is ignored: {self.trouble}")
                self._seen = now
            self._bad = now or (0, 0, 0)
            return None
        self._seen, self._bad, self.trouble = seen, None, None
        if self._fresh:
            dump = settings.dump_request
            self._fresh, self._seal = False, settings.seal
            self._dump = None if dump is None else dump.id
        unknown = ", ".join(map(repr, list(settings.model_extra or ())[:5]))
        if unknown:
            self._warn(f"the control file {self.path} has unknown keys: {unknown[:300]}")
        return settings

    def _apply(self, settings: _Settings, recorder: Controlled) -> None:
        # A state that the file set and no longer contains is undone. A state that it never set does
        # not change.
        paused = settings.paused
        if paused is None and self._paused:
            paused = False
        if paused is not None and paused != self._paused:
            self._do(recorder.pause if paused else recorder.resume)
            # After the action, so that a fork in between repeats the action.
            self._paused = paused
        has_rate = "rate" in settings.model_fields_set or self._rate is not None
        if has_rate and (settings.rate,) != self._rate:
            self._do(recorder.set_rate, settings.rate)
            self._rate = (settings.rate,)
        dump = settings.dump_request
        if dump is not None and dump.id != self._dump:
            self._dump = dump.id
            self._do(recorder.dump, dump.reason)
        if settings.seal is not None and settings.seal != self._seal:
            self._seal = settings.seal
            self._do(recorder.seal)

    def _do(self, action: Callable[..., Any], *args: Any) -> None:
        """Runs an action. If it fails, that is logged, and the other actions still run."""
        try:
            action(*args)
        except Exception as error:
            name = getattr(action, "__name__", "action")
            self._warn(f"{name} from the control file {self.path}: {_one_line(error)}")


def _state_of(path: str) -> _FileState | None:
    """The state of a file, which shows whether it has changed. None if the file does not exist.

    Raises:
        OSError: the system does not say.
        ValueError: it is not a regular file (opening a pipe would block), or it is too large.
    """
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is not a regular file")
    if status.st_size > MAX_CONTROL_BYTES:
        raise ValueError(f"it has {status.st_size} bytes; the limit is {MAX_CONTROL_BYTES}")
    return status.st_mtime_ns, status.st_size, status.st_ino


def _one_line(error: Exception) -> str:
    text = str(error)
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        text = f"{where}: {first['msg']}" if where else first["msg"]
    return " ".join(text.split())[:MAX_TROUBLE_CHARACTERS]


# Which files the recorder trusts. The umask does not count: it is a setting of the machine, not a
# decision about this file.

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def why_untrusted(path: str, status: os.stat_result) -> str | None:
    """Why somebody other than this user or root may have written a file; None if nobody may.

    Args:
        path: the path of the file.
        status: of the file, as it was opened.
    """
    if not hasattr(os, "geteuid"):
        return None
    real = os.path.realpath(path)
    reason = _written_by_others(status, "it")
    # A user who may write to a directory above the file may replace the file, unless only owners
    # may remove their entries (/tmp). If the path is a link, the same holds for the directories
    # that it leads to.
    folder_of_path, folder_of_target = Path(os.path.abspath(path)).parent, Path(real).parent
    for folder in dict.fromkeys(
        (folder_of_path, *folder_of_path.parents, folder_of_target, *folder_of_target.parents)
    ):
        if reason is None:
            inside = os.stat(folder)
            if not inside.st_mode & stat.S_ISVTX or not _is_ours(inside):
                is_its = folder in (folder_of_path, folder_of_target)
                reason = _written_by_others(inside, "its directory" if is_its else str(folder))
    return reason


def _written_by_others(status: os.stat_result, what: str) -> str | None:
    if not _is_ours(status):
        return f"{what} belongs to user {status.st_uid}, not to this one or root"
    if status.st_mode & _OTHERS_WRITE:
        return f"others can write to {what} ({stat.filemode(status.st_mode)}); run chmod go-w"
    return None


def _is_ours(status: os.stat_result) -> bool:
    return status.st_uid in (os.geteuid(), 0)
