"""Programs from disk: what their manifest says of them, and the programs themselves."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from calltape_analyzer.classes import Classes, ClassIndex
from calltape_analyzer.errors import TapeError
from calltape_analyzer.exporting.conditions import Conditions
from calltape_analyzer.exporting.documents import program_parts, rows_of, signature_of
from calltape_analyzer.exporting.engines import Engine, OnnxEngine, TorchEngine, UnloadedEngine
from calltape_analyzer.exporting.fitting import check_program
from calltape_analyzer.exporting.folders import digest_of
from calltape_analyzer.exporting.manifest import (
    FileFacts,
    Manifest,
    read_manifest,
    within_manifest,
)
from calltape_analyzer.exporting.program import Program
from calltape_analyzer.exporting.programs import Programs
from calltape_analyzer.gathering import Gatherer
from calltape_analyzer.trust import demand_trust, exported_program

__all__ = ["declared_programs", "load_programs"]


def load_programs(
    directory: str | os.PathLike[str], *, classes: Classes = (), trusted: bool = False
) -> Programs:
    """Loads what :meth:`Programs.save` wrote.

    A ``.pt2`` is code, which loading it runs; ONNX models are data.

    Args:
        directory: what was given to ``save``.
        classes: classes that results may be made of, besides those of transformers that are
            imported; others come as :class:`~calltape_analyzer.Placeholder`.
        trusted: loads ``.pt2`` files; without it they are refused.

    Raises:
        UsageError: it holds a ``.pt2``, and is not trusted.
        TapeError: ``not_found``, ``damaged``, ``invalid``, ``limit`` or ``version``.
    """
    folder = Path(directory)
    manifest = read_manifest(folder)
    # All of them, before any is loaded.
    for program in manifest["programs"]:
        if program["file"].endswith(".pt2"):
            demand_trust(folder / program["file"], trusted)

    def engine(file: str) -> Engine:
        _check_files(folder, file, manifest["files"])
        if file.endswith(".onnx"):
            return OnnxEngine(str(folder / file))
        return TorchEngine(_torch_program(folder / file, trusted))

    return _programs(folder, manifest, classes, engine, with_values=True)


def declared_programs(directory: str | os.PathLike[str], *, classes: Classes = ()) -> Programs:
    """What a directory of programs says that they take: nothing but the manifest is read, and they
    cannot be run.

    Raises:
        TapeError: as :func:`load_programs`.
    """
    folder = Path(directory)
    manifest = read_manifest(folder)
    for program in manifest["programs"]:
        if not os.path.lexists(folder / program["file"]):
            raise TapeError("not_found", "a program is missing", path=str(folder / program["file"]))
    return _programs(folder, manifest, classes, UnloadedEngine, with_values=False)


def _programs(
    folder: Path,
    manifest: Manifest,
    classes: Classes,
    engine: Callable[[str], Engine],
    *,
    with_values: bool,
) -> Programs:
    index = ClassIndex(classes)
    signature = within_manifest(folder, lambda: signature_of(manifest["signature"]))

    def made(document: Any) -> Program:
        variant, plan, result = program_parts(
            document, signature, index.renamed, with_values=with_values
        )
        program = Program(
            variant,
            plan,
            result,
            UnloadedEngine(document["file"]),
            Conditions.from_document(document["demands"]),
            index,
            document["device"],
            rows_of(document["only"]),
            document["returned"],
            list(document["notes"]),
            tuple(document["state"]),
            unwritten=tuple(document["unwritten"]),
        )
        check_program(program)
        return program

    programs = [
        within_manifest(folder, lambda document=document: made(document))  # type: ignore[misc]
        for document in manifest["programs"]
    ]
    # Last: the manifest is good.
    for program, document in zip(programs, manifest["programs"], strict=True):
        program.engine = engine(document["file"])
    gatherer = Gatherer(signature, index.renamed)
    return Programs(programs, gatherer, missing=manifest["missing"])


def _check_files(folder: Path, file: str, known: Sequence[FileFacts]) -> None:
    """Whether a program's files are those that were written with the manifest."""
    own = [found for found in known if found["name"].removesuffix(".data") == file]
    for name in dict.fromkeys(found["name"] for found in own):
        path = folder / name
        size, digest = digest_of(path)
        if not any((f["name"], f["size"], f["sha256"]) == (name, size, digest) for f in own):
            reason = "these are not the bytes that were saved"
            raise TapeError("damaged", reason, path=str(path), advice="save the programs again")


def _torch_program(path: Path, trusted: bool) -> Any:
    try:
        return exported_program(path, trusted=trusted)
    except TapeError as error:
        if error.kind != "invalid":
            raise
        raise TapeError("damaged", error.reason, path=str(path)) from None
