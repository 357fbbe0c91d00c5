"""Keys that are plain words stay. Where they differ from call to call, a person is told."""

from __future__ import annotations

from pathlib import Path

import torch

from calltape_analyzer import open_tape, private_data, redact
from tests.analyzer.tapes import write_tape


def test_keys_that_differ_are_told(tmp_path: Path) -> None:
    x = torch.zeros(2, 3)
    named = [{"alice": x, "bob": x}, {"alice": x, "carol": x}]
    calls = [((), {"users": users, "sizes": {"a": 1, "b": 2}}) for users in named]
    with open_tape(write_tape(tmp_path / "a.tape", calls)) as tape:
        found = [one for one in private_data(tape).findings if one.kind == "varying_keys"]
        (note,) = [
            one for one in redact(tape, tmp_path / "b.tape").notes if "differ from call" in one
        ]
    assert [one.place for one in found] == ["users"]
    assert "the keys of the dicts at users differ" in note
    for name in ("alice", "bob", "carol"):
        assert name not in str(found) + note
        assert name.encode() in (tmp_path / "b.tape").read_bytes()


def test_keys_that_are_the_same_are_not(tmp_path: Path) -> None:
    x = torch.zeros(2, 3)
    calls = [
        ((), {"options": {"width": x, "height": x}}),
        ((x,), {"options": {"height": x, "width": x}, "more": x}),  # which arguments is no data
        ((), {"options": {"height": x, "width": x}, "ids": {"a@b.c": x}}),
        ((), {"options": {"height": x, "width": x}, "ids": {"d@e.f": x}}),  # these are replaced
    ]
    with open_tape(write_tape(tmp_path / "a.tape", calls)) as tape:
        assert not [
            finding for finding in private_data(tape).findings if finding.kind == "varying_keys"
        ]
        assert "differ" not in "".join(redact(tape, tmp_path / "b.tape").notes)
