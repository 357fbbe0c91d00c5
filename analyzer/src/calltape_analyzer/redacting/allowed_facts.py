"""What may be on a redacted tape, by place and kind of fact, and the check that it has no more.

The file of a new tape is read from its first byte to its last, by nothing but the format and the
list here, and whoever wrote it is not asked: each byte belongs to a member that the format has,
each document has the fields of the list in their one encoding, each scalar and each tensor is one
that a node refers to, and stands where such a fact may stand. Anything else is an error.
"""

from __future__ import annotations

import mmap
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from calltape_analyzer.redacting.allowed_trees import NotAllowedError, TreeChecks, decoded, require
from calltape_analyzer.redacting.policy import Policy
from calltape_analyzer.redacting.vocabulary import is_class_name, plain_reason
from calltape_schema import blob
from calltape_schema.bounds import (
    DEFLATE_FROM_BYTES,
    MAX_GROUP_BYTES,
    MAX_INFLATION,
    MAX_MEMBER_BYTES,
    MAX_TABLE_BYTES,
)
from calltape_schema.drop_reasons import DropReason
from calltape_schema.end import End, IndexEntry, decode_end, encode_end
from calltape_schema.errors import TapeError
from calltape_schema.groups import CALL_BYTES, ENTRY, HAS_BLOB, HAS_RANGES, RAISED, opened
from calltape_schema.inputs_document import pack_inputs, unpack_inputs
from calltape_schema.inputs_table import InputsTable, signature_of
from calltape_schema.packing import open_envelope, pack
from calltape_schema.privacy import is_without_text
from calltape_schema.sections import Section, checksums_of, section_of
from calltape_schema.tar import (
    BLOCK,
    END_MEMBER,
    MANIFEST,
    ZEROS_AT_END,
    Member,
    blob_name,
    group_name,
    is_group,
    member_header,
    padding,
    parse_header,
)

__all__ = ["NotAllowedError", "check_file"]

_PART = 2**20
_MAX_THREAD = 2**20
_TREE = frozenset({"structure", "leaves", "scalars", "ranges"})
_RECORD = frozenset({
    "time_ns", "duration_ns", "thread", "error", "outputs_missing", "inputs", "outputs", "blob",
})  # fmt: skip


def check_file(path: str, policy: Policy) -> None:
    """Reads all of a new, sealed tape.

    Args:
        path: of the file.
        policy: what was asked for, by path.

    Raises:
        NotAllowedError: it has something that it may not have.
        TapeError: ``io``; ``damaged``, ``invalid``, ``limit``: it is not as a tape is written.
    """
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            _File(data, policy).check()
    except zlib.error:
        raise NotAllowedError("deflated data", "another encoding") from None
    except OSError as error:
        raise TapeError("io", f"cannot read it: {error.strerror}", path=path) from None


class _Blob(NamedTuple):
    """Where a blob is that no record has claimed yet."""

    offset: int
    start: int
    size: int


