"""Programs to disk: one file per program, ``manifest.json`` and ``shapes.json``.

A save replaces what an earlier save wrote, and nothing else: the manifest lists its files with
their SHA-256. The new ones arrive under names of their own, and the manifest is replaced in one
step, so that a save that is killed leaves what was there.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from calltape_analyzer.binding import Signature
from calltape_analyzer.errors import TapeError, UsageError
from calltape_analyzer.exporting.documents import document_of, signature_document
from calltape_analyzer.exporting.engines import OnnxEngine
from calltape_analyzer.exporting.folders import MANIFEST, SHAPES, digest_of
from calltape_analyzer.exporting.manifest import (
    FORMAT,
    VERSION,
    FileFacts,
    encode_manifest,
    read_manifest,
)
from calltape_analyzer.exporting.plan import input_names
from calltape_analyzer.exporting.program import Program
from calltape_analyzer.printable import some_of
from calltape_analyzer.trust import onnx_model
from calltape_analyzer.variant_findings import findings_of

if TYPE_CHECKING:
    from calltape_analyzer.exporting.programs import Programs

__all__ = ["save"]

_STAGING = ".calltape-saving-"
_MAX_NOTE = 10_000


def save(programs: Programs, signature: Signature, directory: str | os.PathLike[str]) -> None:
    """Writes programs into a directory, which is made where it is not there. What only its owner
    may read: directory 0700, files 0600.

    Raises:
        UsageError: the directory holds something that no save wrote; nothing was written then.
        TapeError: ``io`` where it cannot be written.
    """
    folder = Path(os.path.abspath(directory))
    if any(_is_read_from(program, folder) for program in programs.values()):
        reason, advice = "these programs are read from it", "name another directory"
        raise UsageError(reason, path=str(folder), advice=advice)
    try:
        earlier = _earlier(folder)
        if earlier is None:
            _save_new(programs, signature, folder)
        else:
            _save_over(programs, signature, folder, earlier)
    except OSError as error:
        reason = f"cannot write it: {error.strerror or error}"
        raise TapeError("io", reason, path=str(folder)) from None


def _is_read_from(program: Program, folder: Path) -> bool:
    exported = program.exported
    return isinstance(exported, str) and Path(exported).parent.resolve() == folder.resolve()


def _earlier(folder: Path) -> dict[str, Any] | None:
    """The manifest of an earlier save, an empty dict for an empty directory, None for none.

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
        return {}
    if MANIFEST not in names:
        _refuse(folder, names, f"it holds files that no {MANIFEST} names")
    try:
        found = read_manifest(folder)
    except TapeError:
        _refuse(folder, [MANIFEST])
    known = {(f["name"], f["size"], f["sha256"]) for f in found["files"]}
    own = {name for name, _, _ in known}
    others = [n for n in names if n != MANIFEST and not (n in own and _is_own(folder / n, known))]
    if others:
        _refuse(folder, others)
    return dict(found)


def _is_own(path: Path, known: set[tuple[str, int, str]]) -> bool:
    try:
        return (path.name, *digest_of(path)) in known
    except TapeError:
        return False  # a link, a directory


def _refuse(
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


@contextmanager
def _staging(parent: Path) -> Iterator[Path]:
    """A directory of its own for what is being written, gone afterwards."""
    path = parent / f"{_STAGING}{secrets.token_hex(8)}"
    path.mkdir(mode=0o700)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _save_new(programs: Programs, signature: Signature, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _staging(folder.parent) as stage:
        manifest = _staged(programs, signature, stage, taken=())
        _put(stage, stage, manifest)
        # Of a directory that appeared meanwhile only an empty one is replaced.
        stage.rename(folder)


def _save_over(
    programs: Programs, signature: Signature, folder: Path, earlier: dict[str, Any]
) -> None:
    old: tuple[FileFacts, ...] = tuple(earlier.get("files", ()))
    with _staging(folder) as stage:
        manifest = _staged(programs, signature, stage, taken=[found["name"] for found in old])
        new = manifest["files"]
        # Whenever this ends, the manifest that is there lists all files that are there.
        if earlier:
            _put(stage, folder, {**earlier, "files": [*old, *new]})
        for found in new:
            os.replace(stage / found["name"], folder / found["name"])
        _put(stage, folder, {**manifest, "files": [*new, *old]})
        kept = {found["name"] for found in new}
        for found in old:
            if found["name"] not in kept:
                (folder / found["name"]).unlink(missing_ok=True)
        _put(stage, folder, manifest)


def _put(stage: Path, folder: Path, manifest: Any) -> None:
    """Replaces the manifest of a folder, in one step."""
    path = stage / f"{MANIFEST}.new"
    _write_bytes(path, encode_manifest(manifest))
    os.replace(path, folder / MANIFEST)


def _write_bytes(path: Path, data: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def _staged(
    programs: Programs, signature: Signature, stage: Path, taken: Sequence[str]
) -> dict[str, Any]:
    """Writes all but the manifest, which it returns.

    Args:
        programs: the programs.
        signature: of the recorded method.
        stage: where to.
        taken: names that files of an earlier save have.
    """
    number = 0
    while any(_file_name(i, p, number) in taken for i, p in enumerate(programs.values())):
        number += 1
    documents = []
    for i, program in enumerate(programs.values()):
        file = _file_name(i, program, number)
        try:
            _write(program, stage / file)
        except (TapeError, OSError):
            raise
        except Exception as error:  # torch's own, of any type
            reason = f"{file} cannot be saved: {type(error).__name__}: {str(error)[:200]}"
            raise TapeError("io", reason) from None
        documents.append({"file": file, **document_of(program)})
    # Shapes, and nothing that was passed: what a program must know of that is in the manifest.
    shapes = [
        findings_of(p.variant, input_names(p.variant)).model_dump(exclude={"constants"})
        for p in programs.values()
    ]
    _write_bytes(stage / SHAPES, json.dumps(shapes, indent=1, default=str).encode())
    files = []
    for path in sorted(stage.iterdir()):
        path.chmod(0o600)
        size, digest = digest_of(path)
        files.append({"name": path.name, "size": size, "sha256": digest})
    return {
        "format": FORMAT,
        "version": VERSION,
        "signature": signature_document(signature),
        "missing": {name: why[:_MAX_NOTE] for name, why in programs.missing.items()},
        "files": files,
        "programs": documents,
    }


def _file_name(place: int, program: Program, number: int) -> str:
    slug = re.sub(r"[^A-Za-z0-9]+", "-", program.name)[:60].strip("-") or "program"
    suffix = "onnx" if isinstance(program.engine, OnnxEngine) else "pt2"
    return f"{place:02d}-{slug}{f'.{number}' if number else ''}.{suffix}"


def _write(program: Program, path: Path) -> None:
    exported = program.exported
    if isinstance(exported, str):  # loaded from a file
        import onnx

        onnx_model(exported)  # refuses data outside of its folder
        beside = Path(f"{exported}.data").exists()
        model = onnx.load(exported)
        onnx.save(model, str(path), save_as_external_data=beside, location=f"{path.name}.data")
        return
    if isinstance(program.engine, OnnxEngine):
        exported.save(str(path))
        return
    import torch

    # What it was traced with comes from recorded calls, and is nobody's business.
    inputs, exported._example_inputs = exported._example_inputs, None
    try:
        torch.export.save(exported, str(path))
    finally:
        exported._example_inputs = inputs
