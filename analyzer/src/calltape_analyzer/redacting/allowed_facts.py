"""What may be on a redacted tape, by place and kind of fact, and the check that it has no more.

In comes the file of a new tape. It is read from its first byte to its last, by nothing but the
format and the list here, and whoever wrote it is not asked: each byte belongs to a member that the
format has, each document has the fields of the list in their one encoding, each scalar and each
tensor is one that a node refers to, and stands where such a fact may stand. Anything else is an
error.
"""

from __future__ import annotations

import math
import mmap
import re
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from calltape_analyzer.editing.omission import leaf_document
from calltape_analyzer.errors import RedactionError
from calltape_analyzer.pytree.nodes import PlacedNode, placed_nodes
from calltape_analyzer.redacting.ordinals import is_ordinal
from calltape_analyzer.redacting.policy import Fate, Policy, number_fact
from calltape_analyzer.redacting.vocabulary import (
    VERBS,
    are_patterns,
    is_class_name,
    is_code_name,
    is_default,
    is_enum_name,
    is_field,
    is_platform,
    is_torch_name,
    is_version,
    plain_id,
    plain_reason,
)
from calltape_schema import blob
from calltape_schema.bounds import (
    DEFLATE_FROM_BYTES,
    MAX_DOCUMENT_BYTES,
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
from calltape_schema.packing import open_envelope, pack, unpack
from calltape_schema.privacy import is_name, is_setting, is_without_text
from calltape_schema.records import MINOR, Manifest, Step, Target, decode_manifest, encode_manifest
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
from calltape_schema.tree import (
    ConstantNode,
    DictNode,
    EnumNode,
    FieldsNode,
    Leaf,
    OpaqueNode,
    ScalarNode,
    Structure,
    TensorNode,
    decode_leaves,
    decode_structure,
    document_like,
    encode_structure,
)

__all__ = ["NotAllowedError", "check_file"]

_MAX_KNOWN = 4096
_PART = 2**20
_KEY = re.compile(r"t(0|[1-9]\d{0,6})", re.ASCII)
_OMITTED_NAME = re.compile(r"\?\d{1,6}", re.ASCII)
_MAX_THREAD = 2**20
_TREE = frozenset({"structure", "leaves", "scalars", "ranges"})
_RECORD = frozenset({
    "time_ns", "duration_ns", "thread", "error", "outputs_missing", "inputs", "outputs", "blob",
})  # fmt: skip


class NotAllowedError(RedactionError):
    """The new tape has a fact that is not on the list."""

    def __init__(self, place: str, fact: str) -> None:
        super().__init__(
            f"the new tape would contain a fact that is not allowed: {fact}, in {place}",
            advice="no recorder writes it: leave such calls out, or report this if your recorder "
            "did; nothing was written",
        )


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


def _require(holds: object, place: str, fact: str) -> None:
    if not holds:
        raise NotAllowedError(place, fact)


def _decoded(data: bytes | memoryview, place: str) -> Any:
    """A document that has the one encoding that a writer gives it: another one may hold more."""
    document = unpack(data)
    _require(pack(document) == bytes(data), place, "another encoding")
    return document


def _sorted(document: Any) -> Any:
    """The same with the fields of all maps in one order."""
    if isinstance(document, dict):
        fields: dict[str, Any] = document
        return {name: _sorted(fields[name]) for name in sorted(fields)}
    if isinstance(document, list | tuple):
        items: Any = document
        return [_sorted(item) for item in items]
    return document


def _is_same(one: Any, other: Any) -> bool:
    """Whether two documents are one, bit by bit, whatever the order of their fields is."""
    return pack(_sorted(one)) == pack(_sorted(other))


class _Blob(NamedTuple):
    """Where a blob is that no record has claimed yet."""

    offset: int
    start: int
    size: int


class _File:
    """A file that is walked over once."""

    def __init__(self, data: mmap.mmap, policy: Policy) -> None:
        self._data = data
        self._trees = _Trees(policy)
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
        _require(not self._blobs, "a blob", "tensors of no call")
        rest = self._data[offset : offset + len(ZEROS_AT_END) + 1]
        _require(rest == ZEROS_AT_END, "the file", "more bytes")

    def _member(self, offset: int) -> int:
        header = self._data[offset : offset + BLOCK]
        found = parse_header(header, offset)
        _require(found is not None, "the file", "bytes outside of members")
        assert found is not None
        _require(header == member_header(found.name, found.size), "a header", "another encoding")
        fill = self._data[found.start + found.size : found.end]
        _require(fill == bytes(padding(found.size)), "the padding of a member", "bytes")
        if not offset:
            _require(found.name == MANIFEST, "the file", "another first member")
            content = self._content(found)
            self._tape, self._manifest = self._trees.manifest(content), open_envelope(content)
        elif found.name == END_MEMBER:
            self._end(self._content(found), offset)
        elif found.name.startswith("blobs/"):
            digits = "".join(filter(str.isdigit, found.name))
            number = int(digits or 0) if len(digits) < 20 else 0
            _require(found.name == blob_name(number), "a header", "an unknown member")
            _require(number not in self._blobs, "a blob", "tensors of no call")
            self._blobs[number] = _Blob(offset, found.start, found.size)
        else:
            _require(is_group(found.name), "a header", "an unknown member")
            self._group(found, self._content(found))
        return found.end

    def _content(self, found: Member) -> bytes:
        _require(found.size <= MAX_MEMBER_BYTES, "a member", "too many bytes")
        return bytes(self._data[found.start : found.start + found.size])

    def _group(self, found: Member, content: bytes) -> None:
        where = "the records"
        parts = _decoded(content, where)
        _require(isinstance(parts, tuple) and len(parts) == 5, where, "further elements")
        group = opened(content, found.offset, self._tape)
        documents = group.documents.content(MAX_GROUP_BYTES, where)
        level = 1 if len(documents) >= DEFLATE_FROM_BYTES else 0
        sections = Section.of(group.table), Section.of(documents, level, MAX_INFLATION)
        plain = [pack(one) for one in (CALL_BYTES, *sections)]
        head = pack([group.tape, found.offset.to_bytes(8, "little")])[1:]
        _require(content == b"".join((b"\x95", head, *plain)), where, "another encoding")
        entries = list(ENTRY.iter_unpack(group.table))
        numbers = [entry[0] for entry in entries]
        _require(found.name == group_name(numbers[0]), "a header", "an unknown member")
        times, begins = [entry[1] for entry in entries], [entry[2] for entry in entries]
        shared = _decoded(documents[: begins[0]], where)
        used: set[int] = set()
        for entry, end in zip(entries, [*begins[1:], len(documents)], strict=True):
            document = _decoded(documents[entry[2] : end], where)
            used |= self._record(found.offset, entry, document, shared)
        _require(used == set(range(len(shared))), where, "parts that no record refers to")
        spans = min(numbers), max(numbers), min(times), max(times)
        self._index.append(IndexEntry(found.offset, len(numbers), *spans))

    def _record(self, offset: int, entry: tuple[Any, ...], document: Any, shared: Any) -> set[int]:
        number, begun, _, flags, signature = entry
        key = int.from_bytes(signature, "little")
        where = "the record of a call"
        _require(isinstance(document, dict) and document.keys() <= _RECORD, where, "other fields")
        _require(0 <= document.get("thread", 0) <= _MAX_THREAD, where, "the id of a thread")
        missing, error = document.get("outputs_missing"), document.get("error")
        if missing is not None:
            _require(plain_reason(missing) == missing, where, "a reason in other words")
        if error is not None:
            _require(error.keys() == {"type", "message"}, "an exception", "other fields")
            _require(is_class_name(error["type"]), "an exception", "the name of a class")
            _require(is_without_text(error["message"]), "an exception", "a message")
        keys: dict[str, blob.Stored] = {}
        used: set[int] = set()
        for side in ("inputs", "outputs"):
            tree = document.get(side)
            if tree is not None:
                _require(tree.keys() <= _TREE, side, "other fields")
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
        _require(flags == known, where, "flags")
        return used

    def _count(self, number: int, key: int, document: dict[str, Any], raised: bool) -> None:
        tree = document["inputs"]
        scalars = pack(tree.get("scalars", ()))
        known = signature_of(tree["structure"], tree["leaves"], scalars)
        _require(key == known, "the records", "the signature of other inputs")
        ranges = [(one["leaf"], one["min"], one["max"]) for one in tree.get("ranges", ())]
        self._table.add(
            tree["structure"], tree["leaves"], scalars, number, raised=raised, ranges=ranges
        )
        self._numbers.append(number)
        self._raised += raised

    def _blob(self, number: int, offset: int, facts: Any, keys: Mapping[str, blob.Stored]) -> None:
        found = self._blobs.pop(number, None)
        if found is None or facts is None:
            _require(found is facts is None and not keys, "a blob", "tensors of no leaf")
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
        _require(facts == known, "a blob", "other facts")
        header = self._data[begin : begin + blob.header_size(self._data[begin : begin + 8], size)]
        entries = blob.parse_header(header, size)
        for key, one in entries.items():
            stored = blob.Stored(one.dtype, one.shape, one.end - one.begin)
            _require(keys.get(key) == stored, "a blob", "a tensor that no leaf refers to")
        _require(entries.keys() == keys.keys(), "a blob", "a leaf without its tensor")
        plain = blob.build_header({key: keys[key] for key in entries})
        _require(header == plain, "a blob", "other fields")
        self._blob_bytes += size

    def _end(self, content: bytes, offset: int) -> None:
        end, where = decode_end(content), "the end"
        _require(encode_end(end, offset) == content, where, "other fields")
        self._is_ended = True
        _require(end.tape == self._tape, where, "another tape")
        others = (end.continues, end.next_call, end.deleted, end.elsewhere)
        _require(all(one is None for one in others), where, "other fields")
        _require(end.manifest == self._manifest, where, "another manifest")
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
        _require(written == known, where, "counts of other calls")
        known_index = b"".join(entry.pack() for entry in self._index)
        _require(index == known_index, "the index", "other groups")
        coverage, dumps = end.coverage, end.dumps
        _require(coverage.kept == len(self._numbers), "the coverage", "a count of other calls")
        are_reasons = all(isinstance(one, DropReason) for one in coverage.dropped)
        _require(are_reasons, "the coverage", "a reason in other words")
        _require(all(is_without_text(one.reason) for one in dumps), "a dump", "other words")
        self._table_of(end)

    def _table_of(self, end: End) -> None:
        if end.inputs is None:
            return
        where = "the table of inputs"
        data = _of_end(end.inputs, where)
        _decoded(data, where)
        table = unpack_inputs(data)
        _require(pack_inputs(table) == data, where, "other fields")
        for key, row in table.rows.items():
            own = self._table.rows.get(key)
            _require(own is not None, where, "inputs of no call")
            assert own is not None
            written, known = (
                (one.seen, one.kept, one.raised, one.first, one.last, one.example, one.spans())
                for one in (row, own)
            )
            _require(written == known, where, "counts of other calls")
        for kind in table.kinds.values():
            self._trees.kind(kind)


def _of_end(section: Any, where: str) -> bytes:
    """The bytes of a section of the end, which the writer made in the same way."""
    found = section_of(section, where)
    data = found.content(MAX_TABLE_BYTES, where)
    _require(found == Section.of(data, 6) and len(section) == len(found), where, "another encoding")
    return data


Test = Callable[[Any, Collection[int]], bool]


class _Tree(NamedTuple):
    """What may be in the trees of one structure.

    Attributes:
        scalars: per scalar whether a value may stand there, beside tensors of some sizes.
        elements: the leaves that may have them.
        ranges: the leaves that may have one, each with its place; None where it may be any.
        shown: the scalars whose values may be counted.
    """

    leaves: int
    scalars: list[Test]
    elements: frozenset[int]
    ranges: Mapping[int, str | None]
    shown: frozenset[int]


class _Trees:
    """Checks the parts of records, structures and leaves once each."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._known: dict[tuple[bytes, str], _Tree] = {}
        self._leaves: dict[bytes, tuple[Leaf, ...]] = {}
        self._spans: dict[tuple[str, str], tuple[int, int]] = {}

    # --- the manifest ------------------------------------------------------------------------

    def manifest(self, content: bytes) -> bytes:
        """Checks the manifest, and gives the id of the tape."""
        found, where = decode_manifest(content), "the manifest"
        _require(encode_manifest(found) == content, where, "other fields")
        _require(found.minor == MINOR, where, "another version")
        producer, policy = found.producer, found.policy
        versions = (producer.calltape, producer.torch, producer.python, producer.transformers)
        for version in versions:
            _require(version is None or is_version(version), where, "another version")
        _require(producer.platform is None or is_platform(producer.platform), where, "a platform")
        _require(producer.host is None, where, "the name of a host")
        _require(policy.keep is None and not policy.leaf_values, where, "words of the policy")
        observed = found.observed
        if observed is not None:
            _require(plain_reason(observed.reason) == observed.reason, where, "other words")
        if found.target is not None:
            self._target(found.target)
        self._history(found)
        return found.tape

    def _target(self, target: Target) -> None:
        where = "the target"
        _require(is_class_name(target.type), where, "the name of a class")
        names = [target.method, *(target.outside or ())]
        names += [] if target.module is None else [target.module]
        names += [one.name for one in target.signature or ()]
        _require(all(map(is_code_name, names)), where, "a name that is not from code")
        for one in target.signature or ():
            _require(is_default(one.default), where, "a default that is not from code")

    def _history(self, manifest: Manifest) -> None:
        _require(plain_id(manifest.tape) == manifest.tape, "the manifest", "an id")
        steps = manifest.history or ()
        for number, step in enumerate(steps):
            self._step(step, is_own=number == len(steps) - 1)

    def _step(self, step: Step, *, is_own: bool) -> None:
        where = "the history"
        _require(step.verb in VERBS or is_without_text(step.verb), where, "other words")
        _require(is_code_name(step.tool) or is_without_text(step.tool), where, "other words")
        _require(is_version(step.version), where, "another version")
        for name, value in step.options if not is_own else ():
            is_pattern = step.verb == "redact" and are_patterns(value)
            is_allowed = is_code_name(name) and (is_without_text(value) or is_pattern)
            _require(is_allowed, where, "words of an earlier step")
        ids = [step.tape, *(source.tape for source in step.sources)]
        _require(all(plain_id(one) == one for one in ids), where, "an id")
        for source in step.sources:
            _require(not source.files and source.host is None, where, "the name of a file")

    # --- trees -------------------------------------------------------------------------------

    def tree(self, tree: dict[str, Any], side: str, keys: dict[str, blob.Stored]) -> None:
        """Checks the tree of one side of a call.

        Args:
            tree: with the bytes of its structure and leaves.
            side: ``inputs`` or ``outputs``.
            keys: gets what the blob may have.
        """
        rules = self._rules(tree["structure"], side)
        leaves = self._facts(tree["leaves"])
        scalars, ranges = tree.get("scalars", ()), tree.get("ranges", ())
        sizes = len(leaves), len(scalars)
        _require(sizes == (rules.leaves, len(rules.scalars)), side, "values that no node refers to")
        beside = {size for leaf in leaves for size in leaf.shape}
        for value, may_stand in zip(scalars, rules.scalars, strict=True):
            _require(may_stand(value, beside), side, "a scalar")
        for at, leaf in enumerate(leaves):
            if leaf.key is None:
                continue
            _require(
                at in rules.elements and _KEY.fullmatch(leaf.key), side, "elements of a tensor"
            )
            stored = blob.stored_as(leaf)
            _require(stored is not None and keys.get(leaf.key, stored) == stored, side, "a dtype")
            assert stored is not None
            keys[leaf.key] = stored
        ranged = [one["leaf"] for one in ranges]
        _require(len(set(ranged)) == len(ranged), side, "a second range of a tensor")
        for one in ranges:
            _require(one.keys() == {"leaf", "min", "max"}, side, "other fields")
            dtype, span = leaves[one["leaf"]].dtype, (one["min"], one["max"])
            is_allowed = one["leaf"] in rules.ranges and dtype in blob.INTEGER_FORMATS
            _require(is_allowed, side, "the range of a tensor")
            place = rules.ranges[one["leaf"]]
            of_all = span if place is None else self._spans.setdefault((place, dtype), span)
            _require(span == of_all, side, "the range of one call")

    def kind(self, kind: Any) -> None:
        """Checks counted inputs."""
        rules, where = self._rules(kind.structure, "inputs"), "the table of inputs"
        first = sum(kind.ranks)
        sizes = len(kind.dtypes), len(kind.axes) - first
        _require(sizes == (rules.leaves, len(rules.scalars)), where, "sizes of no tensor")
        _require(all(map(is_torch_name, kind.dtypes)), where, "a dtype")
        beside = {size for axis in kind.axes[:first] for size in (*axis.sizes, axis.max)}
        for at, axis in enumerate(kind.axes[first:]):
            if axis is not None:
                values = (*axis.sizes, axis.max)
                are_allowed = all(rules.scalars[at](one, beside) for one in values)
                _require(at in rules.shown and are_allowed, where, "values of a scalar")

    def _facts(self, data: bytes) -> tuple[Leaf, ...]:
        """Checks the facts of tensors."""
        found = self._leaves.get(data)
        if found is not None:
            return found
        documents, found = _decoded(data, "the facts of a tensor"), decode_leaves(data)
        where = "the facts of a tensor"
        known = [leaf_document(leaf) for leaf in found]
        _require(_is_same(documents, known), where, "other fields")
        counts = Counter(leaf.storage for leaf in found)
        for leaf in found:
            names = all(map(is_torch_name, (leaf.dtype, leaf.device, leaf.layout)))
            _require(names, where, "a name that torch does not have")
            _require(leaf.subclass is None or is_class_name(leaf.subclass), where, "a class")
            is_allowed = leaf.missing is None or plain_reason(leaf.missing) == leaf.missing
            _require(is_allowed, where, "a reason in other words")
            is_shared = leaf.storage is not None and counts[leaf.storage] > 1
            _require(is_shared or (leaf.storage is None and not leaf.offset), where, "a memory")
            _require((leaf.storage or 0) < len(found), where, "the number of a memory")
        if len(self._leaves) >= _MAX_KNOWN:
            self._leaves.clear()
        self._leaves[data] = found
        return found

    def _rules(self, structure: bytes, side: str) -> _Tree:
        found = self._known.get((structure, side))
        if found is None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            found = self._known[structure, side] = self._made(structure, side)
        return found

    def _made(self, structure: bytes, side: str) -> _Tree:
        spec = decode_structure(structure)
        root = spec.root.model_dump(exclude_none=True)
        known = encode_structure(document_like(spec, root, spec.leaves, spec.scalars))
        _require(structure == known, side, "other fields of a structure")
        self._context(spec, side)
        at = "" if side == "inputs" else side
        elements: dict[int, bool] = {}
        ranges: dict[int, set[Fate]] = {}
        places: dict[int, str] = {}
        tests: dict[int, list[Test]] = {}
        hidden: set[int] = set()
        fate = self._policy.fate
        for placed in placed_nodes(spec.root, at, self._policy.signature.positional):
            node = placed.node
            self._names(placed, side)
            if isinstance(node, TensorNode):
                leaf, path = node.leaf, placed.path
                elements[leaf] = elements.get(leaf, True) and fate(path, "elements") == "kept"
                ranges.setdefault(leaf, set()).add(fate(path, "range") if not at else "omitted")
                places.setdefault(leaf, self._policy.name(placed.pattern))
            elif isinstance(node, ScalarNode):
                tests.setdefault(node.scalar, []).append(self._scalar(placed, node, side))
                if node.kind != "int":
                    hidden.add(node.scalar)
            elif isinstance(node, OpaqueNode) and node.length is not None:
                tests.setdefault(node.length, []).append(_is_length)
        is_all = set(elements) == set(range(spec.leaves)) and set(tests) == set(range(spec.scalars))
        _require(is_all, side, "values that no node refers to")
        return _Tree(
            spec.leaves,
            [_all_of(tests[number]) for number in range(spec.scalars)],
            frozenset(leaf for leaf, is_kept in elements.items() if is_kept),
            {
                leaf: None if fates == {"kept"} else places[leaf]
                for leaf, fates in ranges.items()
                if "omitted" not in fates
            },
            frozenset(tests.keys() - hidden),
        )

    def _context(self, spec: Structure, side: str) -> None:
        context = spec.context
        if context is None:
            return
        _require(side == "inputs", side, "a context")
        names = [context.default_dtype]
        names += [name for one in context.autocast for name in (one.device, one.dtype)]
        _require(all(map(is_torch_name, names)), side, "a name that torch does not have")

    def _scalar(self, placed: PlacedNode, node: ScalarNode, side: str) -> Test:
        """Whether a value may stand where a node has one."""
        path, policy = placed.path, self._policy
        if placed.is_setting:
            return lambda value, _: type(value) is int and is_setting(value)
        if side == "outputs":
            is_kept = policy.fate(path, "returned") == "kept"
            return lambda value, _: is_kept and _is_plain(value)
        if node.kind in ("str", "bytes"):
            fate = policy.fate(path, "text")
            return lambda value, _: fate == "kept" or (fate == "replaced" and self._is_text(value))
        fates = {fact: policy.fate(path, fact) for fact in ("setting", "size", "number")}

        def may_stand(value: Any, beside: Collection[int]) -> bool:
            fact = number_fact(value, beside, policy.defaults)
            if placed.in_list or placed.in_cache:
                fact = "number" if placed.in_list else "setting"
            return fates[fact] == "kept" and _is_plain(value)

        return may_stand

    def _is_text(self, value: Any) -> bool:
        """Whether a text is empty, an ordinal, or the default of a parameter."""
        return not value or is_ordinal(value) or (type(value), value) in self._policy.defaults

    def _names(self, placed: PlacedNode, side: str) -> None:
        """Checks the names and the words of a node."""
        node = placed.node
        name = getattr(node, "type", None)
        _require(name is None or is_class_name(name), side, "the name of a class")
        if isinstance(node, ConstantNode):
            _require(is_torch_name(node.name), side, "a name that torch does not have")
        elif isinstance(node, EnumNode):
            is_kept = self._policy.fate(placed.path, "enum value") == "kept"
            _require(node.value is None or is_kept, side, "the value of an enum")
            _require(is_enum_name(node.name), side, "the name of a member of an enum")
        elif isinstance(node, OpaqueNode):
            _require(plain_reason(node.reason) == node.reason, side, "a reason in other words")
        elif isinstance(node, DictNode):
            _require(all(self._key(key, placed.path) for key in node.keys), side, "a key")
        elif isinstance(node, FieldsNode):
            fields = (is_field(one) or self._key(one, placed.path) for one in node.fields)
            _require(all(fields), side, "the name of a field")
        for one in getattr(node, "beside", None) or ():
            is_allowed = is_field(one) or is_name(one) or _OMITTED_NAME.fullmatch(one)
            _require(is_allowed, side, "the name of an attribute")

    def _key(self, key: Any, at: str) -> bool:
        """Whether a dict may have a key: a name, one that was kept, or an ordinal."""
        if not key or is_name(key) or (at == "kwargs" and key in self._policy.signature.by_name):
            return True
        if self._policy.fate(f"{at}.{key}" if at else str(key), "key") == "kept":
            return True
        parts = key if isinstance(key, tuple) else (key,)
        return all(not p or is_name(p) or (isinstance(p, str) and is_ordinal(p)) for p in parts)


def _is_plain(value: Any) -> bool:
    """Whether no bit of a scalar is hidden: all NaNs look alike."""
    parts: tuple[Any, ...] = value if isinstance(value, tuple) else (value,)
    nans = (part for part in parts if isinstance(part, float) and math.isnan(part))
    return all(pack(one) == pack(math.nan) for one in nans)


def _is_length(value: int, _: Collection[int]) -> bool:
    return 0 <= value <= MAX_DOCUMENT_BYTES


def _all_of(tests: list[Test]) -> Test:
    return lambda value, beside: all(test(value, beside) for test in tests)
