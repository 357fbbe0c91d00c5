"""Exported models from disk: one by its path, or the programs of a directory, or only what their
manifest says.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calltape_analyzer.errors import TapeError
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.programs.exported_model import (
    ExportedModel,
    TorchModel,
    UnloadedModel,
    require_torch,
)
from calltape_analyzer.programs.manifest import (
    FileFacts,
    ProgramsManifest,
    SavedProgram,
    read_manifest,
    within_manifest,
)
from calltape_analyzer.programs.onnx_model import OnnxModel
from calltape_analyzer.programs.program import Program
from calltape_analyzer.programs.programs import Programs
from calltape_analyzer.programs.saving import check_program, program_parts, signature_from_document
from calltape_analyzer.programs.untrusted_files import check_trusted, digest_of, require_trust
from calltape_analyzer.pytree.classes import Classes, ClassIndex

if TYPE_CHECKING:
    from calltape_analyzer.tape import Tape

__all__ = ["declared_programs", "folder_of_programs", "load_programs", "opened_model", "runtime_of"]


def load_programs(
    directory: str | os.PathLike[str], *, classes: Classes = (), trusted: bool = False
) -> Programs:
    """Loads what :meth:`Programs.save` wrote.

    Loading a ``.pt2`` runs code that is in it; ONNX models are data.

    Args:
        directory: what was given to ``save``.
        classes: classes that results may be made of, besides the imported ones of transformers. An
            object of another class comes as a :class:`~calltape_analyzer.Placeholder`.
        trusted: loads ``.pt2`` files, which are rejected otherwise.

    Raises:
        UsageError: there is a ``.pt2``, and it is not trusted; ``trusted`` is no bool; or torch is
            older than 2.12.
        TapeError: ``not_found``, ``damaged``, ``invalid``, ``limit`` or ``version``.
    """
    check_trusted(trusted)
    require_torch()
    folder = Path(directory)
    manifest = read_manifest(folder)
    # Trust is demanded for all files, before any is loaded.
    for program in manifest["programs"]:
        if _runtime(program["file"]).is_code:
            require_trust(folder / program["file"], trusted)

    def load(file: str, names: Sequence[str]) -> ExportedModel:
        _check_files(folder, file, manifest["files"])
        try:
            return _runtime(file).from_file(folder / file, names, trusted=trusted)
        except TapeError as error:
            if error.kind != "invalid":
                raise
            raise TapeError("damaged", error.reason, path=str(folder / file)) from None

    return _programs_of_manifest(folder, manifest, classes, load)


def declared_programs(directory: str | os.PathLike[str], *, classes: Classes = ()) -> Programs:
    """Programs that can tell what they take, and cannot be run: only the manifest is read.

    Raises:
        TapeError: as :func:`load_programs`.
    """
    folder = Path(directory)
    manifest = read_manifest(folder)
    for program in manifest["programs"]:
        if not os.path.lexists(folder / program["file"]):
            raise TapeError("not_found", "a program is missing", path=str(folder / program["file"]))
    return _programs_of_manifest(folder, manifest, classes, UnloadedModel)


def folder_of_programs(source: Any) -> Path | None:
    """The folder that a file was saved in as one of several programs, with a manifest that names
    it; None for any other file or object. The manifest knows how calls become inputs of the file.
    """
    if not isinstance(source, str | os.PathLike):
        return None
    path = Path(os.fspath(source))
    try:
        programs = read_manifest(path.parent)["programs"]
    except TapeError:
        return None
    return path.parent if any(program["file"] == path.name for program in programs) else None


def _programs_of_manifest(
    folder: Path,
    manifest: ProgramsManifest,
    classes: Classes,
    load: Callable[[str, Sequence[str]], ExportedModel],
) -> Programs:
    """The programs that a manifest describes.

    Args:
        folder: of the manifest.
        manifest: what it says.
        classes: as in :func:`load_programs`.
        load: returns the model of a file; also gets the names of its inputs.
    """
    index = ClassIndex.of(classes)
    signature = within_manifest(folder, lambda: signature_from_document(manifest["signature"]))
    programs = [
        within_manifest(folder, partial(_program_of_document, document, signature, index))
        for document in manifest["programs"]
    ]
    # Last, because all of the manifest is known to be good now.
    for program, document in zip(programs, manifest["programs"], strict=True):
        program.model = load(document["file"], program.plan.names)
    sorter = CallSorter(
        signature,
        index.renamed,
        modes=frozenset(mode for program in programs for mode in program.plan.context.modes),
        layout_paths=frozenset(manifest["layout_paths"]),
        grad_paths=frozenset(
            str(path)
            for group in (program.variant.group for program in programs)
            for path, facts in zip(group.layout.tensors, group.facts, strict=True)
            if facts.grad is not None
        ),
        ordered=frozenset(
            path for program in programs for path in program.plan.template.layout.ordered
        ),
        ignored_sharing=frozenset(manifest["ignored_sharing"]),
    )
    return Programs(
        programs,
        sorter,
        attempts=manifest["attempts"],
        missing=manifest["missing"],
        all_notes=manifest["notes"],
        verdicts=manifest["verdicts"],
    )


def _program_of_document(
    document: SavedProgram, signature: Signature, classes: ClassIndex
) -> Program:
    """A program as it was saved, without the model that runs it.

    Raises:
        TapeError: the document is damaged.
    """
    variant, plan, result = program_parts(document, signature, classes.renamed)
    program = Program(
        variant,
        plan,
        result,
        UnloadedModel(document["file"]),
        document["conditions"],
        classes,
        document["device"],
        None if document["only_rows"] is None else frozenset(document["only_rows"]),
        document["returned"],
        list(document["notes"]),
        document["state"],
        unwritten=document["unwritten"],
        result_arguments=dict(document["result_arguments"]),
        random_generators=document["random_generators"],
        no_aliases=document["no_aliases"],
        made_by=document["made_by"],
    )
    check_program(program)
    return program


def _check_files(folder: Path, file: str, listed: Sequence[FileFacts]) -> None:
    """Raises TapeError (``damaged``) if a program's files were not written with the manifest."""
    own = [facts for facts in listed if facts["name"].removesuffix(".data") == file]
    for name in dict.fromkeys(facts["name"] for facts in own):
        path = folder / name
        size, digest = digest_of(path)
        if not any((f["name"], f["size"], f["sha256"]) == (name, size, digest) for f in own):
            reason = "these are not the bytes that were saved"
            raise TapeError("damaged", reason, path=str(path), advice="save the programs again")


