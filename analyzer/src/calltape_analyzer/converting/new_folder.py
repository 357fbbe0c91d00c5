"""Folders and files that get their name when they are complete."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from calltape_schema.errors import TapeError

__all__ = ["new_file", "new_folder"]

_ADVICE = "name another file or folder"


@contextmanager
def new_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A new folder beside ``path``, which gets this name at the end of the block; it is removed if
    the block fails.

    Raises:
        TapeError: ``exists`` or ``io``.
    """
    final = Path(path)
    if os.path.lexists(final):
        raise TapeError("exists", "it is there already", path=str(final), advice=_ADVICE)
    beside = final.with_name(f".{final.name}.{secrets.token_hex(8)}")
    try:
        beside.mkdir(mode=0o700)
        yield beside
        beside.rename(final)
    except OSError as error:
        raise TapeError("io", f"cannot write it: {error.strerror}", path=str(final)) from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)


@contextmanager
def new_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A new, empty file beside ``path``, like :func:`new_folder`. Only its owner may read it.

    Raises:
        TapeError: ``exists`` or ``io``.
    """
    final = Path(path)
    if os.path.lexists(final):
        raise TapeError("exists", "it is there already", path=str(final), advice=_ADVICE)
    beside = final.with_name(f".{final.name}.{secrets.token_hex(8)}")
    try:
        os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        yield beside
        os.replace(beside, final)
    except OSError as error:
        raise TapeError("io", f"cannot write it: {error.strerror}", path=str(final)) from None
    finally:
        beside.unlink(missing_ok=True)
