"""Packed facts of files are the facts, whatever they are."""

from __future__ import annotations

import pytest

from calltape_analyzer.surveying.file_facts import FileFacts, FileKey
from calltape_analyzer.surveying.file_table import FileTable
from calltape_schema.endings import Coverage, Dump
from calltape_schema.records import Observed, Segment

_TAPE, _OTHER = b"t" * 16, b"o" * 16


def facts(tape: bytes = _TAPE, part: int = 0, digest: bytes = b"d" * 16) -> FileFacts:
    return FileFacts(
        key=FileKey(tape, part, digest), path="/a/\ud800 é.tape", head=b"h" * 16, nbytes=2**62,
        created_ns=1, segment=Segment(number=3, first_call=7),
        observed=Observed(since_ns=4, reason="when the target was found"), closed_ns=5,
        continues=None, dumps=(Dump(time_ns=6, reason="slow", calls=7),), calls=8,
        coverage=Coverage(seen=10, kept=8, dropped={"rate": 2}), first_call=0, last_call=None,
        first_ns=9, last_ns=None, raised=1, tensor_bytes=2, unfinished=3, is_ahead=False,
        scanned=True, counted=False, damaged=4,
    )  # fmt: skip


def test_what_was_put_in_comes_out() -> None:
    bare = facts(_OTHER)._replace(segment=None, observed=None, dumps=(), coverage=Coverage())
    table = FileTable()
    for one in (facts(), bare):
        table[one.key] = one
        assert table[one.key] == one
    assert table[facts().key].coverage.lost == facts().coverage.lost
    assert list(table) == [facts().key, bare.key]
    assert len(table) == 2


def test_files_of_one_number_are_together() -> None:
    table = FileTable()
    some = [facts(digest=bytes([n]) * 16) for n in range(3)]
    for one in (*some, facts(part=1), facts(_OTHER)):
        table[one.key] = one
    assert table.at(_TAPE, 0) == [one.key for one in some]
    assert sorted(map(len, table.groups())) == [1, 1, 3]
    table[some[1].key] = some[1]._replace(calls=99)
    assert table[some[1].key].calls == 99
    assert len(table) == 5
    for one in some:
        del table[one.key]
        assert one.key not in table
    assert table.at(_TAPE, 0) == []
    assert len(table) == 2
    with pytest.raises(KeyError):
        del table[some[0].key]
    with pytest.raises(KeyError):
        table[some[0].key]
