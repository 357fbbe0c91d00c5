"""A reader of tapes written from schema/FORMAT.md alone: the standard library, msgpack and
safetensors, nothing of calltape. It shows that the page suffices, and checks the fixtures."""

import re
import zlib

import msgpack
import safetensors


def members(data):
    """(name, content) of every regular member; blocks that are no headers are skipped."""
    at = 0
    while at + 512 <= len(data):
        block = data[at : at + 512]
        size = size_of(block)
        if size is None or at + 512 + size > len(data):
            at += 512
            continue
        if block[156:157] in (b"0", b"\0"):
            yield block[:100].rstrip(b"\0").decode("ascii"), data[at + 512 : at + 512 + size]
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
    return msgpack.unpackb(data, ext_hook=extension)


def document(content):
    """The document in an envelope, or None where its checksum does not hold."""
    try:
        checksum, payload, *_ = unpack(content)
        return unpack(payload) if zlib.crc32(payload) == checksum else None
    except (ValueError, TypeError):
        return None


def entries(content):
    """The documents of the records in a group."""
    payloads, at = {}, 0
    while at + 4 <= len(content) and (size := int.from_bytes(content[at : at + 4], "little")):
        try:
            checksum, payload, *more = unpack(content[at + 4 : at + 4 + size])
            if len(more) > 1:  # deflated, with another entry so many bytes before as dictionary
                inflater = zlib.decompressobj(-15, payloads[at - more[0]])
                payload = inflater.decompress(payload, more[1])
            else:
                payloads[at] = payload
            if zlib.crc32(payload) == checksum:
                yield unpack(payload)
        except (ValueError, TypeError, KeyError, zlib.error):
            pass
        at += 4 + size


def with_trees(record):
    for tree in filter(None, (record["inputs"], record.get("outputs"))):
        tree |= {part: unpack(tree[part]) for part in ("structure", "leaves")}
    return record


def read_tape(data):
    """(manifest, calls, trailer or None). A call is its record with its trees decoded; "tensors"
    holds their bytes by name, or None where the checksum of the blob does not hold."""
    manifest, trailer, calls, blob = None, None, {}, (None, b"")
    for name, content in members(data):
        call = re.fullmatch(r"calls/(\d{8}|[1-9]\d{8,18})\.(msgpack|safetensors|records)", name)
        if name == "tape.msgpack" and manifest is None:
            manifest = document(content)
        elif name == "trailer.msgpack":
            trailer = document(content)
        elif call and call[2] == "safetensors":
            blob = int(call[1]), content
        elif call and call[2] == "records":
            for record in entries(content):
                if record["tape"] == manifest["tape"] and "blob" not in record:
                    calls.setdefault(record["call"], with_trees(record | {"tensors": {}}))
        elif call and (record := document(content)):
            (number, own), facts = blob, record.get("blob", {"size": 0, "crc32": 0})
            own = own if number == record["call"] else b""
            if record["tape"] != manifest["tape"] or record["call"] != int(call[1]):
                continue
            if len(own) == facts["size"]:
                whole = zlib.crc32(own) == facts["crc32"]
                record["tensors"] = dict(safetensors.deserialize(own)) if own and whole else {}
                record["tensors"] = record["tensors"] if whole else None
                calls.setdefault(record["call"], with_trees(record))
    return manifest, [calls[number] for number in sorted(calls)], trailer
