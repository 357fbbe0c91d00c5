"""Dumps that FlashInfer writes at ``FLASHINFER_LOGLEVEL=10``, as a tape.

Each call is a folder ``<time>_pid<pid>_<function>_call<number>``. ``metadata.jsonl`` describes it,
and its last line counts. The tensors are in ``inputs.pt`` and ``outputs.pt``, or in files of
safetensors, by the names ``arg_0``, ``kwarg_mask``, ``result``, ``result_0``; other values, and
containers of tensors, stand in the description. A ``.pt`` is loaded without running code of its
author (``weights_only``).
"""

from __future__ import annotations

import ast
import io
import os
import re
import zipfile
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from calltape_analyzer.converting.new_tape import manifest_of_form
from calltape_analyzer.errors import UsageError
from calltape_analyzer.pytree.memory_limit import check_memory, memory_limit_of
from calltape_analyzer.pytree.placeholder import Placeholder
from calltape_analyzer.pytree.tensors import torch_constant
from calltape_analyzer.reading.regular_files import json_of, read_regular, told_of
from calltape_analyzer.text import some_of
from calltape_analyzer.writing.built_calls import ABSENT, build_call
from calltape_analyzer.writing.coverage import coverage_of_numbers
from calltape_analyzer.writing.tape_writer import TapeWriter
from calltape_schema.blob import header_size, parse_header
from calltape_schema.errors import TapeError
from calltape_schema.records import Parameter, Target

__all__ = ["read_flashinfer_dumps"]

_MAX_METADATA = 64 * 1024 * 1024
_MAX_NAMED = 8
_TYPE_NAME = re.compile(r"[^:\s]{1,250}:[^:\s]{1,250}")


def read_flashinfer_dumps(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    function: str | None = None,
    overwrite: bool = False,
) -> int:
    """Makes a tape of the dumps of one function.

    Args:
        path: the folder that ``FLASHINFER_DUMP_DIR`` named.
        out: of the new tape.
        function: its name, as in the dumps; by default the only one that there is.
        overwrite: whether a file that is there already is replaced.

    Returns:
        How many calls the tape has, in the order of time. Calls without outputs are those that did
        not return.

    Raises:
        UsageError: there is no dump, or there are dumps of several functions.
        TapeError: ``invalid`` or ``limit`` for a dump that cannot be read; ``exists``, ``io``.
    """
    dumps = _dumps_in(Path(path))
    names = sorted({str(known.get("function_name")) for _, known in dumps})
    if function is None and len(names) > 1:
        raise UsageError(
            f"there are dumps of {len(names)} functions: {some_of(names, _MAX_NAMED)}",
            advice="name one of them",
        )
    wanted = [(f, known) for f, known in dumps if function in (None, known.get("function_name"))]
    if not wanted:
        raise UsageError(
            f"there is no dump of {function or 'any function'} in this folder",
            path=os.fspath(path),
            advice=f"there are dumps of {some_of(names, _MAX_NAMED)}"
            if names
            else "give the "
            "folder that FLASHINFER_DUMP_DIR named, which has a folder with a metadata.jsonl for "
            "each call",
        )
    manifest = manifest_of_form("flashinfer", _target(wanted[0][1]))
    with TapeWriter(out, manifest, overwrite=overwrite) as writer:
        for number, (folder, known) in enumerate(wanted):
            with told_of(folder, "the dump"):
                args, kwargs, outputs = _values(folder, known)
                writer.write(*build_call(number, args, kwargs, outputs, time_ns=_time(known)))
        writer.seal(coverage_of_numbers(writer.calls - 1, writer.calls))
        return writer.calls


