"""The public face: :class:`Recorder` and :func:`record`."""

from __future__ import annotations

import os
import threading
import time
import uuid
from types import TracebackType
from typing import Any, Literal

from typing_extensions import Self

from calltape_recorder import lifecycle
from calltape_recorder.attach import Attachment, ReplacedMethod
from calltape_recorder.buffers import Buffers
from calltape_recorder.compilers import may_be_inlined
from calltape_recorder.encoding import Encoder
from calltape_recorder.hooks import HookPair
from calltape_recorder.options import check_options, check_path, check_target
from calltape_recorder.stats import Ledger, State, Stats
from calltape_recorder.structures import Structure, Structures
from calltape_recorder.tap import Tap
from calltape_recorder.tape_writer import TapeWriter
from calltape_recorder.target import describe_producer, describe_target
from calltape_recorder.writer import Writer
from calltape_schema import TapeError
from calltape_schema.records import MINOR, VERSION, Coverage, Manifest, Policy, Target

__all__ = ["Recorder", "record"]

_MAX_CLASSES = 10_000


class Recorder:
    """Writes every call of one module to one tape, until it is closed.

    The host does not notice: whatever goes wrong after construction is counted in :meth:`stats`,
    said once through ``logging.getLogger("calltape")``, and swallowed.

    Args:
        path: the tape to create; missing directories are created.
        overwrite: replace a file that is there, instead of refusing.
        outputs: record what the model returns, not only what it is given.
        values: ``"all"`` keeps the bytes of every tensor; ``"none"`` keeps shapes, and the range
            of integer tensors of up to 1 MiB.
        max_calls: stop recording after that many calls.
        max_queue_bytes: bound of the memory that calls under way and waiting to be written may
            hold, in bytes. A call that does not fit is dropped, without being copied, and counted.
            Besides, idle buffers of up to a quarter of it are kept for the next calls.
        via: ``"hook"`` records what goes through ``module(...)``; ``"method"`` replaces the method
            on the instance, which also sees direct calls of it. Hooks are not told of a
            ``BaseException`` that is no ``Exception``, such as ``KeyboardInterrupt``: where it does
            not leave the ``with`` block, its type and message are unknown, and the tape has
            ``BaseException``.
        method: name of the method; any other than ``forward`` implies ``via="method"``.

    Attributes:
        path: the tape.
        classes: the classes met in calls, by ``module:qualname``, for readers in this process.

    Raises:
        TapeError: ``exists`` if the path is taken, ``io`` if it cannot be created, ``usage`` for
            options that do not exist or have the wrong type.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        outputs: bool = True,
        values: Literal["all", "none"] = "all",
        max_calls: int | None = None,
        max_queue_bytes: int = 256 * 1024 * 1024,
        via: Literal["hook", "method"] = "hook",
        method: str = "forward",
    ) -> None:
        self.path = check_path(path)
        check_options({
            "overwrite": overwrite, "outputs": outputs, "values": values, "max_calls": max_calls,
            "max_queue_bytes": max_queue_bytes, "via": via, "method": method,
        })  # fmt: skip
        self.classes: dict[str, type] = {}
        self._via: Literal["hook", "method"] = _way(via, method)
        self._method = method
        self._policy = Policy(
            outputs=outputs, values=values, max_calls=max_calls, max_queue_bytes=max_queue_bytes
        )
        self._tape_id = uuid.uuid4().bytes
        self._lock = threading.RLock()  # attach, detach and close; never held in a call
        self._state: State = "open"
        self._attachment: Attachment | None = None
        self._target: Target | None = None
        self._begun = False
        self._ledger = Ledger(max_queue_bytes, max_calls)
        buffers = Buffers(max_queue_bytes // 4)
        self._buffers = buffers
        self._tape = TapeWriter(self.path, overwrite)
        encoder = Encoder(self._tape_id, values == "all")
        settle = self._settle if self._via == "hook" else None
        self._writer = Writer(self._tape, encoder, self._ledger, buffers, settle)
        self._tap = Tap(
            self._ledger, Structures(self._met), buffers, self._writer,
            outputs=outputs, values=values == "all",
        )  # fmt: skip

    def attach(self, module: Any) -> Self:
        """Begins to record the calls of this module (with ``via="method"``: of any object).

        Raises:
            TapeError: ``closed`` after :meth:`close`, ``usage`` if something else is attached or
                the object has no such method, ``io`` if the tape cannot be written.
        """
        with self._lock:
            if self._state in ("closed", "forked"):
                raise TapeError(
                    "closed", "the recorder is closed", path=self.path,
                    advice="make a new Recorder with another path",
                )  # fmt: skip
            if self._attachment is not None:
                raise TapeError(
                    "usage", "a recorder records one module", path=self.path,
                    advice="use a second Recorder for the second module, or detach() first",
                )  # fmt: skip
            check_target(module, self._method, self._via, self.path)
            self._begin(describe_target(module, self._method, self._via))
            self._attachment = self._attached(module)
            self._state = "recording"
        return self

    def detach(self) -> None:
        """Stops seeing calls, and leaves the module as it was. The tape stays open."""
        with self._lock:
            if self._attachment is not None:
                self._attachment.detach()
                self._attachment.settle(None)
                self._attachment = None
            if self._state == "recording":
                self._state = "open"

    def flush(self, timeout: float | None = None) -> bool:
        """Returns when every call that has ended so far is in the file; False after ``timeout``
        seconds without that, or in a fork."""
        if self._state == "forked":
            return False
        self._settle()
        return self._writer.flush(timeout)

    def close(self) -> None:
        """Detaches, writes what is queued, and seals the tape. It may be called twice."""
        self._close(None)

    def stats(self) -> Stats:
        """The accounts at this moment."""
        return self._ledger.snapshot(self._tape.end, self._state)

    def abandon(self) -> None:
        """In a forked child: the tape is the parent's. No lock is taken: another thread of the
        parent may have held it at the fork."""
        self._tap.active = False
        self._state = "forked"
        self._lock = threading.RLock()
        self._ledger.renew_lock()
        self._tape.close()

    def _attached(self, module: Any) -> Attachment:
        try:
            if self._via == "method":
                return ReplacedMethod(module, self._method, self._tap)
            attachment = HookPair(module, self._tap)
        except Exception as error:
            raise TapeError(
                "usage", f"a {type(module).__name__} takes no recorder: {error}", path=self.path,
                advice="record an object that calls it",
            ) from error  # fmt: skip
        if may_be_inlined(module):
            self._writer.warn(
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

    def discard(self) -> None:
        """Closes, and removes the tape if no call was seen: :func:`record` failed."""
        self.close()
        if not self._ledger.seen:
            self._tape.remove()

    def _begin(self, target: Target | None) -> None:
        """Writes the manifest and starts the writer, once."""
        if self._begun:
            if target is not None and target != self._target:
                raise TapeError(
                    "usage", "a tape holds the calls of one class", path=self.path,
                    advice="use a second Recorder for this one",
                )  # fmt: skip
            return
        manifest = Manifest(
            format="calltape", version=VERSION, minor=MINOR, tape=self._tape_id,
            created_ns=time.time_ns(), producer=describe_producer(), target=target,
            policy=self._policy,
        )  # fmt: skip
        try:
            self._tape.begin(manifest)
        except OSError as error:
            raise TapeError("io", error.strerror or str(error), path=self.path) from None
        self._target = target
        self._begun = True
        self._writer.start()
        lifecycle.watch(self)

    def _close(self, error: BaseException | None) -> None:
        with self._lock:
            if self._state in ("closed", "forked"):
                return
            if self._attachment is not None:
                self._attachment.settle(error)
            self.detach()
            self._tap.active = False
            try:
                self._begin(None)
                self._writer.stop()
                self._ledger.drop_rest("unfinished")
                stats = self.stats()
                coverage = Coverage(seen=stats.seen, kept=stats.kept, dropped=stats.dropped)
                self._tape.seal(self._tape_id, coverage)
            except Exception as trouble:
                # The tape stays readable without its trailer.
                self._writer.complain(f"the tape {self.path} cannot be sealed", trouble)
            finally:
                self._state = "closed"
                self._tape.close()
                self._buffers.clear()
                lifecycle.forget(self)

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
    model: Any,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    outputs: bool = True,
    values: Literal["all", "none"] = "all",
    max_calls: int | None = None,
    max_queue_bytes: int = 256 * 1024 * 1024,
    via: Literal["hook", "method"] = "hook",
    method: str = "forward",
) -> Recorder:
    """A :class:`Recorder` attached to ``model``; use it in a ``with`` statement, which seals it.

    Raises:
        TapeError: as :class:`Recorder` and :meth:`Recorder.attach`.
    """
    options: dict[str, Any] = {
        "overwrite": overwrite, "outputs": outputs, "values": values, "max_calls": max_calls,
        "max_queue_bytes": max_queue_bytes, "via": via, "method": method,
    }  # fmt: skip
    # All of it before a file is created, or with overwrite=True destroyed.
    text = check_path(path)
    check_options(options)
    check_target(model, method, _way(via, method), text)
    recorder = Recorder(text, **options)
    try:
        return recorder.attach(model)
    except BaseException:
        recorder.discard()
        raise


def _way(via: Literal["hook", "method"], method: str) -> Literal["hook", "method"]:
    return via if method == "forward" else "method"
