"""A folder of ``.safetensors`` and ``.json`` files, one of each per call, and back again.

``tape.json`` is the manifest. ``call_00000012.json`` is the record of call 12 as FORMAT.md has it,
with structure and leaves written out; ``call_00000012.safetensors`` has its tensors by the ``key``
of each leaf. What JSON has no form for is an object with one key: ``$bytes`` (base64) or ``$float``
(``nan``, ``inf``, ``-inf``). A ``.safetensors`` file without a ``.json`` is a call whose keyword
arguments are the tensors; those named ``outputs.<name>`` are its results.
"""

from __future__ import annotations

import base64
import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from calltape_analyzer.errors import UsageError
from calltape_analyzer.programs.untrusted_files import as_tape_errors, read_json, read_regular
from calltape_analyzer.reading.calls import whole_calls
from calltape_analyzer.tape import Tape
from calltape_analyzer.text import some_of
from calltape_analyzer.writing.lineage import coverage_of_numbers, new_manifest
from calltape_analyzer.writing.new_tape import NewTape
from calltape_analyzer.writing.output_file import create_file, new_folder
from calltape_analyzer.writing.synthetic import ABSENT, build_call
from calltape_schema import __version__
from calltape_schema.blob import header_size, parse_header
from calltape_schema.bounds import MAX_DOCUMENT_BYTES, MAX_STEPS
from calltape_schema.drop_reasons import DropReason
from calltape_schema.errors import TapeError
from calltape_schema.packing import (
    is_array,
    is_list,
    is_map,
    open_envelope,
    pack,
    seal_envelope,
    unpack,
)
from calltape_schema.records import (
    MINOR,
    Step,
    decode_call,
    decode_manifest,
    encode_manifest,
)

__all__ = ["read_safetensors_folder", "write_safetensors_folder"]

_NAME = re.compile(r"(?:.*?)(\d{1,18})\.safetensors|call_(\d{8,18})\.json", re.ASCII)
_MANIFEST = "tape.json"
_OUTPUTS = "outputs."
_SIDES = ("inputs", "outputs")
_DOCUMENTS = ("structure", "leaves")


def write_safetensors_folder(tape: Tape, path: str | os.PathLike[str]) -> int:
    """Writes a folder with two files per call, from which the same tape can be made again.

    Returns:
        How many calls were written. Damaged ones are left out; the tape's ``damage`` names them.

    Raises:
        TapeError: ``exists`` or ``io``.
    """
    count = 0
    with new_folder(path) as folder:
        manifest = unpack(open_envelope(encode_manifest(tape.manifest)))
        _write_json(folder / _MANIFEST, manifest)
        for call in whole_calls(tape.calls, entries=True):
            document = call.record.model_dump(exclude_unset=True)  # no field that nobody knows
            del document["tape"]
            has_blob = bool(document.pop("at", None)) | bool(document.pop("blob", None))
            for side in _SIDES:
                for name in _DOCUMENTS if side in document else ():
                    document[side][name] = unpack(document[side][name])
            stem = folder / f"call_{call.number:08d}"
            _write_json(stem.with_suffix(".json"), document)
            if has_blob:
                with create_file(stem.with_suffix(".safetensors")) as file:
                    file.writelines(call.raw_blob())
            count += 1
    return count


def read_safetensors_folder(
    path: str | os.PathLike[str], out: str | os.PathLike[str], *, overwrite: bool = False
) -> int:
    """Makes a tape of a folder of ``.safetensors`` files, with or without ``.json`` beside them.

    Args:
        path: of the folder.
        out: of the new tape.
        overwrite: whether a file that is there already is replaced.

    Returns:
        How many calls the tape has. The numbers are those in the names of the files.

    Raises:
        UsageError: there is no such file in the folder, or two are of one call.
        TapeError: ``not_found``, ``damaged``, ``invalid`` or ``limit`` for a file that cannot be a
            call; ``exists``, ``io``.
    """
    folder = Path(path)
    if not folder.is_dir():
        advice = "name the folder that has the .safetensors files"
        raise TapeError("not_found", "no such folder", path=str(folder), advice=advice)
    calls = _calls_in(folder)
    stored_manifest = new_manifest()
    described = folder / _MANIFEST
    if os.path.lexists(described):
        with as_tape_errors(described, "the manifest"):
            stored_manifest = decode_manifest(seal_envelope(pack(_read_json(described))))
    # Its history says which form the calls came from.
    step = Step(
        verb="convert",
        tool="calltape",
        version=__version__,
        tape=stored_manifest.tape,
        options=(("from", "safetensors"),),
    )
    history = (*(stored_manifest.history or ())[-(MAX_STEPS - 1) :], step)
    manifest = stored_manifest.model_copy(
        update={"history": history, "minor": max(MINOR, stored_manifest.minor)}
    )
    with NewTape(out, manifest, overwrite=overwrite) as writer:
        for number, stem in sorted(calls.items()):
            with as_tape_errors(f"{stem}.*", "the call"):
                _add(writer, number, stem, manifest.tape)
        writer.seal(
            coverage_of_numbers(max(calls) + 1, writer.calls, DropReason.NOT_GIVEN, at_least=True)
        )
        return writer.calls


