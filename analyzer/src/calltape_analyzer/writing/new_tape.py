"""Writes a sealed tape, call by call.

Takes calls of other tapes, or records with the values of their tensors; returns one file. Memory
holds a group of records, a window of one blob, 8 bytes per call, the table of inputs, and the
numbers of the latest calls (32 MiB), however large the tape is.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from typing_extensions import Self

from calltape_analyzer.errors import UsageError
from calltape_analyzer.pytree.memory import integers_of_width
from calltape_analyzer.reading.call import Call
from calltape_analyzer.writing.lineage import coverage_of_numbers
from calltape_analyzer.writing.output_file import OutputFile
from calltape_schema.blob import Stored, build_header, by_width, stored_as
from calltape_schema.drop_reasons import DropReason
from calltape_schema.end import Coverage, Dump
from calltape_schema.groups import NewCall
from calltape_schema.inputs_table import InputsTable, signature_of
from calltape_schema.packing import pack
from calltape_schema.recent import Recent
from calltape_schema.records import CallRecord, Manifest, Reference, Tree
from calltape_schema.scan import Numbers
from calltape_schema.sections import NO_CHECKSUMS, Checksums, checksums_of
from calltape_schema.tree import Leaf
from calltape_schema.writer import TapeWriter

__all__ = ["NewTape"]

_GROUP_CALLS, _GROUP_BYTES = 512, 256 * 1024  # what waits for its group
_KEY_BYTES = 150  # the memory of a key that is remembered


class NewTape:
    """A file that becomes a tape. It gets its name when the ``with`` block ends after :meth:`seal`;
    if the block ends before, there is no file.

    ::

        with NewTape("small.tape", tape.manifest, inputs=tape.paths) as writer:
            for call in tape.calls[:10]:
                writer.copy(call)
            writer.seal()

    Args:
        path: of the new file. One whose name ends with ``.tape.gz`` or ``.tape.zst`` is compressed.
        manifest: its first member. Its id is that of all calls on the tape.
        overwrite: whether a file that is there already is replaced.
        inputs: the files that are read meanwhile; none of them is ever replaced.
        mode: the permissions of the file.

    Attributes:
        calls: how many calls were written.
        last: the highest number of a call; -1 before the first one.

    Raises:
        UsageError: the path is one of the inputs.
        TapeError: ``exists`` or ``io``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        manifest: Manifest,
        *,
        overwrite: bool = False,
        inputs: Iterable[str] = (),
        mode: int = 0o600,
    ) -> None:
        self.calls = 0
        self._file = OutputFile(path, overwrite=overwrite, inputs=inputs, mode=mode, is_tape=True)
        self._waiting: list[NewCall] = []
        self._waiting_bytes = 0
        self._shared: set[bytes] = set()  # structures and leaves that wait, each once
        self.last = -1
        self._last_ns = manifest.created_ns
        self._numbers = Numbers(array("Q"))
        self._is_sealed = False
        self._copies = Recent()  # where calls of other files, and their tensors, are
        try:
            self._writer = TapeWriter(_Sink(self._file), manifest)
        except BaseException:
            self._file.discard()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._is_sealed:
            self._file.finish()
        else:
            self._file.discard()

    def copy(self, call: Call, *, number: int | None = None) -> None:
        """Writes a recorded call as it is. Its tensors are compared with their checksums, and never
        all in memory. References stay if the tensors that they lead to were copied from the same
        file; else these are written with the call.

        Args:
            call: the call.
            number: its number on the new tape; by default the one that it has.

        Raises:
            UsageError: there is a call of this number already.
            TapeError: ``damaged`` or ``invalid`` for a damaged call, of which nothing is written
                then; ``io``, ``limit``.
        """
        number = call.number if number is None else number
        call.check(entries=bool(call.references))
        keys = frozenset[str]()
        if call.references:
            sides = [tree for tree in (call.record.inputs, call.record.outputs) if tree is not None]
            keys = frozenset(
                leaf.key for tree in sides for leaf in tree.facts() if leaf.key is not None
            )
        kept = self._references(call, number, keys)
        facts = call.document().items()
        document = {k: v for k, v in facts if v is not None and k not in ("at", "blob")}
        if kept:
            document["at"] = list(kept.values())
        blob = call.blob_facts(kept)
        parts: list[Any] = []
        if blob is not None:
            # A large one is written at once, and alone: if it cannot be read, no other call is lost
            # with it. Until a small one is written, its tape may be closed.
            is_large = blob.size >= _GROUP_BYTES
            if is_large:
                self._commit()
            parts = [_Streamed(call, kept, blob.size)] if is_large else list(call.raw_blob(kept))
        sums = NO_CHECKSUMS if blob is None else Checksums(blob.checksum, blob.steps or b"")
        self._write(number, document, parts, sums)
        if blob is not None or kept:
            self._remember(call, number, kept, keys)

    def _references(self, call: Call, number: int, keys: Container[str]) -> dict[str, Reference]:
        """By key those references of a call that stay, as they are on the new tape. ``keys`` are
        those of its leaves: a stranger's tape may have references for others."""
        kept: dict[str, Reference] = {}
        for key, (before, there, axis) in call.references.items():
            known = self._copies.get((call.segment, before))
            name = there
            if known is not None and (known[1] is None or there in known[1]):
                at = known[0]
            else:
                at, name = self._copies.get((call.segment, before, there)) or (number, there)
            if at < number and key in keys:
                kept[key] = (key, at, name) if axis is None else (key, at, name, axis)
        return kept

    def _remember(
        self, call: Call, number: int, kept: Container[str], keys: frozenset[str]
    ) -> None:
        """Remembers where the tensors of a call are on the new tape, and those that an earlier one
        has for it in the file that it is from."""
        file = call.segment
        moved = {key: one for key, one in call.references.items() if key not in kept}
        has = keys if moved else None  # a new blob has no others
        self._copies.keep((file, call.number), (number, has), _KEY_BYTES * len(has or ()))
        for key, (before, there, axis) in moved.items():
            if axis is None and key in keys:
                self._copies.keep((file, before, there), (number, key), 2 * _KEY_BYTES)

    def write(self, record: CallRecord, values: Mapping[str, Any] | None = None) -> None:
        """Writes a call that is given by its record.

        Args:
            record: everything but the values of tensors. Its ``call`` is the number on the new
                tape; ``tape`` and ``blob`` are replaced by those of the new tape.
            values: for the ``key`` of each leaf its value: a tensor or an array of the leaf's dtype
                and shape, or bytes as FORMAT.md has them.

        Raises:
            UsageError: there is a call of this number already; a key has no value, or one that does
                not fit.
            TapeError: ``invalid`` or ``limit`` if the record breaks the format, ``io``.
        """
        trees = [record.inputs] if record.outputs is None else [record.inputs, record.outputs]
        parts: dict[str, tuple[Stored, Any]] = {}
        for tree in trees:
            tree.spec()
            for leaf in tree.facts():
                if leaf.key is None:
                    continue
                if values is None or leaf.key not in values:
                    raise UsageError(f"the leaf {leaf.key} has no value")
                form, known = _form_of(leaf), parts.get(leaf.key)
                if known is None:
                    parts[leaf.key] = form, stored_bytes(leaf, values[leaf.key])
                elif known[0] != form:
                    raise UsageError(f"two leaves of different form have the key {leaf.key}")
        self._write(record.call, _document(record), *_blob(parts))

    def seal(
        self,
        coverage: Coverage | None = None,
        *,
        unkept: InputsTable | None = None,
        dumps: Sequence[Dump] = (),
        closed_ns: int | None = None,
    ) -> None:
        """Writes the end. No call may follow.

        Args:
            coverage: how many calls were seen, kept and dropped. By default, the numbers of the
                calls tell, and numbers that are missing were not wanted.
            unkept: the counted inputs of calls that were seen and are not on this tape. Others are
                not counted.
            dumps: of a flight recorder.
            closed_ns: when the recording ended, Unix time in nanoseconds.

        Raises:
            UsageError: the coverage has another number of calls.
            TapeError: ``io``, ``limit``.
        """
        if coverage is None:
            coverage = coverage_of_numbers(self.last + 1, self.calls, DropReason.NOT_EXTRACTED)
        if coverage.kept != self.calls:
            raise UsageError(f"coverage of {coverage.kept} calls for a tape of {self.calls}")
        self._commit()
        table = self._writer.table
        assert table is not None
        if unkept is not None:
            table.merge(unkept)
        self._writer.seal(
            coverage, dumps=tuple(dumps),
            closed_ns=self._last_ns if closed_ns is None else closed_ns,
        )  # fmt: skip
        self._is_sealed = True

    def _write(
        self, number: int, document: dict[str, Any], blob: Sequence[Any] = (),
        checksums: Checksums = NO_CHECKSUMS,
    ) -> None:  # fmt: skip
        if self._is_sealed:
            raise UsageError("the tape is sealed, and takes no more calls")
        if number <= self.last and number in self._numbers:
            raise UsageError(f"there is a call {number} on the new tape already")
        inputs = document["inputs"]
        scalars = pack(inputs.get("scalars", ()))
        key = signature_of(inputs["structure"], inputs["leaves"], scalars)
        size = sum(map(len, blob)) + self._new_bytes(document)  # it is refused before it waits
        self._waiting.append(NewCall(number, document, key, blob, checksums, scalars))
        self._waiting_bytes += size
        if len(self._waiting) >= _GROUP_CALLS or self._waiting_bytes >= _GROUP_BYTES:
            self._commit()
        self.last = max(self.last, number)
        self._numbers.add(number)
        self._last_ns = max(self._last_ns, document["time_ns"])
        self.calls += 1

    def _new_bytes(self, document: dict[str, Any]) -> int:
        """How much memory a record takes, without what it shares with those that wait."""
        own, new = [], set[bytes]()
        for name, value in document.items():
            if name in ("inputs", "outputs"):
                own += [part for part in value.values() if type(part) is not bytes]
                new |= {value["structure"], value["leaves"]} - self._shared
            else:
                own.append(value)
        size = len(pack(own)) + sum(map(len, new))
        self._shared |= new
        return size

    def _commit(self) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        self._shared.clear()
        if waiting:
            self._writer.append(waiting)


