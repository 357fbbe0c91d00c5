"""The history of a tape: what it may say, and who reads it."""

from __future__ import annotations

from typing import Any

import pytest

from calltape_schema import TapeError
from calltape_schema.packing import pack, seal_envelope
from calltape_schema.records import decode_manifest, encode_manifest, redacted_of_steps

MANIFEST = {
    "format": "calltape", "version": 1, "minor": 3, "tape": bytes(16), "created_ns": 1,
    "producer": {"calltape": "0"},
}  # fmt: skip
STEP: dict[str, Any] = {"verb": "filter", "tool": "t", "version": "1", "tape": bytes(16)}


def decoded(history: Any) -> Any:
    return decode_manifest(seal_envelope(pack({**MANIFEST, "history": history}))).history


def test_a_history_reads_back() -> None:
    source = {
        "tape": bytes([1]) * 16, "files": ["a.tape"], "calls": 3, "left_out": 1, "first": 7,
        "redacted": "part",
    }  # fmt: skip
    found = decoded([{**STEP, "options": [["calls", "1"]], "sources": [source], "colour": "red"}])
    (step,) = found
    assert step.options == (("calls", "1"),)
    shown = step.sources[0].model_dump(exclude_none=True)
    assert shown == {**source, "files": ("a.tape",), "other_files": 0}
    manifest = decode_manifest(seal_envelope(pack({**MANIFEST, "history": [STEP]})))
    assert decode_manifest(encode_manifest(manifest)) == manifest


def test_a_tape_as_it_was_recorded_has_none() -> None:
    manifest = decode_manifest(seal_envelope(pack(MANIFEST)))
    assert manifest.history is None
    assert b"history" not in encode_manifest(manifest)


def test_how_much_was_redacted() -> None:
    def steps(verb: str, *parts: str | None) -> Any:
        sources = [
            {"tape": bytes([at]) * 16} | ({} if part is None else {"redacted": part})
            for at, part in enumerate(parts)
        ]
        return decoded([{**STEP, "verb": "redact"}, {**STEP, "verb": verb, "sources": sources}])

    assert redacted_of_steps(()) is None
    assert redacted_of_steps(steps("redact", None)) == "all"
    assert redacted_of_steps(steps("merge", "all", "all")) == "all"
    assert redacted_of_steps(steps("merge", "all", None)) == "part"
    assert redacted_of_steps(steps("merge", "all", "part")) == "part"
    assert redacted_of_steps(steps("filter", None)) is None
    assert redacted_of_steps(steps("minimise", "all")) == "all"
    assert redacted_of_steps(steps("update", "all")) == "part", "it wrote what nobody redacted"
    assert redacted_of_steps(steps("a verb of tomorrow", "all")) == "part"
    assert redacted_of_steps(steps("update", None)) is None
    with pytest.raises(TapeError, match="redacted"):
        steps("merge", "some")
