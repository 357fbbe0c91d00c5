"""Summaries of mutants: true ones, ones that lie, and ones that break the format.

In come the bytes of a sealed tape. Out go those of the same tape with a summary before its trailer,
and with the locator that leads a reader to it. All checksums are right.
"""

from __future__ import annotations

import contextlib
import random
import zlib
from collections.abc import Callable
from typing import Any

from calltape_schema.endings import decode_trailer
from calltape_schema.framing import SUMMARY, TRAILER, call_number, member_header, padding
from calltape_schema.gathered import is_group
from calltape_schema.locator import Locator, with_locator
from calltape_schema.packing import open_envelope, pack, unpack
from calltape_schema.summary import encode_summary
from calltape_schema.summing import SummaryBuilder, facts_of
from tests.fuzz.framing import Listed, enveloped, joined, payloads_in, split
from tests.fuzz.values import BYTES, FLOATS, INTS, TEXTS

__all__ = ["summed"]

_COLUMNS = ("calls", "firsts", "lasts")


def summed(rng: random.Random, data: bytes) -> bytes:
    """The tape with a summary; as it was if it has no trailer that a summary could be made for."""
    listed = [one for one in split(data) if one.name != SUMMARY]
    if not listed or listed[-1].name != TRAILER:
        return data
    try:
        document = _document(listed)
    except Exception:  # a mutant's trailer is anything
        return data
    if rng.random() < 0.8:
        for _ in range(rng.choice((1, 1, 2, 3))):
            with contextlib.suppress(Exception):  # an earlier lie left it as it is
                rng.choice(_LIES)(rng, document)
    content = enveloped(pack(document))
    front = joined(listed[:-1], sealed=False)
    member = member_header(SUMMARY, len(content)) + content + bytes(padding(len(content)))
    where = Locator(len(front) + len(member), len(front))
    if rng.random() < 0.05:
        where = Locator(rng.choice(INTS) % 2**64, rng.choice(INTS) % 2**64)
    payload = open_envelope(listed[-1].content)
    trailer = Listed(TRAILER, with_locator(enveloped(payload), where))
    return front + member + joined([trailer], sealed=True, indexed=False)


def _document(listed: list[Listed]) -> dict[str, Any]:
    """The true summary of a tape, as far as its records can be read."""
    builder = SummaryBuilder()
    for one in listed:
        payloads = payloads_in(one.content) if is_group(one.name) else ()
        contents = [enveloped(payload) for payload in payloads]
        if call_number(one.name) is not None:
            contents = [one.content]
        for content in contents:
            with contextlib.suppress(Exception):  # an earlier change made it no record
                builder.add(facts_of(content))
    made = builder.summary(decode_trailer(listed[-1].content))
    return dict(unpack(open_envelope(encode_summary(made)))) if made is not None else {}


def _rows(document: dict[str, Any]) -> list[Any]:
    data = zlib.decompress(document["inputs"]["packed"])
    found, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        found.append(list(unpack(data[at + 4 : at + 4 + size])))
        at += 4 + size
    return found


def _put_rows(document: dict[str, Any], rows: list[Any]) -> None:
    documents = [row if isinstance(row, bytes) else pack(row) for row in rows]
    data = b"".join(len(one).to_bytes(4, "little") + one for one in documents)
    document["inputs"] = {
        **document["inputs"], "packed": zlib.compress(data), "size": len(data),
    }  # fmt: skip


def _field(rng: random.Random, document: dict[str, Any]) -> None:
    document[rng.choice(list(document))] = rng.choice((*INTS, *TEXTS, None, [], {}))


def _count(rng: random.Random, document: dict[str, Any]) -> None:
    """One number of a column, and perhaps the counts that follow from it."""
    inputs = dict(document["inputs"])
    column = rng.choice(_COLUMNS)
    numbers = bytearray(inputs[column])
    at = 8 * rng.randrange(len(numbers) // 8)
    number = rng.choice(INTS) % 2**64
    numbers[at : at + 8] = number.to_bytes(8, "little")
    document["inputs"] = {**inputs, column: bytes(numbers)}
    if column == "calls" and rng.random() < 0.7:
        every = [int.from_bytes(numbers[i : i + 8], "little") for i in range(0, len(numbers), 8)]
        coverage = {"seen": sum(every), "kept": sum(every), "dropped": {}}
        document["coverage"] = coverage


def _columns(rng: random.Random, document: dict[str, Any]) -> None:
    """Columns that do not fit each other, or are no columns."""
    inputs = dict(document["inputs"])
    name = rng.choice((*_COLUMNS, "raised"))
    inputs[name] = rng.choice((inputs[name][:-1], inputs[name] * 2, b"", *BYTES, *TEXTS))
    document["inputs"] = inputs


def _row(rng: random.Random, document: dict[str, Any]) -> None:
    """A part of a row: another number, the part of another row, or anything."""
    rows = _rows(document)
    row, at = rng.choice(rows), rng.randrange(3)
    values = (*INTS, *TEXTS, *BYTES, *FLOATS, None, [], [[1]], {})
    if at == 2 and row[2] and rng.random() < 0.7:
        scalars = list(row[2])
        scalars[rng.randrange(len(scalars))] = rng.choice(values)
        row[2] = scalars
    else:
        row[at] = rng.choice((rng.choice(values), rng.choice(rows)[at]))
    _put_rows(document, rows)


def _order(rng: random.Random, document: dict[str, Any]) -> None:
    """Rows that are lost, come twice, or come in another order."""
    rows = _rows(document)
    at = rng.randrange(len(rows))
    way = rng.randrange(3)
    if way == 0:
        del rows[at]
    elif way == 1:
        rows.insert(at, rows[at])
    else:
        rng.shuffle(rows)
    _put_rows(document, rows)


def _bytes(rng: random.Random, document: dict[str, Any]) -> None:
    """The msgpack of a row, with other bytes."""
    rows = _rows(document)
    at = rng.randrange(len(rows))
    changed = bytearray(pack(rows[at]))
    changed[rng.randrange(len(changed))] = rng.randrange(256)
    rows[at] = bytes(changed)
    _put_rows(document, rows)


def _deflated(rng: random.Random, document: dict[str, Any]) -> None:
    """What is inflated is far more than there is, or less, or nothing that can be inflated."""
    inputs = dict(document["inputs"])
    bomb = zlib.compress(bytes(rng.choice((2**20, 2**24))), 9)
    inputs["packed"] = rng.choice((
        bomb, bomb[:-4], inputs["packed"][:-1], inputs["packed"] + b"x", b"", *BYTES
    ))  # fmt: skip
    if rng.random() < 0.7:
        inputs["size"] = rng.choice((2**20, 2**24, *INTS))
    document["inputs"] = inputs


def _ranges(rng: random.Random, document: dict[str, Any]) -> None:
    made = [[rng.choice((0, 0, 1, *INTS)) for _ in range(rng.choice((4, 4, 4, 3)))]
            for _ in range(rng.choice((1, 2, 50)))]  # fmt: skip
    for one in made:
        one[2:] = sorted(one[2:])
    document["inputs"] = {**document["inputs"], "ranges": made}


def _no_inputs(rng: random.Random, document: dict[str, Any]) -> None:
    del document["inputs"]


_LIES: tuple[Callable[[random.Random, dict[str, Any]], None], ...] = (
    _field, _count, _count, _columns, _row, _row, _row, _order, _bytes, _deflated, _ranges,
    _no_inputs,
)  # fmt: skip
