"""Why calls are not on a tape: the reasons that are known, and those of another writer."""

from __future__ import annotations

import json

import pytest

from calltape_schema.drop_reasons import UNKNOWN, UNWANTED, DropReason, reason_text
from calltape_schema.empty_tapes import why_empty
from calltape_schema.end import Coverage
from calltape_schema.packing import pack, unpack


@pytest.mark.parametrize("reason", DropReason)
def test_a_reason_is_its_text_wherever_it_stands(reason: DropReason) -> None:
    dropped = {reason: 2}
    read = Coverage.model_validate(unpack(pack(Coverage(seen=2, dropped=dropped).model_dump())))
    assert read.dropped == {reason.value: 2}
    assert all(type(one) is DropReason for one in read.dropped)
    assert f"{reason}" == str(reason) == reason.value
    assert json.loads(json.dumps(dropped)) == {reason.value: 2}
    assert pack(dropped) == pack({reason.value: 2})
    assert (read.unwanted == dropped) is (reason in UNWANTED)
    assert (read.lost == dropped) is (reason not in UNWANTED)


def test_no_reason_is_both_unknown_and_unwanted() -> None:
    assert UNKNOWN.isdisjoint(UNWANTED)


@pytest.mark.parametrize("text", ["solar wind", "unknown (of tomorrow)", "\x1b[31mred", "x" * 1024])
def test_a_reason_of_another_writer_is_told(text: str) -> None:
    read = Coverage.model_validate({"seen": 3, "dropped": {text: 3}})
    assert read.dropped == read.lost == {text: 3}
    shown = reason_text(text)
    assert shown.isprintable()
    assert len(shown) <= 110
    assert shown[:4] in (why_empty("m:f", "hook", 3, 0, read.dropped) or "")
