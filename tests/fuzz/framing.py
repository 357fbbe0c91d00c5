"""Changes below the documents: members, their headers, the bytes of a payload, the JSON of a blob.

Every checksum is made anew. What lies is what the checksum is over.
"""

from __future__ import annotations

import contextlib
import json
import random
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from calltape_schema.framing import (
    BLOCK,
    END,
    TRAILER,
    blob_call_number,
    call_number,
    member_header,
    members,
    padding,
)
from calltape_schema.gathered import (
    entry,
    group_name,
    is_group,
    packed_entry,
    payload_of,
    places,
)
from calltape_schema.packing import open_envelope, pack, unpack
from tests.fuzz.values import INTS

__all__ = ["Listed", "enveloped", "joined", "numbers_in", "payloads_in", "reframe", "split"]

_NAMES = (
    "tape.msgpack", "trailer.msgpack", "calls/00000000.msgpack", "calls/00000001.msgpack",
    "calls/00000000.safetensors", "calls/00000099.msgpack", "calls/9223372036854775807.msgpack",
    "calls/9223372036854775808.msgpack", "calls/1.msgpack", "notes/x",
    "calls/00000000.records", "calls/1.records", "../x", "calls/\x1b[2J",
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


def joined(listed: list[Listed], *, sealed: bool, indexed: bool = True) -> bytes:
    """The bytes of a tape.

    Args:
        sealed: two zero blocks follow the last member.
        indexed: the index in the trailer says where the calls are now.
    """
    data = bytearray()
    index = b""
    blob_at: dict[int, int] = {}
    for one in listed:
        content = one.content
        number, own = call_number(one.name), blob_call_number(one.name)
        if own is not None:
            blob_at[own] = len(data)
        elif number is not None:
            index += struct.pack("<QQ", number, blob_at.get(number, len(data)))
        elif is_group(one.name):
            for found in numbers_in(content):
                index += struct.pack("<QQ", found, len(data))
        elif one.name == TRAILER and indexed:
            content = _indexed(content, index)
        data += (one.header or member_header(one.name, len(content))) + content
        data += bytes(padding(len(content)))
    return bytes(data) + (END if sealed else b"")


def _referring(rng: random.Random, records: list[bytes]) -> list[bytes]:
    """The entries of a group. Later records refer to the first one, rightly or not."""
    entries: list[bytes] = []
    done, base = 0, b""
    for record in records:
        made = entry(record)
        try:
            payload = open_envelope(record)
        except Exception:  # an earlier change made it no envelope
            payload = b""
        if base and payload:
            far = done if rng.random() < 0.8 else rng.choice((0, -1, done + 1, 2**32, 2**64 - 1))
            made = packed_entry(payload, base, far)
            if rng.random() < 0.1:
                found = list(unpack(made[4:]))
                found[3] = rng.choice((0, -1, len(payload) + 1, 2**15, 2**15 + 1, 2**64 - 1))
                made = entry(pack(found))
        base = base or payload
        entries.append(made)
        done += len(made)
    return entries


def payloads_in(content: bytes) -> Iterator[bytes]:
    """The payloads of the records in a group, as far as they can be read."""
    entries = {start - 4: content[start : start + size] for start, size in places(content)}
    for at, one in entries.items():
        with contextlib.suppress(Exception):  # an earlier change made it no record
            yield payload_of(one, at, entries.__getitem__)


def numbers_in(content: bytes) -> list[int]:
    """The numbers of the calls in a group, as far as it can be read."""
    found: list[int] = []
    for payload in payloads_in(content):
        try:
            number = dict(unpack(payload))["call"]
        except Exception:
            continue
        if type(number) is int and 0 <= number < 2**64:
            found.append(number)
    return found


def _indexed(content: bytes, index: bytes) -> bytes:
    try:
        trailer = dict(unpack(open_envelope(content)))
    except Exception:  # an earlier change made it no trailer
        return content
    count = len(index) // 16
    dropped = trailer.get("coverage", {}).get("dropped", {})
    lost = sum(n for n in dropped.values() if type(n) is int) if isinstance(dropped, dict) else 0
    trailer["coverage"] = {"seen": count + lost, "kept": count, "dropped": dropped}
    return enveloped(pack(trailer | {"index": index}))


def enveloped(payload: bytes) -> bytes:
    return pack([zlib.crc32(payload), payload])


def _rechecked(header: bytearray) -> bytes:
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


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

    def gather(self) -> None:
        """Small records share a member, with room left or not; or their lengths lie."""
        small = [
            m for m in self.listed if call_number(m.name) is not None and len(m.content) < 8192
        ]
        blobs = {blob_call_number(m.name) for m in self.listed}
        small = [m for m in small if call_number(m.name) not in blobs]
        if not small:
            return
        rng = self.rng
        chosen = small[: rng.randrange(1, len(small) + 1)]
        entries = [entry(m.content) for m in chosen]
        if rng.random() < 0.5:
            entries = _referring(rng, [m.content for m in chosen])
        if rng.random() < 0.5:
            at = rng.randrange(len(entries))
            length = rng.choice((0, 1, len(entries[at]), 2**31, 2**32 - 1))
            entries[at] = rng.choice((
                struct.pack("<I", length) + entries[at][4:], entries[at][:-1], entries[at] * 2,
                bytes(len(entries[at])), entries[at][:-1] + b"x", b"\0" + entries[at],
            ))  # fmt: skip
        content = b"".join(entries) + bytes(rng.choice((0, 0, 3, 4, 512, 60000)))
        number = call_number(chosen[0].name)
        place = self.listed.index(chosen[0])
        self.listed[:] = [m for m in self.listed if not any(m is one for one in chosen)]
        self.listed.insert(place, Listed(group_name(number or 0), content))

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
        one.header = _rechecked(header)

    def payload(self) -> None:
        """Bytes of a document, under a right CRC: other encodings, lengths that lie."""
        one, rng = self.one(), self.rng
        if one is None:
            return
        try:
            payload = bytearray(open_envelope(one.content))
        except Exception:  # a blob, or no envelope
            return
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
        one.content = enveloped(bytes(payload))

    def envelope(self) -> None:
        one, rng = self.one(), self.rng
        if one is None:
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
        number = blob_call_number(blob.name)
        for one in self.listed:
            if number is not None and call_number(one.name) == number:
                try:
                    record = dict(unpack(open_envelope(one.content)))
                except Exception:
                    continue
                facts = {"size": len(blob.content), "crc32": zlib.crc32(blob.content)}
                one.content = enveloped(pack(record | {"blob": facts}))


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
    "blob", "blob", "blob", "gather", "gather",
)  # fmt: skip


def reframe(rng: random.Random, data: bytes) -> bytes:
    """A copy of a tape with one to three changes of members or of its end."""
    listed = split(data)
    if not listed:
        return data
    sealed = data.endswith(END) and rng.random() < 0.9
    if listed[-1].name == TRAILER and rng.random() < 0.1:
        del listed[-1]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if listed:
            getattr(_Reframing(rng, listed), rng.choice(_CHANGES))()
    try:
        made = joined(listed, sealed=sealed, indexed=rng.random() < 0.8)
    except (ValueError, UnicodeEncodeError):  # a name that no header holds
        return data
    return _tail(rng, made) if rng.random() < 0.15 else made