def _runtime(file: str) -> type[ExportedModel]:
    runtime = runtime_of(file)
    assert runtime is not None  # a manifest names files of known runtimes only
    return runtime


RUNTIMES: list[type[ExportedModel]] = [TorchModel, OnnxModel]
"""Asked in this order. The last one takes all files that no other takes."""


def runtime_of(source: Any) -> type[ExportedModel] | None:
    """The class for a path or an object; None if it is no exported model. Nothing is read."""
    return next((runtime for runtime in RUNTIMES if runtime.takes(source)), None)


@contextmanager
def opened_model(
    source: Any, tape: Tape, *, trusted: bool, to_run: bool
) -> Iterator[ExportedModel | None]:
    """The model of a path or an object while the ``with`` block runs; None if it is neither.

    Args:
        source: what somebody exported.
        tape: the calls that it is for.
        trusted: loads a ``.pt2``, which runs code of its author
            (docs/decisions/reading-untrusted-tapes.md).
        to_run: whether the model will be run.

    Raises:
        UsageError: a ``.pt2`` that is not trusted.
        TapeError: ``not_found``, or ``invalid`` if it cannot be loaded.
    """
    if isinstance(source, str | os.PathLike) and not os.path.exists(source):
        raise TapeError("not_found", "no such file", path=os.fspath(source))
    runtime = runtime_of(source)
    if runtime is None:
        yield None
        return
    with runtime.opened(source, tape, trusted=trusted, to_run=to_run) as model:
        yield model