def _calls_in(folder: Path) -> dict[int, Path]:
    files: dict[int, Path] = {}
    for name in sorted(os.listdir(folder)):
        match = _NAME.fullmatch(name)
        if match is None:
            continue
        number, stem = int(match[1] or match[2]), folder / name.rpartition(".")[0]
        if files.setdefault(number, stem) != stem:
            raise UsageError(f"{files[number].name} and {stem.name} are both call {number}")
    if not files:
        raise UsageError(
            "the folder has no files of calls", path=str(folder),
            advice="name them like call_00000000.safetensors",
        )  # fmt: skip
    return files


def _add(writer: NewTape, number: int, stem: Path, tape: bytes) -> None:
    # Not with_suffix, which would take the 0001 of model.0001 for a suffix.
    tensors, described = Path(f"{stem}.safetensors"), Path(f"{stem}.json")
    if not os.path.lexists(described):
        _add_tensors(writer, number, tensors)
        return
    document = _read_json(described)
    if not is_map(document):
        raise TapeError("invalid", "the record is not an object")
    for side in _SIDES:
        tree = document.get(side)
        if is_map(tree):
            document[side] = {k: pack(v) if k in _DOCUMENTS else v for k, v in tree.items()}
    record = decode_call(unpack(pack({**document, "call": number, "tape": tape})))
    values = _stored(tensors)[1] if os.path.lexists(tensors) else {}
    trees = [tree for tree in (record.inputs, record.outputs) if tree is not None]
    keys = [leaf.key for tree in trees for leaf in tree.facts()]
    lacking = [key for key in keys if key is not None and key not in values]
    if lacking:
        raise TapeError(
            "invalid",
            f"the .json names tensors that the .safetensors lacks: {some_of(lacking, 3)}",
            advice="copy the folder again from where it came",
        )
    writer.write(record, values)


def _add_tensors(writer: NewTape, number: int, path: Path) -> None:
    from safetensors.torch import load

    data, _ = _stored(path)  # the same limits as for a tape
    tensors = load(data)
    arguments = {name: tensor for name, tensor in tensors.items() if not name.startswith(_OUTPUTS)}
    outputs: Any = {
        name.removeprefix(_OUTPUTS): tensor
        for name, tensor in tensors.items()
        if name not in arguments
    }
    writer.write(*build_call(number, (), arguments, outputs or ABSENT))


def _stored(path: Path) -> tuple[bytes, dict[str, memoryview]]:
    """The bytes of a file, and of each tensor in it."""
    data = read_regular(path)
    start = header_size(data[:8], len(data))
    view = memoryview(data)
    entries = parse_header(data[:start], len(data))
    return data, {name: view[start + e.begin : start + e.end] for name, e in entries.items()}


def _write_json(path: Path, document: Any) -> None:
    text = json.dumps(_to_json(document), indent=1, allow_nan=False)
    with create_file(path) as file:
        file.write(f"{text}\n".encode("ascii"))


def _read_json(path: Path) -> Any:
    return _from_json(read_json(path, MAX_DOCUMENT_BYTES))


def _to_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _to_json(item) for key, item in value.items()}
    if is_array(value) or is_list(value):
        return [_to_json(item) for item in value]
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": repr(value)}
    return value


def _from_json(value: Any) -> Any:
    if is_list(value):
        return [_from_json(item) for item in value]
    if not is_map(value):
        return value
    if value.keys() == {"$bytes"}:
        return base64.b64decode(value["$bytes"], validate=True)
    if value.keys() == {"$float"}:
        return float(value["$float"])
    return {key: _from_json(item) for key, item in value.items()}