class _Sink:
    """A new file as the container writes it: front to back."""

    def __init__(self, file: OutputFile) -> None:
        self._file = file

    def write_at(self, offset: int, parts: Sequence[Any]) -> None:
        assert offset == self._file.end
        for part in parts:
            self._file.append(part if isinstance(part, _Streamed) else [part])

    def cut(self, size: int) -> None:
        self._file.cut(size)


class _Streamed:
    """The blob of a recorded call as a part to be written: it is read when it is written."""

    def __init__(self, call: Call, kept: Collection[str], size: int) -> None:
        self._call = call
        self._kept = kept
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        return self._call.raw_blob(self._kept)


def _document(record: CallRecord) -> dict[str, Any]:
    """A record as a group has it, without its blob, in the order of fields of a recorder."""
    document: dict[str, Any] = {"time_ns": record.time_ns, "thread": record.thread}
    if record.duration_ns is not None:
        document["duration_ns"] = record.duration_ns
    if record.error is not None:
        document["error"] = record.error.model_dump()
    if record.outputs_missing is not None:
        document["outputs_missing"] = record.outputs_missing
    document["inputs"] = _tree(record.inputs)
    if record.outputs is not None:
        document["outputs"] = _tree(record.outputs)
    return document


def _tree(tree: Tree) -> dict[str, Any]:
    found: dict[str, Any] = {"structure": tree.structure, "leaves": tree.leaves}
    if tree.scalars:
        found["scalars"] = tree.scalars
    if tree.ranges:
        found["ranges"] = [one.model_dump() for one in tree.ranges]
    return found


