"""Manifest and record: round trips, versions, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from tests.schema.raising import raises

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


def test_manifest() -> None:
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


def test_the_smallest_manifest() -> None:
    manifest = decode_manifest(sealed(MANIFEST))
    assert manifest.target is None
    assert manifest.policy == Policy(outputs=True, values="all", max_calls=None)


def test_call_record() -> None:
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


@given(st.lists(st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(), max_size=8))
def test_scalars_come_back(scalars: list[Any]) -> None:
    record = decode_call(plain(CALL | {"inputs": {**EMPTY, "scalars": scalars}}))
    assert record.inputs.scalars == tuple(scalars)
    assert [*map(type, record.inputs.scalars)] == [*map(type, scalars)]


@pytest.mark.parametrize("version", [2, 3, 2**63])
def test_a_newer_version_is_refused_by_name(version: int) -> None:
    newer = {"format": "calltape", "version": version, "everything": "else changed"}
    with raises("version", f"format version {version}; this reader knows 1") as caught:
        decode_manifest(sealed(newer))
    assert str(caught.value).endswith("Upgrade calltape-analyzer to read it.")


def test_a_newer_minor_version_is_read() -> None:
    assert decode_manifest(sealed(MANIFEST | {"minor": 9, "colour": "red"})).minor == 9


@pytest.mark.parametrize("version", [0, -1, "1", 1.0, True, None])
def test_versions_that_are_none(version: Any) -> None:
    with raises("invalid"):
        decode_manifest(sealed(MANIFEST | {"version": version}))


@pytest.mark.parametrize("document", [{}, {"format": "tar"}, {"format": b"calltape"}])
def test_what_is_not_a_tape(document: Any) -> None:
    with raises("not_a_tape"):
        decode_manifest(sealed(document))


@pytest.mark.parametrize("document", [[], 5])
def test_a_manifest_that_is_no_map(document: Any) -> None:
    with raises("damaged"):
        decode_manifest(sealed(document))


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


@pytest.mark.parametrize(
    "changed",
    [
        {"tape": b"short"}, {"call": -1}, {"call": 2**63}, {"call": True}, {"call": "3"},
        {"time_ns": 1.5}, {"duration_ns": -1}, {"thread": -1}, {"thread": 2**64},
        {"inputs": None}, {"inputs": []}, {"inputs": {"structure": b""}},
        {"inputs": EMPTY | {"scalars": [True]}}, {"inputs": EMPTY | {"scalars": [{}]}},
        {"inputs": EMPTY | {"ranges": [{"leaf": 0, "min": 0}]}},
        {"inputs": EMPTY | {"ranges": [{"leaf": 0, "min": 0, "max": 2**64}]}},
        {"blob": {"size": -1, "checksum": 0, "back": 0}}, {"blob": {"size": 0, "checksum": 0}},
        {"blob": {"size": 0, "checksum": 2**32, "back": 0}},
        {"error": {"type": "ValueError", "message": ""}},
        {"error": {"type": "a:B", "message": b""}},
        {"error": {"type": "a:B", "message": "x" * (2**20 + 1)}},
    ],
    ids=str,
)  # fmt: skip
def test_records_that_are_refused(changed: dict[str, Any]) -> None:
    with raises("invalid"):
        decode_call(plain(CALL | changed))


@pytest.mark.parametrize("missing", sorted(CALL))
def test_records_that_lack_a_field(missing: str) -> None:
    with raises("invalid") as caught:
        decode_call(plain({key: value for key, value in CALL.items() if key != missing}))
    assert [problem.loc for problem in caught.value.problems] == [(missing,)]


@pytest.mark.parametrize("document", [5, None, [], "requires", b"requires"], ids=repr)
def test_records_that_are_no_map(document: Any) -> None:
    with raises("invalid"):
        decode_call(document)


def test_unknown_fields_are_skipped_everywhere() -> None:
    padded = CALL | {"later": [1, {"a": None}], "inputs": EMPTY | {"later": 1}}
    assert decode_call(plain(padded)) == CallRecord.model_validate(CALL)


def test_models_cannot_be_changed() -> None:
    record = decode_call(plain(CALL))
    with pytest.raises(ValueError, match="frozen"):
        record.call = 5  # type: ignore[misc]
