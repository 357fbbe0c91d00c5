"""Opening tapes: files, directories, patterns; remote ones several at a time.

A server takes some milliseconds for an answer, and a tape needs four of them: one by one, thousands
of tapes would take minutes in which nothing happens.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from typing import SupportsIndex, TypeVar

from calltape_analyzer.errors import (
    Damage,
    DescriptorError,
    RemoteError,
    RepeatedCallsError,
    UsageError,
)
from calltape_analyzer.limits import Limits, add_allowance, bounded
from calltape_analyzer.plain_data import PlainData, Sketch, Text, Texts
from calltape_analyzer.pytree.classes import Classes, ClassIndex
from calltape_analyzer.reading.duplicates import without_other_ranks, without_repeats
from calltape_analyzer.reading.files import Paths, files_of
from calltape_analyzer.reading.recordings import goes_on
from calltape_analyzer.reading.segment import Segment
from calltape_analyzer.reading.selection import chosen_target, common_target, target_name
from calltape_analyzer.reading.tape_file import holds_no_call, may_be_begun
from calltape_analyzer.reading.urls import is_url
from calltape_analyzer.tape import Tape, leave_out_corrupted
from calltape_analyzer.text import counted
from calltape_schema.errors import TapeError
from calltape_schema.records import Source

__all__ = ["AT_A_TIME", "Recording", "Recordings", "list_recordings", "open_tape", "recordings"]

AT_A_TIME = 16
_WAITS = (0.001, 0.01, 0.05)  # seconds, for a recorder to write the first bytes of a file

T = TypeVar("T")
R = TypeVar("R")


@bounded()
def open_tape(
    path: Paths,
    *,
    target: str | None = None,
    classes: Classes = (),
    stand_ins: bool = False,
    verify: bool = False,
    scan: bool = False,
    limits: Limits | None = None,
) -> Tape:
    """Opens a tape for reading, whether it is finished, still being written, cut off or corrupted.

    Args:
        path: a file; a directory (with all ``*.tape``, ``*.tape.gz`` and ``*.tape.zst`` in it and
            below it that are not hidden); a pattern such as ``"runs/*.tape"``; or several of these.
            Together they are one sequence of calls, in which recordings are sorted by when they
            began. If several ranks of a job made the same calls, only one of them counts
            (:attr:`Tape.other_ranks`). A compressed tape is decompressed once, to a temporary file
            without a name. With the extra ``remote``, URLs of all of these (``s3://``, ``gs://``,
            ``memory://``, ...) work as well; only the necessary parts are read.
        target: which model to open, if there are tapes of several: the name of class and method, or
            a part of it that no other target has. The others are left out. :func:`recordings` lists
            what there is.
        classes: classes that arguments and outputs may be rebuilt from, in addition to plain
            containers, and transformers' caches and outputs (if this process has imported it). A
            mapping gives the names that they have on the tape (``{"__main__:Batch": Batch}``).
            Classes of Python's standard library, and those with ``__del__``, are never rebuilt.
        stand_ins: rebuild objects of other classes from generated classes that have the same fields
            and no code. Otherwise, each becomes a :class:`~calltape_analyzer.Placeholder`.
        verify: compare all tensors with their checksums now, and leave out corrupted calls.
            Otherwise, a call is checked when its values are first read.
        scan: read every record now, and compare it with the summary in the file. A difference is
            corruption, and the call is left out. Otherwise, a sealed file is scanned when a single
            call is requested, and questions about all calls are answered from its end, or from one
            record of each distinct input (:attr:`Tape.source`, :attr:`Tape.records_read`).
        limits: how much time and memory opening it, and each question about it, may take. By
            default, this depends on the size.

    Raises:
        TapeError: ``not_found``, ``not_a_tape``, ``version``, ``io``, ``damaged`` or ``invalid`` if
            nothing can be read; ``usage`` for tapes of different models, or a target that does not
            exist; ``limit`` for a compressed tape that is larger than it should be; ``usage`` for
            Zstandard without the extra ``zstd``, or a URL without the extra ``remote``. If only one
            of several files cannot be read, that is corruption, like a corrupted call. So is a
            directory that cannot be read, a copy of another file, and a call that another file has
            too, which counts once.
    """
    if target is not None and not isinstance(target, str):
        advice = "pass the name of a class and method, or part of it"
        raise UsageError(f"target={target!r:.100}", advice=advice)
    damage = Damage()
    files = _Files(damage)
    try:
        files.open(path)
        if target is not None:
            names = {target_name(segment.manifest.target) for segment in files.segments}
            files.keep_only(chosen_target(names, target))
        common_target(files.segments)  # before anything is scanned
        files.scan(all_records=scan)
        recordings, other_ranks = without_other_ranks(
            _recordings(_without_surveyed(files.segments, damage), damage)
        )
        parts = [segment for recording in recordings for segment in recording]
        index = ClassIndex(classes, stand_ins=True) if stand_ins else ClassIndex.of(classes)
        tape = Tape(parts, damage, index, other_ranks, limits)
    except BaseException:
        files.close()
        raise
    if verify:
        leave_out_corrupted(tape)
    return tape


@contextmanager
def opened_recordings(
    path: Paths, damage: Damage, *, scan: bool = False
) -> Iterator[list[list[Segment]]]:
    """The files of each recording of any target, in the order of time; see :func:`open_tape`.

    Args:
        path: as for :func:`open_tape`.
        damage: collects what is wrong.
        scan: as for :func:`open_tape`.
    """
    files = _Files(damage)
    try:
        files.open(path)
        files.scan(all_records=scan)
        yield _recordings(_without_surveyed(files.segments, damage), damage)
    finally:
        files.close()


class _Files:
    """Files that are being opened.

    Args:
        damage: gets what is wrong with some of several files.
    """

    def __init__(self, damage: Damage) -> None:
        self._damage = damage
        self._errors: list[TapeError] = []
        self._opened: list[Segment] = []
        self._is_closed = False
        self.segments: list[Segment] = []

    def close(self) -> None:
        """Closes all files, also those that another thread opens just now."""
        self._is_closed = True
        for segment in self._opened:
            segment.close()

    def open(self, path: Paths) -> None:
        """Opens the files of a path, as far as their beginning and end.

        Raises:
            TapeError: none can be read, or the process may open no more files.
        """
        if isinstance(path, Iterable) and not isinstance(path, str):
            path = list(path)  # it is listed again if files come and go meanwhile
        names = files_of(path, self._damage.add)
        self.segments = self._read(self._open_one, names, sum(map(is_url, names)))
        for wait in _WAITS if self.segments else ():
            local = [error for error in self._errors if not is_url(error.path or "")]
            gone = {error.path for error in local if error.kind == "not_found"}
            begun = {error.path for error in local if may_be_begun(error.path)}
            if not gone | begun:
                break
            if begun:
                time.sleep(wait)
            # A recorder deletes files while it writes others, which say so.
            names = files_of(path)
            again = begun | (gone - {*names})
            if not again:
                break
            self._errors = [error for error in self._errors if error.path not in again]
            self._open_again(names)
        self._expect_some()

    def _open_again(self, names: Sequence[str]) -> None:
        """Opens the files that are new, and those that are not sealed, which may have grown."""
        done: list[Segment] = []
        listed = {*names}
        for segment in self.segments:
            if segment.reader.end is None and segment.location in listed:
                segment.close()
            else:
                done.append(segment)
        there = {segment.location for segment in done} | {error.path for error in self._errors}
        new = [name for name in names if name not in there]
        self.segments = done + self._read(self._open_one, new, sum(map(is_url, new)))

    def _open_one(self, name: str) -> Segment:
        segment = Segment(name, self._damage)
        self._opened.append(segment)
        if self._is_closed:
            segment.close()
        return segment

    def keep_only(self, target: str) -> None:
        """Closes the files of other targets."""
        segments, self.segments = self.segments, []
        for segment in segments:
            if target_name(segment.manifest.target) == target:
                self.segments.append(segment)
            else:
                segment.close()

    def scan(self, *, all_records: bool) -> None:
        """Finds the calls of the files that do not say at their end what they are.

        Args:
            all_records: whether the others are scanned too.

        Raises:
            TapeError: as :meth:`open`.
        """
        if all_records and all(segment.is_survey for segment in self.segments):
            raise UsageError("a survey has no records to scan", advice="name the tapes themselves")
        waiting = [
            segment
            for segment in self.segments
            if segment.unscanned_end is None or (all_records and not segment.is_survey)
        ]
        remote = sum(is_url(segment.location) for segment in waiting)
        unsound = {id(segment): segment for segment in waiting}

        def scanned(segment: Segment) -> Segment:
            if all_records:
                segment.drop_unsound()
            else:
                segment.scan()
            return segment

        for segment in self._read(scanned, waiting, remote):
            del unsound[id(segment)]
        for segment in unsound.values():
            segment.close()
        self.segments = [segment for segment in self.segments if id(segment) not in unsound]
        self._expect_some()
        for unreadable in self._errors:
            if not holds_no_call(unreadable.path):
                self._damage.add(unreadable)

    def _read(
        self, read: Callable[[T], Segment], things: Sequence[T], remote: int
    ) -> list[Segment]:
        """What is read of each thing, in their order; several at a time if ``remote`` ones are. The
        error of a file that cannot be read is noted.

        Raises:
            DescriptorError: the process may open no more files.
        """

        def tried(thing: T) -> Segment | TapeError:
            try:
                return read(thing)
            except RemoteError as error:
                return error
            except DescriptorError:
                raise
            except TapeError as error:
                return error

        results: list[Segment] = []
        for result in map(tried, things) if remote < 2 else _side_by_side(tried, things):
            if isinstance(result, Segment):
                add_allowance(0 if result.is_scanned else result.disk_bytes)
                results.append(result)
            else:
                self._errors.append(result)
        return results

    def _expect_some(self) -> None:
        if not self.segments:
            raise self._errors[0]


def _side_by_side(ask: Callable[[T], R], things: Sequence[T]) -> Iterator[R]:
    """The answer for each thing, in their order; several are asked at a time."""
    pool = ThreadPoolExecutor(AT_A_TIME, thread_name_prefix="calltape-open")
    contexts = [copy_context() for _ in things]  # what was granted here holds for the others too
    try:
        yield from pool.map(lambda context, thing: context.run(ask, thing), contexts, things)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _without_surveyed(segments: Sequence[Segment], damage: Damage) -> list[Segment]:
    """The files without those surveys that have a recording in common with another file: its calls
    would count twice."""
    sources_of: dict[bytes, list[Source]] = {}
    left_out: set[int] = set()
    for file in sorted(segments, key=lambda segment: segment.is_survey):
        sources = file.sources
        if not file.is_survey or not any(
            source.shares(other.tape, other.parts)
            for source in sources
            for other in sources_of.get(source.tape, ())
        ):
            for source in sources:
                sources_of.setdefault(source.tape, []).append(source)
            continue
        file.close()
        left_out.add(id(file))
        reason = "the survey is left out: calls that it counts are in other files here"
        advice = "open the survey, or the tapes"
        damage.add(RepeatedCallsError("damaged", reason, path=file.path, advice=advice))
    return [segment for segment in segments if id(segment) not in left_out]


def _recordings(segments: Iterable[Segment], damage: Damage) -> list[list[Segment]]:
    """The files of each recording in its own order: their names sort ``llm-00001.tape`` before
    ``llm.tape``. Each call of it is in one of them. The recording that began first comes first."""
    recordings: dict[Hashable, list[Segment]] = {}
    for segment in segments:
        target = segment.manifest.target
        model = None if target is None else target.name
        recordings.setdefault((segment.manifest.tape, model), []).append(segment)
    # Calls that were under way come last.
    ordered = (
        sorted(p, key=lambda segment: (segment.is_ahead, segment.part)) for p in recordings.values()
    )
    in_order = [without_repeats(parts, damage) for parts in ordered]
    in_order = sorted((parts for parts in in_order if parts), key=_began)
    for parts in in_order:
        for part in parts:
            part.recording_began_ns = _began(parts)
    return in_order


def _began(parts: Sequence[Segment]) -> int:
    """When the first file of a recording was made; of equal times the paths decide."""
    return min(part.manifest.created_ns for part in parts)


class Recording(PlainData):
    """What one recorder wrote.

    Attributes:
        tape: the id that its files share, in hexadecimal digits.
        target: class and method, such as ``app:Llama.forward``, as ``open_tape(path, target=...)``
            takes it. ``unknown`` if the tape does not say.
        host: that recorded it, or the directory of its first file if the tape does not say.
        host_named: whether the tape says it.
        paths: its files, in the order of its calls, without copies.
        unsealed: those of them that no recorder closed.
        continues: whether it goes on after the last of its files, although that is sealed.
        calls: how many are on the tape.
        bytes: size of the files.
        first_ns: when the first call began, Unix time in nanoseconds; None without calls.
        last_ns: when the last call ended. Of a file that is not sealed, that is its last call by
            number.
        damage: how many places of its files are damaged, as far as was looked.
    """

    tape: str
    target: Text
    host: Text
    host_named: bool
    paths: Texts
    unsealed: Texts
    continues: bool
    calls: int
    bytes: int
    first_ns: int | None
    last_ns: int | None
    damage: int

    @property
    def sealed(self) -> bool:
        """Whether it ends as a closed recorder leaves it."""
        return not self.unsealed and not self.continues


class Recordings(PlainData):
    """Everything that was recorded below a path.

    Attributes:
        recordings: the one that began first comes first.
        damage: what is wrong, in words; also files that cannot be read, and copies.
    """

    recordings: tuple[Recording, ...]
    damage: Texts

    @property
    def targets(self) -> tuple[str, ...]:
        """What was recorded, sorted."""
        return tuple(sorted({recording.target for recording in self.recordings}))

    def __len__(self) -> int:
        return len(self.recordings)

    def _sketch(self) -> Sketch:
        rows = [
            (
                recording.tape[:8],
                recording.target,
                recording.host,
                len(recording.paths),
                recording.calls,
                recording.bytes,
                "yes" if recording.sealed else "no",
            )
            for recording in self.recordings
        ]
        head = ("recording", "target", "host", "files", "calls", "bytes", "sealed")
        note = f"corruption: {counted(len(self.damage), 'place')}" if self.damage else None
        return Sketch("Recordings", head=head, rows=rows, note=note)

    def __getitem__(self, index: SupportsIndex) -> Recording:
        return self.recordings[index]


@bounded()
def recordings(path: Paths, *, scan: bool = False) -> Recordings:
    """Lists what was recorded, of whichever models. Of a sealed file its two ends are read, and no
    tensor of any.

    Args:
        path: as for :func:`open_tape`.
        scan: reads every record of the sealed files too.

    Raises:
        TapeError: as :func:`open_tape`, but not because there are several models.
    """
    damage = Damage()
    rows = list_recordings(path, damage, scan=scan)
    return Recordings(recordings=tuple(rows), damage=tuple(str(error) for error in damage.list()))


def list_recordings(path: Paths, damage: Damage, *, scan: bool = False) -> list[Recording]:
    """:func:`recordings`, with the damage as errors.

    Args:
        path: as for :func:`recordings`.
        damage: collects what is wrong.
        scan: as for :func:`recordings`.
    """
    with opened_recordings(path, damage, scan=scan) as found_recordings:
        rows = [_recording(parts) for parts in found_recordings]
    places = Counter(error.path for error in damage.list())
    return [
        row.model_copy(update={"damage": sum(places[path] for path in row.paths)}) for row in rows
    ]


def _recording(parts: Sequence[Segment]) -> Recording:
    times = [time for part in parts for time in part.span_ns or ()]
    host = parts[0].manifest.producer.host
    return Recording(
        tape=parts[0].manifest.tape.hex(),
        target=target_name(parts[0].manifest.target),
        host=host or os.path.dirname(parts[0].path) or ".",
        host_named=host is not None,
        paths=tuple(part.path for part in parts),
        unsealed=tuple(part.path for part in parts if part.end is None),
        continues=goes_on(parts),
        calls=sum(map(len, parts)),
        bytes=sum(part.size for part in parts),
        first_ns=min(times, default=None),
        last_ns=max(times, default=None),
        damage=0,
    )
