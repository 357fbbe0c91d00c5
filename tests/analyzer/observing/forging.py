"""Recordings whose records state something else than what was recorded."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from calltape_analyzer.tape import Tape
from calltape_recorder import record
from calltape_schema.endings import Trailer, decode_trailer, encode_trailer
from calltape_schema.framing import END, MANIFEST, TRAILER
from calltape_schema.records import Segment, decode_manifest, encode_manifest
from tests.analyzer.tape.changes import member_list
from tests.analyzer.tapes import member

CONTRADICTS = "the counters contradict the calls on the tape, and are not used"


class Add(torch.nn.Module):
    def forward(self, x: Any, n: int = 0) -> Any:
        return x


def recorded(path: Path, sizes: list[int], **options: Any) -> Path:
    model = Add()
    with record(model, path, **options):
        for size in sizes:
            model(torch.zeros(size, 3), size)
    return path


def forge(
    path: Path, change: Callable[[dict[str, Any]], Any], *, number: int | None = None
) -> Path:
    """Rewrites the trailer, with every checksum right; the file claims this number."""
    if number is not None:
        renumber(path, number)
    data = path.read_bytes()
    last = next(m for m in member_list(path) if m.name == TRAILER)
    trailer = decode_trailer(data[last.start : last.start + last.size])
    document = trailer.model_dump()
    change(document)
    content = encode_trailer(Trailer.model_validate(document))
    path.write_bytes(data[: last.offset] + member(TRAILER, content) + END)
    return path


def renumber(path: Path, number: int) -> None:
    """Rewrites the manifest: the file claims to be this one of its recording."""
    data = path.read_bytes()
    first, *calls, last = member_list(path)
    manifest = decode_manifest(data[first.start : first.start + first.size])
    changed = manifest.model_copy(update={"segment": Segment(number=number)})
    start = member(MANIFEST, encode_manifest(changed))
    moved = len(start) - calls[0].offset
    trailer = decode_trailer(data[last.start : last.start + last.size])
    entries = struct.iter_unpack("<QQ", trailer.index)
    index = b"".join(struct.pack("<QQ", call, offset + moved) for call, offset in entries)
    end = member(TRAILER, encode_trailer(trailer.model_copy(update={"index": index})))
    path.write_bytes(start + data[calls[0].offset : last.offset] + end + END)


def axis(document: dict[str, Any], number: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = document["traffic"]["groups"][0]["leaves"][0][number]
    return found


def more_seen(document: dict[str, Any], calls: int) -> None:
    dropped = document["coverage"]["dropped"]
    document["coverage"]["seen"] += calls
    document["coverage"]["dropped"] = {"policy": dropped.get("policy", 0) + calls}


def reasons(tape: Tape) -> list[str]:
    return [error.reason for error in tape.damage]
