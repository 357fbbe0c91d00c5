"""Changes below the documents: members, their headers, the bytes of a payload, the JSON of a blob.

Every checksum is made anew. What lies is what the checksum is over.
"""

from __future__ import annotations

import contextlib
import json
import random
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from calltape_schema.packing import open_envelope, pack, seal_envelope, unpack
from calltape_schema.tar import (
    BLOCK,
    END_MEMBER,
    ZEROS_AT_END,
    is_group,
    member_header,
    members,
    padding,
)
from tests.forging.sections import table_entries, table_entry, with_checksum
from tests.fuzz.values import INTS

__all__ = ["Grouped", "Listed", "joined", "reframe", "split"]

_NAMES = (
    "tape.msgpack", "end.msgpack", "records/00000000.msgpack", "records/00000001.msgpack",
    "blobs/00000000.safetensors", "records/00000099.msgpack", "records/9223372036854775807.msgpack",
    "records/99999999999999999999.msgpack", "records/1.msgpack", "notes/x",
    "blobs/1.safetensors", "blobs/00000001.safetensors", "../x", "records/\x1b[2J",
)  # fmt: skip
_FIELDS = ((100, 8), (108, 8), (116, 8), (124, 12), (136, 12), (156, 1), (157, 20), (257, 8))
"""Offset and length of the fields of a header that a change may fill."""


@dataclass
class Listed:
    """One member: its header is made from its name and size unless ``header`` says it."""

    name: str
    content: bytes
    header: bytes | None = None


def split(data: bytes) -> list[Listed]:
    """The members of a tape that a reader would see."""
    found = members(lambda at, size: data[at : at + size], len(data), lambda error: None)
    return [Listed(m.name, data[m.start : m.start + m.size]) for m in found]


ENTRY_BYTES = 40


@dataclass
class Grouped:
    """A group taken apart: shared parts, and per call number, hash, flags and record."""

    shared: bytes
    records: list[tuple[int, int, int, bytes]]
    tape: bytes = bytes(range(16))
    is_deflated: bool = False
    times: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, content: bytes) -> Grouped:
        tape, _, _, table, documents, *_ = unpack(content)
        rows = table_entries(_stored(table))
        whole = _stored(documents)
        ends = [*(row[3] for row in rows[1:]), len(whole)]
        records = [
            (number, key, flags, whole[begin:end])
            for (number, key, _, begin, flags), end in zip(rows, ends, strict=True)
        ]
        times = [row[2] for row in rows]
        return cls(whole[: rows[0][3]], records, tape, bool(documents[0]), times)

    def table(self) -> bytes:
        table, at = b"", len(self.shared)
        for place, (number, key, flags, record) in enumerate(self.records):
            time = self.times[place] if place < len(self.times) else 0
            table += table_entry(number, key, time, at, flags)
            at += len(record)
        return table

    def content(self, **changed: Any) -> bytes:
        """The content of its member. ``changed`` has what stands there in place of the truth."""
        whole = self.shared + b"".join(record for *_, record in self.records)
        found: dict[str, Any] = {
            "tape": self.tape, "place": bytes(8), "width": ENTRY_BYTES, "table": self.table(),
            "codec": int(self.is_deflated), "size": len(whole),
            "documents": zlib.compress(whole) if self.is_deflated else whole,
        } | changed  # fmt: skip
        table, documents = found["table"], found["documents"]
        return pack([
            found["tape"], found["place"], found["width"],
            [0, len(table), zlib.crc32(table), table],
            [found["codec"], found["size"], zlib.crc32(documents), documents],
        ])  # fmt: skip

    def numbers(self) -> list[int]:
        return [number for number, *_ in self.records]


def joined(listed: list[Listed], *, sealed: bool, indexed: bool = True) -> bytes:
    """The bytes of a tape.

    Args:
        listed: its members. Records say where their blobs are now.
        sealed: two zero blocks follow the last member.
        indexed: the index in the end says where the groups are now.
    """
    data = bytearray()
    index: list[bytes] = []
    blobs: dict[int, int] = {}
    for one in listed:
        content = one.content
        if one.name.startswith("blobs/"):
            with contextlib.suppress(ValueError):
                blobs[int(one.name[6:].partition(".")[0])] = len(data)
        elif is_group(one.name):
            with contextlib.suppress(Exception):  # an earlier change made it no group
                content = _placed(content, blobs, len(data))
                group = Grouped.of(content)
                numbers, times = group.numbers(), group.times
                spans = min(numbers), max(numbers), min(times), max(times)
                index.append(struct.pack("<6Q", len(data), len(numbers), *spans))
        elif one.name == END_MEMBER:
            content = _located(content, b"".join(index) if indexed else None, len(data))
        data += (one.header or member_header(one.name, len(content))) + content
        data += bytes(padding(len(content)))
    return bytes(data) + (ZEROS_AT_END if sealed else b"")


