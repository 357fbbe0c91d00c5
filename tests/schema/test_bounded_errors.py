"""A file that is wrong in a million places is refused at the first of them.

pydantic makes an error for each, of a kilobyte: 0.9 MB became 3.7 GB.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

import calltape_analyzer.programs.manifest
import calltape_schema
from calltape_schema.end import decode_end
from calltape_schema.groups import group_of
from calltape_schema.inputs_document import unpack_inputs
from calltape_schema.packing import pack, seal_envelope
from calltape_schema.records import decode_call, decode_manifest
from calltape_schema.sections import Section
from calltape_schema.tree import decode_leaves, decode_structure
from tests.forging.sections import table_entry
from tests.raising import raises

_ID = bytes(16)
_MANY = 100_000


def _modules() -> Iterator[ModuleType]:
    for found in pkgutil.iter_modules(calltape_schema.__path__):
        yield importlib.import_module(f"calltape_schema.{found.name}")
    yield calltape_analyzer.programs.manifest


def _models() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for module in _modules():
        for name, value in vars(module).items():
            if isinstance(value, TypeAdapter):
                found[f"{module.__name__}.{name}"] = value.core_schema
            elif isinstance(value, type(BaseModel)):
                found[f"{value.__module__}.{name}"] = value.__pydantic_core_schema__
    return found


MODELS = _models()


def _unbounded(schema: Any, path: str = "", *, is_checked: bool = False) -> Iterator[str]:
    """The places of a schema that make an error for each of their items."""
    if isinstance(schema, dict):
        kind = schema.get("type")
        is_sequence = kind == "tuple" and "variadic_item_index" in schema
        if (is_sequence or kind in ("list", "set")) and not schema.get("fail_fast"):
            yield path
        if kind == "dict" and not is_checked:
            yield path
        for name, part in schema.items():
            if name == "serialization":  # of what was validated
                continue
            inside = kind == "function-before" and name == "schema"
            yield from _unbounded(part, f"{path}.{name}", is_checked=inside)
    elif isinstance(schema, list):
        for at, part in enumerate(schema):
            yield from _unbounded(part, f"{path}.{at}")


def test_all_models_are_found() -> None:
    assert any(name.endswith("programs.manifest._manifest") for name in MODELS)
    assert any(name.endswith("end.End") for name in MODELS)
    assert len(MODELS) > 40


@pytest.mark.parametrize("name", MODELS)
def test_first_wrong_item_ends_the_check(name: str) -> None:
    assert not list(_unbounded(MODELS[name]))


def _enveloped(decode: Callable[[bytes], Any], **fields: Any) -> Callable[[], Any]:
    return lambda: decode(seal_envelope(pack(fields)))


def _end(content: bytes) -> Any:
    """An end, with a place for where it is after its envelope."""
    return decode_end(b"\x93" + content[1:] + pack(bytes(24)))


def _bare(decode: Callable[[bytes], Any], document: Any) -> Callable[[], Any]:
    return lambda: decode(pack(document))


_COVERAGE = {"seen": 1, "kept": 1}
_INDEX = Section.of(b"")


def _group(fields: dict[str, Any]) -> bytes:
    """A group of one record with these fields, also of its inputs."""
    shared, inputs = pack([b"", b""]), {"structure": 0, "leaves": 1, **fields}
    documents = shared + pack({"inputs": inputs, **fields})
    table = table_entry(0, 0, 0, len(shared), 0)
    return pack([_ID, bytes(8), len(table), Section.of(table), Section.of(documents)])


WRONG = {
    "ranges": lambda: decode_call(
        {"tape": _ID, "call": 0, "time_ns": 0, "inputs": {"ranges": ({},) * (_MANY // 4)}}
    ),
    "history": _enveloped(decode_manifest, format="calltape", version=1, history=[{}] * _MANY),
    "dumps": _enveloped(
        _end, tape=_ID, closed_ns=0, coverage=_COVERAGE, index=_INDEX, dumps=[{}] * _MANY
    ),
    "dropped": _enveloped(
        _end, tape=_ID, closed_ns=0, index=_INDEX,
        coverage={**_COVERAGE, "dropped": dict.fromkeys(map(str, range(_MANY)), "x")},
    ),
    "references": lambda: group_of(_group({"at": [0] * _MANY}), 0).record(0),
    "parts": _bare(unpack_inputs, {"parts": [0] * _MANY}),
    "rows": _bare(unpack_inputs, {"rows": [0] * _MANY}),
    "kinds": _bare(unpack_inputs, {"kinds": [0] * _MANY}),
    "axes": _bare(unpack_inputs, {"kinds": [{"axes": [0] * _MANY}]}),
    "sizes": _bare(unpack_inputs, {"kinds": [{"axes": [[[0] * _MANY, 0, 0]]}]}),
    "leaves": _bare(decode_leaves, [0] * _MANY),
    "shape": _bare(decode_leaves, [{"dtype": "float32", "shape": ["x"] * _MANY, "key": "x"}]),
    "fields": _bare(
        decode_structure,
        {
            "root": {"kind": "record", "type": "a:b", "fields": [0] * _MANY, "children": []},
            "leaves": 0,
            "scalars": 0,
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_few_problems_are_told(name: str) -> None:
    with raises("invalid") as raised:
        WRONG[name]()
    assert 0 < len(raised.value.problems) < 20
