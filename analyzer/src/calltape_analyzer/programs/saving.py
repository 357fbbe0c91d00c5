"""Saves programs: one file per program, ``manifest.json`` and ``shapes.json``; and reads a program
from its manifest.

A save replaces what an earlier save wrote, and nothing else: the manifest lists its files with
their SHA-256. New files get other names, and the manifest is replaced in one step, so that an
interrupted save leaves what was there.

A manifest contains no code, and nothing is imported for it. Trees are written and checked as in the
tape format. Every number that refers to something is looked up once when a program is read, so that
later code finds what it expects.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Protocol, cast

from calltape_analyzer.arguments.plan import (
    ArgumentPlan,
    FormLeaf,
    PlainForm,
    Template,
    derived_tensors,
)
from calltape_analyzer.arguments.samples import Sample
from calltape_analyzer.errors import TapeError, UsageError
from calltape_analyzer.facts import Fact, Note
from calltape_analyzer.observing.contexts import Context
from calltape_analyzer.observing.groups import Completion, Group, GroupKey
from calltape_analyzer.observing.layout import ArgumentLayout, Renamed, layout_of_nodes
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.observing.size_table import Column, Seen, SizeTable
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.programs.attempts import Attempt, VariantVerdict
from calltape_analyzer.programs.manifest import (
    MANIFEST,
    SHAPES,
    FileFacts,
    ProgramsManifest,
    SavedCompletion,
    SavedForm,
    SavedLayout,
    SavedProgram,
    SavedSignature,
    encode_manifest,
    read_manifest,
)
from calltape_analyzer.programs.program import Program
from calltape_analyzer.programs.untrusted_files import digest_of
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.text import some_of
from calltape_analyzer.variants.facts import CounterIs, Fixed, VariantFacts, ZeroSizes
from calltape_analyzer.variants.variant_findings import findings_of
from calltape_analyzer.writing.output_file import TemporaryFolder
from calltape_schema.records import Parameter
from calltape_schema.tree import decode_structure, encode_structure

__all__ = [
    "check_destination",
    "check_program",
    "program_parts",
    "save",
    "signature_document",
    "signature_from_document",
]

_STAGING = ".calltape-saving-"


class SavedPrograms(Protocol):
    """Programs, and what is known of their export."""

    attempts: tuple[Attempt, ...]
    missing: dict[str, Fact]
    all_notes: tuple[Note, ...]
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
        programs: the first that accepts a call serves it.
        sorter: sorts calls as the export did.
        directory: a new or empty one, or one with an earlier save.

    Raises:
        UsageError: the directory holds something that no save wrote; nothing was written then.
        TapeError: ``io`` if it cannot be written.
    """
    folder = Path(os.path.abspath(directory))
    files = (program.exported for program in programs.values() if isinstance(program.exported, str))
    if any(Path(file).parent.resolve() == folder.resolve() for file in files):
        reason, advice = "these programs are read from it", "name another directory"
        raise UsageError(reason, path=str(folder), advice=advice)
    try:
        earlier = _earlier_manifest(folder)
        write_files = partial(_write_files, programs, sorter)
        if not os.path.lexists(folder):
            _save_new(write_files, folder)
        else:
            _save_over(write_files, folder, earlier)
    except OSError as error:
        reason = f"cannot write it: {error.strerror or error}"
        raise TapeError("io", reason, path=str(folder)) from None


