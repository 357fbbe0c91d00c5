"""What a tape says besides its calls, without what is private.

Takes a manifest; returns one that is made of the listed facts of it, and of no others: without the
name of the host, without names of files, and with times that are relative to each other only.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, TypeVar

from calltape_analyzer.editing.rewriting import Revision
from calltape_analyzer.redacting.call_redaction import CallRedaction
from calltape_analyzer.redacting.vocabulary import (
    VERBS,
    are_patterns,
    is_code_name,
    is_default,
    plain_id,
    plain_platform,
    plain_reason,
    plain_version,
)
from calltape_schema.drop_reasons import DropReason
from calltape_schema.end import Coverage, Dump
from calltape_schema.fields import Record
from calltape_schema.inputs_table import InputsTable
from calltape_schema.privacy import without_text
from calltape_schema.records import (
    MINOR,
    VERSION,
    Manifest,
    Parameter,
    Policy,
    Producer,
    Source,
    Step,
    Target,
)

__all__ = ["BEGIN_NS", "TapeFacts"]

R = TypeVar("R", bound=Record)

BEGIN_NS = 946_684_800 * 10**9
"""When the first file of a redacted tape began, as it says: 2000-01-01, which is nobody's date."""


class TapeFacts(Revision):
    """Takes what is private out of everything that is no call.

    Args:
        calls: changes the calls of the same tape.
        keeps_words: whether the patterns stay that earlier redactions were asked for.
    """

    def __init__(self, calls: CallRedaction, *, keeps_words: bool = False) -> None:
        self._calls = calls
        self._keeps_words = keeps_words

    def manifest(self, manifest: Manifest) -> Manifest:
        observed = manifest.observed
        if observed is not None:
            since, reason = self.moment(observed.since_ns), plain_reason(observed.reason)
            observed = _only(observed, since_ns=since, reason=reason)
        history = manifest.history or ()
        policy = manifest.policy
        return Manifest(
            format="calltape",
            version=VERSION,
            minor=MINOR,
            tape=plain_id(manifest.tape),
            created_ns=self.moment(manifest.created_ns),
            producer=_producer(manifest.producer),
            target=manifest.target and _target(manifest.target),
            # The name of a predicate and patterns of paths are the host's words.
            policy=_only(policy, *(Policy.model_fields.keys() - {"keep", "leaf_values"})),
            segment=manifest.segment and _only(manifest.segment, "number", "first_call"),
            observed=observed,
            rank=manifest.rank and _only(manifest.rank, "number", "of"),
            history=(
                *map(self._earlier_step, history[:-1]),
                *(_step(own, own.options) for own in history[-1:]),
            ),
        )

    def unkept(self, table: InputsTable) -> InputsTable:
        return self._calls.unkept(table)

    def coverage(self, coverage: Coverage) -> Coverage:
        dropped = Counter[DropReason]()
        for reason, calls in coverage.dropped.items():
            dropped[reason if isinstance(reason, DropReason) else DropReason.OTHER] += calls
        return coverage.model_copy(update={"dropped": dict(dropped)})

    def dump(self, dump: Dump) -> Dump:
        when, reason = self.moment(dump.time_ns), without_text(dump.reason)
        return _only(dump, "calls", time_ns=when, reason=reason)

    def moment(self, time_ns: int) -> int:
        return self._calls.moment(time_ns)

    def _earlier_step(self, step: Step) -> Step:
        """A step without the words of who made it, but for the patterns of a redaction."""
        keeps = self._keeps_words and step.verb == "redact"
        options = tuple(
            (name, value if keeps and are_patterns(value) else without_text(value))
            for name, value in step.options
            if is_code_name(name)
        )
        return _step(step, options)


def _only(record: R, *names: str, **changes: Any) -> R:
    """A record with some fields of another one, and with these changes."""
    return type(record)(**{name: getattr(record, name) for name in names}, **changes)


def _producer(producer: Producer) -> Producer:
    names = ("calltape", "torch", "python", "transformers")
    given = {name: getattr(producer, name) for name in names}
    versions = {name: plain_version(text) for name, text in given.items() if text is not None}
    platform = None if producer.platform is None else plain_platform(producer.platform)
    return Producer(**versions, platform=platform)


def _target(target: Target) -> Target:
    signature, outside = target.signature, target.outside
    return _only(
        target, "type", "method", "via", "module",
        signature=None if signature is None else tuple(map(_parameter, signature)),
        outside=None if outside is None else tuple(filter(is_code_name, outside)),
    )  # fmt: skip


def _parameter(parameter: Parameter) -> Parameter:
    """A parameter. Its default is code: a number, a bool, or one word; the recorder writes no other
    text."""
    if is_default(parameter.default):
        return parameter
    return parameter.model_copy(update={"default": None, "default_missing": True})


def _step(step: Step, options: tuple[tuple[str, str], ...]) -> Step:
    """A step without names of files."""
    verb = step.verb if step.verb in VERBS else without_text(step.verb)
    tool = step.tool if is_code_name(step.tool) else without_text(step.tool)
    return Step(
        verb=verb, tool=tool, version=plain_version(step.version), tape=plain_id(step.tape),
        options=options, sources=tuple(map(_source, step.sources)),
    )  # fmt: skip


def _source(source: Source) -> Source:
    files = source.other_files + len(source.files)
    names = ("calls", "left_out", "first", "redacted", "parts")
    return _only(source, *names, tape=plain_id(source.tape), other_files=files)