class _File:
    """A file that is walked over once."""

    def __init__(self, data: mmap.mmap, policy: Policy) -> None:
        self._data = data
        self._trees = TreeChecks(policy)
        self._tape = self._manifest = b""
        self._blobs: dict[int, _Blob] = {}
        self._index: list[IndexEntry] = []
        self._table = InputsTable()
        self._numbers: list[int] = []
        self._times: list[int] = []
        self._raised = self._blob_bytes = 0
        self._is_ended = False

    def check(self) -> None:
        offset = 0
        while not self._is_ended:
            offset = self._member(offset)
        require(not self._blobs, "a blob", "tensors of no call")
        rest = self._data[offset : offset + len(ZEROS_AT_END) + 1]
        require(rest == ZEROS_AT_END, "the file", "more bytes")

    def _member(self, offset: int) -> int:
        header = self._data[offset : offset + BLOCK]
        found = parse_header(header, offset)
        require(found is not None, "the file", "bytes outside of members")
        assert found is not None
        require(header == member_header(found.name, found.size), "a header", "another encoding")
        fill = self._data[found.start + found.size : found.end]
        require(fill == bytes(padding(found.size)), "the padding of a member", "bytes")
        if not offset:
            require(found.name == MANIFEST, "the file", "another first member")
            content = self._content(found)
            self._tape, self._manifest = self._trees.manifest(content), open_envelope(content)
        elif found.name == END_MEMBER:
            self._end(self._content(found), offset)
        elif found.name.startswith("blobs/"):
            digits = "".join(filter(str.isdigit, found.name))
            number = int(digits or 0) if len(digits) < 20 else 0
            require(found.name == blob_name(number), "a header", "an unknown member")
            require(number not in self._blobs, "a blob", "tensors of no call")
            self._blobs[number] = _Blob(offset, found.start, found.size)
        else:
            require(is_group(found.name), "a header", "an unknown member")
            self._group(found, self._content(found))
        return found.end

    def _content(self, found: Member) -> bytes:
        require(found.size <= MAX_MEMBER_BYTES, "a member", "too many bytes")
        return bytes(self._data[found.start : found.start + found.size])

    def _group(self, found: Member, content: bytes) -> None:
        where = "the records"
        parts = decoded(content, where)
        require(isinstance(parts, tuple) and len(parts) == 5, where, "further elements")
        group = opened(content, found.offset, self._tape)
        documents = group.documents.content(MAX_GROUP_BYTES, where)
        level = 1 if len(documents) >= DEFLATE_FROM_BYTES else 0
        sections = Section.of(group.table), Section.of(documents, level, MAX_INFLATION)
        plain = [pack(one) for one in (CALL_BYTES, *sections)]
        head = pack([group.tape, found.offset.to_bytes(8, "little")])[1:]
        require(content == b"".join((b"\x95", head, *plain)), where, "another encoding")
        entries = list(ENTRY.iter_unpack(group.table))
        numbers = [entry[0] for entry in entries]
        require(found.name == group_name(numbers[0]), "a header", "an unknown member")
        times, begins = [entry[1] for entry in entries], [entry[2] for entry in entries]
        shared = decoded(documents[: begins[0]], where)
        used: set[int] = set()
        for entry, end in zip(entries, [*begins[1:], len(documents)], strict=True):
            document = decoded(documents[entry[2] : end], where)
            used |= self._record(found.offset, entry, document, shared)
        require(used == set(range(len(shared))), where, "parts that no record refers to")
        spans = min(numbers), max(numbers), min(times), max(times)
        self._index.append(IndexEntry(found.offset, len(numbers), *spans))

    def _record(self, offset: int, entry: tuple[Any, ...], document: Any, shared: Any) -> set[int]:
        number, begun, _, flags, signature = entry
        key = int.from_bytes(signature, "little")
        where = "the record of a call"
        require(isinstance(document, dict) and document.keys() <= _RECORD, where, "other fields")
        require(0 <= document.get("thread", 0) <= _MAX_THREAD, where, "the id of a thread")
        missing, error = document.get("outputs_missing"), document.get("error")
        if missing is not None:
            require(plain_reason(missing) == missing, where, "a reason in other words")
        if error is not None:
            require(error.keys() == {"type", "message"}, "an exception", "other fields")
            require(is_class_name(error["type"]), "an exception", "the name of a class")
            require(is_without_text(error["message"]), "an exception", "a message")
        keys: dict[str, blob.Stored] = {}
        used: set[int] = set()
        for side in ("inputs", "outputs"):
            tree = document.get(side)
            if tree is not None:
                require(tree.keys() <= _TREE, side, "other fields")
                used |= {tree["structure"], tree["leaves"]}
                made = {
                    **tree,
                    "structure": shared[tree["structure"]],
                    "leaves": shared[tree["leaves"]],
                }
                self._trees.tree(made, side, keys)
                document[side] = made
        self._times += [begun, begun + document.get("duration_ns", 0)]
        self._count(number, key, document, error is not None)
        self._blob(number, offset, document.get("blob"), keys)
        ranges = document["inputs"].get("ranges")
        known = (error is not None) * RAISED | bool(ranges) * HAS_RANGES | bool(keys) * HAS_BLOB
        require(flags == known, where, "flags")
        return used

    def _count(self, number: int, key: int, document: dict[str, Any], raised: bool) -> None:
        tree = document["inputs"]
        scalars = pack(tree.get("scalars", ()))
        known = signature_of(tree["structure"], tree["leaves"], scalars)
        require(key == known, "the records", "the signature of other inputs")
        ranges = [(one["leaf"], one["min"], one["max"]) for one in tree.get("ranges", ())]
        self._table.add(
            tree["structure"], tree["leaves"], scalars, number, raised=raised, ranges=ranges
        )
        self._numbers.append(number)
        self._raised += raised

    def _blob(self, number: int, offset: int, facts: Any, keys: Mapping[str, blob.Stored]) -> None:
        found = self._blobs.pop(number, None)
        if found is None or facts is None:
            require(found is facts is None and not keys, "a blob", "tensors of no leaf")
            return
        begin, size = found.start, found.size
        sums = checksums_of(
            self._data[at : min(at + _PART, begin + size)]
            for at in range(begin, begin + size, _PART)
        )
        known: dict[str, Any] = {
            "back": offset - found.offset,
            "size": size,
            "checksum": sums.whole,
        }
        known |= {"steps": sums.steps} if sums.steps else {}
        require(facts == known, "a blob", "other facts")
        header = self._data[begin : begin + blob.header_size(self._data[begin : begin + 8], size)]
        entries = blob.parse_header(header, size)
        for key, one in entries.items():
            stored = blob.Stored(one.dtype, one.shape, one.end - one.begin)
            require(keys.get(key) == stored, "a blob", "a tensor that no leaf refers to")
        require(entries.keys() == keys.keys(), "a blob", "a leaf without its tensor")
        plain = blob.build_header({key: keys[key] for key in entries})
        require(header == plain, "a blob", "other fields")
        self._blob_bytes += size

    def _end(self, content: bytes, offset: int) -> None:
        end, where = decode_end(content), "the end"
        require(encode_end(end, offset) == content, where, "other fields")
        self._is_ended = True
        require(end.tape == self._tape, where, "another tape")
        others = (end.continues, end.next_call, end.deleted, end.elsewhere)
        require(all(one is None for one in others), where, "other fields")
        require(end.manifest == self._manifest, where, "another manifest")
        index = _of_end(end.index, "the index")
        has_calls = bool(self._numbers)
        written = (
            end.first_call, end.last_call, end.first_ns, end.last_ns, end.raised, end.tensor_bytes,
        )  # fmt: skip
        known = (
            min(self._numbers, default=None), max(self._numbers, default=None),
            min(self._times, default=None),
            min(max(self._times), 2**63 - 1) if has_calls else None,
            self._raised, self._blob_bytes,
        )  # fmt: skip
        require(written == known, where, "counts of other calls")
        known_index = b"".join(entry.pack() for entry in self._index)
        require(index == known_index, "the index", "other groups")
        coverage, dumps = end.coverage, end.dumps
        require(coverage.kept == len(self._numbers), "the coverage", "a count of other calls")
        are_reasons = all(isinstance(one, DropReason) for one in coverage.dropped)
        require(are_reasons, "the coverage", "a reason in other words")
        require(all(is_without_text(one.reason) for one in dumps), "a dump", "other words")
        self._table_of(end)

    def _table_of(self, end: End) -> None:
        if end.inputs is None:
            return
        where = "the table of inputs"
        data = _of_end(end.inputs, where)
        decoded(data, where)
        table = unpack_inputs(data)
        require(pack_inputs(table) == data, where, "other fields")
        for key, row in table.rows.items():
            own = self._table.rows.get(key)
            require(own is not None, where, "inputs of no call")
            assert own is not None
            written, known = (
                (one.seen, one.kept, one.raised, one.first, one.last, one.example, one.spans())
                for one in (row, own)
            )
            require(written == known, where, "counts of other calls")
        for kind in table.kinds.values():
            self._trees.kind(kind)


def _of_end(section: Any, where: str) -> bytes:
    """The bytes of a section of the end, which the writer made in the same way."""
    found = section_of(section, where)
    data = found.content(MAX_TABLE_BYTES, where)
    require(found == Section.of(data, 6) and len(section) == len(found), where, "another encoding")
    return data
