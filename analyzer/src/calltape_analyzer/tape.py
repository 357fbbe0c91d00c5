"""Tape files as one sequence of calls, and what can be asked of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from typing_extensions import Self

from calltape_analyzer.accounts import counters_of
from calltape_analyzer.binding import Signature
from calltape_analyzer.call import Call, Calls
from calltape_analyzer.classes import Classes, ClassIndex
from calltape_analyzer.damage import is_damage
from calltape_analyzer.recordings import coverage_of, dumps_of, missing_numbers
from calltape_analyzer.segment import UNDER_WAY_WORDS, Damage, Segment
from calltape_analyzer.tallies import CallRef
from calltape_analyzer.traffic_counters import Counters
from calltape_schema.errors import TapeError
from calltape_schema.records import Coverage, Dump, Manifest, Observed, Target

if TYPE_CHECKING:
    from calltape_analyzer.dims import BatchFor, DimNames
    from calltape_analyzer.explanation import Explanation
    from calltape_analyzer.findings import ShapeFindings
    from calltape_analyzer.inference import Inference
    from calltape_analyzer.observations import Observations
    from calltape_analyzer.variant import Variant

__all__ = ["Tape"]

T = TypeVar("T")


class Tape:
    """One or several tape files as one sequence of calls; :func:`open_tape` makes it.

    ``len(tape)`` counts the calls whose records are whole, ``tape[i]`` is one of them (negative
    and slices too). Iterating also compares each call's tensors with their checksum and skips the
    calls that are damaged; :attr:`damage` then says which. :attr:`calls` is the same sequence
    without that look at the tensors.
    """

    def __init__(self, segments: Sequence[Segment], damage: Damage, classes: Classes = ()) -> None:
        self._segments = tuple(segments)
        self._damage = damage
        self._classes = ClassIndex(classes)
        self._calls = Calls(self._segments, self._classes)
        self._target = _common_target(self._segments)
        self._inference: Inference | None = None
        self._removed: list[str | int] = []

    def __repr__(self) -> str:
        ahead = len(self.under_way)
        died = f", {ahead} of them {UNDER_WAY_WORDS}" if ahead else ""
        return f"<Tape {', '.join(self.paths[:3])}: {len(self)} calls{died}>"

    def __len__(self) -> int:
        return len(self._calls)

    @overload
    def __getitem__(self, index: int) -> Call: ...

    @overload
    def __getitem__(self, index: slice) -> list[Call]: ...

    def __getitem__(self, index: int | slice) -> Call | list[Call]:
        return self._calls[index]

    def __iter__(self) -> Iterator[Call]:
        return self._whole_calls(entries=False)

    def _whole_calls(self, *, entries: bool) -> Iterator[Call]:
        for call in self._calls:
            try:
                call.check(entries=entries)
            except TapeError as error:
                if not is_damage(error):
                    raise
            else:
                yield call

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the files. Values that were read stay valid; reading on is a ``closed``
        error."""
        for segment in self._segments:
            segment.close()

    @property
    def classes(self) -> tuple[type, ...]:
        """The classes that the caller of :func:`open_tape` allowed."""
        return self._classes.given

    @property
    def class_index(self) -> ClassIndex:
        """The same, with those that this process wants anyway."""
        return self._classes

    @property
    def signature(self) -> Signature:
        """The parameters of the recorded method, without those that were left out with
        :meth:`remove_inputs`."""
        return Signature.of(self._target).without(frozenset(self.removed))

    @property
    def removed(self) -> tuple[str, ...]:
        """The names of the arguments that were left out with :meth:`remove_inputs`."""
        signature = Signature.of(self._target)
        return tuple(signature.name_of(name) for name in self._removed)

    @property
    def calls(self) -> Calls:
        """The calls as a plain sequence, whose tensors are not looked at."""
        return self._calls

    @property
    def paths(self) -> tuple[str, ...]:
        """The files, in the order of the calls."""
        return tuple(segment.path for segment in self._segments)

    @property
    def nbytes(self) -> int:
        """Size of the files in bytes, when they were opened."""
        return sum(segment.size for segment in self._segments)

    @property
    def manifests(self) -> tuple[Manifest, ...]:
        """The first member of each file: what wrote it, when, and with which policy."""
        return tuple(segment.manifest for segment in self._segments)

    @property
    def manifest(self) -> Manifest:
        """The manifest of the first file."""
        return self._segments[0].manifest

    @property
    def target(self) -> Target | None:
        """What was recorded: class, method and signature; None where the tape does not say."""
        return self._target

    @property
    def sealed(self) -> bool:
        """Whether every file ends as a closed recorder leaves it. An unsealed one is as readable;
        its process was killed, or is still recording."""
        return all(segment.trailer is not None for segment in self._segments)

    @property
    def unfinished(self) -> int:
        """Bytes at the end of unsealed files that belong to a call which was being written."""
        return sum(segment.unfinished for segment in self._segments)

    @property
    def coverage(self) -> Coverage:
        """How much of the traffic is on the tape: calls seen, kept, and dropped by reason, those
        that were not to be kept (``unwanted``) among them. For an unsealed file as far as the
        numbers of its calls tell: at least so many were seen. What came before a recorder was
        attached, none saw (:attr:`observed`)."""
        return coverage_of(self._segments)

    @property
    def observed(self) -> dict[bytes, Observed]:
        """Of each recording (by its id) of what was running before: since when its calls were
        seen. How many came before that, nobody knows."""
        found = ((s.manifest.tape, s.manifest.observed) for s in self._segments)
        return {tape: observed for tape, observed in found if observed is not None}

    @cached_property
    def counters(self) -> Counters:
        """What was counted of the whole traffic, whichever calls are on the tape: per structure how
        many calls, and the sizes of every axis; :attr:`Counters.missing` names the files that have
        no counters, or such as contradict the calls that are on the tape (which is damage)."""
        return counters_of(self._segments, self._damage)

    @property
    def under_way(self) -> tuple[Call, ...]:
        """The calls that were written ahead and had not ended when the process died (or have not
        ended yet): their inputs are known, and nothing else."""
        return tuple(
            self._calls.at(CallRef(segment.manifest.tape, segment.number(position)))
            for segment in self._segments
            if segment.is_ahead
            for position in segment.order
        )

    @property
    def missing_files(self) -> dict[bytes, tuple[int, ...]]:
        """Per recording (by its id) that lacks any, the numbers of its files that are not here:
        deleted when the disk was full, or not opened."""
        return missing_numbers(self._segments)

    @property
    def dumps(self) -> tuple[Dump, ...]:
        """When the calls of a flight recorder were written, and why, in the order of time."""
        return dumps_of(self._segments)

    @property
    def damage(self) -> list[TapeError]:
        """Everything that was found wrong so far, each with file, member and byte offset."""
        return self._damage.list()

    def find(self, number: int) -> Call:
        """The call of a number (:attr:`Call.number`).

        Raises:
            TapeError: ``usage`` where no call, or calls in several files, have it.
        """
        found = [call for call in self._calls if call.number == number]
        if len(found) == 1:
            return found[0]
        if not found:
            raise TapeError(
                "usage",
                f"no call {number} on this tape",
                advice="`calltape ls` shows which there are",
            )
        files = ", ".join(call.path for call in found)
        raise TapeError(
            "usage", f"call {number} is on several tapes: {files}", advice="pass one of them"
        )

    def verify(self) -> list[TapeError]:
        """Compares every tensor byte with its checksum and every tree with the format.

        Returns:
            All damage that is known now; empty for a clean tape.
        """
        for _ in self._whole_calls(entries=True):
            pass
        return self.damage

    def leave_out_damaged(self) -> None:
        for segment in self._segments:
            segment.drop_damaged()
        self._calls = Calls(self._segments, self._classes)
        self._inference = None

    def shape_findings(
        self,
        set_batch_dimension_for: BatchFor = None,
        dim_names: DimNames = None,
        value_if_missing: Mapping[str | int, Any] | None = None,
    ) -> ShapeFindings:
        """The dynamic dimensions with their evidence, as plain data and without torch; see
        :meth:`calltape_analyzer.inference.Inference.findings`.

        Raises:
            InferenceError: where the calls cannot be one program.
        """
        return self._asked(
            value_if_missing,
            lambda inference: inference.findings(set_batch_dimension_for, dim_names),
        )

    def infer_dynamic_shapes(
        self,
        set_batch_dimension_for: BatchFor = None,
        dim_names: DimNames = None,
        value_if_missing: Mapping[str | int, Any] | None = None,
    ) -> tuple[Any, ...] | dict[str, Any]:
        """What ``torch.export.export(dynamic_shapes=...)`` takes; see
        :meth:`calltape_analyzer.inference.Inference.dynamic_shapes`. Reads no tensor bytes.

        Raises:
            InferenceError: where the calls cannot be one program.
        """
        return self._asked(
            value_if_missing,
            lambda inference: inference.dynamic_shapes(set_batch_dimension_for, dim_names),
        )

    def infer_arguments(
        self,
        index: int | tuple[Any, ...] | Mapping[str, Any] | None = None,
        *,
        as_args_kwargs: bool = False,
        value_if_missing: Mapping[str | int, Any] | None = None,
    ) -> Any:
        """Representative arguments, or with ``index`` those of one call; see
        :meth:`calltape_analyzer.inference.Inference.arguments`.

        Raises:
            InferenceError: where the calls cannot be one program.
        """
        return self._asked(
            value_if_missing,
            lambda inference: inference.arguments(index, as_args_kwargs=as_args_kwargs),
        )

    def _asked(
        self, value_if_missing: Mapping[str | int, Any] | None, question: Callable[[Inference], T]
    ) -> T:
        return self._soundly(lambda: question(self.inference(value_if_missing)))

    def _soundly(self, question: Callable[[], T]) -> T:
        """The answer; where a call that breaks the format is in the way, without such calls."""
        try:
            return question()
        except TapeError as error:
            if error.kind not in ("damaged", "invalid", "limit") or not self._leave_out_unsound():
                raise
            return question()

    def _leave_out_unsound(self) -> bool:
        """Takes calls off the list whose trees break the format. Under a valid checksum only a
        writer with a bug or ill intent leaves one, so nobody looks before it is met."""
        before = len(self)
        for call in self._calls:
            try:
                call.record  # noqa: B018
            except TapeError as error:
                if not is_damage(error):
                    raise
        self.leave_out_damaged()
        return len(self) < before

    def observations(self) -> Observations:
        """What was seen of every argument: presence, kinds, dtypes, ranks, sizes, ranges. Reads
        every record once, and no tensor bytes. Those of several tapes add up with ``merge``."""
        from calltape_analyzer.gathering import Gatherer
        from calltape_analyzer.variant import counters_for
        from calltape_analyzer.whole_traffic import calls_by_likeness

        gatherer = Gatherer.of(self)
        made = self._soundly(lambda: gatherer.observations(self._calls, ranges=True))
        counters = counters_for(self, made)
        made.know_whole(calls_by_likeness(counters, gatherer.signature, gatherer.renamed))
        return made

    def variants(self) -> list[Variant]:
        """The calls, split into the programs that can serve them, in the order of their first
        call. Calls that raised are left out, unless all did. Reads no tensor bytes.

        What tells two variants apart are structure, constants, dtypes and ranks (rule 2 of
        docs/decisions/0012), a cache whose sliding window is full (rule 7), bools, texts and floats
        of which few values come back again and again (rule 8), and broadcasting (rule 9). What is
        said of a variant holds for all its calls.
        """
        from calltape_analyzer.variant import variants_in

        return self._soundly(lambda: variants_in(self))

    def explain(self, argument: str, axis: int | None = None, *, path: str = "") -> Explanation:
        """Why a dimension, an int or an argument is what it is, per variant, and which calls say
        so. ``str()`` of it is text for people. Reads no tensor bytes.

        Args:
            argument: the name of an argument, or a place below it as :meth:`variants` writes them
                (``"past_key_values.layers.0.keys"``, also with a dimension: ``"input_ids[1]"``), or
                the name of a symbol (``"batch_size"``).
            axis: one dimension, from the end where it is negative; all by default.
            path: the place below the argument, where it is not part of ``argument``.

        Raises:
            UsageError: for something that no call passes, or a dimension that no tensor there has;
                lists what there is.
        """
        from calltape_analyzer.explaining import explain

        return explain(self, argument, axis, path=path)

    def remove_inputs(self, names: Sequence[str | int]) -> int:
        """Leaves parameters out of everything that is inferred from here on.

        Returns:
            How many arguments of calls that takes out; 0 for names that no call passes.

        Raises:
            UsageError: for ``*args`` or ``**kwargs`` as a whole.
        """
        count = self.inference().remove_inputs(names)
        self._removed.extend(names)
        return count

    def inference(self, value_if_missing: Mapping[str | int, Any] | None = None) -> Inference:
        """The inference over all calls of this tape, kept from one question to the next."""
        from calltape_analyzer.inference import Inference

        if value_if_missing is None and self._inference is not None:
            return self._inference
        made = Inference(
            self._target,
            self._calls,
            value_if_missing,
            counters=lambda: self.counters,
            damaged=lambda: len(self.damage),
        )
        if self._removed:
            made.remove_inputs(self._removed)
        if value_if_missing is None:
            self._inference = made
        return made


def _common_target(segments: Sequence[Segment]) -> Target | None:
    # The first file of each model stands for all of them.
    found = {
        (target.type, target.method): (target, os.path.basename(segment.path))
        for segment in reversed(segments)
        if (target := segment.manifest.target) is not None
    }
    if len(found) > 1:
        names = ", ".join(sorted(f"{cls}.{way} ({f})" for (cls, way), (_, f) in found.items()))
        raise TapeError(
            "usage", f"these are tapes of different models: {names}", advice="open them one by one"
        )
    return next((target for target, _ in found.values()), None)
