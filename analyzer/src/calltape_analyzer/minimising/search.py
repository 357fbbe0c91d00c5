"""The search for the smallest tape that fails for the same reason.

A candidate is a tape of some calls. If the check fails for it with the same reason, it becomes the
smallest tape so far.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from calltape_analyzer.errors import InferenceError, TapeError, UsageError
from calltape_analyzer.minimising.changed_calls import ChangedCall
from calltape_analyzer.minimising.checks import Check, Outcome
from calltape_analyzer.opening import open_tape
from calltape_analyzer.pytree.classes import Classes
from calltape_analyzer.reading.call import Call
from calltape_analyzer.tape import Tape
from calltape_analyzer.text import counted
from calltape_analyzer.writing.lineage import Numbering
from calltape_analyzer.writing.new_tape import NewTape
from calltape_analyzer.writing.synthetic import BuiltCall
from calltape_schema.records import Manifest

__all__ = ["Search", "TimeUpError", "fewest", "smallest_number", "without_most"]

_FIRST_SECONDS = 3600.0
_LEAST_SECONDS = 10.0
_TIMES_FIRST = 3.0
_MAX_TAPES = 8
"""How many of the smallest failing tapes stay on disk besides the whole one, in case smaller ones
do not fail again."""
_BY_HAND = "run it by hand on the tape, and see what it prints"


class TimeUpError(Exception):
    """The time limit of the search has passed."""


class Search:
    """A search for the smallest failing tape.

    Args:
        check: the check to run on each candidate.
        folder: a folder for candidates.
        manifest: the manifest of all candidates.
        classes: classes for opening tapes.
        deadline: when to end the search, in terms of ``time.monotonic()``; None for no limit.
        progress: receives a line about each candidate and its outcome.

    Attributes:
        reason: why the tape fails.
        tried: how many times the check was run.
    """

    def __init__(
        self,
        check: Check,
        folder: Path,
        manifest: Manifest,
        *,
        classes: Classes = (),
        deadline: float | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self._check, self._folder = check, folder
        self._manifest, self._classes = manifest, classes
        self._deadline = deadline
        self._seconds = _FIRST_SECONDS
        self._progress = progress or (lambda _: None)
        self._failing: list[str] = []  # paths of failing tapes, the whole one first
        self._in_use: list[str] = []
        self._digests: set[str] = set()
        self._open: Tape | None = None
        self._written = 0
        self.reason = ""
        self.tried = 0

    @property
    def tape(self) -> Tape:
        """The smallest failing tape so far, open."""
        if self._open is None:
            self._open = open_tape(self._failing[-1], classes=self._classes)
        return self._open

    @contextmanager
    def opened(self) -> Iterator[Tape]:
        """Opens the tape that is the smallest one now. It stays on disk within the block, even if
        a smaller one is found."""
        path = self._failing[-1]
        self._in_use.append(path)
        try:
            with open_tape(path, classes=self._classes) as tape:
                yield tape
        finally:
            self._in_use.remove(path)

    def close(self) -> None:
        """Closes the tape."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def begin(self, calls: Iterable[Call], numbering: Numbering) -> None:
        """Runs the check twice on a tape of all calls, to learn why it fails, and on a tape
        without calls.

        Args:
            calls: the calls of the tape to minimise.
            numbering: their new numbers.

        Raises:
            InferenceError: the check passes, or does not fail in the same way each time.
            UsageError: the check cannot be run, takes too long, or also fails without calls.
        """
        path = str(self._folder / "whole.tape")
        with NewTape(path, self._manifest) as writer:
            for call in calls:
                writer.copy(call, number=numbering.number_of(call.ref.tape, call.ref.number))
            writer.seal(closed_ns=self._manifest.created_ns)
        first = self._run_whole(path)
        if first.end == "passed":
            raise InferenceError("nothing fails with this tape", advice="there is nothing to do")
        second = self._run_whole(path)
        shared = [reason for reason in first.reasons if reason in second.reasons]
        if not shared:
            raise InferenceError(
                f"it fails, but not each time in the same way ({first}; {second})",
                advice="make the failure come each time, for instance with fixed seeds",
            )
        self.reason = shared[0]
        # The minimum, because the first run may have been slowed down by cold caches.
        self._seconds = max(_LEAST_SECONDS, _TIMES_FIRST * min(first.seconds, second.seconds))
        self._digests.add(_digest_of(path))
        self._failing.append(path)
        empty = self._write([])
        # Twice, because a flaky check may fail once without calls.
        if all(self._is_same(self._run(empty, "no calls")) for _ in range(2)):
            raise UsageError(f"the check also fails with no calls: {self.reason}", advice=_BY_HAND)

    def _run_whole(self, path: str) -> Outcome:
        outcome = self._run(path, "the whole tape")
        if outcome.end == "unusable":
            what = "; ".join(outcome.reasons)
            raise UsageError(f"the check cannot be run: {what}", advice=_BY_HAND)
        if outcome.end == "time":
            raise UsageError(
                f"the check of the whole tape takes more than {_FIRST_SECONDS:.0f} s",
                advice="if the failure is a hang, let the check end itself, as `timeout 60` does",
            )
        return outcome

    def keeps(self, what: str, calls: Iterable[Call | BuiltCall]) -> bool:
        """Tries a tape of these calls. If it fails for the same reason, it becomes the smallest
        tape, and the result is true.

        Args:
            what: a description for ``progress``.
            calls: calls of :attr:`tape`, or changed ones.

        Raises:
            TimeUpError: the time limit has passed.
        """
        self._check_deadline()
        try:
            path = self._write(calls)
        except TapeError as error:
            if error.kind == "io":
                raise
            return False  # the format does not allow such a call
        digest = _digest_of(path)
        is_new, fails = digest not in self._digests, False
        self._digests.add(digest)
        if is_new:
            outcome = self._run(path, what)
            if outcome.end == "time":
                self._check_deadline()
            fails = self._is_same(outcome)
        if fails:
            self.close()
            self._failing.append(path)
            for old in [one for one in self._failing[1:-_MAX_TAPES] if one not in self._in_use]:
                self._failing.remove(old)
                Path(old).unlink()
        else:
            Path(path).unlink(missing_ok=True)
        return fails

    def keeps_changed(
        self, what: str, calls: Iterable[Call], changed: Mapping[int, ChangedCall]
    ) -> bool:
        """Tries a tape on which some calls, given by their positions, are changed. False if none
        is."""
        candidate = (changed[i].built() if i in changed else call for i, call in enumerate(calls))
        return bool(changed) and self.keeps(what, candidate)

    def _is_same(self, outcome: Outcome) -> bool:
        return outcome.end == "failed" and self.reason in outcome.reasons

    def confirm(self) -> int:
        """Runs the check again on the smallest tape. While it passes, the next larger tape is
        tried, up to the whole one.

        Returns:
            How many tapes did not fail again.

        Raises:
            InferenceError: no tape fails any more.
        """
        self._deadline = None  # it limits only the search
        for passed in range(len(self._failing)):
            if self._is_same(self._run(self._failing[-1], "once more")):
                return passed
            self.close()
            if len(self._failing) > 1:
                self._failing.pop()
        raise InferenceError(
            "it failed at first, and does not any more", advice="make the failure come each time"
        )

    def _run(self, path: str, what: str) -> Outcome:
        seconds = self._seconds
        if self._deadline is not None and self._failing:
            seconds = max(min(seconds, self._deadline - time.monotonic()), 0.1)
        outcome = self._check.run(path, seconds)
        self.tried += 1
        self._progress(f"{what}: {'kept' if self._is_same(outcome) else outcome}")
        return outcome

    def _write(self, calls: Iterable[Call | BuiltCall]) -> str:
        self._written += 1
        path = str(self._folder / f"{self._written:06}.tape")
        with NewTape(path, self._manifest, overwrite=True) as writer:
            for call in calls:
                if isinstance(call, Call):
                    writer.copy(call)
                else:
                    writer.write(call.record, call.values)
            writer.seal(closed_ns=self._manifest.created_ns)
        return path

    def _check_deadline(self) -> None:
        if self._deadline is not None and time.monotonic() >= self._deadline:
            raise TimeUpError

    def __str__(self) -> str:
        return f"{counted(len(self.tape), 'call')}, {os.path.getsize(self._failing[-1]):,} bytes"


