"""Tapes that are changed on purpose, with right checksums: in a table, a record, a structure, an
end, an index, the table of counted inputs; or just anywhere."""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from calltape_schema.checksum import crc32
from calltape_schema.errors import TapeError
from calltape_schema.groups import member
from calltape_schema.packing import pack, seal_envelope, unpack
from calltape_schema.tar import END_MEMBER, ZEROS_AT_END, is_group, members

__all__ = ["mutants"]

_ODD: tuple[Any, ...] = (
    0, 1, 2, 3, -1, 255, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**64 - 1, 2**70, None, True, 0.0, 1.5,
    float("nan"), "", "x0", "int", "é", "\ud800", b"", bytes(16), (), (1,), (0.0, 1.0), {}, {"a": 1}
)  # fmt: skip


def mutants(tapes: Sequence[bytes], chance: random.Random) -> Iterator[bytes]:
    """Tapes, each with one or two changes, for ever."""
    while True:
        data = chance.choice(tapes)
        for _ in range(chance.choice((1, 1, 2))):
            data = chance.choice((_anywhere, _cut, _members, _inside, _inside, _inside))(
                data, chance
            )
        yield data


def _anywhere(data: bytes, chance: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(chance.choice((1, 1, 4))):
        found[chance.randrange(len(found))] ^= 1 << chance.randrange(8)
    return bytes(found)


def _cut(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(512, len(data))
    return (
        data[:at] if chance.random() < 0.7 else data[:at] + bytes(chance.choice((512, 1024, 4096)))
    )


def _parts(data: bytes) -> list[tuple[str, bytes]]:
    found = members(lambda at, size: data[at : at + size], len(data), lambda error: None)
    return [(one.name, data[one.start : one.start + one.size]) for one in found]


def _joined(parts: Sequence[tuple[str, bytes]]) -> bytes:
    data = b"".join(part for name, one in parts for part in member(name, [one], len(one)))
    return data + ZEROS_AT_END if parts and parts[-1][0] == END_MEMBER else data


def _members(data: bytes, chance: random.Random) -> bytes:
    """A member goes, comes twice, or stands elsewhere."""
    parts = _parts(data)
    if not parts:
        return data
    at, to = chance.randrange(len(parts)), chance.randrange(len(parts))
    change = chance.randrange(3)
    if change == 0:
        del parts[at]
    elif change == 1:
        parts.insert(to, parts[at])
    else:
        parts[at], parts[to] = parts[to], parts[at]
    return _joined(parts)


def _inside(data: bytes, chance: random.Random) -> bytes:
    """Something in a document is another thing. All that stands before is where it was, so index
    and locator hold, unless a member before it gets longer."""
    parts = _parts(data)
    known = [at for at, (name, _) in enumerate(parts) if not name.startswith("blobs/")]
    if not known:
        return data
    at = chance.choice(known)
    name, content = parts[at]
    try:
        parts[at] = (name, _changed(name, content, chance))
    except (TapeError, zlib.error, ValueError, TypeError, KeyError, IndexError):
        return data  # an earlier change broke it
    return _joined(parts)


def _changed(name: str, content: bytes, chance: random.Random) -> bytes:
    if is_group(name):
        return _group(content, chance)
    _, payload, *rest = unpack(content)
    document = dict(unpack(payload))
    if name == END_MEMBER and chance.random() < 0.7:
        field = chance.choice([one for one in ("index", "inputs") if one in document])
        document[field] = _deflated(document[field], field, chance)
    else:
        document = _other(document, chance)
    return pack([*unpack(seal_envelope(pack(document))), *rest])


def _deflated(stored: Any, field: str, chance: random.Random) -> dict[str, Any]:
    data = zlib.decompress(stored["data"])
    if field == "inputs" and chance.random() < 0.8:
        data = pack(_other(unpack(data), chance))
    else:
        data = _anywhere(data, chance) if data else b"\0"
    size = len(data) if chance.random() < 0.9 else chance.choice((0, 1, 2**40, len(data) + 1))
    return {"size": size, "data": zlib.compress(data)}


def _group(content: bytes, chance: random.Random) -> bytes:
    tape, _, table, _, stored, size, *rest = unpack(content)
    documents = zlib.decompress(stored) if size else stored
    change = chance.random()
    if change < 0.2:
        table = _anywhere(table, chance)
    elif change < 0.3:
        documents = _anywhere(documents, chance)
    else:
        begins = [
            int.from_bytes(table[at + 16 : at + 20], "little") for at in range(0, len(table), 24)
        ]
        cuts = [0, *begins, len(documents)]
        found = [unpack(documents[a:b]) for a, b in itertools.pairwise(cuts)]
        at = chance.randrange(len(found))
        found[at] = _part(found[at], chance) if at == 0 else _other(found[at], chance)
        packed = [pack(one) for one in found]
        table = bytearray(table)
        for call in range(len(begins)):
            offset = sum(map(len, packed[: call + 1]))
            table[24 * call + 16 : 24 * call + 20] = offset.to_bytes(4, "little")
        table, documents = bytes(table), b"".join(packed)
    deflates = chance.random() < 0.3
    data = zlib.compress(documents) if deflates else documents
    size = chance.choice((0, 1, -1, 2**40)) if chance.random() < 0.05 else len(documents) * deflates
    return pack([tape, crc32(table), table, crc32(data), data, size, *rest])


def _part(parts: Any, chance: random.Random) -> Any:
    """A structure or leaves that are others, with the same hash as before in the table."""
    at = chance.randrange(len(parts))
    return [*parts[:at], pack(_other(unpack(parts[at]), chance)), *parts[at + 1 :]]


def _other(value: Any, chance: random.Random) -> Any:
    """The same value, but for one place in it."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(list(value))
        if chance.random() < 0.1:
            return {name: one for name, one in value.items() if name != key}
        return value | {key: _other(value[key], chance)}
    if isinstance(value, tuple) and value and chance.random() < 0.9:
        at = chance.randrange(len(value))
        return (*value[:at], _other(value[at], chance), *value[at + 1 :])
    if isinstance(value, int) and not isinstance(value, bool) and chance.random() < 0.4:
        return max(-(2**63), min(2**64 - 1, value + chance.choice((-1, 1, 2, 512, -512))))
    if isinstance(value, bytes) and value and chance.random() < 0.5:
        return _anywhere(value, chance)
    return chance.choice(_ODD)
