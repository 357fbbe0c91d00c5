"""Tapes that somebody compressed: ``.tape.gz`` and ``.tape.zst``.

If the name of a file ends like that and its first bytes are those of gzip or Zstandard, the bytes
of the tape are written to a temporary file without a name, and its descriptor is returned. A
compressed file of another name is no tape, as FORMAT.md has it.
"""

from __future__ import annotations

import gzip
import io
import os
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import IO, Any

from calltape_analyzer.errors import to_install
from calltape_analyzer.limits import advice_to_allow, limits
from calltape_schema.errors import TapeError

__all__ = [
    "COMPRESSIONS",
    "SUFFIXES",
    "close_unpacked",
    "compressed_since",
    "is_compressed",
    "most_unpacked",
    "remainders_taken",
    "unpacked",
    "zstd_module",
]

COMPRESSIONS = (".zst", ".gz")
"""What is added to the name of a tape when it is compressed."""

SUFFIXES = (".tape", *(f".tape{added}" for added in COMPRESSIONS))
"""How the names of tapes end."""

LEAST_BYTES, TIMES_FILE = 2**28, 64
_STEP = 1024 * 1024
_COPY_AGAIN = "copy the file again from where it came"
_TAKE_REST = f"{_COPY_AGAIN}, or take what is left with `calltape recover`"

_takes_remainders: ContextVar[bool] = ContextVar("takes_remainders", default=False)


def compressed_since(path: str) -> str | None:
    """The file in which the tape of this path is now: who keeps files compresses those that are
    complete, and removes the plain ones."""
    paths = (f"{path}{added}" for added in COMPRESSIONS)
    return next((name for name in paths if os.path.isfile(name)), None)


def is_compressed(name: str) -> bool:
    """Whether a file is a compressed tape by its name."""
    return name.endswith(SUFFIXES[1:])


@contextmanager
def remainders_taken() -> Iterator[None]:
    """Within the ``with`` block, what can be decompressed of a broken file is a tape: one that was
    cut off. It holds in this context (thread or task) only."""
    token = _takes_remainders.set(True)
    try:
        yield
    finally:
        _takes_remainders.reset(token)


def most_unpacked(size: int) -> int:
    """How many bytes a compressed file of this size may become, if no other limit applies."""
    return max(LEAST_BYTES, TIMES_FILE * size)


def unpacked(
    packed: io.BufferedReader[Any], path: str, received: Callable[[], int], *, plain: bool = False
) -> int | None:
    """The bytes of a compressed tape in a temporary file, which is gone when it is closed.

    Args:
        packed: the file, at its beginning.
        path: errors show it like this.
        received: how many bytes of the compressed file are surely there.
        plain: whether it is not compressed, and is copied as it is.

    Returns:
        A descriptor, which :func:`close_unpacked` closes; None if its first bytes are of no
        compression.

    Raises:
        TapeError: ``damaged`` if it breaks the form of its compression, but within
            :func:`remainders_taken`; ``limit`` if it becomes larger than 256 MiB and 64 times the
            file (what is stored of it, if it is plain), or all that are open together do, or than
            ``Limits.nbytes``; ``usage`` if Zstandard is not installed; ``io``.
        OSError: it cannot be read, or the temporary file not written.
    """
    first = packed.peek(4)
    opener = (lambda file: file) if plain else _OPENERS.get(first[:4]) or _OPENERS.get(first[:2])
    if opener is None:
        return None
    share = _Share(received, plain=plain)
    try:
        temporary = tempfile.TemporaryFile(prefix="calltape-", buffering=0)  # noqa: SIM115
    except OSError as error:
        reason = f"no temporary file can be made: {error.strerror or error}"
        advice = "set TMPDIR to a directory that can be written"
        raise TapeError("io", reason, path=path, advice=advice) from None
    with temporary as copy:
        try:
            with opener(packed) as source:
                _copy(source, copy, share)
        except TapeError as error:
            raise error.at(path=path) from None
        except Exception as error:
            # gzip raises errors of the system that have no number
            is_of_gzip = isinstance(error, OSError) and error.errno is None
            if isinstance(error, EOFError):
                reason = "the compressed file ends too early"
            elif is_of_gzip or isinstance(error, zlib.error) or type(error).__name__ == "ZstdError":
                reason = f"it cannot be decompressed: {error}"
            else:
                raise
            takes = _takes_remainders.get()
            if not (takes and copy.tell()):
                advice = _COPY_AGAIN if takes else _TAKE_REST
                raise TapeError("damaged", reason, path=path, advice=advice) from None
        descriptor = os.dup(copy.fileno())
        with _sharing:
            _shares[descriptor] = share.packed, share.taken
        return descriptor


