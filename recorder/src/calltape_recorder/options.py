"""Checks the options of a recorder and what it is attached to, before a file is created."""

from __future__ import annotations

import difflib
import os
import sys
import weakref
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
from typing_extensions import TypedDict

from calltape_recorder.keep.policies import Every, Keep
from calltape_recorder.pipeline import Settings
from calltape_recorder.write.disk_budget import LEAST_DISK_BYTES, Bounds
from calltape_recorder.write.disk_file import OWNER_ONLY
from calltape_recorder.write.flight_recorder import FlightRecorder
from calltape_recorder.write.tape_file import check_form
from calltape_schema import TapeError

__all__ = ["Choices", "Options", "check_options", "check_path", "check_target"]

_MOST = 2**63 - 1  # the largest integer of a manifest
_MAX_PATTERNS = 1000
_MAX_PATTERN = 1000


def check_path(path: Any) -> str:
    """The path as absolute text.

    Raises:
        TapeError: ``usage`` if this is not a path.
    """
    try:
        text = os.fsdecode(path)
    except TypeError:
        raise TapeError(
            "usage", f"a {type(path).__name__} is no path", advice="pass the path of the new tape"
        ) from None
    if "\0" in text:
        raise TapeError(
            "usage", "the path has a zero character in it", path=text, advice="remove it"
        )
    try:
        # A relative path would change its meaning: a host that becomes a daemon changes directory.
        return os.path.join(os.getcwd(), text)
    except OSError:  # the current directory was deleted
        return text


class Options(TypedDict, total=False):
    """The options of a recorder. Sizes are in bytes, times in seconds; None means no bound.

    Attributes:
        overwrite: replace an existing file. Otherwise the recorder refuses to start.
        outputs: record what the model returns as well, not only what it is given.
        values: ``"all"`` keeps the bytes of every tensor, text and number. ``"none"`` keeps the
            shapes of tensors and the length of texts. A dict chooses by leaf path, and the last
            pattern that matches decides: ``{"*": "all", "cache.*": "none"}``. A pattern
            is one of :mod:`fnmatch`. It also matches everything below its path. Paths of outputs
            begin with ``outputs``. A pattern without wildcards withholds numbers as well.
            docs/privacy.md has a table of all this.
        keep: which calls are kept (:mod:`calltape_recorder.keep.policies`); all by default.
        flight_recorder: holds calls in memory that ``keep`` does not keep. They are written when a
            call raises, on :meth:`Recorder.dump`, or when an exception ends the process.
        write_ahead: writes the inputs of each call to a file before the model runs. If the process
            crashes, the inputs of the call that was running are left. Each call waits for this
            write.
        max_calls: stop recording after this many calls.
        max_seconds: stop recording after this time.
        max_share: keep what recording costs below this share of the time of the calls, such as
            0.01, by recording fewer calls. The others are only counted, as dropped for this reason.
            The cost is what :class:`~calltape_recorder.keep.ledger.Stats` has of it: time in the
            host's calls, and processor time of the recorder's thread. Only calls that are recorded
            tell how long a call takes: where ``keep`` takes none, or the long ones, this is no
            bound.
        max_queue_bytes: the most memory for calls that are under way or wait to be written, with
            pooled buffers. A call that does not fit is counted and dropped before it is copied. A
            quarter of it (and of what a flight recorder may hold) may have copies that later calls
            share, until a call needs the room.
        max_disk_bytes: the most bytes of all files together; at least 131,072 (128 KiB), as half of
            these stay free for the end of a file.
        min_free_bytes: how much space of the disk stays free.
        when_full: what happens if one of these two is reached. ``"stop"`` drops calls until there
            is space again, ``"delete_oldest"`` deletes the oldest file of this recorder; files of
            samples before those with calls that were like none before.
        max_age_seconds: delete sealed files of this recorder that ended so long ago. Their calls
            count as ``expired``. If ``segment_seconds`` is not given, it is an eighth of this. So a
            call is deleted at most ``max_age_seconds + segment_seconds`` after it was recorded.
            What an earlier process wrote is never deleted.
        segment_bytes, segment_seconds: go on in another file (``<name>-00001.tape`` and so on) when
            a file has this size or age.
        compress: ``"zstd"`` (needs the extra ``zstd``) or ``"gz"`` compresses each file when it is
            complete, in the background, and adds ``.zst`` or ``.gz`` to its name. The file that is
            being written is never compressed. :meth:`Recorder.close` waits up to 10 s for it; a
            file that is not compressed by then, or would hardly shrink, stays as it is.
        file_mode: the permissions of the files. The umask does not change them. By default only the
            owner has access (0o600). New directories can be searched by everybody who may read the
            files.
        control: a file that is read about once a second, to pause, resume, seal and dump from
            outside (:mod:`calltape_recorder.control`). It is refused if others may write it.
        via: ``"hook"`` records the calls that go through ``module(...)``. ``"method"`` replaces the
            method on the instance, and sees direct calls of it as well. Hooks do not see a
            ``BaseException`` that is not an ``Exception``, such as ``KeyboardInterrupt``. If it
            does not leave the ``with`` block, its type and message are unknown, and the tape has
            ``BaseException``.
        method: the name of the method. Any name but ``forward`` implies ``via="method"``.
    """

    overwrite: bool
    outputs: bool
    values: Literal["all", "none"] | Mapping[str, Literal["all", "none"]]
    keep: Keep
    flight_recorder: FlightRecorder | None
    write_ahead: bool
    max_calls: int | None
    max_seconds: float | None
    max_share: float | None
    max_queue_bytes: int
    max_disk_bytes: int | None
    min_free_bytes: int | None
    when_full: Literal["stop", "delete_oldest"]
    max_age_seconds: float | None
    segment_bytes: int | None
    segment_seconds: float | None
    compress: Literal["zstd", "gz"] | None
    file_mode: int
    control: str | os.PathLike[str] | None
    via: Literal["hook", "method"]
    method: str


