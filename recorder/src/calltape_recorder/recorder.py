"""The public face: :class:`Recorder` and :func:`record`."""

from __future__ import annotations

import os
import threading
import time
import uuid
from types import TracebackType
from typing import Any, Literal

import torch
from typing_extensions import Self

from calltape_recorder import lifecycle
from calltape_recorder.attach import Attachment, HookPair, ReplacedMethod
from calltape_recorder.buffers import Buffers
from calltape_recorder.encoding import Encoder
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
        via: ``"hook"`` records what goes through ``module(...)``; ``"method"`` replaces the method
            on the instance, which also sees direct calls of it.
        method: name of the method; any other than ``forward`` implies ``via="method"``.

    Attributes:
        path: the tape.
        classes: the classes met in calls, by ``module:qualname``, for readers in this process.

    Raises:
        TapeError: ``exists`` if the path is taken, ``io`` if it cannot be created, ``usage`` for
            options that do not exist.
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
        _check(values, via, max_calls, max_queue_bytes)
        self.path = os.fspath(path)
        self.classes: dict[str, type] = {}
        self._via: Literal["hook", "method"] = via if method == "forward" else "method"
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
        self._writer = Writer(self._tape, encoder, self._ledger, buffers)
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
                raise TapeError("closed", "the recorder is closed", path=self.path)
            if self._attachment is not None:
                raise TapeError("usage", "a recorder records one module", path=self.path)
            if not callable(getattr(module, self._method, None)):
                kind = type(module).__name__
                raise TapeError("usage", f"a {kind} has no method {self._method!r}")
            if self._via == "hook" and not isinstance(module, torch.nn.Module):
                raise TapeError(
                    "usage", "only modules have hooks", advice='pass via="method" for other objects'
                )
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
        if self._attachment is not None:
            self._attachment.settle(None)
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
        if self._via == "hook":
            return HookPair(module, self._tap)
        return ReplacedMethod(module, self._method, self._tap)

    def _begin(self, target: Target | None) -> None:
        """Writes the manifest and starts the writer, once."""
        if self._begun:
            if target is not None and target != self._target:
                raise TapeError("usage", "a tape holds the calls of one class", path=self.path)
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
    recorder = Recorder(
        path, overwrite=overwrite, outputs=outputs, values=values, max_calls=max_calls,
        max_queue_bytes=max_queue_bytes, via=via, method=method,
    )  # fmt: skip
    try:
        return recorder.attach(model)
    except BaseException:
        recorder.close()
        raise


def _check(values: str, via: str, max_calls: int | None, max_queue_bytes: int) -> None:
    if values not in ("all", "none"):
        raise TapeError("usage", f"values={values!r}", advice="pass 'all' or 'none'")
    if via not in ("hook", "method"):
        raise TapeError("usage", f"via={via!r}", advice="pass 'hook' or 'method'")
    if (max_calls is not None and max_calls < 0) or max_queue_bytes < 0:
        raise TapeError("usage", "a negative bound", advice="pass 0 or more")
