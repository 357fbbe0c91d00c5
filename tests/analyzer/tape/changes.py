"""Changes to the bytes of a tape file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from calltape_analyzer import open_tape
from calltape_schema.tar import Member, member_header, members


def calls(count: int) -> list[Any]:
    return [((torch.full((2, 1 + i), float(i)),), {"n": i}) for i in range(count)]


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


def numbers(path: Path, **options: Any) -> list[int]:
    with open_tape(path, **options) as tape:
        return [call.number for call in tape]
