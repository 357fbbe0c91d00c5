"""Programs to disk: one file per program, ``manifest.json`` and ``shapes.json``.

A save replaces what an earlier save wrote, and nothing else: the manifest lists its files with
their SHA-256. The new files get other names, and the manifest is replaced in one step, so that a
save that is killed leaves what was there.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn, Protocol

from calltape_analyzer.errors import TapeError, UsageError
from calltape_analyzer.facts import Fact, Note
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.programs.manifest import (
    MANIFEST,
    SHAPES,
    FileFacts,
    Manifest,
    SavedProgram,
    encode_manifest,
    read_manifest,
)
from calltape_analyzer.programs.program import Program
from calltape_analyzer.programs.saved_program import document_of, signature_document
from calltape_analyzer.programs.strategies import Attempt
from calltape_analyzer.programs.untrusted_files import digest_of
from calltape_analyzer.programs.variant_verdicts import VariantVerdict
from calltape_analyzer.text import some_of
from calltape_analyzer.variants.variant_findings import findings_of
from calltape_analyzer.writing.output_file import TemporaryFolder

__all__ = ["expect_place", "save"]

_STAGING = ".calltape-saving-"


class SavedPrograms(Protocol):
    """Programs, and what is known of their export."""

    attempts: tuple[Attempt, ...]
    missing: dict[str, Fact]
    told: tuple[Note, ...]
    verdicts: tuple[VariantVerdict, ...]

    def values(self) -> Iterable[Program]: ...


def save(
    programs: SavedPrograms,
    sorter: CallSorter,
    directory: str | os.PathLike[str],
) -> None:
    """Writes programs into a directory, which is made if it does not exist. Only its owner may
    read it: the directory has the mode 0700, its files 0600.

    Args:
        programs: in the order in which they are asked for a call.
        sorter: lays calls out as the programs were made for them.
        directory: a new or empty one, or one with an earlier save.

    Raises:
        UsageError: the directory holds something that no save wrote; nothing was written then.
        TapeError: ``io`` if it cannot be written.
    """
    folder = Path(os.path.abspath(directory))
    files = (one.exported for one in programs.values() if isinstance(one.exported, str))
    if any(Path(file).parent.resolve() == folder.resolve() for file in files):
        reason, advice = "these programs are read from it", "name another directory"
        raise UsageError(reason, path=str(folder), advice=advice)
    try:
        earlier = _earlier(folder)
        written = partial(_staged, programs, sorter)
        if not os.path.lexists(folder):
            _save_new(written, folder)
        else:
            _save_over(written, folder, earlier)
    except OSError as error:
        reason = f"cannot write it: {error.strerror or error}"
        raise TapeError("io", reason, path=str(folder)) from None


def expect_place(directory: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Tells before an export whether its programs can be saved in a directory.

    Raises:
        UsageError: the directory holds something that no save wrote.
        TapeError: ``exists`` if an earlier save is there and is not to be replaced; ``io``.
    """
    folder = Path(os.path.abspath(directory))
    try:
        earlier = _earlier(folder)
    except OSError as error:
        reason = f"cannot read it: {error.strerror or error}"
        raise TapeError("io", reason, path=str(folder)) from None
    if earlier and not overwrite:
        raise TapeError("exists", "programs of an earlier export are there", path=str(folder))


def _earlier(folder: Path) -> Manifest | None:
    """The manifest of an earlier save; None if there is no directory, or an empty one.

    Raises:
        UsageError: there is something that no save wrote.
    """
    if not os.path.lexists(folder):
        return None
    if folder.is_symlink() or not folder.is_dir():
        what = "a link" if folder.is_symlink() else "no directory"
        raise UsageError(f"it is {what}", path=str(folder), advice="name a new directory")
    names = sorted(entry.name for entry in folder.iterdir())
    if not names:
        return None
    if MANIFEST not in names:
        _reject(folder, names, f"it holds files that no {MANIFEST} names")
    try:
        found = read_manifest(folder)
    except TapeError:
        _reject(folder, [MANIFEST])
    known = {(f["name"], f["size"], f["sha256"]) for f in found["files"]}
    own = {name for name, _, _ in known}
    others = [n for n in names if n != MANIFEST and not (n in own and _is_own(folder / n, known))]
    if others:
        _reject(folder, others)
    return found


def _is_own(path: Path, known: set[tuple[str, int, str]]) -> bool:
    try:
        return (path.name, *digest_of(path)) in known
    except TapeError:
        return False  # a link, a directory


