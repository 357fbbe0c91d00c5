"""The check that a redacted tape contains only facts on an allowlist.

The check does not trust the code that wrote the tape. It reads the file from its first byte to its
last: each byte must belong to a member of the format, each document must have allowed fields in
their canonical encoding, and each scalar and tensor must be one that a node refers to, at a place
where such a fact is allowed.
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
from calltape_schema.end import IndexEntry, decode_end, encode_end
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

__all__ = ["check_file"]

_PART = 2**20
_MAX_THREAD = 2**20
_TREE = frozenset({"structure", "leaves", "scalars", "ranges"})
_RECORD = frozenset({
    "time_ns", "duration_ns", "thread", "error", "outputs_missing", "inputs", "outputs", "blob",
})  # fmt: skip


def check_file(path: str, policy: Policy) -> None:
    """Checks a redacted, sealed tape.

    Args:
        path: the path of the file.
        policy: the policy of the redaction.

    Raises:
        NotAllowedError: the tape contains a fact that is not allowed.
        TapeError: ``io``; ``damaged``, ``invalid`` or ``limit`` if the file is not a valid tape.
    """
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            _FileCheck(data, policy).check()
    except zlib.error:
        raise NotAllowedError("deflated data", "another encoding") from None
    except OSError as error:
        raise TapeError("io", f"cannot read it: {error.strerror}", path=path) from None


class _Blob(NamedTuple):
    """The position of a blob whose record has not been read yet."""

    offset: int
    start: int
    size: int


class _FileCheck:
    """Checks a file in one pass."""

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
            offset = self._check_member(offset)
        require(not self._blobs, "a blob", "tensors of no call")
        end_of_file = self._data[offset : offset + len(ZEROS_AT_END) + 1]
        require(end_of_file == ZEROS_AT_END, "the file", "more bytes")

    def _check_member(self, offset: int) -> int:
        """Checks a member, and returns the offset of the next one."""
        header = self._data[offset : offset + BLOCK]
        member = parse_header(header, offset)
        require(member is not None, "the file", "bytes outside of members")
        assert member is not None
        require(header == member_header(member.name, member.size), "a header", "another encoding")
        fill = self._data[member.start + member.size : member.end]
        require(fill == bytes(padding(member.size)), "the padding of a member", "bytes")
        if not offset:
            require(member.name == MANIFEST, "the file", "another first member")
            content = self._content(member)
            self._tape, self._manifest = self._trees.manifest(content), open_envelope(content)
        elif member.name == END_MEMBER:
            self._check_end(self._content(member), offset)
        elif member.name.startswith("blobs/"):
            digits = "".join(filter(str.isdigit, member.name))
            number = int(digits or 0) if len(digits) < 20 else 0
            require(member.name == blob_name(number), "a header", "an unknown member")
            require(number not in self._blobs, "a blob", "tensors of no call")
            self._blobs[number] = _Blob(offset, member.start, member.size)
        else:
            require(is_group(member.name), "a header", "an unknown member")
            self._check_group(member, self._content(member))
        return member.end

    def _content(self, member: Member) -> bytes:
        require(member.size <= MAX_MEMBER_BYTES, "a member", "too many bytes")
        return bytes(self._data[member.start : member.start + member.size])

    def _check_group(self, member: Member, content: bytes) -> None:
        where = "the records"
        parts = decoded(content, where)
        require(isinstance(parts, tuple) and len(parts) == 5, where, "further elements")
        group = opened(content, member.offset, self._tape)
        documents = group.documents.content(MAX_GROUP_BYTES, where)
        level = 1 if len(documents) >= DEFLATE_FROM_BYTES else 0
        sections = Section.of(group.table), Section.of(documents, level, MAX_INFLATION)
        packed = [pack(part) for part in (CALL_BYTES, *sections)]
        head = pack([group.tape, member.offset.to_bytes(8, "little")])[1:]
        require(content == b"".join((b"\x95", head, *packed)), where, "another encoding")
        entries = list(ENTRY.iter_unpack(group.table))
        numbers = [entry[0] for entry in entries]
        require(member.name == group_name(numbers[0]), "a header", "an unknown member")
        times, begins = [entry[1] for entry in entries], [entry[2] for entry in entries]
        shared = decoded(documents[: begins[0]], where)
        used: set[int] = set()
        for entry, end in zip(entries, [*begins[1:], len(documents)], strict=True):
            document = decoded(documents[entry[2] : end], where)
            used |= self._check_record(member.offset, entry, document, shared)
        require(used == set(range(len(shared))), where, "parts that no record refers to")
        spans = min(numbers), max(numbers), min(times), max(times)
        self._index.append(IndexEntry(member.offset, len(numbers), *spans))

    def _check_record(
        self, offset: int, entry: tuple[Any, ...], document: Any, shared: Any
    ) -> set[int]:
        """Checks a record, and returns the positions of the shared parts that it refers to."""
        number, begun, _, flags, signature = entry
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
                document[side] = {
                    **tree,
                    "structure": shared[tree["structure"]],
                    "leaves": shared[tree["leaves"]],
                }
                self._trees.check(document[side], side, keys)
        self._times += [begun, begun + document.get("duration_ns", 0)]
        inputs, raised = document["inputs"], error is not None
        scalars, ranges = pack(inputs.get("scalars", ())), inputs.get("ranges", ())
        key = signature_of(inputs["structure"], inputs["leaves"], scalars)
        is_signature = int.from_bytes(signature, "little") == key
        require(is_signature, "the records", "the signature of other inputs")
        self._table.add(
            inputs["structure"], inputs["leaves"], scalars, number, raised=raised,
            ranges=[(span["leaf"], span["min"], span["max"]) for span in ranges],
        )  # fmt: skip
        self._numbers.append(number)
        self._raised += raised
        self._check_blob(number, offset, document.get("blob"), keys)
        expected = raised * RAISED | bool(ranges) * HAS_RANGES | bool(keys) * HAS_BLOB
        require(flags == expected, where, "flags")
        return used

    def _check_blob(
        self, number: int, offset: int, facts: Any, keys: Mapping[str, blob.Stored]
    ) -> None:
        """Checks the blob of a call: it has exactly the tensors of these keys."""
        where, position = "a blob", self._blobs.pop(number, None)
        if position is None or facts is None:
            require(position is facts is None and not keys, where, "tensors of no leaf")
            return
        begin, size = position.start, position.size
        sums = checksums_of(
            self._data[position : min(position + _PART, begin + size)]
            for position in range(begin, begin + size, _PART)
        )
        expected: dict[str, Any] = {
            "back": offset - position.offset,
            "size": size,
            "checksum": sums.whole,
        }
        expected |= {"steps": sums.steps} if sums.steps else {}
        require(facts == expected, where, "other facts")
        header = self._data[begin : begin + blob.header_size(self._data[begin : begin + 8], size)]
        entries = blob.parse_header(header, size)
        for key, entry in entries.items():
            stored = blob.Stored(entry.dtype, entry.shape, entry.end - entry.begin)
            require(keys.get(key) == stored, where, "a tensor that no leaf refers to")
        require(entries.keys() == keys.keys(), where, "a leaf without its tensor")
        canonical = blob.build_header({key: keys[key] for key in entries})
        require(header == canonical, where, "other fields")
        self._blob_bytes += size

    def _check_end(self, content: bytes, offset: int) -> None:
        end, where = decode_end(content), "the end"
        require(encode_end(end, offset) == content, where, "other fields")
        self._is_ended = True
        require(end.tape == self._tape, where, "another tape")
        fields = (end.continues, end.next_call, end.deleted, end.elsewhere)
        require(all(field is None for field in fields), where, "other fields")
        require(end.manifest == self._manifest, where, "another manifest")
        index = _section_content(end.index, "the index")
        has_calls = bool(self._numbers)
        counts = (
            end.first_call, end.last_call, end.first_ns, end.last_ns, end.raised, end.tensor_bytes,
        )  # fmt: skip
        expected = (
            min(self._numbers, default=None), max(self._numbers, default=None),
            min(self._times, default=None),
            min(max(self._times), 2**63 - 1) if has_calls else None,
            self._raised, self._blob_bytes,
        )  # fmt: skip
        require(counts == expected, where, "counts of other calls")
        expected_index = b"".join(entry.pack() for entry in self._index)
        require(index == expected_index, "the index", "other groups")
        coverage, dumps = end.coverage, end.dumps
        require(coverage.kept == len(self._numbers), "the coverage", "a count of other calls")
        are_reasons = all(isinstance(reason, DropReason) for reason in coverage.dropped)
        require(are_reasons, "the coverage", "a reason in other words")
        require(all(is_without_text(dump.reason) for dump in dumps), "a dump", "other words")
        if end.inputs is not None:
            self._check_table(end.inputs)

    def _check_table(self, inputs: Any) -> None:
        """Checks the table of inputs: its counts are those of the calls on the tape."""
        where = "the table of inputs"
        data = _section_content(inputs, where)
        decoded(data, where)
        table = unpack_inputs(data)
        require(pack_inputs(table) == data, where, "other fields")
        for key, row in table.rows.items():
            from_calls = self._table.rows.get(key)
            require(from_calls is not None, where, "inputs of no call")
            assert from_calls is not None
            written, expected = (
                (
                    table_row.seen,
                    table_row.kept,
                    table_row.raised,
                    table_row.first,
                    table_row.last,
                    table_row.example,
                    table_row.spans(),
                )
                for table_row in (row, from_calls)
            )
            require(written == expected, where, "counts of other calls")
        for kind in table.kinds.values():
            self._trees.kind(kind)


def _section_content(part: Any, where: str) -> bytes:
    """The bytes of a section of the end, which must be deflated as the writer does it."""
    section = section_of(part, where)
    data = section.content(MAX_TABLE_BYTES, where)
    require(section == Section.of(data, 6) and len(part) == len(section), where, "another encoding")
    return data
