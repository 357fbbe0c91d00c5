"""The public API: :class:`Recorder` and :func:`record`.

Takes a module and options, and writes a tape of its calls.
"""

from __future__ import annotations

import logging
import os
import re
from dataclasses import replace
from types import ModuleType
from typing import Any

from typing_extensions import Self, Unpack

from calltape_recorder.bounds import MAX_CLASSES
from calltape_recorder.capture.names import ModuleNames
from calltape_recorder.capture.structures import Structure
from calltape_recorder.control import ControlFile
from calltape_recorder.handler import CallHandler
from calltape_recorder.host import lifecycle
from calltape_recorder.host.blind_spots import blind_spots
from calltape_recorder.host.hooks import HookPair
from calltape_recorder.host.listener import Attachment
from calltape_recorder.host.method import ReplacedMethod
from calltape_recorder.host.target import (
    check_target,
    describe_target,
    original_of,
    owner_of,
)
from calltape_recorder.keep.ledger import State, Stats
from calltape_recorder.keep.policies import Rate
from calltape_recorder.options import Keywords, absolute_path, check_options
from calltape_recorder.recording import Recording
from calltape_recorder.threads import RLock, value_of
from calltape_recorder.write.disk_file import free_path
from calltape_recorder.write.notices import say, say_deferred
from calltape_schema import TapeError
from calltape_schema.empty_tapes import why_empty
from calltape_schema.fields import now_ns
from calltape_schema.objects import name_of
from calltape_schema.records import Observed, Target

FOUND = "when the target was found"
_NO_NAME = re.compile(r"[^\w.-]+")


class _Settings:
    """What the user or a control file has set. It also applies in a forked child, from its first
    call on.

    Attributes:
        paused: whether calls are only counted.
        rate: the share of the calls that is kept; None for all.
        lock: guards both; it is held for a few assignments.
    """

    def __init__(self, paused: bool = False, rate: float | None = None) -> None:
        self.paused = paused
        self.rate = rate
        self.lock = RLock()