def _placed(content: bytes, blobs: dict[int, int], offset: int) -> bytes:
    """A group whose records say where the blobs of their calls are."""
    group, is_changed = Grouped.of(content), False
    for at, (number, key, flags, packed) in enumerate(group.records):
        if not flags & 4 or number not in blobs:
            continue
        record = unpack(packed)
        back = offset - blobs[number]
        if isinstance(record.get("blob"), dict) and record["blob"].get("back") != back:
            made = pack({**record, "blob": {**record["blob"], "back": back}})
            group.records[at] = number, key, flags, made
            is_changed = True
    if is_changed:
        content = group.content()
    # The place of a group is a bin behind the id of its tape.
    tape, place, *rest = unpack(content)
    here = struct.pack("<Q", offset)
    return content if place == here else pack([tape, here, *rest])


def _stored(section: Any) -> bytes:
    """The bytes of a section."""
    codec, _, _, data = section[:4]
    found: bytes = zlib.decompress(data) if codec else data
    return found


def _located(content: bytes, index: bytes | None, offset: int) -> bytes:
    """An end with this index, and with its place."""
    try:
        crc, payload, *_ = unpack(content)
        end = dict(unpack(payload))
        known = end.get("index")
        data = _stored(known) if isinstance(known, (list, tuple)) else None
    except Exception:  # an earlier change made it no end
        return content
    if index is not None and index != data:
        packed = zlib.compress(index)
        end["index"] = [1, len(index), zlib.crc32(packed), packed]
        payload = pack(end)
        crc = zlib.crc32(payload)
    size = len(pack([crc, payload, bytes(24)]))
    return pack([crc, payload, struct.pack("<QQ8s", offset, size, b"calltape")])


