"""Opening tapes, and the sequence of calls that they are."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from typing_extensions import Self

from calltape_analyzer.call import Call, Calls
from calltape_analyzer.classes import Classes, ClassIndex
from calltape_analyzer.segment import Damage, Segment
from calltape_schema.errors import TapeError
from calltape_schema.records import Coverage, Manifest, Target

if TYPE_CHECKING:
    from calltape_analyzer.dims import BatchFor, DimNames
    from calltape_analyzer.findings import ShapeFindings
    from calltape_analyzer.inference import Inference

__all__ = ["Tape", "open_tape"]

T = TypeVar("T")

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def open_tape(path: Paths, *, classes: Classes = (), verify: bool = False) -> Tape:
    """Opens a tape for reading: finished, still being written, cut off or damaged.

    Args:
        path: a file, a directory (its ``*.tape``), a pattern such as ``"runs/*.tape"``, or several
            of these; together they are one sequence of calls.
        classes: classes that arguments and outputs may be rebuilt from, besides those registered
            with torch's pytree and transformers' caches and outputs (where this process has
            imported it). A mapping gives the names that they have on the tape
            (``{"__main__:Batch": Batch}``).
        verify: compares all tensors with their checksums now, and leaves out the calls that are
            damaged; otherwise a call is checked when its values are first read.

    Raises:
        TapeError: ``not_found``, ``not_a_tape``, ``version``, ``io``, ``damaged`` or ``invalid``
            where nothing can be read; ``usage`` for tapes of different models. Of several files
            one that cannot be read is damage, like a damaged call.
    """
    paths = _found(path)
    damage = Damage()
    segments: list[Segment] = []
    errors: list[TapeError] = []
    try:
        for name in paths:
            try:
                segments.append(Segment(name, damage))
            except TapeError as error:
                errors.append(error)
        if not segments:
            raise errors[0]
        tape = Tape(segments, damage, classes)
    except BaseException:
        for segment in segments:
            segment.close()
        raise
    for unreadable in errors:
        damage.add(unreadable)
    if verify:
        tape.verify()
        tape._leave_out_damaged()
    return tape


def _found(path: Paths) -> list[str]:
    given = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    if not given:
        raise TapeError("not_found", "no path was given")
    found: dict[str, str] = {}
    for one in given:
        for name in _files(os.fspath(one)):
            found.setdefault(os.path.realpath(name), name)
    return list(found.values())


def _files(path: str) -> list[str]:
    if "\0" in path:
        raise TapeError("not_found", "no such file", path=path.replace("\0", "\\0"))
    if os.path.isdir(path):
        names = sorted(str(file) for file in Path(path).glob("*.tape"))
        if not names:
            raise TapeError("not_found", "no *.tape in this directory", path=path)
        return names
    if not os.path.lexists(path) and glob.has_magic(path):
        names = sorted(glob.glob(path, recursive=True))
        if not names:
            raise TapeError("not_found", "no file matches", path=path)
        return names
    return [path]


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
        return f"<Tape {', '.join(self.paths[:3])}: {len(self)} calls>"

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
                if error.kind == "closed":
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
        """How much of the traffic is on the tape: calls seen, kept, and dropped by reason. For
        an unsealed file as far as the numbers of its calls tell."""
        dropped: Counter[str] = Counter()
        seen = kept = 0
        for segment in self._segments:
            seen += segment.coverage.seen
            kept += segment.coverage.kept
            dropped.update(segment.coverage.dropped)
        return Coverage(seen=seen, kept=kept, dropped=dict(dropped))

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

    def _leave_out_damaged(self) -> None:
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
        try:
            return question(self.inference(value_if_missing))
        except TapeError as error:
            if error.kind not in ("damaged", "invalid", "limit") or not self._leave_out_unsound():
                raise
            return question(self.inference(value_if_missing))

    def _leave_out_unsound(self) -> bool:
        """Takes calls off the list whose trees break the format. Under a valid checksum only a
        writer with a bug or ill intent leaves one, so nobody looks before it is met."""
        before = len(self)
        for call in self._calls:
            try:
                call.record  # noqa: B018
            except TapeError as error:
                if error.kind == "closed":
                    raise
        self._leave_out_damaged()
        return len(self) < before

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
        made = Inference(self._target, self._calls, value_if_missing)
        if self._removed:
            made.remove_inputs(self._removed)
        if value_if_missing is None:
            self._inference = made
        return made


def _common_target(segments: Sequence[Segment]) -> Target | None:
    targets = {
        (target.type, target.method): target
        for segment in reversed(segments)
        if (target := segment.manifest.target) is not None
    }
    if len(targets) > 1:
        names = ", ".join(sorted(f"{cls}.{method}" for cls, method in targets))
        raise TapeError(
            "usage", f"these are tapes of different models: {names}", advice="open them one by one"
        )
    return next(iter(targets.values()), None)
