"""A reader of tapes written from schema/FORMAT.md alone: the standard library and msgpack,
nothing of calltape. It shows that the page suffices."""

import json
import math
import re
import struct
import zlib

import msgpack


def members(data, at=0):
    """(name, offset of the header, content) of every regular member; other blocks are skipped."""
    while at + 512 <= len(data):
        size = size_of(block := data[at : at + 512])
        if size is None or at + 512 + size > len(data):
            at += 512
            continue
        if block[156:157] in (b"0", b"\0"):
            yield block[:100].rstrip(b"\0").decode("ascii"), at, data[at + 512 : at + 512 + size]
        at += 512 + -(-size // 512) * 512


def size_of(block):
    """The size in a header, or None for a block that is no header."""
    checksum = block[148:156].rstrip(b"\0 ")
    total = sum(block) - sum(block[148:156]) + 8 * 32
    if block[257:262] != b"ustar" or not checksum.isdigit() or int(checksum, 8) != total:
        return None
    wide = int.from_bytes(block[125:136], "big")
    return wide if block[124] == 0x80 else int(block[124:136].rstrip(b"\0 "), 8)


def extension(code, data):
    return (
        int.from_bytes(data, "big", signed=1) if code == 1 else data.decode("utf8", "surrogatepass")
    )


def unpack(data):
    return msgpack.unpackb(data, ext_hook=extension, strict_map_key=False)


def envelope(content):
    checksum, payload, *_ = unpack(content)
    return unpack(payload) if zlib.crc32(payload) == checksum else None


def section(found):
    """The bytes of a section, or None if they are damaged."""
    codec, _, checksum, data, *_ = found
    return (zlib.decompress(data) if codec else data) if zlib.crc32(data) == checksum else None


def group(content, tape, at):
    """The records of a group, with structures and leaves decoded."""
    own, place, width, *sections = unpack(content)
    table, documents = map(section, sections[:2])
    if None in (table, documents) or (own, place) != (tape, struct.pack("<Q", at)):
        return
    rows = [struct.unpack("<QQI", table[i : i + 20]) for i in range(0, len(table), width)]
    numbers, times, begins = zip(*rows, strict=True)
    parts = unpack(documents[: begins[0]])
    ends = [*begins[1:], None]
    for number, time, begin, end in zip(numbers, times, begins, ends, strict=True):
        record = unpack(documents[begin:end]) | {"time_ns": time}
        for tree in filter(None, (record["inputs"], record.get("outputs"))):
            tree |= {name: unpack(parts[tree[name]]) for name in ("structure", "leaves")}
        yield record | {"call": number}


def tensors(blob):
    """The tensors of a safetensors file by key: sizes and bytes."""
    start = 8 + int.from_bytes(blob[:8], "little")
    header = json.loads(blob[8:start])
    header.pop("__metadata__", None)
    places = {
        key: [start + offset for offset in one["data_offsets"]] for key, one in header.items()
    }
    return {key: (header[key]["shape"], blob[slice(*place)]) for key, place in places.items()}


def grown(first, then, axis):
    """Two tensors, one after the other along an axis."""
    rows, data = math.prod(first[0][:axis]), b""
    for row in range(rows):
        for _, part in (first, then):
            data += part[len(part) * row // rows : len(part) * (row + 1) // rows]
    return [*first[0][:axis], first[0][axis] + then[0][axis], *first[0][axis + 1 :]], data


def read_tape(data):
    """(manifest, calls by number, end or None). A call has "tensors", or None for damaged ones."""
    found, calls, blobs = list(members(data)), {}, {}
    [*_, end] = [None, *(envelope(content) for name, _, content in found if name == "end.msgpack")]
    manifest = envelope(found[0][2]) if found[0][0] == "tape.msgpack" else None
    if end:
        manifest = manifest or unpack(end["manifest"])
        end["table"] = unpack(section(end["inputs"])) if "inputs" in end else None
        places = {row[0] for row in struct.iter_unpack("<6Q", section(end["index"]))}
        for at in places - {at for _, at, _ in found}:  # within another member, or lost
            found += [next(members(data, at))] if size_of(data[at : at + 512]) is not None else []
    for name, at, content in sorted(found, key=lambda one: one[1]):
        blobs[name, at] = content
        if re.fullmatch(r"records/(\d{8}|[1-9]\d{8,18})\.msgpack", name):
            records = list(group(content, manifest["tape"], at))
            if len({record["call"] for record in records} - {*calls}) != len(records):
                continue
            for record in records:
                facts = record.get("blob", {})
                packed = facts.get("codec")
                blob = f"blobs/{record['call']:08}.safetensors" + (".zlib" if packed else "")
                blob = blobs.get((blob, at - facts["back"]), b"") if facts else b""
                whole = not facts or zlib.crc32(blob) == facts["checksum"]
                blob = zlib.decompress(blob) if packed and whole else blob
                found = record["tensors"] = (tensors(blob) if facts else {}) if whole else None
                for key, call, there, *axis in record.get("at", ()) if whole else ():
                    earlier, own = (calls[call]["tensors"] or {}).get(there), found.pop(key, None)
                    if earlier is not None:
                        found[key] = grown(earlier, own, *axis) if axis else earlier
                calls[record["call"]] = record
    return manifest, calls, end


def last_counts(data, tape):
    """The interim counts of an unsealed tape of this id that count; None if there are none."""
    found = []
    for name, _, content in members(data):
        if name == "counts.msgpack" and (counts := envelope(content)) and counts["tape"] == tape:
            coverage = counts["coverage"]
            if coverage["seen"] == coverage["kept"] + sum(coverage["dropped"].values()):
                found.append(counts)
    return max(found, key=lambda counts: counts["number"], default=None)