_sharing = threading.Lock()
_shares: dict[int, tuple[int, int]] = {}
"""The bytes of each compressed file that is open, and of its temporary one, by the descriptor of
this."""
os.register_at_fork(after_in_child=lambda: globals().update(_sharing=threading.Lock()))


def close_unpacked(descriptor: int) -> None:
    """Closes what :func:`unpacked` gave."""
    with _sharing:
        _shares.pop(descriptor, None)
    os.close(descriptor)


class _Share:
    """What a file that is decompressed now takes of the room that all have together: many small
    ones could fill a disk.

    Args:
        received: how many bytes of the file are surely there.
        plain: whether it is copied as it is; it has no part in the room then.

    Attributes:
        packed, taken: the bytes of the file, and of what it became so far.
    """

    def __init__(self, received: Callable[[], int], *, plain: bool) -> None:
        self._received = received
        self._plain = plain
        self.packed = self.taken = 0

    def take(self, more: int) -> None:
        """Counts this many decompressed bytes.

        Raises:
            TapeError: ``limit``.
        """
        self.packed = self._received()
        self.taken += more
        limit = None if self._plain else limits().nbytes
        allowed = most_unpacked(self.packed) if limit is None else limit
        if self._plain:
            if self.taken > allowed:
                reason = f"it becomes larger than {allowed:,} bytes, and stores far fewer"
                raise TapeError("limit", reason)
            return
        if self.taken > allowed:
            raise _too_large("it becomes", allowed)
        with _sharing:
            packed, unpacked_bytes = (
                sum(part) for part in zip((0, 0), *_shares.values(), strict=True)
            )
        allowed = most_unpacked(packed + self.packed) if limit is None else limit
        if unpacked_bytes + self.taken > allowed:
            raise _too_large("the compressed tapes that are open together become", allowed)


def _copy(source: Any, target: Any, share: _Share) -> None:
    """Copies all bytes of a stream. If it breaks, what came before is copied."""
    while part := source.read1(_STEP):
        share.take(len(part))
        with memoryview(part) as remaining:
            done = 0
            while done < len(part):
                done += target.write(remaining[done:])


def _too_large(what: str, most: int) -> TapeError:
    return TapeError(
        "limit",
        f"{what} larger than {most:,} bytes when decompressed",
        advice=advice_to_allow(f"nbytes={8 * most}", f"--max-memory {8 * most // 2**20}").after(
            "decompress it yourself (gzip -d, zstd -d); or, "
        ),
    )


def _zstd(file: IO[bytes]) -> Any:
    module = zstd_module()
    if module is None:
        raise TapeError(
            "usage",
            "this Python has no Zstandard, with which the tape is compressed",
            advice=f"{to_install('zstd')}; or decompress the tape with `zstd -d`",
        )
    return module.ZstdFile(file, "r")


def zstd_module() -> Any:
    """Zstandard, of Python itself from 3.14 on; None if it is not installed."""
    import importlib

    for name in ("compression.zstd", "backports.zstd"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


_OPENERS: dict[bytes, Callable[[IO[bytes]], Any]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file, mode="rb"),
    b"\x28\xb5\x2f\xfd": _zstd,
}
"""By the first bytes of the file."""
