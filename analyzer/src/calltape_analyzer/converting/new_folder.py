"""Folders and files that get their name when they are complete."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from calltape_analyzer.writing.output_file import settle
from calltape_schema.errors import TapeError

__all__ = ["create_file", "create_folder", "new_file", "new_folder"]

_ADVICE = "name another file or folder"


@contextmanager
def new_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A new folder beside ``path``, which gets this name at the end of the block; it is removed if
    the block fails. Only its owner may read it.

    Raises:
        TapeError: ``exists`` or ``io``.
    """
    with _new(path, create_folder) as beside:
        yield beside


@contextmanager
def new_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A new, empty file beside ``path``, like :func:`new_folder`.

    Raises:
        TapeError: ``exists`` or ``io``.
    """
    with _new(path, _create_empty) as beside:
        yield beside


@contextmanager
def _new(path: str | os.PathLike[str], make: Callable[[Path], None]) -> Iterator[Path]:
    final = Path(path)
    if os.path.lexists(final):
        raise TapeError("exists", "it is there already", path=str(final), advice=_ADVICE)
    beside = final.with_name(f".{final.name}.{secrets.token_hex(8)}")
    try:
        make(beside)
        yield beside
        settle(str(beside), str(final), overwrite=False)
    except OSError as error:
        raise TapeError("io", f"cannot write it: {error.strerror}", path=str(final)) from None
    finally:
        if beside.is_dir():
            shutil.rmtree(beside, ignore_errors=True)
        beside.unlink(missing_ok=True)


def create_folder(path: Path) -> None:
    """Makes a folder that only its owner may read, whatever the umask is."""
    path.mkdir(mode=0o700)


def create_file(path: Path) -> BinaryIO:
    """Makes a file that only its owner may read, and opens it for writing."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _create_empty(path: Path) -> None:
    create_file(path).close()
