"""The smallest tape without what may tell of a person or a machine, if it still fails then.

In come the smallest tape and the choices of ``calltape redact``. Out goes a redacted tape that was
tried: it fails for the same reason. Values that the failure needs stay, as few as possible.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

from calltape_analyzer.editing.withholding import names_of_path
from calltape_analyzer.errors import InferenceError, RedactionError, UsageError
from calltape_analyzer.minimising.checks import Outcome, normalised
from calltape_analyzer.minimising.halving import without_most
from calltape_analyzer.minimising.search import Search, TimeUpError
from calltape_analyzer.minimising.trial_log import TrialLog
from calltape_analyzer.opening import open_tape
from calltape_analyzer.pytree.node_paths import nodes_with_paths
from calltape_analyzer.reading.call import Call, Side
from calltape_analyzer.redacting.long_numbers import long_numbers
from calltape_analyzer.redacting.pseudonyms import Pseudonyms
from calltape_analyzer.redacting.redaction import redact
from calltape_analyzer.redacting.treatment import Treatments, Way
from calltape_analyzer.redacting.tree_plan import Fates, Replaced, TreePlan
from calltape_analyzer.tape import Tape
from calltape_analyzer.text import counted, some_of
from calltape_schema.records import Tree
from calltape_schema.tree import EnumNode, Node, ScalarNode, TensorNode

__all__ = ["RedactedTape", "Redacting", "choices_of"]

_MAX_NAMED = 8
_FINAL_TRIES = 3
_MAX_TEXTS = 1000

Choices = dict[Way, list[str]]


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


class _RemovedPlace(NamedTuple):
    """Paths that have one value, which redaction takes out although nobody asked for it. They stay
    or go together: of a tensor at several places, the most private treatment counts.

    Attributes:
        name: of the first path, with the name of its parameter.
        patterns: ``keep`` takes them.
        facts: of the value in the first call that has it, in words that do not tell it.
    """

    name: str
    patterns: tuple[str, ...]
    facts: str


def choices_of(redact: bool | Mapping[str, Any]) -> Choices | None:
    """The options of :func:`~calltape_analyzer.redact` that were given; None if nothing is to be
    redacted.

    Raises:
        UsageError: there is no such option.
    """
    if isinstance(redact, bool):
        return {} if redact else None
    known: tuple[Way, ...] = get_args(Way)
    unknown = [name for name in redact if name not in known]
    if unknown:
        advice = f"pass True, or a dict of {', '.join(known)}"
        raise UsageError(f"redact has no option {unknown[0]!r:.100}", advice=advice)
    choices: Choices = {}
    for way in known:
        if way in redact:
            given = redact[way]
            choices[way] = [given] if isinstance(given, str) else list(given)
    return choices


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
        self._wanted = {search.reason, _without(search.reason, _texts(tape))}
        self._answers: dict[tuple[str, ...], bool] = {}
        self._refused = ""
        self._written = 0

    def result(self) -> RedactedTape:
        """The redacted tape.

        Raises:
            InferenceError: it does not fail, whatever values stay; or the time was up.
        """
        places = _removed_places(self._tape, self._choices)
        kept: list[_RemovedPlace] = []
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

    def _needed(self, places: list[_RemovedPlace]) -> list[_RemovedPlace]:
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
        if self._choices:
            what += f" besides what {some_of(list(self._choices), _MAX_NAMED)} decides"
        if self._refused:
            what += f" ({self._refused})"
        return InferenceError(
            f"{what}; no tape was written",
            advice="without redact, the log has all answers, and you see what the tape has",
        )

    def _fails_in_time(self, kept: Sequence[_RemovedPlace]) -> bool:
        self._search.check_time()
        return self._fails(kept)

    def _fails(self, kept: Sequence[_RemovedPlace]) -> bool:
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

    def _tried(self, kept: Sequence[_RemovedPlace], key: str) -> Outcome | None:
        path = self._redacted(kept)[0]
        if path is None:
            return None
        what = f"redacted, but for the values of {counted(len(kept), 'place')}"
        outcome = self._judged(path, what)
        self._log.add(key, what, len(self._tape), os.stat(path).st_size, outcome)
        os.unlink(path)
        return outcome

    def _final(self, kept: Sequence[_RemovedPlace]) -> RedactedTape | None:
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

    def _redacted(self, kept: Sequence[_RemovedPlace]) -> tuple[str | None, list[str]]:
        """A redacted tape; None if redaction refuses this."""
        self._written += 1
        path = str(self._folder / f"redacted-{self._written:04}.tape")
        keep = [*self._choices.get("keep", ()), *(p for one in kept for p in one.patterns)]
        try:
            report = redact(
                self._tape, path, keep=keep, shapes_only=self._choices.get("shapes_only", ())
            )
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


def _removed_places(tape: Tape, asked: Mapping[Way, Sequence[str]]) -> list[_RemovedPlace]:
    """The places of the values that redaction removes by default, in the order of the calls.

    Raises:
        TapeError: a call is damaged.
    """
    treatments = Treatments(dict(asked), tape.signature)
    defaults = [one.default for one in tape.signature.parameters if one.default is not None]
    numbers = long_numbers(tape, treatments).replaced
    fates = Fates(treatments, Pseudonyms(defaults), tape.signature, Replaced(), {}, numbers)
    facts: dict[str, str] = {}
    groups: dict[str, set[str]] = {}
    for call in tape.calls:
        for shared in _removed(call, fates):
            group = set(shared).union(*(groups.get(path, ()) for path in shared))
            groups.update(dict.fromkeys(group, group))
            for path, words in shared.items():
                facts.setdefault(path, words)
    found: dict[int, _RemovedPlace] = {}
    for path, words in facts.items():
        group = groups[path]
        patterns = tuple(glob.escape(one) for one in facts if one in group)
        name = list(names_of_path(path, tape.signature))[-1]
        found.setdefault(id(group), _RemovedPlace(name, patterns, words))
    return list(found.values())


def _removed(call: Call, fates: Fates) -> Iterator[dict[str, str]]:
    """For each value of a call that is removed, its paths, each with words about it."""
    record = call.record
    sides: tuple[tuple[Side, Tree | None, str], ...] = (
        ("inputs", record.inputs, ""), ("outputs", record.outputs, "outputs")
    )  # fmt: skip
    for side, tree, root in sides:
        if tree is None:
            continue
        spec = tree.spec()
        plan = TreePlan(spec, root, fates)
        found: dict[object, dict[str, str]] = {}
        for path, node in nodes_with_paths(spec.root, root):
            if not path or fates.treatments.of(path) is not None:
                continue
            words = _words(call, side, tree, node, plan)
            if words:
                found.setdefault(_value_of(node, path), {})[path] = words
        yield from found.values()


def _value_of(node: Node, path: str) -> object:
    if isinstance(node, TensorNode):
        return "leaf", node.leaf
    return ("scalar", node.scalar) if isinstance(node, ScalarNode) else path


def _words(call: Call, side: Side, tree: Tree, node: Node, plan: TreePlan) -> str:
    """What is removed there; empty if nothing is."""
    if isinstance(node, TensorNode):
        leaf = tree.facts()[node.leaf]
        if leaf.key is None:
            return ""
        data = call.stored(side, node.leaf)
        return f"{leaf.dtype}{list(leaf.shape)}{'' if any(data or b'') else ', all 0'}"
    if isinstance(node, ScalarNode):
        value: Any = tree.scalars[node.scalar]
        if plan.keeps(node.scalar, value):
            return ""
        is_text = node.kind in ("str", "bytes")
        return f"{node.kind} of length {len(value)}" if is_text else node.kind
    return "a member of an enum" if isinstance(node, EnumNode) and node.value is not None else ""
