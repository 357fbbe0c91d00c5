"""The status of a recorder: one small JSON file beside its tape, while the recording goes on.

A recorder writes it about every ten seconds, and a health check reads it. When the tape is sealed,
the file is removed; the file of a process that was killed stays. A check runs every few seconds in
a container, so this module imports nothing but the standard library.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, get_args

from calltape_schema.errors import TapeError
from calltape_schema.processes import Process

__all__ = ["BEAT_SECONDS", "SIZE", "SUFFIX", "Activity", "Status", "encode_status", "read_status"]

SUFFIX = ".status.json"
"""The name of the file is that of the recording's first file, with this in place of ``.tape``."""

SIZE = 4096
"""The length of the file in bytes. It never changes, so that a full disk takes a new status in the
place of the old one."""

BEAT_SECONDS = 10.0
"""At most so long after the last one, a recorder writes its next status."""

VERSION = 1

Activity = Literal["recording", "paused", "stopped", "unsealed"]
"""What the recorder does: it records, it only counts, it has recorded all that it was asked for, or
it was closed and could not seal its tape."""

_ADVICE = "it is no status of a recorder that this version knows; delete it if no recorder is left"
_MOST = 2**63 - 1
_MAX_REASONS = 20
_TEXTS = (400, 100, 30, 0)  # characters of each text, until the status fits


@dataclass(frozen=True)
class Status:
    """What a recorder says of itself. Times are Unix time in nanoseconds, sizes are in bytes.

    Attributes:
        tape: the id of the recording, as 32 hexadecimal digits.
        process: who records.
        activity: see :data:`Activity`.
        began_ns, beat_ns: when the recording began, and when this status was written.
        beat_seconds: after how many seconds the next status follows at the latest.
        target: what is recorded: ``module:Class.method``.
        file: the name of the file that calls are written to, without its directory.
        seen, kept, dropped, queued, queued_bytes, written_bytes, segments: as ``Recorder.stats``
            has them.
        unsealed: how many files wait for a trailer that the disk did not take.
        last_write_ns: when a call was written last; None before the first.
        last_error, last_error_ns: what went wrong last, and when.
        losing, losing_since_ns: why calls are lost, if none was written since, and since when.
    """

    tape: str
    process: Process
    activity: Activity
    began_ns: int
    beat_ns: int
    beat_seconds: float = BEAT_SECONDS
    target: str | None = None
    file: str | None = None
    seen: int = 0
    kept: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    queued: int = 0
    queued_bytes: int = 0
    written_bytes: int = 0
    segments: int = 0
    unsealed: int = 0
    last_write_ns: int | None = None
    last_error: str | None = None
    last_error_ns: int | None = None
    losing: str | None = None
    losing_since_ns: int | None = None


def encode_status(status: Status) -> bytes:
    """The content of the file, with spaces up to its length. Texts are cut if they are too long."""
    text = ""
    for most in _TEXTS:
        shown = replace(
            status,
            target=_cut(status.target, most), file=_cut(status.file, most),
            last_error=_cut(status.last_error, most), losing=_cut(status.losing, most),
            dropped={name[:most]: calls for name, calls in
                     list(status.dropped.items())[:_MAX_REASONS]},
        )  # fmt: skip
        text = json.dumps({"calltape_status": VERSION, **asdict(shown)})
        if len(text) < SIZE:
            break
    return f"{text:<{SIZE - 1}}\n".encode("ascii")


def read_status(path: str) -> Status:
    """The status in a file. It may be from anybody, so everything in it is checked.

    Raises:
        TapeError: ``not_found``, ``io``, or ``invalid`` if the file is anything else.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise TapeError("invalid", "it is no file", path=path, advice=_ADVICE)
            content = file.read(SIZE + 1)
    except FileNotFoundError:
        raise TapeError("not_found", "it is gone", path=path) from None
    except OSError as error:
        raise TapeError("io", error.strerror or "cannot read it", path=path) from None
    try:
        if len(content) > SIZE:
            raise ValueError(f"it has more than {SIZE} bytes")
        return _status_of(json.loads(content))
    except (ValueError, TypeError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise TapeError("invalid", reason, path=path, advice=_ADVICE) from None


def _cut(text: str | None, most: int) -> str | None:
    return None if text is None else text[:most]


def _status_of(document: Any) -> Status:
    """A checked status. Unknown fields are skipped, because later versions may add some."""
    if not isinstance(document, dict) or document.get("calltape_status") != VERSION:
        raise ValueError("it is no status of version 1")
    found = {name: check(document[name], name) for name, check in _CHECKS.items()
             if name in document}  # fmt: skip
    return Status(**found)


def _process(value: Any, name: str) -> Process:
    if not isinstance(value, dict):
        raise ValueError(f"{name} is no object")
    known = {part.name for part in fields(Process)}
    checks = {
        "pid": _count,
        "started": _maybe_count,
        "boot": _maybe_text,
        "namespace": _maybe_count,
    }
    found: dict[str, Any] = {key: checks[key](value[key], key) for key in known & value.keys()}
    process = Process(**found)
    if process.pid < 1:
        raise ValueError("pid is no number of a process")
    return process


def _count(value: Any, name: str) -> int:
    if type(value) is not int or not 0 <= value <= _MOST:
        raise ValueError(f"{name} is no count")
    return value


def _maybe_count(value: Any, name: str) -> int | None:
    return None if value is None else _count(value, name)


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} is no text")
    return value


def _maybe_text(value: Any, name: str) -> str | None:
    return None if value is None else _text(value, name)


def _seconds(value: Any, name: str) -> float:
    if type(value) not in (int, float) or not 0 < value <= 86400:
        raise ValueError(f"{name} is no time between 0 and a day")
    return float(value)


def _activity(value: Any, name: str) -> Any:
    if value not in get_args(Activity):
        raise ValueError(f"{name} is none of {', '.join(get_args(Activity))}")
    return value


def _counts(value: Any, name: str) -> dict[str, int]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} is no object")
    return {reason: _count(calls, name) for reason, calls in value.items()}


_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "tape": _text, "process": _process, "activity": _activity, "began_ns": _count,
    "beat_ns": _count, "beat_seconds": _seconds, "target": _maybe_text, "file": _maybe_text,
    "seen": _count, "kept": _count, "dropped": _counts, "queued": _count, "queued_bytes": _count,
    "written_bytes": _count, "segments": _count, "unsealed": _count,
    "last_write_ns": _maybe_count, "last_error": _maybe_text, "last_error_ns": _maybe_count,
    "losing": _maybe_text, "losing_since_ns": _maybe_count,
}  # fmt: skip
