"""Changes to a tape file: to single bytes, or to its end with every checksum right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from calltape_schema.end import Coverage, End, decode_end, encode_end
from calltape_schema.inputs_document import pack_inputs
from calltape_schema.inputs_table import InputsTable, signature_of
from calltape_schema.tar import END_MEMBER, ZEROS_AT_END, Member, member_header, members
from tests.forging.sections import deflated, member

__all__ = ["change_end", "change_table", "flip", "member_list", "more_seen", "patch", "rename"]


def member_list(path: Path) -> list[Member]:
    data = path.read_bytes()
    return list(members(lambda at, size: data[at : at + size], len(data), lambda error: None))


def patch(path: Path, offset: int, content: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[offset : offset + len(content)] = content
    path.write_bytes(data)


def rename(path: Path, listed: Member, name: str) -> None:
    patch(path, listed.offset, member_header(name, listed.size))


def flip(path: Path, offset: int) -> None:
    patch(path, offset, bytes([path.read_bytes()[offset] ^ 0xFF]))


def change_end(path: Path, change: Callable[[End], dict[str, Any]]) -> Path:
    """Writes the end of a tape anew, with what ``change`` gives, and with every checksum right."""
    data = path.read_bytes()
    found = members(lambda at, size: data[at : at + size], len(data), [].append)
    last = [one for one in found if one.name == END_MEMBER][-1]
    end = decode_end(data[last.start : last.start + last.size])
    content = encode_end(end.model_copy(update=change(end)), last.offset)
    path.write_bytes(data[: last.offset] + member(END_MEMBER, content) + ZEROS_AT_END)
    return path


def change_table(path: Path, change: Callable[[InputsTable], Any]) -> Path:
    """Writes the table of inputs anew, with what ``change`` does to it: a forgery, and every
    checksum is right."""

    def changed(end: End) -> dict[str, Any]:
        table = end.table()
        assert table is not None
        change(table)
        # Rows stand in the order of their hashes, also those of other inputs.
        table.rows = {
            signature_of(row.structure, row.leaves, row.scalars): row for row in table.rows.values()
        }
        return {"inputs": deflated(pack_inputs(table))}

    return change_end(path, changed)


def more_seen(path: Path, calls: int) -> Path:
    """The end says that more calls were seen, and dropped by policy."""

    def change(end: End) -> dict[str, Any]:
        dropped = dict(end.coverage.dropped)
        dropped["policy"] = dropped.get("policy", 0) + calls
        seen = end.coverage.seen + calls
        return {"coverage": Coverage(seen=seen, kept=end.coverage.kept, dropped=dropped)}

    return change_end(path, change)