class _Reframing:
    """Changes a list of members in place."""

    def __init__(self, rng: random.Random, listed: list[Listed]) -> None:
        self.rng = rng
        self.listed = listed

    def one(self, *, blob: bool = False, first: int = 0) -> Listed | None:
        found = [m for m in self.listed[first:] if not blob or m.name.endswith(".safetensors")]
        return self.rng.choice(found) if found else None

    def order(self) -> None:
        rng, listed = self.rng, self.listed
        at = rng.randrange(len(listed))
        way = rng.randrange(4)
        if way == 0:
            del listed[at]
        elif way == 1:
            listed.insert(rng.randrange(len(listed) + 1), listed[at])
        elif way == 2:
            other = rng.randrange(len(listed))
            listed[at], listed[other] = listed[other], listed[at]
        else:
            listed.insert(at, Listed(rng.choice(_NAMES), rng.choice((b"", b"x", bytes(512)))))

    def grouped(self) -> tuple[Listed, Grouped] | None:
        """One of the groups, taken apart."""
        found = [one for one in self.listed if is_group(one.name)]
        if not found:
            return None
        one = self.rng.choice(found)
        try:
            return one, Grouped.of(one.content)
        except Exception:  # an earlier change was here
            return None

    def gather(self) -> None:
        """Two groups become one, or one becomes two; deflated, or not."""
        found = self.grouped()
        if found is None:
            return
        one, group = found
        half = len(group.records) // 2
        if half and self.rng.random() < 0.5:
            second = Grouped(group.shared, group.records[half:], group.tape)
            del group.records[half:]
            at = next(at for at, other in enumerate(self.listed) if other is one)
            self.listed.insert(at + 1, Listed(f"records/{10**7 + at:08}.msgpack", second.content()))
        group.is_deflated = self.rng.random() < 0.5
        one.content = group.content()

    def entry(self) -> None:
        """A number, hash, begin or flags in a table; or calls that come twice, or are lost."""
        found, rng = self.grouped(), self.rng
        if found is None:
            return
        one, group = found
        at = rng.randrange(len(group.records))
        if rng.random() < 0.3:
            rng.choice((group.records.reverse, lambda: group.records.append(group.records[at]),
                        lambda: group.records.pop(at)))()  # fmt: skip
            one.content = group.content()
            return
        table = bytearray(group.table())
        field, width = rng.choice(((0, 8), (8, 8), (16, 4), (16, 4), (20, 4), (24, 8), (32, 8)))
        value = rng.choice((*INTS[:30], len(group.shared), 2**32 - 1)) % 2 ** (8 * width)
        begin = ENTRY_BYTES * at + field
        table[begin : begin + width] = value.to_bytes(width, "little")
        one.content = group.content(table=bytes(table))

    def documents(self) -> None:
        """Sizes that lie, and bytes that cannot be inflated, or to far more than there are."""
        found, rng = self.grouped(), self.rng
        if found is None:
            return
        one, group = found
        whole = group.shared + b"".join(record for *_, record in group.records)
        bomb = zlib.compress(bytes(rng.choice((2**16, 2**20, 2**24))), 9)
        packed = zlib.compress(whole)
        one.content = group.content(
            documents=rng.choice((packed, packed[:-1], packed + b"x", whole, bomb, b"")),
            size=rng.choice((len(whole), len(whole) + 1, 2**16, 2**20, 2**24, *INTS)),
            codec=rng.choice((0, 1, 1, 1, 2, *INTS)),
        )

    def name(self) -> None:
        one = self.one()
        if one is not None:
            one.name = self.rng.choice(_NAMES)

    def field(self) -> None:
        """One field of a header, under a right checksum."""
        one, rng = self.one(first=_after_manifest(self.rng)), self.rng
        if one is None:
            return
        header = bytearray(member_header(one.name, len(one.content)))
        at, length = rng.choice(_FIELDS)
        fillings: list[Callable[[], bytes]] = [
            lambda: b"%0*o" % (length - 1, rng.choice(INTS[:16])) + b"\0",
            lambda: b"\x80" + (rng.choice(INTS[3:32]) % 2**88).to_bytes(11, "big"),
            lambda: bytes(rng.randrange(256) for _ in range(length)),
            lambda: b"-0000000001\0",
            lambda: rng.choice((b"0", b"\0", b"1", b"2", b"5", b"L", b"x", b"g")),
            lambda: b"ustar  \0",
        ]
        header[at : at + length] = rng.choice(fillings)()[:length].ljust(length, b"\0")
        one.header = with_checksum(bytes(header))

    def payload(self) -> None:
        """Bytes of a document, under a right CRC: other encodings, lengths that lie."""
        if self.rng.random() < 0.8 and (found := self.grouped()) is not None:
            one, group = found
            at = self.rng.randrange(-1, len(group.records))
            if at < 0:
                group.shared = self._changed(group.shared)
            else:
                *facts, record = group.records[at]
                group.records[at] = (*facts, self._changed(record))  # type: ignore[assignment]
            one.content = group.content()
            return
        listed = self.one()
        with contextlib.suppress(Exception):  # a blob, or no envelope
            if listed is not None and not is_group(listed.name):
                listed.content = seal_envelope(self._changed(open_envelope(listed.content)))

    def _changed(self, data: bytes) -> bytes:
        payload, rng = bytearray(data), self.rng
        for _ in range(rng.choice((1, 1, 2, 4))):
            at = rng.randrange(len(payload) + 1)
            way = rng.randrange(4)
            if way == 0 and at < len(payload):
                payload[at] = rng.choice((0xC0, 0xC1, 0xC3, 0xD9, 0xDD, 0xDF, 0xC7, 0xCB, 0x80,
                                          0x90, 0x91, 0xFF, 0x7F, rng.randrange(256)))  # fmt: skip
            elif way == 1:
                del payload[at : at + rng.randrange(1, 9)]
            elif way == 2:
                payload[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 9)))
            else:
                start = rng.randrange(len(payload) + 1)
                payload[at:at] = payload[start : start + rng.randrange(1, 64)]
        return bytes(payload)

    def envelope(self) -> None:
        one, rng = self.one(), self.rng
        if one is None:
            return
        if is_group(one.name):
            with contextlib.suppress(Exception):
                elements = list(unpack(one.content))
                elements[rng.randrange(6)] = rng.choice((None, "x", 1.5, *INTS, b"", [], {}))
                one.content = pack(elements)
            return
        try:
            payload = open_envelope(one.content)
        except Exception:
            return
        crc = zlib.crc32(payload)
        one.content = pack(rng.choice((
            [crc, payload, None], [crc, payload, {"a": [1] * 5}], [crc, payload, payload], [crc],
            [str(crc), payload], [float(crc), payload], {"crc32": crc}, payload,
            [crc + 2**32, payload],
        )))  # fmt: skip

    def blob(self) -> None:
        """The JSON of a blob, with the checksum of the blob in the record after it."""
        blob, rng = self.one(blob=True), self.rng
        if blob is None or len(blob.content) < 8:
            return
        length = int.from_bytes(blob.content[:8], "little")
        header, data = blob.content[8 : 8 + length], blob.content[8 + length :]
        text = _other_json(rng, header)
        length = len(text) if rng.random() < 0.9 else rng.choice(INTS[1:28]) % 2**64
        data = data if rng.random() < 0.8 else data[: rng.randrange(len(data) + 1)]
        blob.content = length.to_bytes(8, "little") + text + data
        self._told(blob)

    def _told(self, blob: Listed) -> None:
        """The record says size and checksum of the blob that is there now."""
        for one in self.listed:
            if not is_group(one.name):
                continue
            with contextlib.suppress(Exception):  # an earlier change was here
                group = Grouped.of(one.content)
                for at, (number, key, flags, packed) in enumerate(group.records):
                    if blob.name == f"blobs/{number:08d}.safetensors":
                        facts = {"size": len(blob.content), "crc32": zlib.crc32(blob.content)}
                        made = pack({**unpack(packed), "blob": facts | {"back": 0}})
                        group.records[at] = number, key, flags, made
                        one.content = group.content()


