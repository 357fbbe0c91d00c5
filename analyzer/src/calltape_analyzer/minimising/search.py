"""The smallest tape so far, and whether a smaller one fails for the same reason.

Calls that may be enough are written to a tape, on which the check is run. If it fails for the same
reason, it is the smallest tape from now on.
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
from calltape_analyzer.writing.built_calls import BuiltCall
from calltape_analyzer.writing.lineage import Numbering
from calltape_analyzer.writing.new_tape import NewTape
from calltape_schema.records import Manifest

__all__ = ["Search", "TimeUpError", "fewest", "smallest_number", "without_most"]

_FIRST_SECONDS = 3600.0
_LEAST_SECONDS = 10.0
_TIMES_FIRST = 3.0
_MOST_KEPT = 8
"""So many of the smallest tapes that failed stay on disk until the end, beside the whole one, in
case the smaller ones do not fail again."""
_BY_HAND = "run it by hand on the tape, and see what it prints"


class TimeUpError(Exception):
    """The time for the whole search is over."""


class Search:
    """A search for the smallest tape.

    Args:
        check: is run on each tape.
        folder: for the tapes that are tried.
        manifest: of all of them.
        classes: for opening them.
        deadline: when the search is to end, as ``time.monotonic()`` counts; None for never.
        progress: gets what was tried, and what came of it.

    Attributes:
        reason: why the tape fails.
        tried: how many tapes the check was run on.
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
        self._kept: list[str] = []
        self._in_use: list[str] = []
        self._seen: set[str] = set()
        self._open: Tape | None = None
        self._written = 0
        self.reason = ""
        self.tried = 0

    @property
    def tape(self) -> Tape:
        """The smallest one so far, open."""
        if self._open is None:
            self._open = open_tape(self._kept[-1], classes=self._classes)
        return self._open

    @contextmanager
    def opened(self) -> Iterator[Tape]:
        """Opens the tape that is the smallest one now. It stays on disk within the block, however
        small the smallest one becomes."""
        path = self._kept[-1]
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
        """Writes the tape that all others are compared with, and runs the check twice on it, and
        once on a tape without calls; twice if that fails.

        Args:
            calls: of the tape that is made small.
            numbering: the numbers that they get.

        Raises:
            InferenceError: it does not fail, or not each time.
            UsageError: the check cannot be run, takes more than it may, or fails in any case.
        """
        path = str(self._folder / "whole.tape")
        with NewTape(path, self._manifest) as writer:
            for call in calls:
                writer.copy(call, number=numbering.number_of(call.ref.tape, call.ref.number))
            writer.seal(closed_ns=self._manifest.created_ns)
        first = self._first(path)
        if first.end == "passed":
            raise InferenceError("nothing fails with this tape", advice="there is nothing to do")
        second = self._first(path)
        same = [reason for reason in first.reasons if reason in second.reasons]
        if not same:
            raise InferenceError(
                f"it fails, but not each time in the same way ({first}; {second})",
                advice="make the failure come each time, for instance with fixed seeds",
            )
        self.reason = same[0]
        # The first run may have filled caches that all need.
        self._seconds = max(_LEAST_SECONDS, _TIMES_FIRST * min(first.seconds, second.seconds))
        self._seen.add(_digest_of(path))
        self._kept.append(path)
        empty = self._write([])
        # Twice: a check with a false alarm now and then does not fail "in any case".
        if all(self._is_same(self._run(empty, "no calls")) for _ in range(2)):
            raise UsageError(f"the check also fails with no calls: {self.reason}", advice=_BY_HAND)

    def _first(self, path: str) -> Outcome:
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
        """Tries a tape of these calls. It is the smallest one from now on if it fails for the same
        reason.

        Args:
            what: it is, in words.
            calls: of :attr:`tape`, or made of such.

        Raises:
            TimeUpError: the time is over.
        """
        self._expect_time()
        try:
            path = self._write(calls)
        except TapeError as error:
            if error.kind == "io":
                raise
            return False  # such a call cannot be written
        digest = _digest_of(path)
        is_new, is_kept = digest not in self._seen, False
        self._seen.add(digest)
        if is_new:
            outcome = self._run(path, what)
            if outcome.end == "time":
                self._expect_time()
            is_kept = self._is_same(outcome)
        if is_kept:
            self.close()
            self._kept.append(path)
            old = [one for one in self._kept[1:-_MOST_KEPT] if one not in self._in_use]
            for one in old:
                self._kept.remove(one)
                Path(one).unlink()
        else:
            Path(path).unlink(missing_ok=True)
        return is_kept

    def keeps_changed(
        self, what: str, calls: Iterable[Call], changed: Mapping[int, ChangedCall]
    ) -> bool:
        """Tries a tape on which some calls are changed, by their place. False if none is."""
        made = (changed[at].built() if at in changed else call for at, call in enumerate(calls))
        return bool(changed) and self.keeps(what, made)

    def _is_same(self, outcome: Outcome) -> bool:
        return outcome.end == "failed" and self.reason in outcome.reasons

    def confirm(self) -> int:
        """Runs the check on the smallest tape once more; if it does not fail now, on the one
        before, and so on; at last on the whole one.

        Returns:
            How many tapes did not fail again.

        Raises:
            InferenceError: none fails any more.
        """
        self._deadline = None  # it is for the search
        for doubted in range(len(self._kept)):
            if self._is_same(self._run(self._kept[-1], "once more")):
                return doubted
            self.close()
            if len(self._kept) > 1:
                self._kept.pop()
        raise InferenceError(
            "it failed at first, and does not any more", advice="make the failure come each time"
        )

    def _run(self, path: str, what: str) -> Outcome:
        seconds = self._seconds
        if self._deadline is not None and self._kept:
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

    def _expect_time(self) -> None:
        """Raises TimeUpError if the time for the whole search is over."""
        if self._deadline is not None and time.monotonic() >= self._deadline:
            raise TimeUpError

    def __str__(self) -> str:
        return f"{counted(len(self.tape), 'call')}, {os.path.getsize(self._kept[-1]):,} bytes"


