"""Programs on disk: one file per program, ``manifest.json`` and ``shapes.json``."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calltape_analyzer.binding import Signature
from calltape_analyzer.classes import Classes, ClassIndex
from calltape_analyzer.errors import TapeError, UsageError
from calltape_analyzer.exporting.conditions import Conditions
from calltape_analyzer.exporting.documents import (
    document_of,
    program_parts,
    rows_of,
    signature_document,
    signature_of,
)
from calltape_analyzer.exporting.engines import Engine, OnnxEngine, TorchEngine
from calltape_analyzer.exporting.plan import input_names
from calltape_analyzer.exporting.program import Program
from calltape_analyzer.gathering import Gatherer
from calltape_analyzer.variant_findings import findings_of

if TYPE_CHECKING:
    from calltape_analyzer.exporting.programs import Programs

__all__ = ["load_programs", "save"]

MANIFEST = "manifest.json"
_FORMAT, _VERSION = "calltape-programs", 1


def save(programs: Programs, signature: Signature, directory: str | os.PathLike[str]) -> None:
    """Writes programs into a directory, which is made where it is not there.

    Raises:
        UsageError: the directory holds something that is not programs.
    """
    folder = Path(directory)
    if folder.exists() and any(folder.iterdir()) and not (folder / MANIFEST).exists():
        raise UsageError(f"{folder} is not empty", advice="name a new directory")
    folder.mkdir(parents=True, exist_ok=True)
    # First, so that what was saved here before is never taken for a part of this.
    (folder / MANIFEST).unlink(missing_ok=True)
    documents = []
    for number, program in enumerate(programs.values()):
        file = _file_name(number, program)
        _write(program, folder / file)
        documents.append({"file": file, **document_of(program)})
    shapes = [
        findings_of(p.variant, input_names(p.variant)).model_dump() for p in programs.values()
    ]
    (folder / "shapes.json").write_text(json.dumps(shapes, indent=1, default=str))
    manifest = {
        "format": _FORMAT,
        "version": _VERSION,
        "signature": signature_document(signature),
        "missing": programs.missing,
        "programs": documents,
    }
    kept = {document["file"] for document in documents}
    for old in (*folder.glob("[0-9][0-9]-*.pt2"), *folder.glob("[0-9][0-9]-*.onnx*")):
        if old.name.removesuffix(".data") not in kept:
            old.unlink()
    # Last, so that a directory with a manifest is whole.
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))


def _file_name(number: int, program: Program) -> str:
    slug = re.sub(r"[^A-Za-z0-9]+", "-", program.name).strip("-")[:60] or "program"
    suffix = "onnx" if isinstance(program.engine, OnnxEngine) else "pt2"
    return f"{number:02d}-{slug}.{suffix}"


def _write(program: Program, path: Path) -> None:
    exported = program.exported
    if isinstance(exported, str):  # loaded from a file
        import onnx

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


def load_programs(directory: str | os.PathLike[str], *, classes: Classes = ()) -> Programs:
    """Loads what :meth:`Programs.save` wrote.

    The programs themselves are code: load only what you would run.

    Args:
        directory: what was given to ``save``.
        classes: classes that results may be made of, besides those of transformers that are
            imported; others come as :class:`~calltape_analyzer.Placeholder`.

    Raises:
        TapeError: ``not_found``, ``damaged`` or ``version``.
    """
    from calltape_analyzer.exporting.programs import Programs

    folder = Path(directory)
    manifest = _manifest(folder)
    index = ClassIndex(classes)
    try:
        signature = signature_of(manifest["signature"])
        programs = [_program(folder, one, signature, index) for one in manifest["programs"]]
        missing = {str(name): str(why) for name, why in manifest.get("missing", {}).items()}
    except TapeError:
        raise
    except (
        LookupError,
        TypeError,
        ValueError,
        AssertionError,
        AttributeError,
        RecursionError,
        ArithmeticError,
    ) as error:
        raise TapeError(
            "damaged",
            f"its manifest is damaged ({type(error).__name__}: {error})",
            path=str(folder),
        ) from None
    gatherer = Gatherer(signature, index.renamed)
    return Programs(programs, gatherer, missing=missing)


def _manifest(folder: Path) -> Mapping[str, Any]:
    try:
        found = json.loads((folder / MANIFEST).read_text())
    except FileNotFoundError:
        raise TapeError("not_found", f"there is no {MANIFEST} here", path=str(folder)) from None
    except (OSError, ValueError, RecursionError) as error:
        raise TapeError("damaged", f"{MANIFEST}: {error}", path=str(folder)) from None
    if not isinstance(found, dict) or found.get("format") != _FORMAT:
        raise TapeError("damaged", f"{MANIFEST} is not one of programs", path=str(folder))
    if found.get("version") != _VERSION:
        raise TapeError("version", f"programs of version {found.get('version')}", path=str(folder))
    return found


def _program(
    folder: Path, document: Mapping[str, Any], signature: Signature, classes: ClassIndex
) -> Program:
    file = str(document["file"])
    if Path(file).name != file or Path(file).suffix not in (".pt2", ".onnx"):
        raise ValueError(f"{file!r} is not a file name")
    variant, plan, result = program_parts(document, signature, classes.renamed)
    return Program(
        variant,
        plan,
        result,
        _engine(folder / file),
        Conditions.from_document(document["demands"]),
        classes,
        str(document["device"]),
        rows_of(document["only"]),
        {str(key): str(name) for key, name in dict(document["returned"]).items()},
        list(document["notes"]),
    )


def _engine(path: Path) -> Engine:
    if not path.exists():
        raise TapeError("not_found", "a program is missing", path=str(path))
    if path.suffix == ".onnx":
        return OnnxEngine(str(path))
    import torch

    try:
        return TorchEngine(torch.export.load(str(path)))
    except Exception as error:  # torch's own, of any type
        reason = f"torch cannot load it: {type(error).__name__}: {str(error)[:200]}"
        raise TapeError("damaged", reason, path=str(path)) from None