_DEFAULTS: dict[str, Any] = {
    "overwrite": False, "outputs": True, "values": "all", "keep": Every(),
    "flight_recorder": None, "write_ahead": False, "max_calls": None, "max_seconds": None,
    "max_share": None, "max_queue_bytes": 256 * 1024 * 1024, "max_disk_bytes": None,
    "min_free_bytes": None,
    "when_full": "stop", "max_age_seconds": None, "segment_bytes": None, "segment_seconds": None,
    "compress": None, "file_mode": OWNER_ONLY, "control": None,
    "via": "hook", "method": "forward",
}  # fmt: skip


class Choices(NamedTuple):
    """Options that were checked.

    Attributes:
        settings: the options that the pipeline needs.
        overwrite, control, via, method: see :class:`Options`.
    """

    settings: Settings
    overwrite: bool
    control: str | None
    via: Literal["hook", "method"]
    method: str


def check_options(options: Mapping[str, Any]) -> Choices:
    """Checks the keyword arguments of a recorder, and fills in the others.

    Raises:
        TapeError: ``usage`` if an option has a wrong value.
        TypeError: an option does not exist, as with any function.
    """
    for name in options:
        if name not in _DEFAULTS:
            near = difflib.get_close_matches(name, _DEFAULTS, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"a recorder has no option {name!r}{hint}")
    chosen = {**_DEFAULTS, **options}
    for name, choices in (("via", ("hook", "method")), ("when_full", ("stop", "delete_oldest"))):
        if chosen[name] not in choices:
            advice = f"pass {choices[0]!r} or {choices[1]!r}"
            raise TapeError("usage", f"{name}={chosen[name]!r}", advice=advice)
    for name in ("overwrite", "outputs", "write_ahead"):
        if not isinstance(chosen[name], bool):
            raise TapeError("usage", f"{name}={chosen[name]!r}", advice="pass True or False")
    for name in _COUNTS:
        _check_count(name, chosen[name])
    for name in ("max_seconds", "segment_seconds", "max_age_seconds", "max_share"):
        value, most = chosen[name], 1 if name == "max_share" else sys.float_info.max
        if value is not None and not (type(value) in (int, float) and 0 < value <= most):
            advice = "pass a number above 0" + (", and at most 1" if most == 1 else "")
            raise TapeError("usage", f"{name}={value!r}", advice=advice)
    for name, kind in (("keep", Keep), ("flight_recorder", FlightRecorder)):
        if not isinstance(chosen[name], kind) and not (name != "keep" and chosen[name] is None):
            advice = f"pass a {kind.__name__} of calltape_recorder"
            raise TapeError("usage", f"{name}={chosen[name]!r}", advice=advice)
    check_form(chosen["compress"])
    mode = chosen["file_mode"]
    if type(mode) is not int or mode & ~0o777 or mode & OWNER_ONLY != OWNER_ONLY:
        advice = "pass permissions that let the owner read and write, such as 0o640"
        raise TapeError("usage", f"file_mode={mode!r:.100}", advice=advice)
    method = chosen["method"]
    if not isinstance(method, str) or not method:
        raise TapeError("usage", f"method={method!r}", advice="name one of the object's methods")
    control = chosen["control"]
    return Choices(
        _settings(chosen), chosen["overwrite"], None if control is None else check_path(control),
        chosen["via"] if method == "forward" else "method", method,
    )  # fmt: skip


