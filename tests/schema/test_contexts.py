"""The context of a call in a structure."""

from __future__ import annotations

from typing import Any

import pytest

from calltape_schema.errors import TapeError
from calltape_schema.tree import decode_structure, document_like, encode_structure

ROOT = {"kind": "tuple", "children": []}
CPU = {"device": "cpu", "dtype": "bfloat16"}


def structure(context: Any) -> dict[str, Any]:
    return {"root": ROOT, "leaves": 0, "scalars": 0, "context": context}


def test_a_context_is_read_with_its_defaults() -> None:
    found = decode_structure(encode_structure(structure({"autocast": [CPU], "new": 1}))).context
    assert found is not None
    assert (found.grad, found.inference, found.default_dtype) == (True, False, "float32")
    assert not found.training
    assert [one.dtype for one in found.autocast] == ["bfloat16"]


def test_a_structure_without_one_has_none() -> None:
    document = {"root": ROOT, "leaves": 0, "scalars": 0}
    assert decode_structure(encode_structure(document)).context is None


@pytest.mark.parametrize(
    "context",
    [
        {"autocast": [CPU, CPU]},
        {"autocast": [CPU | {"device": f"d{i}"} for i in range(17)]},
        {"autocast": [{"device": "../cpu", "dtype": "float16"}]},
        {"autocast": [{"device": "cpu", "dtype": "float16\n"}]},
        {"autocast": [{"device": "cpu"}]},
        {"grad": 1},
        {"inference": "no"},
        {"default_dtype": "../float64"},
        {"default_dtype": None},
        {"training": 1},
        "no_grad",
    ],
    ids=str,
)
def test_a_context_that_breaks_the_format_is_invalid(context: Any) -> None:
    with pytest.raises(TapeError) as caught:
        encode_structure(structure(context))
    assert caught.value.kind == "invalid"


def test_a_structure_with_another_root_keeps_it() -> None:
    spec = decode_structure(encode_structure(structure({"grad": False})))
    again = decode_structure(encode_structure(document_like(spec, ROOT, 0, 0)))
    assert again.context == spec.context