def check_destination(directory: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Checks, before an export, that its programs can be saved in a directory.

    Raises:
        UsageError: the directory holds something that no save wrote.
        TapeError: ``exists`` if an earlier save is there and is not to be replaced; ``io``.
    """
    folder = Path(os.path.abspath(directory))
    try:
        earlier = _earlier_manifest(folder)
    except OSError as error:
        reason = f"cannot read it: {error.strerror or error}"
        raise TapeError("io", reason, path=str(folder)) from None
    if earlier and not overwrite:
        raise TapeError("exists", "programs of an earlier export are there", path=str(folder))


def _earlier_manifest(folder: Path) -> ProgramsManifest | None:
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
        _reject_folder(folder, names, f"it holds files that no {MANIFEST} names")
    try:
        manifest = read_manifest(folder)
    except TapeError:
        _reject_folder(folder, [MANIFEST])
    saved = {(f["name"], f["size"], f["sha256"]) for f in manifest["files"]}
    saved_names = {name for name, _, _ in saved}

    def was_saved(name: str) -> bool:
        try:
            return name in saved_names and (name, *digest_of(folder / name)) in saved
        except TapeError:
            return False  # a link, a directory

    unknown_names = [name for name in names if name != MANIFEST and not was_saved(name)]
    if unknown_names:
        _reject_folder(folder, unknown_names)
    return manifest


def _reject_folder(
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


WriteFiles = Callable[..., ProgramsManifest]
"""Writes all files but the manifest into a folder, and returns the manifest: :func:`_write_files`
for certain programs."""


def _save_new(write_files: WriteFiles, folder: Path) -> None:
    """Saves into a folder that does not exist."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _staging(folder.parent) as stage:
        manifest = write_files(stage, taken=())
        _put_manifest(stage, stage, manifest)
        # If a directory appeared meanwhile, this replaces it only if it is empty.
        stage.rename(folder)


def _save_over(write_files: WriteFiles, folder: Path, earlier: ProgramsManifest | None) -> None:
    """Saves into a folder that exists, and removes the files of an earlier save."""
    old = earlier["files"] if earlier else ()
    with _staging(folder) as stage:
        manifest = write_files(stage, taken=[file["name"] for file in old])
        new = manifest["files"]
        # If this ends at any moment, the manifest lists all files that are there.
        if earlier:
            _put_manifest(stage, folder, {**earlier, "files": (*old, *new)})
        for file in new:
            os.replace(stage / file["name"], folder / file["name"])
        _put_manifest(stage, folder, {**manifest, "files": (*new, *old)})
        new_names = {file["name"] for file in new}
        for file in old:
            if file["name"] not in new_names:
                (folder / file["name"]).unlink(missing_ok=True)
        _put_manifest(stage, folder, manifest)


def _put_manifest(stage: Path, folder: Path, manifest: ProgramsManifest) -> None:
    """Replaces the manifest of a folder, in one step."""
    path = stage / f"{MANIFEST}.new"
    _write_bytes(path, encode_manifest(manifest))
    os.replace(path, folder / MANIFEST)


def _write_bytes(path: Path, data: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def _write_files(
    programs: SavedPrograms,
    sorter: CallSorter,
    stage: Path,
    *,
    taken: Sequence[str],
) -> ProgramsManifest:
    """Writes all files but the manifest, which it returns.

    Args:
        programs, sorter: as for :func:`save`.
        stage: the folder to write into.
        taken: names that files of an earlier save have.
    """
    save_number = 0
    while any(_file_name(i, p, save_number) in taken for i, p in enumerate(programs.values())):
        save_number += 1
    documents: list[SavedProgram] = []
    for i, program in enumerate(programs.values()):
        file = _file_name(i, program, save_number)
        try:
            program.model.save(stage / file)
        except (TapeError, OSError):
            raise
        except Exception as error:  # torch raises errors of any type
            reason = f"{file} cannot be saved: {type(error).__name__}: {str(error)[:200]}"
            advice = "torch cannot write this program: use it in the process that exported it"
            raise TapeError("io", reason, advice=advice) from None
        documents.append(program_document(program, file))
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
        "layout_paths": tuple(sorted(sorter.layout_paths)),
        "ignored_sharing": tuple(sorted(sorter.ignored_sharing)),
        "missing": programs.missing,
        "notes": programs.all_notes,
        "attempts": programs.attempts,
        "verdicts": programs.verdicts,
        "files": tuple(files),
        "programs": tuple(documents),
    }


def _file_name(place: int, program: Program, save_number: int) -> str:
    slug = re.sub(r"[^A-Za-z0-9]+", "-", program.name)[:60].strip("-") or "program"
    return f"{place:02d}-{slug}{f'.{save_number}' if save_number else ''}{program.model.suffix}"


def signature_document(signature: Signature) -> SavedSignature:
    """A signature as it is saved."""
    parameters = tuple(p.model_dump() for p in signature.parameters)
    return {"parameters": parameters, "removed": tuple(sorted(signature.removed))}


def signature_from_document(document: SavedSignature) -> Signature:
    """The signature of :func:`signature_document`."""
    parameters = tuple(map(Parameter.model_validate, document["parameters"]))
    return Signature(parameters, frozenset(document["removed"]))


def program_document(program: Program, file: str) -> SavedProgram:
    """A program as it is saved beside its file, for :func:`program_parts`."""
    variant, group = program.variant, program.variant.group
    template, form = program.result
    return {
        "file": file,
        "name": variant.name,
        "inputs": tuple(program.plan.names),
        "made_by": program.made_by,
        "notes": tuple(program.all_notes),
        "state": program.state,
        "unwritten": program.unwritten,
        "result_arguments": tuple(program.result_arguments.items()),
        "random_generators": program.random_generators,
        "no_aliases": program.no_aliases,
        "device": program.device,
        "layout": _layout_document(group.layout),
        "scalars": tuple(program.plan.template.scalars),
        "facts": group.facts,
        "key_constants": group.key.constants,
        "shared": group.key.shared,
        "constants": group.constants,
        "rows": tuple(variant.rows),
        "only_rows": None if program.only_rows is None else tuple(program.only_rows),
        "variant_conditions": variant.conditions,  # type: ignore[typeddict-item]
        "conditions": program.conditions,
        "dimensions": tuple(variant.dimensions.items()),
        "zeros": {
            "accepted": tuple(variant.zeros.accepted),
            "rejected": tuple(variant.zeros.rejected.items()),
        },
        "returned": program.returned,
        "completions": tuple(map(_completion_document, variant.completions.values())),
        "constant_scalars": tuple(
            (place, value) for place, values in variant.constant_scalars.items() for value in values
        ),
        "open_floats": variant.open_floats,
        "frozen": tuple((i, str(t.dtype), t.tolist()) for i, t in variant.frozen.items()),
        "result": {
            "layout": _layout_document(template.layout),
            "scalars": tuple(template.scalars),
            "counters": tuple(template.counters.items()),
            "form": _form_document(form),
        },
    }


def program_parts(
    document: SavedProgram, signature: Signature, renamed: Renamed = str
) -> tuple[VariantFacts, ArgumentPlan, tuple[Template, PlainForm]]:
    """Variant, plan and result of a saved program.

    Args:
        document: as :func:`program_document` made it.
        signature: of the recorded method.
        renamed: gives the names that classes of arguments have in this process.

    Raises:
        TapeError: the document is damaged.
    """
    variant = _variant_of(document, renamed)
    variant.frozen = {
        place: _tensor(*dtype_and_values) for place, *dtype_and_values in document["frozen"]
    }
    plan = ArgumentPlan.of(variant, Sample([], list(document["scalars"])), signature)
    result = document["result"]
    layout = _layout_of(result["layout"])
    counters = dict(result["counters"])
    template = Template(layout, tuple(result["scalars"]), counters, derived_tensors(layout))
    return variant, plan, (template, _form_of(result["form"]))


def _variant_of(document: SavedProgram, renamed: Renamed) -> VariantFacts:
    nowhere = CallRef(b"", 0)
    layout = _layout_of(document["layout"], renamed)
    key = GroupKey(layout.keys, document["facts"], document["key_constants"], document["shared"])
    group = Group(key, layout, tuple(document["constants"]), nowhere)
    # How many calls a row has is not saved: each row counts as one call.
    rows = SizeTable.of((row, Seen(1, nowhere)) for row in document["rows"])
    variant = VariantFacts(group, rows, document["variant_conditions"])
    variant.name = document["name"]
    variant.dimensions = dict(document["dimensions"])
    zeros = document["zeros"]
    variant.zeros = ZeroSizes(frozenset(zeros["accepted"]), dict(zeros["rejected"]))
    for place, value in document["constant_scalars"]:
        variant.constant_scalars[place] = (*variant.constant_scalars.get(place, ()), value)
    variant.open_floats = document["open_floats"]
    completions = [_completion_of(c, layout, renamed) for c in document["completions"]]
    variant.completions = {completion.key: completion for completion in completions}
    return variant


def _tensor(dtype_name: str, values: Any) -> Any:
    import torch

    dtype = vars(torch).get(dtype_name.removeprefix("torch."))
    if not isinstance(dtype, torch.dtype):
        raise TapeError("invalid", f"{dtype_name[:80]!r} is not a dtype")
    return torch.tensor(values, dtype=dtype)


def _layout_document(layout: ArgumentLayout) -> SavedLayout:
    kwargs = {
        "kind": "dict",
        "keys": list(layout.nodes),
        "children": [
            node.model_dump(exclude_none=True, warnings=False) for node in layout.nodes.values()
        ],
    }
    root = {"kind": "tuple", "children": [{"kind": "tuple", "children": []}, kwargs]}
    document = {"root": root, "leaves": len(layout.tensors), "scalars": len(layout.scalars)}
    if (context := layout.context.recorded()) is not None:
        document["context"] = context.model_dump()
    return {
        "structure": encode_structure(document),
        "positional": layout.positional,
        "modes": tuple(sorted(layout.context.modes)),
        "ordered": tuple(sorted(layout.ordered)),
    }


def _layout_of(document: SavedLayout, renamed: Renamed = str) -> ArgumentLayout:
    spec = decode_structure(document["structure"])
    root: Any = spec.root
    try:
        kwargs = root.children[1]
        nodes = dict(zip(kwargs.keys, kwargs.children, strict=True))
    except (AttributeError, IndexError):
        raise TapeError("invalid", "a saved layout is not one of arguments") from None
    context = Context.of(spec.context, (), document["modes"])
    ordered = frozenset(document["ordered"])
    return layout_of_nodes(nodes, document["positional"], renamed, context, ordered=ordered)


def _completion_document(completion: Completion) -> SavedCompletion:
    return {
        "layout_keys": completion.key.layout,
        "facts": completion.key.facts,
        "key_constants": completion.key.constants,
        "shared": completion.key.shared,
        "tensors": completion.tensors,
        "scalars": completion.scalars,
        "missing": tuple(completion.missing.items()),
        "dtypes": tuple(completion.dtypes.items()),
        "constants": completion.constants,
        "scalar_kinds": tuple(path.kind for path in completion.layout.scalars),  # type: ignore[misc]
        "counting_ints": tuple(completion.counting_ints.items()),
    }


def _completion_of(
    document: SavedCompletion, layout: ArgumentLayout, renamed: Renamed
) -> Completion:
    if document["scalar_kinds"] != tuple(path.kind for path in layout.scalars):
        raise TapeError("invalid", "its manifest contradicts itself: the scalars of a completion")
    keys = _with_names(document["layout_keys"], renamed)
    return Completion(
        GroupKey(keys, document["facts"], document["key_constants"], document["shared"]),
        layout,
        document["tensors"],
        document["scalars"],
        dict(document["missing"]),
        dict(document["dtypes"]),
        tuple(document["constants"]),
        dict(document["counting_ints"]),
    )


def _with_names(key: Any, renamed: Renamed) -> Any:
    """The key of a layout with the names that classes have in this process."""
    if isinstance(key, tuple):
        return tuple(_with_names(part, renamed) for part in key)
    return renamed(key) if isinstance(key, str) and ":" in key else key


def _form_document(form: PlainForm) -> SavedForm:
    if form.leaf is not None:
        return form.leaf.kind, form.leaf.index
    children = tuple(map(_form_document, form.children))
    return {"kind": cast("Any", form.kind), "keys": form.keys, "children": children}


def _form_of(document: SavedForm) -> PlainForm:
    if isinstance(document, tuple):
        return PlainForm("leaf", FormLeaf(*document))
    children = tuple(map(_form_of, document["children"]))
    return PlainForm(document["kind"], children=children, keys=document["keys"])


def check_program(program: Program) -> None:
    """Checks that every place that a program names exists.

    Raises:
        TapeError: ``invalid`` if parts of the program contradict each other.
    """
    group = program.variant.group
    _check_group(group)
    _expect(len(program.plan.template.scalars) == len(group.layout.scalars), "its scalars")
    rows = list(program.variant.rows)
    ranks = [facts.rank for facts in group.facts]
    for row in [*rows, *(program.only_rows or ())]:
        _expect([len(shape) for shape in row.shapes] == ranks, "the ranks of a row")
        _expect(len(row.ints) == len(group.layout.ints), "the ints of a row")
    for condition in program.variant.conditions:
        if isinstance(condition, Fixed):
            _check_columns(group, [condition.column])
        elif isinstance(condition, CounterIs):
            _check_columns(group, [condition.counter, condition.keys])
    _check_columns(group, program.variant.dimensions)
    zeros = program.variant.zeros
    for columns in (*zeros.accepted, *zeros.rejected):
        _check_columns(group, columns)
    for place in (*program.variant.frozen, *program.no_aliases, *program.result_arguments.values()):
        _expect(place < len(group.layout.tensors), "a tensor")
    for place in program.variant.constant_scalars:
        _expect(place < len(group.layout.scalars), "a constant")
    for place in program.variant.open_floats:
        kinds = [path.kind for path in group.layout.scalars]
        _expect(place < len(kinds) and kinds[place] == "float", "a float")
    for completion in program.variant.completions.values():
        _check_completion(group, completion)
    _check_result(program)
    _expect(len(program.conditions.inputs) == len(program.plan.leaves), "its conditions")
    # The rules that decide about a call must be able to decide about a recorded one.
    program.rejects(rows[0])


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise TapeError("invalid", f"its manifest contradicts itself: {what}")


def _check_group(group: Group) -> None:
    layout = group.layout
    _expect(len(group.facts) == len(layout.tensors), "the facts of tensors")
    _expect(len(group.constants) == len(layout.others), "its constants")
    public = [place for place in layout.others if not place.private]
    _expect(len(group.key.constants) == len(public), "its constants")


def _check_columns(group: Group, columns: Iterable[Column]) -> None:
    for place, axis in columns:
        if axis is None:
            _expect(place < len(group.layout.ints), "an int")
        else:
            _expect(place < len(group.facts) and axis < group.facts[place].rank, "a dimension")


def _check_completion(group: Group, completion: Completion) -> None:
    """Checks that a completion makes a row of its group from columns that the call has."""
    for parts in (completion.scalars, completion.constants):
        _expect(len(parts) == len(group.layout.scalars), "the scalars of a completion")
    _expect(len(completion.tensors) == len(group.facts), "the tensors of a completion")
    facts = completion.key.facts
    for place, source in enumerate(completion.tensors):
        if source is None:
            _expect(place in completion.missing, "a missing tensor")
            _expect(place in completion.dtypes, "the type of a missing tensor")
        else:
            _expect(source < len(facts), "a tensor of a completion")
            _expect(facts[source].rank == group.facts[place].rank, "the rank of a tensor")
    for place, sources in completion.missing.items():
        _expect(place < len(group.facts), "a missing tensor")
        _expect(completion.tensors[place] is None, "a missing tensor")
        _expect(len(sources) == group.facts[place].rank, "the rank of a missing tensor")
        columns = [c for s in sources for c in (s.column, s.less) if c is not None]
        _check_columns(group, columns)
        for column in columns:
            _expect(completion.tensors[column.index] is not None, "the size of a missing tensor")
            _expect(column.axis is not None, "the size of a missing tensor")
    for pair in completion.counting_ints.items():
        _check_columns(group, pair)


def _check_result(program: Program) -> None:
    template, form = program.result
    layout = template.layout
    _expect(len(template.scalars) == len(layout.scalars), "the scalars of its result")
    for scalar, (tensor, _) in template.counters.items():
        _expect(scalar < len(layout.scalars) and tensor < len(layout.tensors), "a counter")
    for leaf in form.leaves():
        places = layout.tensors if leaf.kind == "tensor" else layout.scalars
        _expect(leaf.index < len(places), "a leaf of its result")
