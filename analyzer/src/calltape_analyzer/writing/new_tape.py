"""Writes a new, sealed tape call by call: copies of recorded calls, or records with values.

Memory is bounded by a group of records, a window of one blob, 8 bytes per call, the table of
inputs, and 32 MiB for the numbers of recent calls.
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

_GROUP_CALLS, _GROUP_BYTES = 512, 256 * 1024
_KEY_BYTES = 150  # memory per key in ``_copies``


class NewTape:
    """A tape that is being written. The file gets its name at the end of the ``with`` block, if the
    tape was sealed; otherwise no file is left.

    ::

        with NewTape("small.tape", tape.manifest, inputs=tape.paths) as writer:
            for call in tape.calls[:10]:
                writer.copy(call)
            writer.seal()

    Args:
        path: the path of the new file, which is compressed if the name ends with ``.tape.gz`` or
            ``.tape.zst``.
        manifest: the manifest.
        overwrite: whether to replace an existing file.
        inputs: the files that are read meanwhile, which are never replaced.
        mode: the permissions of the file.

    Attributes:
        calls: how many calls were written.
        last: the highest call number; -1 before the first call.

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
        self._shared: set[bytes] = set()  # distinct structures and leaves of the waiting calls
        self.last = -1
        self._last_ns = manifest.created_ns
        self._numbers = Numbers(array("Q"))
        self._is_sealed = False
        self._copies = Recent()  # where copied calls and tensors are on the new tape
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
        """Copies a recorded call. Its tensors are checked against their checksums, and streamed.
        A reference to a tensor of an earlier call stays if that call was copied from the same file;
        otherwise, the tensor is written with this call.

        Args:
            call: the call.
            number: its number on the new tape; by default, its present number.

        Raises:
            UsageError: the new tape already has a call of this number.
            TapeError: ``damaged`` or ``invalid`` if the call is corrupted; then nothing of it is
                written; ``io``, ``limit``.
        """
        number = call.number if number is None else number
        call.check(entries=bool(call.references))
        keys = frozenset[str]()
        if call.references:
            sides = [tree for tree in (call.record.inputs, call.record.outputs) if tree is not None]
            keys = frozenset(
                leaf.key for tree in sides for leaf in tree.facts() if leaf.key is not None
            )
        references = self._references(call, number, keys)
        facts = call.document().items()
        document = {k: v for k, v in facts if v is not None and k not in ("at", "blob")}
        if references:
            document["at"] = list(references.values())
        blob = call.blob_facts(references)
        parts: list[Any] = []
        if blob is not None:
            # A large blob is streamed in a group of its own, so that a read error loses no other
            # call. A small one is read now, because its tape may be closed before the next commit.
            is_large = blob.size >= _GROUP_BYTES
            if is_large:
                self._commit()
            parts = (
                [_Streamed(call, references, blob.size)]
                if is_large
                else list(call.raw_blob(references))
            )
        sums = NO_CHECKSUMS if blob is None else Checksums(blob.checksum, blob.steps or b"")
        self._write(number, document, parts, sums)
        if blob is not None or references:
            self._remember(call, number, references, keys)

    def _references(self, call: Call, number: int, keys: Container[str]) -> dict[str, Reference]:
        """The references of a call that stay, by key, with new call numbers. References for other
        keys than those of its leaves, as a forged tape may have them, are dropped."""
        references: dict[str, Reference] = {}
        for key, (earlier, name, axis) in call.references.items():
            copied = self._copies.get((call.segment, earlier))
            if copied is not None and (copied[1] is None or name in copied[1]):
                target, new_name = copied[0], name
            else:
                moved = self._copies.get((call.segment, earlier, name))
                target, new_name = moved or (number, name)
            if target < number and key in keys:
                reference = (key, target, new_name)
                references[key] = reference if axis is None else (*reference, axis)
        return references

    def _remember(
        self, call: Call, number: int, kept_keys: Container[str], keys: frozenset[str]
    ) -> None:
        """Remembers where the tensors of a call are on the new tape, including tensors of earlier
        calls that were written with it."""
        file = call.segment
        moved = {key: r for key, r in call.references.items() if key not in kept_keys}
        stored = keys if moved else None  # None if the blob is unchanged
        self._copies.keep((file, call.number), (number, stored), _KEY_BYTES * len(stored or ()))
        for key, (earlier, name, axis) in moved.items():
            if axis is None and key in keys:
                self._copies.keep((file, earlier, name), (number, key), 2 * _KEY_BYTES)

    def write(self, record: CallRecord, values: Mapping[str, Any] | None = None) -> None:
        """Writes a call.

        Args:
            record: the record. Its ``call`` is the number on the new tape; ``tape`` and ``blob``
                are replaced.
            values: the value of each leaf by its ``key``: a tensor or an array of the leaf's dtype
                and shape, or bytes in the order of FORMAT.md.

        Raises:
            UsageError: the new tape already has a call of this number; a value is missing, or does
                not fit its leaf.
            TapeError: ``invalid`` or ``limit`` if the record breaks the format; ``io``.
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
                stored, other_leaf = _stored_form(leaf), parts.get(leaf.key)
                if other_leaf is None:
                    parts[leaf.key] = stored, _stored_bytes(leaf, stored, values[leaf.key])
                elif other_leaf[0] != stored:
                    raise UsageError(f"two leaves of different form have the key {leaf.key}")
        # The fields are in the order of a recorder.
        document: dict[str, Any] = {"time_ns": record.time_ns, "thread": record.thread}
        if record.duration_ns is not None:
            document["duration_ns"] = record.duration_ns
        if record.error is not None:
            document["error"] = record.error.model_dump()
        if record.outputs_missing is not None:
            document["outputs_missing"] = record.outputs_missing
        document["inputs"] = _tree_document(record.inputs)
        if record.outputs is not None:
            document["outputs"] = _tree_document(record.outputs)
        blob: list[Any] = []
        if parts:
            entries = {key: stored for key, (stored, _) in parts.items()}
            order = by_width(entries)
            header = build_header({key: entries[key] for key in order})
            blob = [header, *(parts[key][1] for key in order)]
        self._write(record.call, document, blob, checksums_of(blob) if blob else NO_CHECKSUMS)

    def seal(
        self,
        coverage: Coverage | None = None,
        *,
        unkept: InputsTable | None = None,
        dumps: Sequence[Dump] = (),
        closed_ns: int | None = None,
    ) -> None:
        """Writes the end of the tape.

        Args:
            coverage: how many calls were seen, kept and dropped. By default, as many as the highest
                call number says; missing calls count as not extracted.
            unkept: the counted inputs of calls that were seen but not kept.
            dumps: the dumps of a flight recorder.
            closed_ns: when the recording ended, in Unix nanoseconds; by default, when its latest
                call began.

        Raises:
            UsageError: ``coverage.kept`` is not the number of calls.
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
        # Before the call is added, because a record that cannot be packed is rejected here.
        size = sum(map(len, blob)) + self._added_bytes(document)
        self._waiting.append(NewCall(number, document, key, blob, checksums, scalars))
        self._waiting_bytes += size
        if len(self._waiting) >= _GROUP_CALLS or self._waiting_bytes >= _GROUP_BYTES:
            self._commit()
        self.last = max(self.last, number)
        self._numbers.add(number)
        self._last_ns = max(self._last_ns, document["time_ns"])
        self.calls += 1

    def _added_bytes(self, document: dict[str, Any]) -> int:
        """The size of a record without the parts that it shares with waiting records."""
        other_blobs, new = [], set[bytes]()
        for name, value in document.items():
            if name in ("inputs", "outputs"):
                other_blobs += [part for part in value.values() if type(part) is not bytes]
                new |= {value["structure"], value["leaves"]} - self._shared
            else:
                other_blobs.append(value)
        size = len(pack(other_blobs)) + sum(map(len, new))
        self._shared |= new
        return size

    def _commit(self) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        self._shared.clear()
        if waiting:
            self._writer.append(waiting)