def _reject(
    folder: Path, names: Sequence[str],
    why: str = "it is not empty, and these are not what calltape saved there",
) -> NoReturn:  # fmt: skip
    shown = some_of([ascii(name)[1:-1] for name in names], 5)
    advice = "name a new directory"
    if any(name.startswith(_STAGING) for name in names):
        advice = f"{_STAGING}* is left by a save that was killed: remove it, or {advice}"
    raise UsageError(
        f"{why}: {shown}",
        path=str(folder),
        advice=advice,
    )


def _staging(parent: Path) -> TemporaryFolder:
    """A directory for what is being written, which is removed afterwards."""
    return TemporaryFolder(parent / f"{_STAGING}{secrets.token_hex(8)}")


Written = Callable[..., Manifest]
"""Writes all but the manifest into a folder, and gives the manifest: :func:`_staged`."""


def _save_new(written: Written, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _staging(folder.parent) as stage:
        manifest = written(stage, taken=())
        _put(stage, stage, manifest)
        # If a directory appeared meanwhile, this replaces it only if it is empty.
        stage.rename(folder)


def _save_over(written: Written, folder: Path, earlier: Manifest | None) -> None:
    old = earlier["files"] if earlier else ()
    with _staging(folder) as stage:
        manifest = written(stage, taken=[found["name"] for found in old])
        new = manifest["files"]
        # If this ends at any moment, the manifest lists all files that are there.
        if earlier:
            _put(stage, folder, {**earlier, "files": (*old, *new)})
        for found in new:
            os.replace(stage / found["name"], folder / found["name"])
        _put(stage, folder, {**manifest, "files": (*new, *old)})
        kept = {found["name"] for found in new}
        for found in old:
            if found["name"] not in kept:
                (folder / found["name"]).unlink(missing_ok=True)
        _put(stage, folder, manifest)


def _put(stage: Path, folder: Path, manifest: Manifest) -> None:
    """Replaces the manifest of a folder, in one step."""
    path = stage / f"{MANIFEST}.new"
    _write_bytes(path, encode_manifest(manifest))
    os.replace(path, folder / MANIFEST)


def _write_bytes(path: Path, data: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def _staged(
    programs: SavedPrograms,
    sorter: CallSorter,
    stage: Path,
    *,
    taken: Sequence[str],
) -> Manifest:
    """Writes all but the manifest, which it returns.

    Args:
        programs, sorter: as :func:`save` has them.
        stage: the folder to write into.
        taken: names that files of an earlier save have.
    """
    number = 0
    while any(_file_name(i, p, number) in taken for i, p in enumerate(programs.values())):
        number += 1
    documents: list[SavedProgram] = []
    for i, program in enumerate(programs.values()):
        file = _file_name(i, program, number)
        try:
            program.model.save(stage / file)
        except (TapeError, OSError):
            raise
        except Exception as error:  # torch raises errors of any type
            reason = f"{file} cannot be saved: {type(error).__name__}: {str(error)[:200]}"
            advice = "torch cannot write this program: use it in the process that exported it"
            raise TapeError("io", reason, advice=advice) from None
        documents.append(document_of(program, file))
    # No constants: they come from calls, and the manifest has the ones that a program needs.
    shapes = [findings_of(p.variant).model_dump(exclude={"constants"}) for p in programs.values()]
    _write_bytes(stage / SHAPES, json.dumps(shapes, indent=1, default=str).encode())
    files: list[FileFacts] = []
    for path in sorted(stage.iterdir()):
        path.chmod(0o600)
        size, digest = digest_of(path)
        files.append({"name": path.name, "size": size, "sha256": digest})
    return {
        "format": "calltape-programs",
        "version": 1,
        "signature": signature_document(sorter.signature),
        "laid_out": tuple(sorted(sorter.layout_paths)),
        "unshared": tuple(sorted(sorter.ignored_sharing)),
        "missing": programs.missing,
        "told": programs.told,
        "attempts": programs.attempts,
        "verdicts": programs.verdicts,
        "files": tuple(files),
        "programs": tuple(documents),
    }


def _file_name(place: int, program: Program, number: int) -> str:
    slug = re.sub(r"[^A-Za-z0-9]+", "-", program.name)[:60].strip("-") or "program"
    return f"{place:02d}-{slug}{f'.{number}' if number else ''}{program.model.suffix}"