def _digest_of(path: str) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with open(path, "rb") as file:
        while part := file.read(2**20):
            digest.update(part)
    return digest.hexdigest()


T = TypeVar("T")


def fewest(parts: Sequence[T], enough: Callable[[list[T]], bool]) -> list[T]:
    """A subset of which no part can be left out, by delta debugging. If one of n parts is enough,
    it is found in about 2 log2(n) tries.

    Args:
        parts: at least one part; together they are enough.
        enough: whether a subset is enough.
    """
    kept, count = list(parts), 2
    while len(kept) > 1:
        bounds = [len(kept) * i // count for i in range(count + 1)]
        pieces = [kept[a:b] for a, b in pairwise(bounds)]
        rests = [kept[:a] + kept[b:] for a, b in pairwise(bounds)]
        smaller = next((one for one in pieces if enough(one)), None)
        if smaller is not None:
            kept, count = smaller, 2
            continue
        smaller = next((one for one in rests if enough(one)), None) if count > 2 else None
        if smaller is not None:
            kept, count = smaller, max(count - 1, 2)
        elif count >= len(kept):
            break
        else:
            count = min(2 * count, len(kept))
    return kept


def without_most(
    parts: Sequence[T], enough: Callable[[list[T]], bool], *, tries: int = 200
) -> list[T]:
    """A small subset that is enough, which may be empty: all parts are left out, then halves, then
    halves of these.

    Args:
        parts: parts that are enough together.
        enough: whether a subset is enough.
        tries: how often to ask at most.
    """
    kept = list(range(len(parts)))
    queue = [list(kept)] if parts else []
    while queue and tries > 0:
        chunk = queue.pop(0)
        left_out = set(chunk)
        rest = [i for i in kept if i not in left_out]
        tries -= 1
        if enough([parts[i] for i in rest]):
            kept = rest
        elif len(chunk) > 1:
            queue += [chunk[: len(chunk) // 2], chunk[len(chunk) // 2 :]]
    return [parts[i] for i in kept]


def smallest_number(number: int, unit: int, enough: Callable[[int], bool]) -> int:
    """The smallest number that is enough, if all larger numbers are: first the smallest ones are
    tried, then a bisection.

    Args:
        number: a number that is enough.
        unit: multiples of it are tried first, then any number.
        enough: whether a number above 0 is enough.
    """
    for step in dict.fromkeys((unit, 1)):
        low = 0
        for small in (step, 2 * step):
            if low < small < number:
                if enough(small):
                    number = small
                    break
                low = small
        while number - low > step:
            middle = low + max((number - low) // (2 * step), 1) * step
            if enough(middle):
                number = middle
            else:
                low = middle
    return number
