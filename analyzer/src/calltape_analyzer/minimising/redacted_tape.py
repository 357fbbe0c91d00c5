"""The smallest tape without what may tell of a person or a machine, if it still fails then.

In come the smallest tape and the choices of ``calltape redact``. Out goes a redacted tape that was
tried: it fails for the same reason. Values that the failure needs stay, as few as possible.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

from calltape_analyzer.errors import InferenceError, RedactionError, UsageError
from calltape_analyzer.minimising.halving import without_most
from calltape_analyzer.minimising.outcome import Outcome, normalised
from calltape_analyzer.minimising.search import Search, TimeUpError
from calltape_analyzer.minimising.trial_log import TrialLog
from calltape_analyzer.opening import open_tape
from calltape_analyzer.redacting.redaction import redact
from calltape_analyzer.redacting.removed_places import RemovedPlace, removed_places
from calltape_analyzer.redacting.treatment import Way
from calltape_analyzer.tape import Tape
from calltape_analyzer.text import counted, some_of

__all__ = ["RedactedTape", "Redacting", "choices_of"]

_MAX_NAMED = 8
_FINAL_TRIES = 3
_MAX_TEXTS = 1000

Choices = dict[str, Any]


class RedactedTape(NamedTuple):
    """A redacted tape that fails.

    Attributes:
        path: of the file.
        reason: why it fails.
        kept: the values that stayed because it does not fail without them, in words.
        notes: what else is to be known.
    """

    path: str
    reason: str
    kept: list[str]
    notes: list[str]


def choices_of(redact: bool | Mapping[str, Any]) -> Choices | None:
    """The options of :func:`~calltape_analyzer.redact` that were given; None if nothing is to be
    redacted.

    Raises:
        UsageError: there is no such option.
    """
    if isinstance(redact, bool):
        return {} if redact else None
    known = (*get_args(Way), "special")
    unknown = [name for name in redact if name not in known]
    if unknown:
        advice = f"pass True, or a dict of {', '.join(known)}"
        raise UsageError(f"redact has no option {unknown[0]!r:.100}", advice=advice)
    return {
        name: given if name == "special" else [given] if isinstance(given, str) else list(given)
        for name, given in redact.items()
    }


class Redacting:
    """Redacts the smallest tape of a search, and tries what comes out.

    Args:
        search: has the reason, and tries tapes.
        log: knows what was tried before.
        tape: the smallest one.
        choices: of :func:`~calltape_analyzer.redact`.
        folder: for the tapes that are tried.
    """

    def __init__(
        self, search: Search, log: TrialLog, tape: Tape, choices: Choices, folder: Path
    ) -> None:
        self._search, self._log, self._tape = search, log, tape
        self._choices, self._folder = choices, folder
        self._asked = {way: choices[way] for way in get_args(Way) if way in choices}
        self._wanted = {search.reason, _without(search.reason, _texts(tape))}
        self._answers: dict[tuple[str, ...], bool] = {}
        self._refused = ""
        self._written = 0

    def result(self) -> RedactedTape:
        """The redacted tape.

        Raises:
            InferenceError: it does not fail, whatever values stay; or the time was up.
        """
        places = removed_places(self._tape, self._asked)
        kept: list[RemovedPlace] = []
        if not self._fails([]):
            kept = self._needed(places)
        for _ in range(_FINAL_TRIES):
            found = self._final(kept)
            if found is not None:
                return found
        raise InferenceError(
            "the redacted tape failed at first, and does not any more; no tape was written",
            advice="the failure may depend on what a text is replaced by: name its path in keep",
        )

    def _needed(self, places: list[RemovedPlace]) -> list[RemovedPlace]:
        """The fewest places that must keep their values."""
        try:
            self._search.check_time()
            if not places or not self._fails(places):
                raise self._hopeless()
            kept = without_most(places, self._fails_in_time)
            for place in list(kept):  # one by one: of several that stand for each other, one stays
                rest = [one for one in kept if one != place]
                if self._fails_in_time(rest):
                    kept = rest
        except TimeUpError:
            raise InferenceError(
                "the time was up before it was known which values must stay; nothing was written",
                advice="run it again with more time: it goes on from here",
            ) from None
        return kept

    def _hopeless(self) -> InferenceError:
        what = "the failure does not show on a redacted tape, whatever arguments and outputs stay"
        if self._asked:
            what += f" besides what {some_of(list(self._asked), _MAX_NAMED)} decides"
        if self._refused:
            what += f" ({self._refused})"
        return InferenceError(
            f"{what}; no tape was written",
            advice="without redact, the log has all answers, and you see what the tape has",
        )

    def _fails_in_time(self, kept: Sequence[RemovedPlace]) -> bool:
        self._search.check_time()
        return self._fails(kept)

    def _fails(self, kept: Sequence[RemovedPlace]) -> bool:
        """Whether a redacted tape with the values of these places fails for the same reason."""
        names = tuple(pattern for one in kept for pattern in one.patterns)
        if names not in self._answers:
            key = self._key(names)
            outcome = self._log.answer(key)
            if outcome is None:
                outcome = self._tried(kept, key)
            else:
                self._search.answered += 1
            self._answers[names] = outcome is not None and self._is_same(outcome)
        return self._answers[names]

    def _tried(self, kept: Sequence[RemovedPlace], key: str) -> Outcome | None:
        path = self._redacted(kept)[0]
        if path is None:
            return None
        what = f"redacted, but for the values of {counted(len(kept), 'place')}"
        outcome = self._judged(path, what)
        self._log.add(key, what, len(self._tape), os.stat(path).st_size, outcome)
        os.unlink(path)
        return outcome

    def _final(self, kept: Sequence[RemovedPlace]) -> RedactedTape | None:
        """A tape that failed twice: what it has in place of texts is new each time."""
        path, notes = self._redacted(kept)
        if path is None:
            return None
        found = [self._judged(path, "redacted, once more") for _ in range(2)]
        if not all(map(self._is_same, found)):
            return None
        reason = next(one for one in found[0].reasons if one in self._wanted)
        return RedactedTape(path, reason, [f"{one.name} ({one.facts})" for one in kept], notes)

    def _judged(self, path: str, what: str) -> Outcome:
        """What the check says, without the texts that it quotes: they are others each time."""
        outcome = self._search.aside(path, what)
        if outcome.end != "failed":
            return outcome
        with open_tape(path) as tape:
            texts = _texts(tape)
        reasons = (r if r in self._wanted else _without(r, texts) for r in outcome.reasons)
        return outcome.model_copy(update={"reasons": tuple(reasons)})

    def _redacted(self, kept: Sequence[RemovedPlace]) -> tuple[str | None, list[str]]:
        """A redacted tape; None if redaction refuses this."""
        self._written += 1
        path = str(self._folder / f"redacted-{self._written:04}.tape")
        keep = [*self._asked.get("keep", ()), *(p for one in kept for p in one.patterns)]
        try:
            report = redact(self._tape, path, **{**self._choices, "keep": keep})
        except RedactionError as error:
            self._refused = error.reason
            return None, []
        return path, [*(f"lost: {text}" for text in report.lost), *report.notes]

    def _key(self, names: Sequence[str]) -> str:
        """Of the log: which tape was redacted, and how. The bytes are others each time."""
        question = json.dumps([self._search.digest, self._choices, names], sort_keys=True)
        return hashlib.blake2b(question.encode(), digest_size=16).hexdigest()

    def _is_same(self, outcome: Outcome) -> bool:
        return outcome.end == "failed" and not self._wanted.isdisjoint(outcome.reasons)


def _texts(tape: Tape) -> list[str]:
    """The texts on a tape as a reason would quote them, long ones first."""
    found: dict[str, None] = {}
    for call in tape.calls:
        trees = [call.record.inputs, *([call.record.outputs] if call.record.outputs else [])]
        for value in (value for tree in trees for value in tree.scalars):
            if isinstance(value, str) and value.strip() and len(found) < _MAX_TEXTS:
                found[normalised(value)] = None
    return sorted(found, key=len, reverse=True)


def _without(reason: str, texts: Sequence[str]) -> str:
    """A reason without the texts that it quotes."""
    for text in texts:
        reason = re.sub(rf"(?<!\w){re.escape(text)}(?!\w)", "…", reason)
    return reason