class Recorder:
    """Writes the calls of one module to a tape, until it is closed.

    The application does not notice it. If something goes wrong after construction, the recorder
    counts it in :meth:`stats`, logs it once through ``logging.getLogger("calltape")``, and never
    raises it. In a forked child, recording continues with the first call, in a file of its own:
    ``<name>-p<pid>.tape``.

    Args:
        path: the tape to create. Only its owner can read it (see ``file_mode``). Missing
            directories are created with the same restriction. If the path is a directory (it
            exists, or the path ends with ``/``), the recorder creates a new tape in it.
        options: see :class:`calltape_recorder.Options`.

    Attributes:
        path: the first file of this process.
        classes: the classes that occurred in calls, by ``module:qualname``, for readers in this
            process.

    Raises:
        TapeError: ``exists`` if the path is taken, ``io`` if it cannot be created, ``usage`` for
            options of the wrong type.
    """

    def __init__(self, path: str | os.PathLike[str], **options: Unpack[Keywords]) -> None:
        self._options = chosen = check_options(options)
        self.classes: dict[str, type] = {}
        self._lock = RLock()  # for attach, detach and close; a call never takes it
        self._state: State = "open"
        self._is_closing = False
        self._attachment: Attachment | None = None
        self._copies = 0  # of what was attached earlier
        self._forks: int | None = None  # of this process, before a module was attached
        self._target: Target | None = None
        self._names = ModuleNames()
        self._control = None if chosen.control is None else ControlFile(chosen.control)
        self._settings = _Settings()
        self.path = _file_in(absolute_path(path), "tape")
        recording = self._recording_at(self.path, chosen.overwrite)
        self._handler = CallHandler(recording, self._renew, outputs=chosen.outputs)
        lifecycle.register(self)

    def attach(self, module: Any, *, running: bool = False) -> Self:
        """Starts recording the calls of this module (with ``via="method"``: of any object).

        Args:
            module: the module or object to record.
            running: whether it may have been called before. The recorder did not see such calls, so
                the tape and its coverage say since when it saw them.

        Raises:
            TapeError: ``closed`` after :meth:`close`, ``usage`` if something else is attached or
                the object has no such method, ``io`` if the tape cannot be written.
        """
        via, method = self._options.via, self._options.method
        with self._lock:
            recording = self._handler.recording
            if recording is None and self._state == "forked":
                recording = self._recording_of_child()
                self._enter(recording)
            if self._state == "closed" or recording is None or not self._handler.active:
                raise TapeError(
                    "closed", "the recorder is closed", path=self.path,
                    advice="make a new Recorder with another path",
                )  # fmt: skip
            if self._attachment is not None:
                raise TapeError(
                    "usage", "a recorder records one module", path=self.path,
                    advice="use a second Recorder for the second module, or detach() first",
                )  # fmt: skip
            check_target(module, method, via, self.path)
            target = describe_target(module, method, via, omits_values=recording.omits_values)
            observed = Observed(since_ns=now_ns(), reason=FOUND) if running else None
            self._begin(recording, target, observed)
            self._names.set_root(module)
            self._attachment = self._attachment_to(module)
            for warning in blind_spots(module, via):
                recording.notices.warn(warning)
            if self._forks is None:
                self._forks = lifecycle.fork_count()
            self._state = "recording"
        return self

    def detach(self) -> None:
        """Stops recording, and leaves the module as it was. The tape stays open."""
        with self._lock:
            attachment = self._attachment
            if attachment is not None:
                attachment.hand_over_ended(None)
                self._check_attachment()
                self._copies += value_of(attachment.copies)
                self._attachment = None  # first, because this is no trouble
                attachment.detach()
            if self._state == "recording":
                self._state = "open"

    def flush(self, timeout: float | None = None) -> bool:
        """Waits until every call that has ended is in the file. Returns False if that takes longer
        than ``timeout`` seconds. Does not wait for calls that a flight recorder holds."""
        recording = self._handler.recording
        if recording is None:
            return False
        self._hand_over_ended()
        is_done = recording.writer.flush(timeout)
        say_deferred()
        return is_done

    def close(self) -> None:
        """Detaches, writes what is queued, and seals the tape. It can be called more than once."""
        self._close(None)

    def stats(self) -> Stats:
        """The counts of this process at this moment."""
        recording = self._handler.recording
        if recording is None:
            stats = Stats(0, 0, paused=self._settings.paused, state="forked")
        else:
            stats = recording.stats(self._state)
        attachment = self._attachment
        copies = self._copies + (0 if attachment is None else value_of(attachment.copies))
        control = None if self._control is None else self._control.trouble
        say_deferred()
        return replace(stats, control=control, copies=copies)

    def pause(self) -> None:
        """Only counts calls from now on."""
        self._pause(True)

    def resume(self) -> None:
        """Resumes recording after :meth:`pause`."""
        self._pause(False)

    def _pause(self, paused: bool) -> None:
        with self._settings.lock:
            self._settings.paused = paused
            if self._handler.recording is not None:
                self._handler.recording.ledger.pause(paused)

    def set_rate(self, fraction: float | None) -> None:
        """Keeps only this share of the calls that would otherwise be kept. None removes the limit.

        Raises:
            TapeError: ``usage`` if the share is not a number from 0 to 1.
        """
        if fraction is not None:
            Rate(fraction)  # checks it
        with self._settings.lock:
            self._settings.rate = fraction
            if self._handler.recording is not None:
                self._handler.recording.set_rate(fraction)

    def seal(self, timeout: float | None = None) -> bool:
        """Completes the current file with its end, and continues in the next one. Returns False if
        that takes longer than ``timeout`` seconds, or if no file has been started."""
        recording = self._handler.recording
        if recording is None or not recording.begun:
            return False
        self._hand_over_ended()
        return recording.writer.ask(recording.segments.roll, timeout)

    def dump(self, reason: str) -> int:
        """Writes the calls that the flight recorder holds. The end of the file says when and why.

        Args:
            reason: a text for people.

        Returns:
            How many calls were handed to the writer; 0 without a flight recorder.
        """
        recording = self._handler.recording
        if recording is None or recording.flight_calls is None:
            return 0
        return recording.flight_calls.dump(str(reason))

    def dying(self, error: BaseException) -> None:
        """Dumps the calls that the flight recorder holds, because an exception ends the process."""
        self.dump(f"the process died of {name_of(type(error))}")

    def abandon(self) -> None:
        """Lets go of all files in a forked child, because they belong to the parent. It takes no
        lock, because another thread of the parent may have held that lock at the fork."""
        recording = self._handler.recording
        self._handler.set_recording(None)
        self._lock = RLock()
        self._settings = _Settings(self._settings.paused, self._settings.rate)
        if recording is not None:
            recording.abandon()
        if self._state != "closed":
            self._state = "forked"

    def _recording_at(self, path: str, overwrite: bool) -> Recording:
        return Recording(
            self._options,
            path,
            overwrite,
            self._names,
            self._note_classes,
            self._each_second,
            self._settings,
        )

    def _renew(self) -> Recording | None:
        """Makes a tape for a forked child, at its first call. None if it cannot be made."""
        trouble = None
        with self._lock:
            if self._handler.recording is None and self._state == "forked":
                try:
                    recording = self._recording_of_child()
                    self._begin(recording, self._target)
                    self._enter(recording)
                    self._state = "recording"
                except Exception as error:
                    self._handler.close()
                    trouble = error
            current = self._handler.recording
        if trouble is not None:  # logged without the lock, for which first calls of threads wait
            say(logging.WARNING, f"nothing is recorded in a forked process: {trouble}")
        return current

    def _enter(self, recording: Recording) -> None:
        """Sends calls to this recording from now on, with the pause and the rate that hold."""
        with self._settings.lock:
            recording.ledger.pause(self._settings.paused)
            recording.set_rate(self._settings.rate)
            self._handler.set_recording(recording)

    def _recording_of_child(self) -> Recording:
        # If a file of that name exists, an earlier process had the same number, and it stays.
        path = free_path(f"{self.path.removesuffix('.tape')}-p{os.getpid()}")
        recording = self._recording_at(path, overwrite=False)
        self.path = recording.segments.first_path
        if self._control is not None:
            self._control = self._control.renewed()
        return recording

    def _attachment_to(self, module: Any) -> Attachment:
        if self._options.via == "method":
            return ReplacedMethod(module, self._options.method, self._handler)
        try:
            return HookPair(module, self._handler)
        except Exception as error:
            reason = f"cannot attach a recorder to a {type(module).__name__}: {error}"
            advice = 'pass via="method", or record a module around it'
            raise TapeError("usage", reason, path=self.path, advice=advice) from None

    def _check_attachment(self) -> None:
        """Warns if the hooks or the replaced method were removed."""
        attachment, recording = self._attachment, self._handler.recording
        if attachment is None or recording is None:
            return
        trouble = attachment.trouble()
        # This thread may be the writer's, and another one may just have detached.
        if trouble is not None and self._attachment is attachment:
            recording.notices.warn(trouble)

    def _hand_over_ended(self, error: BaseException | None = None) -> None:
        """Hands over calls whose end was not seen, as far as this thread can know."""
        attachment = self._attachment
        if attachment is not None:
            attachment.hand_over_ended(error)

    def _each_second(self) -> None:
        """Is called about once a second by the writer's thread, and once before that starts."""
        # Calls of threads that ended would hold memory until the recorder is closed.
        self._hand_over_ended()
        if self._control is not None:
            self._control.poll(self)
        self._check_attachment()
        recording = self._handler.recording
        if recording is not None and recording.ledger.seen and not self.stats().queued:
            self._say_if_empty(recording)

    def discard(self) -> None:
        """Closes, and removes the tape if no call was seen. :func:`record` calls this if it
        fails."""
        self.close()
        recording = self._handler.recording
        if recording is not None and not recording.ledger.seen:
            recording.segments.remove()

    def _begin(
        self, recording: Recording, target: Target | None, observed: Observed | None = None
    ) -> None:
        """Writes the manifest and starts the writer, once."""
        if recording.begun:
            if target is not None and target != self._target:
                raise TapeError(
                    "usage", "a tape holds the calls of one class", path=self.path,
                    advice="use a second Recorder for this one",
                )  # fmt: skip
            return
        self._each_second()  # the control file may ask for a pause from the first call on
        try:
            recording.begin(target, observed)
        except OSError as error:
            raise TapeError("io", error.strerror or str(error), path=self.path) from None
        self._target = target
        lifecycle.watch(self)
        if recording.flight_calls is not None:
            lifecycle.watch_exceptions()

    def _close(self, error: BaseException | None) -> None:
        with self._lock:
            # A signal handler may close it while this thread does.
            if self._state == "closed" or self._is_closing:
                return
            self._is_closing = True
            try:
                self._finish(error)
                self._state = "closed"
                lifecycle.unwatch(self)
            finally:  # if an interrupt ended this, it can be closed again
                self._is_closing = False

    def _finish(self, error: BaseException | None) -> None:
        self._hand_over_ended(error)
        self.detach()
        self._handler.close()
        recording = self._handler.recording
        if recording is None:
            return
        try:
            self._begin(recording, None)
            if error is not None:
                self.dying(error)
        except Exception as trouble:
            recording.notices.complain(f"the tape {self.path} cannot be sealed", trouble)
        recording.close()
        say_deferred()
        self._say_if_empty(recording)

    def _say_if_empty(self, recording: Recording) -> None:
        """Warns if no call is on the tape although some should be."""
        stats = self.stats()
        if stats.target is None or self._forks is None:
            return  # nothing was attached
        if not stats.seen and lifecycle.fork_count() > self._forks:
            return  # the calls may be on the tapes of other processes
        says = why_empty(stats.target, self._options.via, stats.seen, stats.kept, stats.dropped)
        # What else loses calls was said when it happened.
        if says is not None and (not stats.seen or recording.notices.last_error is None):
            copies = f". The application made {stats.copies} copies of it" if stats.copies else ""
            recording.notices.warn(says + copies)

    def _note_classes(self, structure: Structure) -> None:
        if len(self.classes) < MAX_CLASSES:
            self.classes.update(structure.classes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._close(error)

    def __repr__(self) -> str:
        return f"<Recorder {self.path!r} {self._state}>"


def record(
    model: Any, path: str | os.PathLike[str], *, running: bool = False, **options: Unpack[Keywords]
) -> Recorder:
    """Attaches a new :class:`Recorder` to ``model``. At its end, a ``with`` statement seals the
    tape.

    Args:
        model: what to record, as for :meth:`Recorder.attach`. It can also be a function of a Python
            module, a bound method, or a name such as ``"package.module:function"``, which is
            imported. Calls of a function are seen if the caller looks it up in its module
            (``module.function(x)``), but not if the caller imported the function by name before.
        path: see :class:`Recorder`.
        running: whether the model may have been called before; see :meth:`Recorder.attach`.
        options: see :class:`calltape_recorder.Options`.

    Raises:
        TapeError: as :class:`Recorder` and :meth:`Recorder.attach`.
    """
    # All is checked before a file is created, or destroyed with overwrite=True.
    text = absolute_path(path)
    if "method" not in options or isinstance(model, str):
        model, method = owner_of(model, text)
        if method is not None:
            options["method"] = method
    chosen = check_options(options)
    check_target(model, chosen.method, chosen.via, text)
    # The tape is called after the function of a module, or after the class of the model.
    is_function = isinstance(model, ModuleType)
    name = chosen.method if is_function else name_of(type(original_of(model)))
    tried = text
    while True:
        free = _file_in(text, name)
        try:
            recorder = Recorder(free, **options)
            break
        except TapeError as error:  # another thread took the name, and the next one is another
            if error.kind != "exists" or free == tried:
                raise
            tried = free
    try:
        return recorder.attach(model, running=running)
    except BaseException:
        recorder.discard()
        raise


def _file_in(path: str, name: str) -> str:
    """The path of the first file: the path itself, or a new file in it if it is a directory. The
    name of a class that code created may be any text, such as a path or the name of a hidden
    file."""
    if path.endswith(("/", os.sep)) or os.path.isdir(path):
        name = _NO_NAME.sub("_", name)[:100].lstrip(".-") or "model"
        return free_path(os.path.join(path, f"{name}-{os.getpid()}"))
    return path
