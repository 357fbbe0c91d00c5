"""Tables of counted inputs for mutants: true ones, and ones that lie or break the format.

Each is made of the calls that the tape has, so that most of it is true, and then changed. All
checksums are right, and the end says where it is.
"""

from __future__ import annotations

import contextlib
import random
import struct
import zlib
from collections.abc import Callable
from typing import Any

import tests.fixture_files  # noqa: F401 - makes the writer of fixtures/ importable
from calltape_schema.packing import open_envelope, pack, seal_envelope, unpack
from calltape_schema.tar import END_MEMBER, is_group
from tests.fuzz.documents import plain
from tests.fuzz.framing import Grouped, Listed, joined, split
from tests.fuzz.values import BYTES, FLOATS, INTS, TEXTS

from counted_inputs import Seen, counted_inputs  # isort: skip

__all__ = ["tabled"]

_Document = dict[str, Any]


def tabled(rng: random.Random, data: bytes) -> bytes:
    """The tape with another table; as it was if it has no end, or no calls that can be counted."""
    listed = split(data)
    if not listed or listed[-1].name != END_MEMBER:
        return data
    try:
        end = dict(unpack(open_envelope(listed[-1].content)))
        document = _surveyed(end) if end.get("elsewhere") else _document(rng, listed)
    except Exception:  # the end and the records of a mutant are anything
        return data
    if rng.random() < 0.8:
        for _ in range(rng.choice((1, 1, 2, 3))):
            with contextlib.suppress(Exception):  # an earlier lie left it as it is
                rng.choice(_LIES)(rng, document)
    packed = pack(document)
    stored = zlib.compress(packed)
    end["inputs"] = [1, len(packed), zlib.crc32(stored), stored]
    if rng.random() < 0.1:
        end["inputs"] = _deflated(rng, packed)
    listed[-1] = Listed(END_MEMBER, seal_envelope(pack(end)))
    made = joined(listed, sealed=True)
    if rng.random() < 0.05:
        at = made.rindex(b"calltape") - 16
        place = [rng.choice(INTS) % 2**64 for _ in range(2)]
        made = made[:at] + struct.pack("<2Q", *place) + made[at + 16 :]
    return made


def _surveyed(end: dict[str, Any]) -> _Document:
    """The table that a survey has, to be changed."""
    found: _Document = plain(unpack(zlib.decompress(end["inputs"]["data"])))
    return found


def _document(rng: random.Random, listed: list[Listed]) -> _Document:
    """The true table of the calls of a tape, perhaps with room for few."""
    seen = []
    for one in listed:
        if is_group(one.name):
            group = Grouped.of(one.content)
            parts = unpack(group.shared)
            for number, _, flags, packed in group.records:
                tree = dict(unpack(packed)["inputs"])
                tree |= {name: parts[tree[name]] for name in ("structure", "leaves")}
                record: dict[str, Any] = {"inputs": {"scalars": [], **tree}}
                seen.append(Seen(number, record | ({"error": {}} if flags & 1 else {})))
    rows, kinds = (rng.choice((None, None, 0, 1, 2)) for _ in range(2))
    return counted_inputs(seen, rows, kinds)


def _any(rng: random.Random) -> Any:
    return rng.choice((*INTS, *TEXTS, *BYTES, *FLOATS, None, [], [[1]], {}))


def _field(rng: random.Random, document: _Document) -> None:
    document[rng.choice([*document, "rows_below", "kinds_below"])] = _any(rng)


def _count(rng: random.Random, document: _Document) -> None:
    """One number of a row."""
    numbers = bytearray(document["numbers"])
    at = 8 * rng.randrange(len(numbers) // 8)
    numbers[at : at + 8] = (rng.choice(INTS) % 2**64).to_bytes(8, "little")
    document["numbers"] = bytes(numbers)


def _moved(rng: random.Random, document: _Document) -> None:
    """Calls that one row has, and another one had: only the records tell."""
    numbers = [*struct.unpack(f"<{len(document['numbers']) // 8}Q", document["numbers"])]
    one, other = (6 * rng.randrange(len(numbers) // 6) for _ in range(2))
    for at in (0, 1):
        numbers[one + at] += 1
        numbers[other + at] -= 1
    document["numbers"] = struct.pack(f"<{len(numbers)}Q", *numbers)


def _columns(rng: random.Random, document: _Document) -> None:
    numbers = document["numbers"]
    document["numbers"] = rng.choice((numbers[:-1], numbers * 2, b"", *BYTES, *TEXTS))


def _row(rng: random.Random, document: _Document) -> None:
    """A part of a row: another number, that of another row, or anything."""
    row, at = rng.choice(document["rows"]), rng.randrange(4)
    if at == 2 and rng.random() < 0.7:
        scalars = [*unpack(row[2])]
        scalars[rng.randrange(len(scalars))] = _any(rng)
        row[2] = pack(scalars)
    else:
        row[at] = rng.choice((_any(rng), rng.choice(document["rows"])[at]))


def _part(rng: random.Random, document: _Document) -> None:
    """The msgpack of a structure or of leaves, with other bytes."""
    at = rng.randrange(len(document["parts"]))
    changed = bytearray(document["parts"][at])
    changed[rng.randrange(len(changed))] = rng.randrange(256)
    document["parts"][at] = bytes(changed)


def _order(rng: random.Random, document: _Document) -> None:
    """Rows or kinds that are lost, come twice, or come in another order."""
    rows = document[rng.choice(("rows", "rows", "kinds"))]
    at, way = rng.randrange(len(rows)), rng.randrange(3)
    if way == 0:
        del rows[at]
    elif way == 1:
        rows.insert(at, rows[at])
    else:
        rng.shuffle(rows)


def _ranges(rng: random.Random, document: _Document) -> None:
    made = [[rng.choice((0, 0, 1, *INTS)) for _ in range(rng.choice((3, 3, 3, 2)))]
            for _ in range(rng.choice((1, 2, 50)))]  # fmt: skip
    for one in made:
        one[1:] = sorted(one[1:])
    rng.choice(document["rows"])[3] = pack(made)


def _kind(rng: random.Random, document: _Document) -> None:
    """A field of a kind, or an axis of it."""
    kind = rng.choice(document["kinds"])
    if rng.random() < 0.5:
        kind[rng.choice([*kind])] = _any(rng)
        return
    axes = kind["axes"]
    pairs = sorted([rng.choice(INTS), rng.choice(INTS[:20])] for _ in range(rng.choice((1, 3, 33))))
    axes[rng.randrange(len(axes))] = rng.choice((
        [pairs, rng.choice(INTS), rng.choice(INTS)], [pairs, 0, pairs[-1][0]], None, _any(rng)
    ))  # fmt: skip


def _deflated(rng: random.Random, packed: bytes) -> list[Any]:
    """What is inflated is far more than there is, or less, or nothing that can be inflated."""
    bomb, right = zlib.compress(bytes(rng.choice((2**20, 2**24))), 9), zlib.compress(packed)
    data: Any = rng.choice((bomb, bomb[:-4], right, right[:-1], right + b"x", b"", *BYTES))
    size = rng.choice((len(packed), 2**20, 2**24, *INTS))
    return [rng.choice((0, 1, 1, 1, 2)), size, zlib.crc32(data), data]


_LIES: tuple[Callable[[random.Random, _Document], None], ...] = (
    _field, _count, _count, _moved, _columns, _row, _row, _row, _part, _order, _ranges, _kind,
)  # fmt: skip
