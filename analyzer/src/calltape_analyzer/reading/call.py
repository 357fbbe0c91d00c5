"""One call of a tape, read when it is asked for.

In comes the segment that the call is in. Out go facts from the call's record, and tensors whose
bytes are read and compared with their checksum at the first use.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from calltape_analyzer.notebook import Shown, Sketch
from calltape_analyzer.pytree.classes import ClassIndex
from calltape_analyzer.pytree.inputs import Inputs, parts_of_inputs
from calltape_analyzer.pytree.memory import on_device, place_together
from calltape_analyzer.pytree.memory_limit import check_memory, memory_limit_of
from calltape_analyzer.pytree.rendering import render
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.reading.damage import is_damage
from calltape_analyzer.reading.segment import UNDER_WAY, Segment
from calltape_analyzer.text import counted
from calltape_schema.errors import TapeError
from calltape_schema.records import BlobFacts, CallRecord, Elsewhere, Manifest, ModelError, Tree
from calltape_schema.tree import Leaf, Node

__all__ = ["Call", "Side", "advice_on_outputs"]

Side = Literal["inputs", "outputs"]

_ADVICE = {
    "policy": "record with outputs=True",
    "queue_full": "there was no memory left to copy them: record with a larger max_queue_bytes, or "
    "keep fewer calls",
    "internal": "the recorder failed, as the log of the host says",
    "left out by calltape filter": "take the tape that was filtered",
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
    """

    __slots__ = ("_classes", "_position", "_record", "_segment", "index", "number")

    def __init__(self, segment: Segment, position: int, index: int, classes: ClassIndex) -> None:
        self._segment = segment
        self._position = position
        self._classes = classes
        self._record: CallRecord | None = None
        self.index = index
        self.number = segment.number(position)

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
        return self._segment.path

    @property
    def position(self) -> int:
        """Where the call is in its file, as :class:`Segment` counts."""
        return self._position

    @property
    def tape_bytes(self) -> int:
        """How many bytes this file took on its disk when it was opened, without holes."""
        return self._segment.disk_bytes

    @property
    def manifest(self) -> Manifest:
        """The manifest of the file that the call is in."""
        return self._segment.manifest

    def rebuilt_from(self, classes: ClassIndex) -> Call:
        """The same call, whose objects are rebuilt from other classes."""
        other = Call(self._segment, self._position, self.index, classes)
        other._record = self._record
        return other

    def raw_record(self) -> bytes:
        """All that the record says, as bytes: equal for equal calls of any files.

        Raises:
            TapeError: ``damaged``, ``closed``.
        """
        return self._segment.content(self._position)

    def is_at(self, segment: Segment, position: int) -> bool:
        """Whether a file has this call at a position.

        Raises:
            TapeError: one of them is damaged, so that nothing tells.
        """
        return self._segment.is_same(self._position, segment, position)

    def document(self) -> dict[str, Any]:
        """The record as plain data, with the encoded structure and leaves of its trees.

        Raises:
            TapeError: ``damaged``, ``closed``.
        """
        return self._segment.document(self._position)

    @property
    def segment(self) -> Segment:
        """The file that the call is in, as it is read: references lead to calls of the same one."""
        return self._segment

    @property
    def references(self) -> Mapping[str, Elsewhere]:
        """By key the tensors that earlier calls of the file have for this one, or the first part
        of.

        Raises:
            TapeError: as :attr:`record`.
        """
        return self._grouped.elsewhere

    def raw_blob(self, kept: Collection[str] = ()) -> Iterator[bytes]:
        """The content of a blob for the call, in parts of at most 1 MiB: as it stands in the file,
        or a new one with the tensors that earlier calls have. What the call has itself is not
        compared with its checksum.

        Args:
            kept: the keys of :attr:`references` that are not followed.

        Raises:
            TapeError: ``damaged``, ``closed``; ``limit`` if the file is nearly all holes.
        """
        return self._segment.blob_parts(self._position, self._grouped, kept)

    def blob_facts(self, kept: Collection[str] = ()) -> BlobFacts | None:
        """The size and the checksum of the content that :meth:`raw_blob` gives; None if it has no
        tensors.

        Raises:
            TapeError: as :meth:`raw_blob`.
        """
        return self._segment.blob_facts(self._position, self._grouped, kept)

    def blob_damage(self) -> TapeError:
        """Notes that the checksum of this call's tensors does not match, and gives the error that
        says so."""
        return self._segment.report_blob(self._position, self._grouped)

    @property
    def ref(self) -> CallRef:
        """What tells this call apart from all calls of all tapes."""
        return CallRef(self._segment.manifest.tape, self.number)

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
        return self._grouped

    @property
    def _grouped(self) -> CallRecord:
        if self._record is None:
            try:
                record = self._segment.record(self._position)
                if parts_of_inputs(record.inputs.spec().root) is None:
                    raise TapeError("invalid", "the inputs are not (args, kwargs)")
                if record.outputs is not None:
                    record.outputs.spec()
            except TapeError as error:
                raise self._reported(error) from None
            self._record = record
        return self._record

    @property
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

    def inputs_on(self, device: Any) -> Inputs:
        """:attr:`inputs` with the tensors on a device (a ``torch.device`` or its name).

        If any tensor was recorded on a device, those that were recorded on the CPU stay there:
        models take some arguments, such as the lengths of packed sequences, on the CPU only.

        Raises:
            TapeError: as :attr:`inputs`.
        """
        import torch

        facts = self.record.inputs.facts()
        are_mixed = any(one.device != "cpu" for one in facts)
        tensors = self.tensors("inputs")
        moved = [
            i
            for i, one in enumerate(facts)
            if (one.device != "cpu" or not are_mixed)
            and isinstance(tensors[i], torch.Tensor)
            and not tensors[i].is_meta
        ]
        tensors = on_device(tensors, moved, device)
        args, kwargs = self.build("inputs", self.record.inputs.spec().root, tensors)
        return Inputs(args, kwargs)

    @property
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
        from calltape_analyzer.pytree.rebuilding import rebuild

        known: dict[int, Any] = {} if tensors is None else tensors
        tree = self._tree(side)

        def tensor(leaf: int) -> Any:
            if leaf not in known:
                known[leaf] = self.tensor(side, leaf)
                storage = tree.facts()[leaf].storage
                if storage is not None:
                    self._read_beside(side, storage, known)
            return known[leaf]

        try:
            values = tree.scalars if scalars is None else scalars
            return rebuild(node, tensor, values, self._classes)
        except TapeError as error:
            raise self._segment.located(error, self._position) from None

    def _read_beside(self, side: Side, storage: int, known: dict[int, Any]) -> None:
        """Reads all leaves that share one memory, and puts them into one memory."""
        facts = self._tree(side).facts()
        group = [i for i, leaf in enumerate(facts) if leaf.storage == storage]
        own = {i: known[i] if i in known else self.tensor(side, i) for i in group}
        place_together(facts, own)
        known.update(own)

    def tensors(self, side: Side) -> dict[int, Any]:
        """All tensors of a side by the number of their leaf, as :meth:`tensor` gives them. What
        shared memory shares it here too.

        Raises:
            TapeError: as :attr:`inputs`.
        """
        facts = self._tree(side).facts()
        found = {leaf: self.tensor(side, leaf) for leaf in range(len(facts))}
        place_together(facts, found)
        return found

    def tensor(self, side: Side, leaf: int) -> Any:
        """The tensor of one leaf, read again each time: on the CPU, in new memory, without a graph
        (``requires_grad`` is as recorded).

        Strides are as recorded, unless the gaps between elements would take far more memory than
        these; the memory is its own. Conjugation and negation are resolved. If values were not
        wanted, a meta tensor of the leaf's dtype, shape and strides; if the value is missing for
        another reason, a placeholder with that reason.

        Raises:
            TapeError: as :attr:`inputs`.
        """
        from calltape_analyzer.pytree.tensors import tensor_of, valueless

        facts = self._facts(side, leaf)
        if facts.key is None:
            return valueless(facts)
        try:
            return tensor_of(facts, self._bytes(facts))
        except TapeError as error:
            raise self._segment.located(error, self._position) from None

    def _facts(self, side: Side, leaf: int) -> Leaf:
        """What the record says of a leaf.

        Raises:
            TapeError: ``damaged`` if it has none of this number. Whoever asks for it was told so by
                the end of the file.
        """
        facts = self._tree(side).facts()
        if leaf >= len(facts):
            own = counted(len(facts), "tensor")
            reason = f"its record has {own}, and the end of the file told of more"
            raise self._segment.located(TapeError("damaged", reason), self._position)
        return facts[leaf]

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
            raise self._segment.located(error, self._position) from None

    def check(self, *, entries: bool = False) -> None:
        """Checks the call's trees, and the checksum of its tensors.

        Args:
            entries: check too whether the blob's header and the record say the same about each
                tensor. Under a valid checksum they differ only if the writer had a bug or bad
                intent; reading a value notices it too.

        Raises:
            TapeError: as :attr:`inputs`. The error is added to the tape's ``damage``.
        """
        record = self.record
        try:
            self._segment.check_values(self._position, self._grouped)
            if entries:
                self._check_entries(record)
        except TapeError as error:
            raise self._reported(error) from None

    def _reported(self, error: TapeError) -> TapeError:
        located = self._segment.located(error, self._position)
        if is_damage(located):
            self._segment.report(located, self._position)
        return located

    def _check_entries(self, record: CallRecord) -> None:
        for tree in (record.inputs, record.outputs):
            for leaf in tree.facts() if tree is not None else ():
                if leaf.key is not None:
                    self._segment.place(self._position, self._grouped, leaf)

    def _tree(self, side: Side) -> Tree:
        tree = self.record.inputs if side == "inputs" else self.record.outputs
        if tree is None:
            raise TapeError(
                "usage", f"call {self.number} has no outputs on the tape", path=self.path
            )
        return tree

    def _bytes(self, leaf: Leaf) -> bytearray:
        record = self._grouped
        self._segment.check_blob(self._position, record)
        place = self._segment.place(self._position, record, leaf)
        check_memory(memory_limit_of(self.tape_bytes), [((place.size,), 1)], leaf.key or "")
        return self._segment.bytes_of(place)


def advice_on_outputs(missing: Iterable[str | None]) -> str:
    """How to have outputs the next time: it depends on why they are missing.

    Args:
        missing: why they are missing, as records say it.
    """
    known = {one for one in missing if one is not None}
    # Of a stream the reason stands within: 3 of 9 chunks kept: queue_full.
    found = [
        advice
        for reason, advice in _ADVICE.items()
        if any(one == reason or f": {reason}" in one for one in known)
    ]
    return "; ".join(found) or "these calls have none to compare a program with"
