"""Temporary files and folders, which leave nothing behind.

This holds however their use ends, even if a signal comes between any two steps.
(:class:`tempfile.TemporaryDirectory` leaves the folder behind if a signal comes before its
finalizer is registered, or while the folder is being removed.)
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

__all__ = ["TemporaryFolder", "is_temporary", "remove"]


def is_temporary(holder: object, path: str) -> weakref.finalize[Any, Any]:
    """Makes a file or folder be removed when its holder is gone, or with the process. It is called
    before the file is made."""
    return weakref.finalize(holder, _remove, path, os.getpid())


def remove(temporary: weakref.finalize[Any, Any]) -> None:
    """Removes it now. If a signal ends this, it is removed later."""
    found = temporary.peek()
    if found is not None:
        _, function, arguments, _ = found
        function(*arguments)
        temporary.detach()


class TemporaryFolder:
    """A new folder that only its owner may read. It is removed at the end of the block, by
    :meth:`close`, when the object is gone, or with the process.

    Args:
        path: of the folder; without it, one in the system's folder for temporary files.

    Attributes:
        path: of the folder.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or Path(tempfile.gettempdir(), f"calltape-{secrets.token_hex(8)}")
        self._temporary = is_temporary(self, str(self.path))
        self.path.mkdir(mode=0o700)

    def close(self) -> None:
        """Removes it. It may be called again."""
        remove(self._temporary)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.close()


def _remove(path: str, process: int) -> None:
    """Removes what this process made: at its end, a fork would remove that of its parent."""
    if os.getpid() == process:
        if os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                os.unlink(path)