def _dumps_in(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    """The folders of calls with their descriptions, in the order of time."""
    if not folder.is_dir():
        raise TapeError("not_found", "no such folder", path=str(folder))
    found = [(path.parent, _metadata(path)) for path in sorted(folder.glob("*/metadata.jsonl"))]
    return sorted(found, key=lambda one: (str(one[1].get("timestamp")), one[0].name))


def _metadata(path: Path) -> dict[str, Any]:
    lines = [one for one in read_regular(path, _MAX_METADATA).splitlines() if one.strip()]
    found = json_of(lines[-1], path) if lines else None
    if not isinstance(found, dict):
        raise TapeError("invalid", "its last line is not an object", path=str(path))
    return found


def _values(folder: Path, known: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
    """Arguments and results of a call."""
    inputs = _tensors(folder, "inputs")
    given = _named(known.get("input_metadata") or {}, inputs)
    places = sorted(int(key[4:]) for key in given if key.startswith("arg_"))
    if places != list(range(len(places))):
        raise TapeError("invalid", "positional arguments are missing", path=str(folder))
    args = tuple(given[f"arg_{place}"] for place in places)
    kwargs = {key[6:]: value for key, value in given.items() if key.startswith("kwarg_")}
    if known.get("execution_status") != "completed":
        return args, kwargs, ABSENT
    found = _named(known.get("output_metadata") or {}, _tensors(folder, "outputs"))
    if "result" in found or not found:
        return args, kwargs, found.get("result")
    return args, kwargs, tuple(found[f"result_{at}"] for at in range(len(found)))


def _named(described: Mapping[str, Any], tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The values by name: tensors that stand alone, and what is described."""
    used: set[str] = set()
    values = {key: _value(value, tensors, used) for key, value in described.items()}
    alone = {key: tensor for key, tensor in tensors.items() if key not in used}
    return alone | values


def _value(value: Any, tensors: Mapping[str, Any], used: set[str]) -> Any:
    if not isinstance(value, dict):
        return value
    kind, items = value.get("type"), value.get("items")
    if kind == "torch.Tensor":
        used.add(value["tensor_key"])
        return tensors[value["tensor_key"]]
    if kind == "torch.dtype":
        return _dtype(value["value"])
    if kind == "enum":
        return value["value"]
    if items is not None and not value.get("truncated"):
        if kind in ("list", "tuple"):
            made = [_value(item, tensors, used) for item in items]
            return tuple(made) if kind == "tuple" else made
        if kind == "dict":
            pairs = ((item["key"], item["value"]) for item in items)
            return {_value(k, tensors, used): _value(v, tensors, used) for k, v in pairs}
    return _Unknown()


class _Unknown:
    """Stands for a value that FlashInfer did not write. On the tape it is opaque."""


def _dtype(text: str) -> Any:
    found = torch_constant("dtype", text.removeprefix("torch."))
    return _Unknown() if isinstance(found, Placeholder) else found


def _tensors(folder: Path, side: str) -> dict[str, Any]:
    import torch
    from safetensors.torch import load

    path = folder / f"{side}.safetensors"
    if os.path.lexists(path):
        data = read_regular(path)
        parse_header(data[: header_size(data[:8], len(data))], len(data))
        return dict(load(data))
    path = folder / f"{side}.pt"
    if not os.path.lexists(path):
        return {}
    data = read_regular(path)
    _check_pt(data)
    found = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    if not isinstance(found, dict) or not all(isinstance(t, torch.Tensor) for t in found.values()):
        raise TapeError("invalid", f"{side} are not named tensors", path=str(folder))
    # A view may claim more elements than its memory has.
    shapes = [(t.shape, t.itemsize) for t in found.values()]
    check_memory(memory_limit_of(len(data)), shapes, f"the tensors of {side}")
    return {str(key): tensor for key, tensor in found.items()}


def _check_pt(data: bytes) -> None:
    """Refuses a ``.pt`` of which torch would make more than it has: one whose parts are packed, and
    the form that torch wrote before 1.6, which says how much memory to take."""
    with zipfile.ZipFile(io.BytesIO(data)) as parts:
        if any(one.compress_type != zipfile.ZIP_STORED for one in parts.infolist()):
            raise TapeError("invalid", "its parts are packed, which torch.save does not do")
        if sum(one.file_size for one in parts.infolist()) > len(data):
            raise TapeError("invalid", "its parts are larger than the file")


def _time(known: Mapping[str, Any]) -> int:
    """When the call began; the dump has local time, which is taken for UTC. 0 if it has none."""
    try:
        moment = datetime.strptime(str(known.get("timestamp")), "%Y%m%d_%H%M%S_%f")
    except ValueError:
        return 0
    return max(int(moment.replace(tzinfo=timezone.utc).timestamp() * 1e9), 0)


def _target(known: Mapping[str, Any]) -> Target | None:
    name = f"{known.get('module')}:{known.get('function_name')}"
    if not _TYPE_NAME.fullmatch(name):
        return None
    signature = _signature(str(known.get("function_signature")), "self_id" in known)
    return Target(type=name, method="__call__", via="method", signature=signature)


def _signature(text: str, is_method: bool) -> tuple[Parameter, ...] | None:
    """The parameters of a signature as Python prints it; None if it cannot be read. Nothing of it
    is evaluated."""
    try:
        found = ast.parse(f"def f{text}: ...").body[0]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if not isinstance(found, ast.FunctionDef):
        return None
    given = found.args
    positional = [*given.posonlyargs, *given.args]
    first_default = len(positional) - len(given.defaults)
    made: list[Parameter] = []
    for at, one in enumerate(positional):
        kind: Any = "POSITIONAL_ONLY" if at < len(given.posonlyargs) else "POSITIONAL_OR_KEYWORD"
        has = at >= first_default
        made.append(Parameter(name=one.arg, kind=kind, has_default=has, default_missing=has))
    if given.vararg is not None:
        made.append(Parameter(name=given.vararg.arg, kind="VAR_POSITIONAL"))
    for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        has = default is not None
        made.append(
            Parameter(name=one.arg, kind="KEYWORD_ONLY", has_default=has, default_missing=has)
        )
    if given.kwarg is not None:
        made.append(Parameter(name=given.kwarg.arg, kind="VAR_KEYWORD"))
    drops_self = is_method and bool(made) and made[0].name == "self"
    return tuple(made[1:] if drops_self else made)