def _blob(parts: Mapping[str, tuple[Stored, Any]]) -> tuple[list[Any], Checksums]:
    """The parts of a blob, and their checksums."""
    if not parts:
        return [], NO_CHECKSUMS
    entries = {key: stored for key, (stored, _) in parts.items()}
    order = by_width(entries)
    blob = [build_header({key: entries[key] for key in order}), *(parts[key][1] for key in order)]
    return blob, checksums_of(blob)


def _form_of(leaf: Leaf) -> Stored:
    """The entry of the blob for a leaf.

    Raises:
        UsageError: the format has no encoding for its dtype.
    """
    stored = stored_as(leaf)
    if stored is None:
        advice = "write the leaf without a key, and say why in `missing`"
        raise UsageError(f"{leaf.dtype} has no encoding", advice=advice)
    return stored


def stored_bytes(leaf: Leaf, value: Any) -> Any:
    """The bytes of a value in the order of FORMAT.md, as an object with the buffer protocol.

    Args:
        leaf: its facts.
        value: bytes that are in this order already; or a ``torch.Tensor``, on any device, or a
            NumPy array, both with the leaf's dtype and shape (an expanded axis may have size 1).

    Raises:
        UsageError: it does not fit the leaf.
    """
    expected = _form_of(leaf)
    if isinstance(value, bytes | bytearray | memoryview):
        found = memoryview(value).cast("B") if isinstance(value, memoryview) else value
    else:
        found = _of_tensor(leaf, value)
    if len(found) != expected.nbytes:
        raise UsageError(
            f"{leaf.key}: {len(found)} bytes, but {leaf.dtype}{list(leaf.shape)} has "
            f"{expected.nbytes}"
        )
    return found


def _of_tensor(leaf: Leaf, value: Any) -> memoryview:
    import torch

    tensor = value if isinstance(value, torch.Tensor) else torch.as_tensor(value)
    dtype = str(tensor.dtype).removeprefix("torch.")
    once = tuple(1 if axis in leaf.expanded else n for axis, n in enumerate(leaf.shape))
    if dtype != leaf.dtype or tuple(tensor.shape) not in (leaf.shape, once):
        raise UsageError(
            f"{leaf.key}: a tensor {dtype}{list(tensor.shape)} for a leaf "
            f"{leaf.dtype}{list(leaf.shape)}"
        )
    plain = tensor.detach().resolve_conj().resolve_neg().cpu()
    for axis in leaf.expanded:
        plain = plain.narrow(axis, 0, min(1, plain.shape[axis]))
    if plain.is_quantized:
        plain = plain.int_repr()
    # Some dtypes torch cannot copy; integers of their width it can.
    plain = plain.view(integers_of_width().get(plain.element_size(), plain.dtype))
    flat = plain.contiguous().reshape(-1).view(torch.uint8)
    array: Any = flat.numpy()
    return memoryview(array).cast("B") if flat.numel() else memoryview(b"")