_COUNTS = (
    "max_calls", "max_queue_bytes", "max_disk_bytes", "min_free_bytes", "segment_bytes",
)  # fmt: skip


def _check_count(name: str, value: Any) -> None:
    if value is None and name != "max_queue_bytes":
        return
    if type(value) is not int or not 0 <= value <= _MOST:
        raise TapeError("usage", f"{name}={value!r}", advice="pass an int, 0 or more")


def _settings(chosen: Mapping[str, Any]) -> Settings:
    bounds = Bounds(
        chosen["max_disk_bytes"], chosen["min_free_bytes"], chosen["segment_bytes"],
        _float(chosen["segment_seconds"]), chosen["when_full"],
        _float(chosen["max_age_seconds"]),
    )  # fmt: skip
    most = bounds.max_disk_bytes
    if most is not None and most < LEAST_DISK_BYTES:
        raise TapeError(
            "usage", f"max_disk_bytes={most}: there is no room for a call and the end of its file",
            advice=f"pass at least {LEAST_DISK_BYTES}",
        )  # fmt: skip
    if bounds.deletes and not bounds.is_rolling:
        raise TapeError(
            "usage", "when_full='delete_oldest' needs more than one file",
            advice="pass max_disk_bytes, segment_bytes or segment_seconds",
        )  # fmt: skip
    return Settings(
        chosen["outputs"], _values(chosen["values"]), chosen["keep"], chosen["flight_recorder"],
        chosen["write_ahead"], chosen["max_calls"], _float(chosen["max_seconds"]),
        _float(chosen["max_share"]), chosen["max_queue_bytes"], bounds, chosen["file_mode"],
        chosen["compress"],
    )  # fmt: skip


def _float(value: float | None) -> float | None:
    return None if value is None else float(value)


def _values(values: Any) -> tuple[tuple[str, str], ...]:
    pairs = tuple(values.items()) if isinstance(values, Mapping) else (("*", values),)
    for pattern, kept in pairs:
        if type(pattern) is not str or len(pattern) > _MAX_PATTERN or kept not in ("all", "none"):
            advice = "pass 'all', 'none', or a dict from leaf paths to one of these"
            raise TapeError("usage", f"values={values!r}", advice=advice)
    if len(pairs) > _MAX_PATTERNS:
        advice = f"at most {_MAX_PATTERNS}"
        raise TapeError("usage", f"values has {len(pairs)} patterns", advice=advice)
    return pairs


def check_target(
    target: Any, method: str, via: Literal["hook", "method"], path: str | None = None
) -> None:
    """Checks that this method of this object can be recorded.

    Raises:
        TapeError: ``usage`` if it cannot.
    """
    name = type(target).__name__
    if isinstance(target, type):
        raise TapeError(
            "usage", f"{target.__name__} is a class", path=path,
            advice="pass the instance whose calls are to be recorded",
        )  # fmt: skip
    if via == "hook" and not isinstance(target, torch.nn.Module):
        raise TapeError(
            "usage", f"only modules have hooks, a {name} has none", path=path,
            advice='pass via="method" for other objects',
        )  # fmt: skip
    try:
        found = callable(getattr(target, method, None))
    except Exception:  # the host's own __getattr__
        found = False
    if not found:
        raise TapeError(
            "usage", f"a {name} has no method {method!r}", path=path,
            advice="name one of its methods",
        )  # fmt: skip
    if via == "method" and not _takes_attributes(target):
        raise TapeError(
            "usage", f"the methods of a {name} cannot be replaced: it has __slots__ or is built in",
            path=path, advice="record the object that calls it, or wrap it in a class of your own",
        )  # fmt: skip


def _takes_attributes(target: Any) -> bool:
    try:
        vars(target)
        weakref.ref(target)
    except TypeError:
        return False
    return True
