"""A reader of tapes written from schema/FORMAT.md alone: the standard library and msgpack,
nothing of calltape. It shows that the page suffices."""

import json
import re
import zlib

import msgpack


def members(data):
    """(name, offset of the header, content) of every regular member; other blocks are skipped."""
    at = 0
    while at + 512 <= len(data):
        block = data[at : at + 512]
        size = size_of(block)
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
    if block[124] == 0x80:
        return int.from_bytes(block[125:136], "big")
    return int(block[124:136].rstrip(b"\0 "), 8)


def extension(code, data):
    if code == 1:
        return int.from_bytes(data, "big", signed=True)
    return data.decode("utf-8", "surrogatepass")


def unpack(data):
    return msgpack.unpackb(data, ext_hook=extension, strict_map_key=False)


def envelope(content):
    """The document in an envelope."""
    checksum, payload, *_ = unpack(content)
    return unpack(payload) if zlib.crc32(payload) == checksum else None


def group(content, tape):
    """The records of a group, with structures and leaves decoded."""
    own, sum_of_table, table, sum_of_documents, documents, size, *_ = unpack(content)
    sums = zlib.crc32(table), zlib.crc32(documents)
    if own != tape or sums != (sum_of_table, sum_of_documents):
        return
    documents = zlib.decompress(documents) if size else documents
    calls = [table[at : at + 24] for at in range(0, len(table), 24)]
    begins = [int.from_bytes(call[16:20], "little") for call in calls]
    parts = unpack(documents[: begins[0]])
    for call, begin, end in zip(calls, begins, [*begins[1:], None], strict=True):
        record = unpack(documents[begin:end])
        for tree in filter(None, (record["inputs"], record.get("outputs"))):
            tree |= {name: unpack(parts[tree[name]]) for name in ("structure", "leaves")}
        yield record | {"call": int.from_bytes(call[:8], "little")}


def tensors(blob):
    """The bytes of the tensors of a safetensors file, by key."""
    start = 8 + int.from_bytes(blob[:8], "little")
    header = json.loads(blob[8:start])
    return {
        key: blob[start + one["data_offsets"][0] : start + one["data_offsets"][1]]
        for key, one in header.items()
        if key != "__metadata__"
    }


def table_of(end):
    """The document of the table of counted inputs, or None."""
    return unpack(zlib.decompress(end["inputs"]["data"])) if "inputs" in end else None


def read_tape(data):
    """(manifest, calls by number, end or None). The "tensors" of a call are the bytes of its blob
    by key, those of earlier calls included; None if the checksum of the blob does not hold."""
    manifest, end, calls, blobs = None, None, {}, {}
    for name, at, content in members(data):
        blobs[name, at] = content
        if name == "tape.msgpack" and manifest is None:
            manifest = envelope(content)
        elif name == "end.msgpack":
            end = envelope(content)
        elif re.fullmatch(r"records/(\d{8}|[1-9]\d{8,18})\.msgpack", name):
            records = list(group(content, manifest["tape"]))
            if len({record["call"] for record in records} - {*calls}) != len(records):
                continue
            for record in records:
                facts, blob = record.get("blob"), f"blobs/{record['call']:08}.safetensors"
                blob = blobs.get((blob, at - facts["back"]), b"") if facts else b""
                whole = facts is None or zlib.crc32(blob) == facts["crc32"]
                own = tensors(blob) if facts and whole else {}
                record |= {"own": own, "tensors": dict(own) if whole else None}
                for key, call, there in record.get("at", ()):
                    if record["tensors"] is not None and there in calls[call]["own"]:
                        record["tensors"][key] = calls[call]["own"][there]
                calls[record["call"]] = record
    return manifest, calls, end