def _digest_of(path: str) -> str:
    """Tells whether two tapes are the same, byte by byte."""
    with open(path, "rb") as file:
        found = hashlib.blake2b(digest_size=16)
        while part := file.read(2**20):
            found.update(part)
    return found.hexdigest()


T = TypeVar("T")


def fewest(parts: Sequence[T], enough: Callable[[list[T]], bool]) -> list[T]:
    """Parts of which none can be left out, by delta debugging: one of n is found in about
    2 log2(n) tries.

    Args:
        parts: enough together, at least one.
        enough: whether some of them are enough.
    """
    kept, count = list(parts), 2
    while len(kept) > 1:
        bounds = [len(kept) * i // count for i in range(count + 1)]
        pieces = [kept[a:b] for a, b in pairwise(bounds)]
        rests = [kept[:a] + kept[b:] for a, b in pairwise(bounds)]
        found = next((one for one in pieces if enough(one)), None)
        if found is not None:
            kept, count = found, 2
            continue
        found = next((one for one in rests if enough(one)), None) if count > 2 else None
        if found is not None:
            kept, count = found, max(count - 1, 2)
        elif count >= len(kept):
            break
        else:
            count = min(2 * count, len(kept))
    return kept


def without_most(
    parts: Sequence[T], enough: Callable[[list[T]], bool], *, tries: int = 200
) -> list[T]:
    """Parts without those that can be left out, all of them perhaps: halves are left out, then
    halves of halves.

    Args:
        parts: enough together.
        enough: whether some of them are enough.
        tries: how often to ask.
    """
    kept = list(range(len(parts)))
    waiting = [list(kept)] if parts else []
    while waiting and tries > 0:
        chunk = waiting.pop(0)
        taken = set(chunk)
        rest = [place for place in kept if place not in taken]
        tries -= 1
        if enough([parts[place] for place in rest]):
            kept = rest
        elif len(chunk) > 1:
            waiting += [chunk[: len(chunk) // 2], chunk[len(chunk) // 2 :]]
    return [parts[place] for place in kept]


def smallest_number(number: int, unit: int, enough: Callable[[int], bool]) -> int:
    """The smallest number that is enough, if all larger ones are: small ones are tried first, then
    halves.

    Args:
        number: enough.
        unit: multiples of it are tried first, then any.
        enough: whether another one, above 0, is.
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
