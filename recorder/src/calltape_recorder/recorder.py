"""The public face: :class:`Recorder` and :func:`record`."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from dataclasses import replace
from types import TracebackType
from typing import Any

from typing_extensions import Self, Unpack

from calltape_recorder import lifecycle
from calltape_recorder.attach import Attachment, ReplacedMethod
from calltape_recorder.compilers import may_be_inlined
from calltape_recorder.control import ControlFile
from calltape_recorder.hooks import HookPair
from calltape_recorder.options import Options, check_options, check_path, check_target
from calltape_recorder.patience import Patient
from calltape_recorder.pipeline import Pipeline, child_path, free_path
from calltape_recorder.policies import Rate
from calltape_recorder.stats import State, Stats
from calltape_recorder.structures import Structure
from calltape_recorder.tap import Tap
from calltape_recorder.target import describe_target
from calltape_schema import TapeError
from calltape_schema.records import Observed, Target

__all__ = ["Recorder", "record"]

log = logging.getLogger("calltape")

_MAX_CLASSES = 10_000
_FOUND = "when the target was found"


class Recorder:
    """Writes the calls of one module to a tape, until it is closed.

    The host does not notice: whatever goes wrong after construction is counted in :meth:`stats`,
    said once through ``logging.getLogger("calltape")``, and swallowed. In a forked child it goes on
    with the first call there, in a file of its own: ``<name>-p<pid>.tape``.

    Args:
        path: the tape to create, for its owner alone (``file_mode``); missing directories are
            created likewise. For a directory (one that is there, or a path that ends in ``/``) a
            new one in it.
        options: see :class:`calltape_recorder.Options`.

    Attributes:
        path: the (first) file of this process.
        classes: the classes met in calls, by ``module:qualname``, for readers in this process.

    Raises:
        TapeError: ``exists`` if the path is taken, ``io`` if it cannot be created, ``usage`` for
            options of the wrong type.
    """

    def __init__(self, path: str | os.PathLike[str], **options: Unpack[Options]) -> None:
        self._choices = choices = check_options(options)
        self.classes: dict[str, type] = {}
        self._lock = threading.RLock()  # attach, detach and close; never held in a call
        self._state: State = "open"
        self._is_closing = False
        self._attachment: Attachment | None = None
        self._target: Target | None = None
        self._control = None if choices.control is None else ControlFile(choices.control)
        # What was asked for holds in a forked child as well, from its first call.
        self._paused = False
        self._rate: float | None = None
        self._states = threading.RLock()  # of these two, held for a few assignments
        self.path = _file_in(check_path(path), "tape")
        pipeline = self._pipeline_at(self.path, choices.overwrite)
        self._tap = Tap(pipeline, self._renew, outputs=choices.settings.outputs)
        lifecycle.know(self)

    def attach(self, module: Any, *, running: bool = False) -> Self:
        """Begins to record the calls of this module (with ``via="method"``: of any object).

        Args:
            module: what is recorded.
            running: whether it may have been called before. Of such calls nobody knows: the tape
                says since when calls were seen, and so does its coverage.

        Raises:
            TapeError: ``closed`` after :meth:`close`, ``usage`` if something else is attached or
                the object has no such method, ``io`` if the tape cannot be written.
        """
        via, method = self._choices.via, self._choices.method
        with self._lock:
            pipeline = self._tap.pipeline
            if pipeline is None and self._state == "forked":
                pipeline = self._pipeline_of_child()
                self._enter(pipeline)
            if self._state == "closed" or pipeline is None or not self._tap.active:
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
            target = describe_target(module, method, via, withholds=pipeline.withholds)
            observed = Observed(since_ns=time.time_ns(), reason=_FOUND) if running else None
            self._begin(pipeline, target, observed)
            self._attachment = self._attached(module, pipeline)
            self._state = "recording"
        return self

    def detach(self) -> None:
        """Stops seeing calls, and leaves the module as it was. The tape stays open."""
        with self._lock:
            if self._attachment is not None:
                self._attachment.settle(None)
                self._attachment.detach()
                self._attachment = None
            if self._state == "recording":
                self._state = "open"

    def flush(self, timeout: float | None = None) -> bool:
        """Returns when every call that has ended so far is in the file; False after ``timeout``
        seconds without that. Calls that a flight recorder holds are not waited for."""
        pipeline = self._tap.pipeline
        if pipeline is None:
            return False
        self._settle()
        return pipeline.writer.flush(timeout)

    def close(self) -> None:
        """Detaches, writes what is queued, and seals the tape. It may be called twice."""
        self._close(None)

    def stats(self) -> Stats:
        """The accounts of this process at this moment."""
        pipeline = self._tap.pipeline
        if pipeline is None:
            found = Stats(0, 0, paused=self._paused, state="forked")
        else:
            segments = pipeline.segments
            found = pipeline.ledger.snapshot(segments.written_bytes, segments.count, self._state)
        control = None if self._control is None else self._control.trouble
        return found if control is None else replace(found, control=control)

    def pause(self) -> None:
        """Only counts calls from now on."""
        self._pause(True)

    def resume(self) -> None:
        """Records again after :meth:`pause`."""
        self._pause(False)

    def _pause(self, paused: bool) -> None:
        with Patient(self._states):
            self._paused = paused
            if self._tap.pipeline is not None:
                self._tap.pipeline.ledger.pause(paused)

    def set_rate(self, fraction: float | None) -> None:
        """Keeps only this share of the calls that would be kept; None takes that back.

        Raises:
            TapeError: ``usage`` for anything but 0 to 1.
        """
        if fraction is not None:
            Rate(fraction)  # checks it
        with Patient(self._states):
            self._rate = fraction
            if self._tap.pipeline is not None:
                self._tap.pipeline.set_rate(fraction)

    def seal(self, timeout: float | None = None) -> bool:
        """Completes the current file with its trailer, and goes on in the next one; False where
        that is not done after ``timeout`` seconds."""
        pipeline = self._tap.pipeline
        if pipeline is None or not pipeline.begun:
            return False
        self._settle()
        return pipeline.writer.ask(pipeline.segments.roll, timeout)

    def dump(self, reason: str) -> int:
        """Writes the calls that the flight recorder holds; the trailer says when and why.

        Args:
            reason: for people.

        Returns:
            How many calls were handed to the writer; 0 without a flight recorder.
        """
        pipeline = self._tap.pipeline
        if pipeline is None or pipeline.flight is None:
            return 0
        return pipeline.flight.dump(str(reason))

    def dying(self, error: BaseException) -> None:
        """An exception ends the process."""
        self.dump(f"the process died of {type(error).__name__}")

    def abandon(self) -> None:
        """In a forked child: what there is, is the parent's. No lock is taken: another thread of
        the parent may have held it at the fork."""
        pipeline = self._tap.pipeline
        self._tap.lead_to(None)
        self._lock, self._states = threading.RLock(), threading.RLock()
        if pipeline is not None:
            pipeline.abandon()
        if self._state != "closed":
            self._state = "forked"

    def _pipeline_at(self, path: str, overwrite: bool) -> Pipeline:
        settle = self._settle if self._choices.via == "hook" else None
        settings = self._choices.settings
        return Pipeline(settings, path, overwrite, self._met, settle, self._look)

    def _renew(self) -> Pipeline | None:
        """In a forked child, at its first call: a tape of its own; None where there can be none."""
        with self._lock:
            if self._tap.pipeline is None and self._state == "forked":
                try:
                    pipeline = self._pipeline_of_child()
                    self._begin(pipeline, self._target)
                    self._enter(pipeline)
                    self._state = "recording"
                except Exception as error:
                    self._tap.close()
                    with contextlib.suppress(Exception):  # a handler of the host's that raises
                        log.warning("nothing is recorded in a forked process: %s", error)
            return self._tap.pipeline

    def _enter(self, pipeline: Pipeline) -> None:
        """Calls go there from now on, on the terms that hold."""
        with Patient(self._states):
            pipeline.ledger.pause(self._paused)
            pipeline.set_rate(self._rate)
            self._tap.lead_to(pipeline)

    def _pipeline_of_child(self) -> Pipeline:
        # A file that is there is left by a process that had this number before.
        pipeline = self._pipeline_at(child_path(self.path), overwrite=False)
        self.path = pipeline.segments.first_path
        if self._control is not None:
            self._control = self._control.renewed()
        return pipeline

    def _attached(self, module: Any, pipeline: Pipeline) -> Attachment:
        try:
            if self._choices.via == "method":
                return ReplacedMethod(module, self._choices.method, self._tap)
            attachment = HookPair(module, self._tap)
        except Exception as error:
            raise TapeError(
                "usage", f"a {type(module).__name__} takes no recorder: {error}", path=self.path,
                advice='pass via="method", or record a module around it',
            ) from None  # fmt: skip
        if may_be_inlined(module):
            pipeline.writer.warn(
                "graphs were compiled before attach(): where one contains the recorded module, its"
                " calls in there are not seen. Attach before the first compiled call, or pass"
                ' via="method"'
            )
        return attachment

    def _settle(self) -> None:
        """Hands over calls that ended unnoticed."""
        attachment = self._attachment
        if attachment is not None:
            attachment.settle(None)

    def _look(self) -> None:
        """About once a second, in the writer's thread; first of all before there is one."""
        if self._control is not None:
            self._control.poll(self)

    def discard(self) -> None:
        """Closes, and removes the tape if no call was seen: :func:`record` failed."""
        self.close()
        pipeline = self._tap.pipeline
        if pipeline is not None and not pipeline.ledger.seen:
            pipeline.segments.remove()

    def _begin(
        self, pipeline: Pipeline, target: Target | None, observed: Observed | None = None
    ) -> None:
        """Writes the manifest and starts the writer, once."""
        if pipeline.begun:
            if target is not None and target != self._target:
                raise TapeError(
                    "usage", "a tape holds the calls of one class", path=self.path,
                    advice="use a second Recorder for this one",
                )  # fmt: skip
            return
        self._look()  # it may say that nothing is to be recorded
        try:
            pipeline.begin(target, observed)
        except OSError as error:
            raise TapeError("io", error.strerror or str(error), path=self.path) from None
        self._target = target
        lifecycle.watch(self)
        if pipeline.flight is not None:
            lifecycle.watch_exceptions()

    def _close(self, error: BaseException | None) -> None:
        with self._lock:
            if self._state == "closed" or self._is_closing:  # a signal handler closes it, too
                return
            self._is_closing = True
            try:
                self._finish(error)
                self._state = "closed"
                lifecycle.forget(self)
            finally:  # interrupted, it can be closed again
                self._is_closing = False

    def _finish(self, error: BaseException | None) -> None:
        if self._attachment is not None:
            self._attachment.settle(error)
        self.detach()
        self._tap.close()
        pipeline = self._tap.pipeline
        if pipeline is None:
            return
        try:
            self._begin(pipeline, None)
            if error is not None:
                self.dying(error)
        except Exception as trouble:
            pipeline.writer.complain(f"the tape {self.path} cannot be sealed", trouble)
        pipeline.close()

    def _met(self, structure: Structure) -> None:
        if len(self.classes) < _MAX_CLASSES:
            self.classes.update(structure.classes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close(error)

    def __repr__(self) -> str:
        return f"<Recorder {self.path!r} {self._state}>"


def record(
    model: Any, path: str | os.PathLike[str], *, running: bool = False, **options: Unpack[Options]
) -> Recorder:
    """A :class:`Recorder` attached to ``model``; use it in a ``with`` statement, which seals it.

    Args:
        model: see :meth:`Recorder.attach`.
        path: see :class:`Recorder`.
        running: whether the model may have been called before; see :meth:`Recorder.attach`.
        options: see :class:`calltape_recorder.Options`.

    Raises:
        TapeError: as :class:`Recorder` and :meth:`Recorder.attach`.
    """
    # All of it before a file is created, or with overwrite=True destroyed.
    text = check_path(path)
    choices = check_options(options)
    check_target(model, choices.method, choices.via, text)
    recorder = Recorder(_file_in(text, type(model).__name__), **options)
    try:
        return recorder.attach(model, running=running)
    except BaseException:
        recorder.discard()
        raise


def _file_in(path: str, name: str) -> str:
    """The first file: the path itself, or one in it where it is a directory."""
    if path.endswith(("/", os.sep)) or os.path.isdir(path):
        return free_path(os.path.join(path, f"{name}-{os.getpid()}"))
    return path
