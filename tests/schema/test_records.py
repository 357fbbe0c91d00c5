"""Manifest and record: round trips, versions, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from calltape_schema.packing import pack, seal_envelope, unpack
from calltape_schema.records import (
    CallRecord,
    Manifest,
    Parameter,
    Policy,
    Producer,
    Target,
    decode_call,
    decode_manifest,
    encode_manifest,
)
from calltape_schema.tree import encode_leaves, encode_structure
from tests.raising import raises

TAPE = bytes(range(16))
EMPTY = {
    "structure": encode_structure({"root": {"kind": "none"}, "leaves": 0, "scalars": 0}),
    "leaves": encode_leaves([]),
}
CALL = {"tape": TAPE, "call": 3, "time_ns": 5, "inputs": EMPTY}
MANIFEST = {
    "format": "calltape", "version": 1, "tape": TAPE, "created_ns": 1,
    "producer": {"calltape": "0.1.0"},
}  # fmt: skip


def plain(document: Any) -> Any:
    return unpack(pack(document))


def sealed(document: Any) -> bytes:
    return seal_envelope(pack(document))


def test_a_manifest_is_decoded_as_encoded() -> None:
    signature = (
        Parameter(name="x", kind="POSITIONAL_ONLY"),
        Parameter(name="mode", kind="KEYWORD_ONLY", has_default=True),
        Parameter(name="text", kind="KEYWORD_ONLY", has_default=True, default="\ud800"),
        Parameter(name="wide", kind="KEYWORD_ONLY", has_default=True, default=2**80),
        Parameter(name="kwargs", kind="VAR_KEYWORD"),
    )
    manifest = Manifest(
        format="calltape",
        version=1,
        tape=TAPE,
        created_ns=2**62,
        producer=Producer(calltape="0.1.0", torch="2.6.0", host="there"),
        target=Target(type="m:C.<locals>.D", method="forward", via="method", signature=signature),
        policy=Policy(outputs=False, values="none", max_calls=3),
    )
    assert decode_manifest(encode_manifest(manifest)) == manifest


def test_a_call_record_is_decoded_as_encoded() -> None:
    document = CALL | {
        "duration_ns": 7,
        "thread": 2**64 - 1,
        "outputs": EMPTY | {"ranges": [{"leaf": 0, "min": -(2**63), "max": 2**64 - 1}]},
        "blob": {"size": 2**63 - 1, "checksum": 2**32 - 1, "back": 2**63 - 1},
    }
    record = decode_call(plain(document))
    outputs = document["outputs"] | {"ranges": tuple(document["outputs"]["ranges"])}
    assert record.model_dump(exclude_unset=True) == document | {"outputs": outputs}
    assert record.inputs.spec().root.kind == "none"  # type: ignore[union-attr]
    raised = CALL | {"error": {"type": "builtins:ValueError", "message": "\ud800 line\n"}}
    assert decode_call(plain(raised)).model_dump(exclude_unset=True) == raised
    with raises("invalid", "the outputs of a call that raised"):
        decode_call(plain(raised | {"outputs": EMPTY}))


@pytest.mark.parametrize("version", [2, 3, 2**63])
def test_a_newer_version_is_refused_by_name(version: int) -> None:
    newer = {"format": "calltape", "version": version, "everything": "else changed"}
    with raises("version", f"format version {version}; this reader knows 1") as caught:
        decode_manifest(sealed(newer))
    assert str(caught.value).endswith("Upgrade calltape-analyzer to read it.")


def test_all_problems_of_a_manifest_are_told_at_once() -> None:
    wrong = MANIFEST | {
        "tape": b"short",
        "created_ns": -1,
        "producer": {},
        "target": {"type": "x", "method": 1, "via": "magic", "signature": [{"name": "a"}]},
    }
    with raises("invalid") as caught:
        decode_manifest(sealed(wrong))
    assert [".".join(map(str, problem.loc)) for problem in caught.value.problems] == [
        "tape", "created_ns", "producer.calltape", "target.type", "target.method", "target.via",
        "target.signature.0.kind",
    ]  # fmt: skip


def test_unknown_fields_are_skipped_everywhere() -> None:
    padded = CALL | {"later": [1, {"a": None}], "inputs": EMPTY | {"later": 1}}
    assert decode_call(plain(padded)) == CallRecord.model_validate(CALL)