class _Sink:
    """The new file as the sink of a :class:`TapeWriter`, which writes it front to back."""

    def __init__(self, file: OutputFile) -> None:
        self._file = file

    def write_at(self, offset: int, parts: Sequence[Any]) -> None:
        assert offset == self._file.end
        for part in parts:
            self._file.append(part if isinstance(part, _Streamed) else [part])

    def cut(self, size: int) -> None:
        self._file.cut(size)


class _Streamed:
    """The blob of a recorded call, which is read only when it is written."""

    def __init__(self, call: Call, kept_keys: Collection[str], size: int) -> None:
        self._call = call
        self._kept = kept_keys
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        return self._call.raw_blob(self._kept)


def _tree_document(tree: Tree) -> dict[str, Any]:
    document: dict[str, Any] = {"structure": tree.structure, "leaves": tree.leaves}
    if tree.scalars:
        document["scalars"] = tree.scalars
    if tree.ranges:
        document["ranges"] = [span.model_dump() for span in tree.ranges]
    return document


def _stored_form(leaf: Leaf) -> Stored:
    """The dtype, shape and size of a leaf in the blob.

    Raises:
        UsageError: the format has no encoding for its dtype.
    """
    stored = stored_as(leaf)
    if stored is None:
        advice = "write the leaf without a key, and say why in `missing`"
        raise UsageError(f"{leaf.dtype} has no encoding", advice=advice)
    return stored


def _stored_bytes(leaf: Leaf, stored: Stored, value: Any) -> Any:
    """The bytes of a value in the order of FORMAT.md, as an object with the buffer protocol.

    Args:
        leaf: the facts of the tensor.
        stored: its form in the blob.
        value: bytes in this order; or a ``torch.Tensor`` on any device, or a NumPy array, with the
            leaf's dtype and shape (an expanded axis may have size 1).

    Raises:
        UsageError: the value does not fit the leaf.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        data = memoryview(value).cast("B") if isinstance(value, memoryview) else value
    else:
        data = _tensor_bytes(leaf, value)
    if len(data) != stored.nbytes:
        raise UsageError(
            f"{leaf.key}: {len(data)} bytes, but {leaf.dtype}{list(leaf.shape)} has {stored.nbytes}"
        )
    return data


def _tensor_bytes(leaf: Leaf, value: Any) -> memoryview:
    import torch

    tensor = value if isinstance(value, torch.Tensor) else torch.as_tensor(value)
    dtype = str(tensor.dtype).removeprefix("torch.")
    narrow = tuple(1 if axis in leaf.expanded else n for axis, n in enumerate(leaf.shape))
    if dtype != leaf.dtype or tuple(tensor.shape) not in (leaf.shape, narrow):
        raise UsageError(
            f"{leaf.key}: a tensor {dtype}{list(tensor.shape)} for a leaf "
            f"{leaf.dtype}{list(leaf.shape)}"
        )
    tensor = tensor.detach().resolve_conj().resolve_neg().cpu()
    for axis in leaf.expanded:
        tensor = tensor.narrow(axis, 0, min(1, tensor.shape[axis]))
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    # torch cannot copy tensors of some dtypes, but it can copy integers of the same width.
    tensor = tensor.view(integers_of_width().get(tensor.element_size(), tensor.dtype))
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    array: Any = flat.numpy()
    return memoryview(array).cast("B") if flat.numel() else memoryview(b"")