def _after_manifest(rng: random.Random) -> int:
    """Nine times in ten the manifest is left alone: without it there is no tape."""
    return int(rng.random() < 0.9)


def _other_json(rng: random.Random, header: bytes) -> bytes:
    try:
        document: Any = json.loads(header)
        names = list(document)
        name = rng.choice(names)
        entry = document[name]
        way = rng.randrange(8)
        if way == 0:
            entry["dtype"] = rng.choice(
                ("F32", "F64", "I64", "U8", "BOOL", "F4", "F6_E2M3", "X", 1)
            )
        elif way == 1:
            entry["shape"] = [rng.choice(INTS) for _ in range(rng.choice((0, 1, 2, 65, 70)))]
        elif way == 2:
            entry["data_offsets"] = [rng.choice(INTS) for _ in range(rng.choice((1, 2, 2, 2, 3)))]
        elif way == 3:
            entry["data_offsets"] = rng.choice([document[n] for n in names])["data_offsets"]
        elif way == 4:
            del document[name]
        elif way == 5:
            document[rng.choice(("__metadata__", "x", "", "\x1b", *names))] = rng.choice(
                (entry, {}, [], 1, None, {"a": "b"})
            )
        elif way == 6:
            document = rng.choice(([], 1, "x", None, [document]))
        else:
            return json.dumps(document).replace('"F32"', rng.choice(('"F32","dtype":"I32"', "1e999",
                              "NaN", "9" * 5000, "[" * 3000))).encode()  # fmt: skip
        return json.dumps(document).encode("utf-8", "surrogatepass")
    except Exception:  # the header is none, or an earlier change was here
        changed = bytearray(header or b"{}")
        changed[rng.randrange(len(changed))] = rng.randrange(256)
        return bytes(changed)


def _tail(rng: random.Random, data: bytes) -> bytes:
    """The end of a file whose process was killed, or blocks that are no headers in it."""
    way = rng.randrange(4)
    if way == 0:
        return data[: rng.randrange(len(data) + 1)]
    if way == 1:
        return data[: rng.randrange(len(data) // BLOCK + 1) * BLOCK]
    if way == 2:
        return data + rng.choice((bytes(BLOCK), bytes(8 * BLOCK), b"x", b"\xff" * BLOCK))
    at = rng.randrange(len(data) // BLOCK + 1) * BLOCK
    return data[:at] + rng.choice((bytes(BLOCK), b"\xff" * BLOCK, data[-3 * BLOCK :])) + data[at:]


_CHANGES = (
    "order", "order", "name", "field", "field", "payload", "payload", "payload", "envelope",
    "blob", "blob", "blob", "gather", "entry", "entry", "documents",
)  # fmt: skip


def reframe(rng: random.Random, data: bytes) -> bytes:
    """A copy of a tape with one to three changes of members or of its end."""
    listed = split(data)
    if not listed:
        return data
    sealed = data.endswith(ZEROS_AT_END) and rng.random() < 0.9
    if listed[-1].name == END_MEMBER and rng.random() < 0.1:
        del listed[-1]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if listed:
            getattr(_Reframing(rng, listed), rng.choice(_CHANGES))()
    try:
        made = joined(listed, sealed=sealed, indexed=rng.random() < 0.8)
    except (ValueError, UnicodeEncodeError):  # a name that no header holds
        return data
    return _tail(rng, made) if rng.random() < 0.15 else made
