"""Mutants of tapes, with right checksums: an error or an answer, and nothing else."""

from __future__ import annotations

import random
import struct
import time
import zlib
from typing import Any

import pytest

from calltape_schema.errors import TapeError
from calltape_schema.groups import member
from calltape_schema.packing import pack, unpack
from calltape_schema.storage import BytesSource
from calltape_schema.tar import ZEROS_AT_END, members
from tests.schema.container.tapes import new_call, read_all, tape

SOURCE = tape(
    [new_call(0, [1, 2]), new_call(1, shape=(2,), scalars=[5], ranges=[(0, 1, 2)])],
    [new_call(number, [number], [2], scalars=[number]) for number in range(2, 30)],
    [new_call(30, [9], [0], at=[("x1", 2, "x0")], error={"type": "a:B", "message": "no"})],
    seen=40, rows=5,
)  # fmt: skip
MEMBERS = [
    (one.name, SOURCE[one.start : one.start + one.size])
    for one in members(BytesSource(SOURCE).read_at, len(SOURCE), lambda error: None)
]
ODD: list[Any] = [
    0, 1, -1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 2**70, None, True, 1.5, "", "x",
    float("nan"),
    b"", b"\x90", [], {}, [[]], "a" * 2000, [0] * 300,
]  # fmt: skip


def changed(value: Any, chance: random.Random) -> Any:
    """A document with one value, somewhere in it, that is another one."""
    if type(value) is dict and value and chance.random() < 0.9:
        name = chance.choice(list(value))
        if chance.random() < 0.1:
            return {key: one for key, one in value.items() if key != name}
        return {**value, name: changed(value[name], chance)}
    if type(value) in (tuple, list) and value and chance.random() < 0.9:
        at = chance.randrange(len(value))
        return [*value[:at], changed(value[at], chance), *value[at + 1 :]]
    if type(value) is bytes and value and chance.random() < 0.8:
        return changed_bytes(value, chance)
    return chance.choice(ODD)


def changed_bytes(data: bytes, chance: random.Random) -> bytes:
    try:
        if chance.random() < 0.6:
            return pack(changed(unpack(data), chance))
    except TapeError:
        pass
    at = chance.randrange(len(data))
    width = chance.choice((1, 2, 4, 8))
    new = struct.pack("<Q", chance.choice((0, 1, 2**64 - 1, chance.getrandbits(64))))[:width]
    return data[:at] + new + data[at + width :]


def changed_member(name: str, content: bytes, chance: random.Random) -> bytes:
    if name.startswith("blobs/"):
        return changed_bytes(content, chance)
    found = list(unpack(content))
    if name.startswith("records/"):
        at = chance.choice((0, 2, 2, 4, 4, 4, 5))
        if at == 4 and found[5] and chance.random() < 0.8:
            documents = zlib.decompress(found[4])
            begin = chance.randrange(len(documents))
            new = documents[:begin] + changed_bytes(documents[begin:], chance)
            found[4], found[5] = zlib.compress(new), len(new)
        else:
            found[at] = changed(found[at], chance)
        for of in (2, 4):
            if type(found[of]) is bytes:
                found[of - 1] = zlib.crc32(found[of])
    else:
        document = changed(unpack(found[1]), chance)
        if name == "end.msgpack" and chance.random() < 0.5:
            document = unpack(found[1])
            data = zlib.decompress(document["inputs"]["data"])
            data = changed_bytes(data, chance)
            document["inputs"] = {"size": len(data), "data": zlib.compress(data)}
        found[1] = pack(document)
        found[0] = zlib.crc32(found[1])
    return pack(found)


def mutant(chance: random.Random) -> bytes:
    made = list(MEMBERS)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        at = chance.randrange(len(made))
        how = chance.random()
        if how < 0.8:
            name, content = made[at]
            try:
                made[at] = name, changed_member(name, content, chance)
            except (TapeError, TypeError, LookupError, ValueError, zlib.error):
                made[at] = name, changed_bytes(content, chance)  # it was changed before
        elif how < 0.9:
            made.insert(at, made[chance.randrange(len(made))])
        else:
            made.pop(at)
    data = b""
    for name, content in made:
        if name == "end.msgpack":
            locator = struct.pack("<QQ8s", len(data), len(content), b"calltape")
            content = content[:-24] + locator
        data += b"".join(member(name, [content], len(content)))
    return data + ZEROS_AT_END


@pytest.mark.parametrize(
    ("first", "mutants"),
    [(0, 150), pytest.param(100_000, 20_000, marks=[pytest.mark.integration, pytest.mark.slow])],
)
def test_mutants(first: int, mutants: int) -> None:
    for seed in range(first, first + mutants):
        data = mutant(random.Random(seed))
        begun = time.process_time()
        try:
            read_all(data)
        except TapeError:
            pass
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
        assert time.process_time() - begun < 5, f"seed {seed} hangs"
