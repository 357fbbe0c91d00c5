"""The smallest tape so far, and whether a smaller one fails for the same reason.

In come calls that may be enough. They are written to a tape, which is judged in another process. If
it fails for the same reason, it is the smallest tape from now on.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from calltape_analyzer.errors import InferenceError, TapeError, UsageError
from calltape_analyzer.minimising.changed_calls import ChangedCall
from calltape_analyzer.minimising.checks import Outcome
from calltape_analyzer.minimising.judge import Judge
from calltape_analyzer.opening import open_tape
from calltape_analyzer.pytree.classes import Classes
from calltape_analyzer.reading.call import Call
from calltape_analyzer.tape import Tape
from calltape_analyzer.text import counted
from calltape_analyzer.writing.built_calls import BuiltCall
from calltape_analyzer.writing.lineage import Numbering
from calltape_analyzer.writing.new_tape import NewTape
from calltape_schema.records import Manifest
from calltape_schema.remedies import Remedy

__all__ = ["Search", "TimeUpError"]

_FIRST_SECONDS = 3600.0
_LEAST_FIRST_SECONDS = 60.0
_LEAST_SECONDS = 10.0
_TIMES_FIRST = 3.0
_MORE = {
    "time": Remedy("allow more with minimise_tape(step_seconds=); ", "").then(
        "if it hangs, which cannot be told from slowness, let it end itself, as signal.alarm(60) "
        "does"
    ),
    "memory": Remedy("allow more with minimise_tape(max_memory=)", "take a machine with more"),
}
"""What to do about a whole tape that takes more than a step may."""


class TimeUpError(Exception):
    """The time for the whole search is over."""


class Search:
    """A search for the smallest tape.

    Args:
        judge: runs the check.
        folder: for the tapes that are tried.
        manifest: of all of them.
        classes: for opening them.
        step_seconds: how long one run may take; None for three times what the first one took.
        deadline: when the search is to end, as ``time.monotonic()`` counts; None for never.
        progress: is told what is tried, and what came of it.

    Attributes:
        classes: for opening them.
        reason: why the tape fails.
        tape: the smallest one so far, open.
        hints: numbers of calls that fail, if the check told.
        tried: how many tapes were judged.
        has_reference: whether the outputs of changed calls are made.
        outcome_matters: whether the failure shows only with the recorded outcome of a call.
    """

    def __init__(
        self,
        judge: Judge,
        folder: Path,
        manifest: Manifest,
        *,
        classes: Classes = (),
        step_seconds: float | None = None,
        deadline: float | None = None,
        progress: Callable[[str], None] | None = None,
        has_reference: bool = False,
    ) -> None:
        self._judge, self._folder = judge, folder
        self._manifest, self._classes = manifest, classes
        self._seconds, self._deadline = step_seconds, deadline
        self._progress = progress or (lambda _: None)
        self._kept: list[str] = []
        self._seen: set[str] = set()
        self._open: Tape | None = None
        self._written = 0
        self.reason = ""
        self.hints: tuple[int, ...] = ()
        self.tried = 0
        self.has_reference = has_reference
        self.outcome_matters = False

    @property
    def tape(self) -> Tape:
        if self._open is None:
            self._open = self.opened()
        return self._open

    def opened(self) -> Tape:
        """The smallest tape, opened once more, for somebody who closes it."""
        return open_tape(self._kept[-1], classes=self._classes)

    @property
    def may_change_arguments(self) -> bool:
        """Whether arguments may be changed: not if the failure shows by the recorded outcome only,
        which is that of the recorded arguments."""
        return self.has_reference or not self.outcome_matters

    def close(self) -> None:
        """Closes the tape."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def begin(self, calls: Iterable[Call], numbering: Numbering) -> None:
        """Writes the tape that all others are compared with, and runs the check twice.

        Args:
            calls: of the tape that is made small.
            numbering: the numbers that they get.

        Raises:
            InferenceError: it does not fail, or not each time.
            UsageError: the check cannot be made, or takes more than it may.
        """
        path = self._write_first(calls, numbering)
        first = self._failing_twice(path)
        self.reason, self.hints = first.reasons[0], first.calls
        if self._seconds is None:
            self._seconds = max(_LEAST_SECONDS, _TIMES_FIRST * first.seconds)
        self._seen.add(_digest_of(path))
        self._kept.append(path)

    def _write_first(self, calls: Iterable[Call], numbering: Numbering) -> str:
        path = str(self._folder / "whole.tape")
        with NewTape(path, self._manifest) as writer:
            for call in calls:
                writer.copy(call, number=numbering.number_of(call.ref.tape, call.ref.number))
            writer.seal(closed_ns=self._manifest.created_ns)
            return path

    def _failing_twice(self, path: str) -> Outcome:
        first = self._first(path)
        if first.end == "passed":
            raise InferenceError("nothing fails with this tape", advice="there is nothing to do")
        second = self._first(path)
        same = tuple(reason for reason in first.reasons if reason in second.reasons)
        if not same:
            raise InferenceError(
                f"it fails, but not each time in the same way ({first.words}; {second.words})",
                advice="make the failure come each time, for instance with fixed seeds",
            )
        # The first one imports what all need.
        seconds = min(first.seconds, second.seconds)
        return first.model_copy(update={"reasons": same, "seconds": seconds})

    def _first(self, path: str) -> Outcome:
        allowed = self._seconds or max(self._left(_FIRST_SECONDS), _LEAST_FIRST_SECONDS)
        outcome = self._judge.outcome(path, allowed)
        self.tried += 1
        self._progress(f"the whole tape: {outcome.words}")
        if outcome.end == "unusable":
            what, *advice = outcome.reasons
            raise UsageError(
                f"the check cannot be made: {what.rstrip('.')}",
                advice="; ".join(advice) or "mend that first",
            )
        if outcome.end in _MORE:
            raise UsageError(
                f"the check of the whole tape takes more {outcome.end} than a step may",
                advice=_MORE[outcome.end],
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
        self._check_time()
        try:
            path = self._write(calls)
        except TapeError as error:
            if error.kind == "io":
                raise
            return False  # such a call cannot be written
        if self._judged(path, what):
            self.close()
            self._kept.append(path)
            return True
        _remove_try(path)
        return False

    def keeps_changed(
        self, what: str, calls: Iterable[Call], changed: Mapping[int, ChangedCall]
    ) -> bool:
        """Tries a tape on which some calls are changed, by their place. False if none is."""
        made = (changed[at].built() if at in changed else call for at, call in enumerate(calls))
        return bool(changed) and self.keeps(what, made)

    def _judged(self, path: str, what: str) -> bool:
        digest = _digest_of(path)
        if digest in self._seen:
            return False
        self._seen.add(digest)
        outcome = self._judge.outcome(path, self._left(self._seconds or _FIRST_SECONDS))
        self.tried += 1
        if outcome.end == "time":
            self._check_time()
        kept = self._is_same(outcome)
        self._progress(f"{what}: {'kept' if kept else outcome.words}")
        settled = f"{path}.settled"
        if kept:
            self.hints = outcome.calls
            if os.path.exists(settled):
                os.replace(settled, path)
                self._seen.add(_digest_of(path))
        _remove_try(settled)
        return kept

    def _is_same(self, outcome: Outcome) -> bool:
        return outcome.end == "failed" and self.reason in outcome.reasons

    def confirm(self) -> int:
        """Runs the check on the smallest tape once more; if it does not fail now, on the one
        before, and so on.

        Returns:
            How many tapes did not fail again.

        Raises:
            InferenceError: none fails any more.
        """
        for doubted in range(len(self._kept)):
            outcome = self._judge.outcome(self._kept[-1], self._seconds or _FIRST_SECONDS)
            self.tried += 1
            self._progress(f"once more: {outcome.words}")
            if self._is_same(outcome):
                return doubted
            self.close()
            if len(self._kept) > 1:
                self._kept.pop()
        raise InferenceError(
            "it failed at first, and does not any more", advice="make the failure come each time"
        )

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

    def _left(self, seconds: float) -> float:
        if self._deadline is None:
            return seconds
        return max(min(seconds, self._deadline - time.monotonic()), 0.1)

    def _check_time(self) -> None:
        """Raises TimeUpError if the time for the whole search is over."""
        if self._deadline is not None and time.monotonic() >= self._deadline:
            raise TimeUpError

    def said(self) -> str:
        """What the smallest tape is, in words."""
        return f"{counted(len(self.tape), 'call')}, {os.path.getsize(self._kept[-1]):,} bytes"


def _digest_of(path: str) -> str:
    """Tells whether two tapes are the same, byte by byte."""
    with open(path, "rb") as file:
        found = hashlib.blake2b(digest_size=16)
        while part := file.read(2**20):
            found.update(part)
    return found.hexdigest()


def _remove_try(path: str) -> None:
    """Removes a tape, and what its run left beside it."""
    for one in (path, f"{path}.answer", f"{path}.settled"):
        if os.path.exists(one):
            os.unlink(one)
