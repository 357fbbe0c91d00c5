"""One call of a tape, read when it is asked for.

Takes the segment that the call is in; returns facts from the call's record, and tensors whose bytes
are read and compared with their checksum at the first use.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from calltape_analyzer.limits import Allowance, bounded, check_memory, memory_limit_of
from calltape_analyzer.plain_data import Shown, Sketch
from calltape_analyzer.pytree.classes import ClassIndex
from calltape_analyzer.pytree.memory import on_device, place_together
from calltape_analyzer.pytree.rebuilding import rebuild
from calltape_analyzer.pytree.rendering import Inputs, render
from calltape_analyzer.pytree.tensors import tensor_of, valueless
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.reading.segment import UNDER_WAY, Segment
from calltape_analyzer.text import counted
from calltape_schema.blob import Stored, build_header, stored_as
from calltape_schema.drop_reasons import DropReason
from calltape_schema.errors import TapeError
from calltape_schema.packing import is_map, pack
from calltape_schema.reader import Extent, TensorPlace
from calltape_schema.records import BlobFacts, CallRecord, Elsewhere, Manifest, ModelError, Tree
from calltape_schema.remedies import Remedy
from calltape_schema.sections import STORED, checksums_of, steps_of
from calltape_schema.tree import Leaf, Node

__all__ = ["Call", "Side", "advice_on_outputs"]

Side = Literal["inputs", "outputs"]

_PART = 1024 * 1024

_ADVICE: dict[str, str | Remedy] = {
    DropReason.POLICY: Remedy("record with outputs=True", "record the outputs too"),
    DropReason.QUEUE_FULL: "the queue had no memory left to copy them: raise max_queue_bytes, or "
    "keep fewer calls",
    DropReason.INTERNAL: "the recorder failed; see the log of the application",
}


class Call(Shown):
    """One call of a tape.

    Facts come from the call's record. When a value is asked for, the bytes of the tensors are read,
    after a first comparison with their checksum.

    A call that streams is one call. The :attr:`outputs` of a generator are the list of what it
    yielded, in order, each chunk as it was when it was yielded; those of a coroutine are what it
    returned. If chunks are missing, the list has the first ones, and ``record.outputs_missing``
    says why: ``256 of 300 chunks kept: more than 256 chunks``, or ``closed by its consumer after 2
    chunks`` (then nobody knows what would have followed). A stream that raised has :attr:`error`
    and no chunks. Its :attr:`duration` is the time from its first step to its last, and includes
    the time that it was suspended. A hook that sees a generator returned before it has run records
    no outputs: ``it returned a generator, which had not run``.

    Attributes:
        index: the position on the tape, from 0, over all its files.
        number: the call's number among the calls that the recorder saw. A missing number is a call
            that was dropped.
        segment: the file that the call is in, as it is read: references lead to calls of the same
            one.
        position: where the call is in its file, as :class:`Segment` counts.
    """

    __slots__ = ("_classes", "_record", "_shared", "index", "number", "position", "segment")

    def __init__(self, segment: Segment, position: int, index: int, classes: ClassIndex) -> None:
        self.segment = segment
        self.position = position
        self._classes = classes
        self._record: CallRecord | None = None
        self._shared: int | None = None  # how many bytes its tensors are, leaf by leaf
        self.index = index
        self.number = segment.numbers[position]

    def __repr__(self) -> str:
        return f"<Call {self.number} of {self.path}>"

    def _sketch(self) -> Sketch:
        record = self.record
        duration = self.duration
        facts = [
            ("file", self.path),
            ("took", "not measured" if duration is None else f"{duration * 1e3:,.4g} ms"),
            ("inputs", render(record.inputs)),
        ]
        if record.outputs is not None:
            facts.append(("outputs", render(record.outputs)))
        if record.error is not None:
            facts.append(("raised", f"{record.error.type}: {record.error.message}"))
        return Sketch(f"Call {self.number}", facts)

    @property
    def path(self) -> str:
        """The file that the call is in."""
        return self.segment.path

    @property
    def tape_bytes(self) -> int:
        """How many bytes this file took on its disk when it was opened, without holes."""
        return self.segment.disk_bytes

    @property
    def _allowance(self) -> Allowance:
        return self.segment.allowance

    @property
    def manifest(self) -> Manifest:
        """The manifest of the file that the call is in."""
        return self.segment.manifest

    def rebuilt_from(self, classes: ClassIndex) -> Call:
        """The same call, with objects rebuilt from other classes."""
        rebuilt = Call(self.segment, self.position, self.index, classes)
        rebuilt._record = self._record
        return rebuilt

    # --- what the record says ----------------------------------------------------------------

    @property
    def ref(self) -> CallRef:
        """What tells this call apart from all calls of all tapes."""
        return self.segment.ref(self.number)

    @property
    def address(self) -> str:
        """The call's recording and number as text, such as ``3f9a01bc:12``: ``Tape.find`` and every
        command take it."""
        return str(self.ref)

    @property
    def record(self) -> CallRecord:
        """Everything on the tape about this call except the bytes of tensors. Its trees were
        checked against the format.

        Raises:
            TapeError: ``invalid`` or ``limit`` for a tape that no recorder wrote, ``closed``.
        """
        if self._record is None:
            self._record = self.segment.record(self.position)
        return self._record

    def document(self) -> dict[str, Any]:
        """The record as plain data, with the encoded structure and leaves of its trees. It was
        compared with its checksum, and not with the format.

        Raises:
            TapeError: ``damaged``, ``closed``.
        """
        return self.segment.reader.document(self.position)

    def raw_record(self) -> bytes:
        """All that the call says, as bytes: equal for equal calls of any files. Tensors that
        earlier calls have for it are read for this.

        Raises:
            TapeError: ``damaged``, ``closed``.
        """
        document = self.document()
        blob = document.get("blob")
        is_packed = is_map(blob) and blob.get("codec", STORED) != STORED
        if not document.pop("at", None) and not is_packed:  # a copy is never compressed
            return self.stated()
        facts = self.blob_facts()
        return self._packed(document, None if facts is None else facts.model_dump())

    def stated(self) -> bytes:
        """All that the call says by records and checksums alone, as bytes. Equal calls of files in
        which the same calls have the tensors of others say the same, whether these are whole or
        not.

        Raises:
            TapeError: the record is damaged, or that of a call that has tensors for it.
        """
        document = self.document()
        if document.get("at"):
            record = self.segment.reader.record_at(self.position)
            blobs = [h.blob for h in self.segment.checks.holders(record, _taken_keys(record))]
            facts = [None if blob is None else [blob.size, blob.checksum] for blob in blobs]
            document["at"] = [document["at"], facts]
        return self._packed(document, document.get("blob"))

    def _packed(self, document: dict[str, Any], blob: Any) -> bytes:
        document.pop("blob", None)
        if blob is not None:
            document["blob"] = {name: blob.get(name) for name in ("size", "checksum")}
        # A copy has the fields in another order, and none that is nil.
        said: list[Any] = [self.number]
        for name in sorted(document):
            said += [name, document[name]] if document[name] is not None else []
        return b"".join(map(pack, said))  # one by one: they may nest as deep as msgpack allows

    def is_same(self, other: Call) -> bool:
        """Whether a call of another file is this one.

        Raises:
            TapeError: one of them is damaged, so that nothing tells.
        """
        return self.stated() == other.stated() or self.raw_record() == other.raw_record()

    # --- values ------------------------------------------------------------------------------

    @property
    @bounded()
    def inputs(self) -> Inputs:
        """``(args, kwargs)``, built again each time, with new tensors on the CPU.

        A tensor that was passed twice is one tensor here too. If the tape does not have the value
        of a tensor, it is a meta tensor (or a :class:`~calltape_analyzer.Placeholder`). An object
        of a class that this process does not know is a placeholder.

        Raises:
            TapeError: ``damaged`` if the checksum of the tensors does not match, ``invalid`` or
                ``limit`` for a tape that no recorder wrote, ``closed``.
        """
        args, kwargs = self.build("inputs", self.record.inputs.spec().root)
        return Inputs(args, kwargs)

    @bounded()
    def inputs_on(self, device: Any) -> Inputs:
        """:attr:`inputs` with the tensors on a device (a ``torch.device`` or its name).

        If any tensor was recorded on a device, those that were recorded on the CPU stay there:
        models take some arguments, such as the lengths of packed sequences, on the CPU only.

        Raises:
            TapeError: as :attr:`inputs`.
        """
        import torch

        facts = self.record.inputs.facts()
        are_mixed = any(fact.device != "cpu" for fact in facts)
        tensors = self.tensors("inputs")
        moved = [
            i
            for i, fact in enumerate(facts)
            if (fact.device != "cpu" or not are_mixed)
            and isinstance(tensors[i], torch.Tensor)
            and not tensors[i].is_meta
        ]
        tensors = on_device(tensors, moved, device)
        args, kwargs = self.build("inputs", self.record.inputs.spec().root, tensors)
        return Inputs(args, kwargs)

    @property
    @bounded()
    def outputs(self) -> Any:
        """What the call returned, built like :attr:`inputs`. Also None if the call raised, or if
        its outputs were not recorded (``record.outputs`` is None then).

        Raises:
            TapeError: as :attr:`inputs`.
        """
        tree = self.record.outputs
        return None if tree is None else self.build("outputs", tree.spec().root)

    @property
    def duration(self) -> float | None:
        """How long the call took, in seconds; None if it was not measured."""
        nanoseconds = self.record.duration_ns
        return None if nanoseconds is None else nanoseconds / 1e9

    @property
    def time(self) -> float:
        """When the call began, in seconds since 1970 (UTC)."""
        return self.record.time_ns / 1e9

    @property
    def thread(self) -> int:
        """The identifier that Python gave to the thread of the call."""
        return self.record.thread

    @property
    def error(self) -> ModelError | None:
        """Type and message of the exception that the call raised, or None."""
        return self.record.error

    @property
    def under_way(self) -> bool:
        """Whether the tape has only what was written ahead of the call: the process died in the
        call, or is still in it. There are no outputs then, and no duration."""
        return self.record.outputs_missing == UNDER_WAY

    @bounded()
    def build(
        self,
        side: Side,
        node: Node,
        tensors: dict[int, Any] | None = None,
        scalars: Sequence[Any] | None = None,
    ) -> Any:
        """The Python object that a node of this call's inputs or outputs describes.

        Args:
            side: the tree of the node.
            node: a node of ``call.record.inputs.spec().root``, or of that of the outputs.
            tensors: the leaves that were built so far, by number. Pass one dict to several calls of
                this method if they are to share tensors.
            scalars: what the node refers to, if it has others than the recorded ones.

        Raises:
            TapeError: as :attr:`inputs`.
        """
        built: dict[int, Any] = {} if tensors is None else tensors
        tree = self._tree(side)

        def tensor(leaf: int) -> Any:
            if leaf not in built:
                built[leaf] = self.tensor(side, leaf)
                facts = tree.facts()
                storage = facts[leaf].storage
                if storage is not None:  # with all leaves that share one memory
                    group = [i for i, fact in enumerate(facts) if fact.storage == storage]
                    members = {i: built[i] if i in built else self.tensor(side, i) for i in group}
                    place_together(facts, members)
                    built.update(members)
            return built[leaf]

        try:
            values = tree.scalars if scalars is None else scalars
            return rebuild(node, tensor, values, self._classes)
        except TapeError as error:
            raise self.segment.checks.located(error, self.position) from None

    @bounded()
    def tensors(self, side: Side) -> dict[int, Any]:
        """All tensors of a side by the number of their leaf, as :meth:`tensor` gives them. What
        shared memory shares it here too.

        Raises:
            TapeError: as :attr:`inputs`.
        """
        facts = self._tree(side).facts()
        tensors = {leaf: self.tensor(side, leaf) for leaf in range(len(facts))}
        place_together(facts, tensors)
        return tensors

    def tensor(self, side: Side, leaf: int) -> Any:
        """The tensor of one leaf, read again each time: on the CPU, in new memory, without a graph
        (``requires_grad`` is as recorded).

        Strides are as recorded, unless the gaps between elements would take far more memory than
        these; the memory is its own. Conjugation and negation are resolved. If values were not
        wanted, a meta tensor of the leaf's dtype, shape and strides; if the value is missing for
        another reason, or of a dtype that only a later version knows, a placeholder with that
        reason.

        Raises:
            TapeError: as :attr:`inputs`.
        """
        facts = self._facts(side, leaf)
        if facts.key is None:
            return valueless(facts)
        try:
            return tensor_of(facts, self._bytes(facts))
        except TapeError as error:
            # What the reader does not know costs this tensor only; a check of the tape reports it.
            if error.kind == "unsupported":
                unknown = {"key": None, "missing": error.reason, "quantizer": None}
                return valueless(facts.model_copy(update=unknown))
            raise self.segment.checks.located(error, self.position) from None

    def _facts(self, side: Side, leaf: int) -> Leaf:
        """What the record says of a leaf.

        Raises:
            TapeError: ``damaged`` if it has none of this number. Whoever asks for it was told so by
                the end of the file.
        """
        facts = self._tree(side).facts()
        if leaf >= len(facts):
            described = counted(len(facts), "tensor")
            reason = f"its record has {described}, and the end of the file announced more"
            raise self.segment.checks.located(TapeError("damaged", reason), self.position)
        return facts[leaf]

    @bounded()
    def stored(self, side: Side, leaf: int) -> bytearray | None:
        """The bytes of a leaf as the blob has them, in new memory; None if the tape does not have
        its value.

        Raises:
            TapeError: as :attr:`inputs`.
        """
        facts = self._facts(side, leaf)
        if facts.key is None:
            return None
        try:
            return self._bytes(facts)
        except TapeError as error:
            raise self.segment.checks.located(error, self.position) from None

    def _tree(self, side: Side) -> Tree:
        tree = self.record.inputs if side == "inputs" else self.record.outputs
        if tree is None:
            raise TapeError(
                "usage", f"call {self.number} has no outputs on the tape", path=self.path
            )
        return tree

    # --- bytes -------------------------------------------------------------------------------

    @property
    def references(self) -> Mapping[str, Elsewhere]:
        """By key the tensors that earlier calls of the file have for this one, or the first part
        of.

        Raises:
            TapeError: as :attr:`record`.
        """
        return self.record.elsewhere

    @bounded()
    def check(self, *, entries: bool = False, later_dtypes: bool = False) -> None:
        """Checks the call's trees, and the checksum of its tensors, also of those that earlier
        calls have for it.

        Args:
            entries: check too whether the blob's header and the record say the same about each
                tensor. Under a valid checksum they differ only if the writer had a bug or bad
                intent; reading a value notices it too.
            later_dtypes: whether a tensor of a dtype that only a later version knows is no error.

        Raises:
            TapeError: as :attr:`inputs`. The error is added to the tape's ``damage``.
        """
        record = self.record
        try:
            self.segment.checks.blob(self.position, record)
            if not entries:
                self.segment.checks.blobs(self.position, record, _taken_keys(record))
                self._check_sum()
            for leaf in _leaves_with_values(record) if entries else ():
                try:
                    if leaf.dtype == "bool":
                        self._bytes(leaf)
                    else:
                        self._place(leaf)
                except TapeError as error:
                    if error.kind != "unsupported" or not later_dtypes:
                        raise
        except TapeError as error:
            raise self.segment.checks.reported(error, self.position) from None

    def _bytes(self, leaf: Leaf) -> bytearray:
        place = self._place(leaf)
        check_memory(memory_limit_of(self.tape_bytes), [((place.size,), 1)], leaf.key or "")
        data = self.segment.bytes_of(place)
        if leaf.dtype == "bool" and data.translate(None, b"\0\1"):
            raise TapeError("invalid", f"{leaf.key}: a bool that is neither 0 nor 1")
        return data

    def _place(self, leaf: Leaf) -> TensorPlace:
        """Where the bytes of a leaf are, which are as their checksums say.

        Raises:
            TapeError: ``damaged``, ``invalid``, ``limit`` or ``unsupported``.
        """
        record = self.record
        if leaf.key is not None:
            self.segment.checks.value(self.position, record, leaf.key)
        self._check_sum()
        return self.segment.reader.place(record, leaf)

    def _check_sum(self) -> None:
        """Raises if all tensors of the call together take far more memory than the file has bytes:
        a thousand leaves may have the bytes of one."""
        if self._shared is None:
            record = self.record
            leaves = _leaves_with_values(record)
            # If each leaf has bytes of its own in the blob of the call, that is in the file.
            is_own = not record.at and len({leaf.key for leaf in leaves}) == len(leaves)
            has_none = record.blob is None and not record.at
            forms = [] if is_own or has_none else [stored_as(leaf) for leaf in leaves]
            self._shared = sum(form.nbytes for form in forms if form is not None)
        # A grant holds where it was given only, so the sum is compared each time.
        what = f"the tensors of call {self.number}"
        check_memory(memory_limit_of(self.segment.stored_bytes), [((self._shared,), 1)], what)

    def blob_facts(self, kept: Collection[str] = ()) -> BlobFacts | None:
        """The size and the checksum of the content that :meth:`raw_blob` gives; None if it has no
        tensors.

        Raises:
            TapeError: as :meth:`raw_blob`.
        """
        facts = self.record.blob
        if len(kept) == len(self.references):
            # Of the same content, a new blob has these checksums.
            is_as_new = facts is None or (
                facts.codec == STORED and len(facts.steps or b"") == 4 * steps_of(facts.size)
            )
            if is_as_new:
                return facts
        size = 0

        def counted_parts() -> Iterator[bytes]:
            nonlocal size
            for part in self.raw_blob(kept):
                size += len(part)
                yield part

        whole, steps = checksums_of(counted_parts())
        return BlobFacts(size=size, checksum=whole, steps=steps or None, back=0)

    def raw_blob(self, kept: Collection[str] = ()) -> Iterator[bytes]:
        """The content of a blob for the call, not compressed: as it stands in the file, or a new
        one with the tensors that earlier calls have. The parts have at most 1 MiB, or are a tensor
        that several calls have parts of, or what is compressed in the file. What the call has
        itself is not compared with its checksum. A blob of
        holes takes no room in the file, and would take as much as it claims in a copy: it is
        refused.

        Args:
            kept: the keys of :attr:`references` that are not followed.

        Raises:
            TapeError: ``damaged``, ``closed``; ``limit`` if the file is nearly all holes.
        """
        record, segment = self.record, self.segment
        places: list[TensorPlace] = []
        if len(kept) == len(record.elsewhere):
            if record.blob is None:
                return
            member = segment.reader.blob_member(record)
            if record.blob.codec != STORED:
                yield segment.inflated_blob(record)
                return
            places.append(TensorPlace((Extent(member.start, member.size),), 1))
        else:
            entries: dict[str, Stored] = {}
            for leaf in {leaf.key: leaf for leaf in _leaves_with_values(record)}.values():
                key, form = leaf.key or "", stored_as(leaf)
                if form is None:
                    continue
                if key not in kept:
                    entries[key] = form
                    places.append(self._place(leaf))
                elif record.elsewhere[key][2] is not None:
                    entries[key], extent = segment.reader.tail(record, key)
                    places.append(TensorPlace((extent,), 1))
            yield build_header(entries)
        what = f"a copy of the tensors of call {self.number}"
        size = sum(place.size for place in places)
        check_memory(memory_limit_of(segment.stored_bytes), [((size,), 1)], what)
        for place in places:
            if len(place.parts) > 1:
                yield bytes(segment.bytes_of(place))
                continue
            for begin, size, checksum in place.parts:
                if checksum is not None:
                    yield checksum
                    continue
                for offset in range(0, size, _PART):
                    yield segment.reader.source.read_at(begin + offset, min(_PART, size - offset))


def _leaves_with_values(record: CallRecord) -> list[Leaf]:
    return [
        leaf
        for tree in (record.inputs, record.outputs)
        for leaf in (tree.facts() if tree is not None else ())
        if leaf.key is not None
    ]


def _taken_keys(record: CallRecord) -> dict[str, None]:
    """The keys of its leaves that earlier calls have: another key of ``at`` is not followed."""
    keys = [leaf.key or "" for leaf in _leaves_with_values(record)] if record.at else []
    return {key: None for key in keys if key in record.elsewhere}


def advice_on_outputs(missing: Iterable[str | None]) -> str:
    """How to have outputs the next time: it depends on why they are missing.

    Args:
        missing: why they are missing, as records say it.
    """
    # Of a stream the reason stands behind what is there: 3 of 9 chunks kept: queue_full; closed …
    reasons = {r.partition("; ")[0].rpartition(": ")[2] for r in missing if r is not None}
    advices = [advice for reason, advice in _ADVICE.items() if reason in reasons]
    return "; ".join(map(str, advices)) or "these calls have none to compare a program with"
