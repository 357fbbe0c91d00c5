"""The records of a redacted tape: its calls, manifest, coverage and dumps without private data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from typing import Any, TypeVar

from calltape_analyzer.editing.omission import leaf_document, without_value
from calltape_analyzer.editing.rewriting import Change
from calltape_analyzer.pytree.nodes import ReferencedOnly
from calltape_analyzer.reading.call import Call, Side
from calltape_analyzer.redacting.plan import Plan, TreePlan
from calltape_analyzer.redacting.vocabulary import (
    VERBS,
    are_patterns,
    is_code_name,
    is_default,
    is_torch_name,
    plain_id,
    plain_platform,
    plain_reason,
    plain_version,
)
from calltape_schema.blob import INTEGER_FORMATS
from calltape_schema.drop_reasons import DropReason
from calltape_schema.end import Coverage, Dump
from calltape_schema.errors import TapeError
from calltape_schema.fields import Record
from calltape_schema.inputs_table import InputsTable, Kind
from calltape_schema.privacy import FEWEST_RANGED, is_setting, without_text
from calltape_schema.records import (
    MINOR,
    VERSION,
    CallRecord,
    Manifest,
    ModelError,
    Parameter,
    Policy,
    Producer,
    Range,
    Source,
    Step,
    Target,
    Tree,
)
from calltape_schema.tree import Leaf, decode_structure, encode_leaves

__all__ = ["BEGIN_NS", "Redaction"]

R = TypeVar("R", bound=Record)

BEGIN_NS = 946_684_800 * 10**9
"""When the first file of every redacted tape begins: 2000-01-01."""


class Redaction(Change):
    """Removes private data from one tape.

    Args:
        plan: the plan for this tape.
        created_ns: when the first file of the tape began.
        keeps_patterns: whether the history keeps the patterns of earlier redactions.

    Attributes:
        omitted: how many tensors lost their values.
        unknown_dtypes: how many more lost them because only a later version knows their dtype.
        few_ranged: places of integer tensors with so few elements in all calls that their range may
            reveal one of them.
    """

    def __init__(self, plan: Plan, created_ns: int, *, keeps_patterns: bool = False) -> None:
        self._plan = plan
        self._shift = BEGIN_NS - created_ns
        self._keeps_patterns = keeps_patterns
        self._referenced = ReferencedOnly()
        self.omitted = self.unknown_dtypes = 0
        self.few_ranged: set[str] = set()

    def time(self, time_ns: int) -> int:
        return min(max(time_ns + self._shift, 0), 2**63 - 1)

    # --- calls -------------------------------------------------------------------------------

    def call(self, call: Call) -> tuple[CallRecord, dict[str, Any]]:
        record = call.record
        stored: dict[str, tuple[str, Any]] = {}
        changes: dict[str, Any] = {
            "inputs": self._tree(call, "inputs", record.inputs, stored),
            "time_ns": self.time(record.time_ns),
            "thread": self._plan.ordinals.thread(record.thread),
            "outputs_missing": record.outputs_missing and plain_reason(record.outputs_missing),
        }
        if record.outputs is not None:
            changes["outputs"] = self._tree(call, "outputs", record.outputs, stored)
        if record.error is not None:
            message = without_text(record.error.message)
            changes["error"] = ModelError(type=record.error.type, message=message)
        return record.model_copy(update=changes), dict(stored.values())

    def unkept(self, table: InputsTable) -> InputsTable:
        return table.changed(self._kind)

    def _kind(self, kind: Kind) -> Kind | None:
        if not all(map(is_torch_name, kind.dtypes)):
            return None
        try:
            plan = self._plan.of(kind.structure, decode_structure(kind.structure), "")
            plain = kind.without_ints(plan.structure, lambda at: not plan.is_counted(at))
            return self._referenced.kind(plain)
        except TapeError:
            return None

    def _tree(self, call: Call, side: Side, tree: Tree, stored: dict[str, tuple[str, Any]]) -> Tree:
        """A tree of the new tape. Adds the bytes of its tensors to ``stored``: by their old key, a
        new key and the bytes."""
        plan = self._plan.of(tree.structure, tree.spec(), "" if side == "inputs" else side)
        leaves = [
            self._leaf(call, side, number, leaf, plan, stored)
            for number, leaf in enumerate(tree.facts())
        ]
        redacted = Tree.model_construct(
            structure=plan.structure,
            leaves=encode_leaves(_with_renumbered_storages(leaves, plan.tensors)),
            scalars=tuple(plan.scalar(number, value) for number, value in enumerate(tree.scalars)),
            ranges=self._ranges(tree, plan) if side == "inputs" else (),
        )
        return self._referenced.tree(redacted)

    def _leaf(
        self, call: Call, side: Side, number: int, leaf: Leaf, plan: TreePlan,
        stored: dict[str, tuple[str, Any]],
    ) -> dict[str, Any]:  # fmt: skip
        """The encoded facts of a tensor of the new tape.

        Raises:
            TapeError: ``unsupported`` if the dtype has no name that torch may have; the call is
                corrupted.
        """
        if leaf.key is None:
            return {**leaf_document(leaf), "missing": plain_reason(leaf.missing or "")}
        if not is_torch_name(leaf.dtype):  # it may be text of the model, so the call is left out
            raise TapeError("unsupported", f"a tensor of call {call.number} has an unknown dtype")
        fate = plan.tensors.get(number)
        if fate is None or fate.elements != "kept":
            self.omitted += 1
            return without_value(leaf)
        if leaf.key not in stored:
            try:
                data = call.stored(side, number)
            except TapeError as error:
                if error.kind != "unsupported":
                    raise
                self.unknown_dtypes += 1
                return {**without_value(leaf), "missing": plain_reason(f"dtype {leaf.dtype}")}
            # A recorder uses the path as key, which may contain a private dict key.
            stored[leaf.key] = f"t{len(stored)}", data
        return {**leaf_document(leaf), "key": stored[leaf.key][0]}

    def _ranges(self, tree: Tree, plan: TreePlan) -> tuple[Range, ...]:
        ranges: dict[int, Range] = {}
        facts = tree.facts()
        for span in tree.ranges:
            fate, dtype = plan.tensors.get(span.leaf), facts[span.leaf].dtype
            if fate is None or fate.range == "omitted" or dtype not in INTEGER_FORMATS:
                continue
            if fate.range == "kept":
                ranges.setdefault(span.leaf, span)
                continue
            whole = self._plan.range(fate.name, dtype)
            if whole is None:
                continue
            ranges[span.leaf] = Range(leaf=span.leaf, min=whole.min, max=whole.max)
            are_settings = is_setting(whole.min) and is_setting(whole.max)
            if whole.elements < FEWEST_RANGED and not are_settings:
                self.few_ranged.add(fate.name)
        return tuple(ranges.values())

    # --- everything else ---------------------------------------------------------------------

    def manifest(self, manifest: Manifest) -> Manifest:
        observed = manifest.observed
        if observed is not None:
            since, reason = self.time(observed.since_ns), plain_reason(observed.reason)
            observed = _only(observed, since_ns=since, reason=reason)
        history = manifest.history or ()
        return Manifest(
            format="calltape",
            version=VERSION,
            minor=MINOR,
            tape=plain_id(manifest.tape),
            created_ns=self.time(manifest.created_ns),
            producer=_producer(manifest.producer),
            target=manifest.target and _target(manifest.target),
            # The name of a predicate and patterns of paths are the application's words.
            policy=_only(manifest.policy, *(Policy.model_fields.keys() - {"keep", "leaf_values"})),
            segment=manifest.segment and _only(manifest.segment, "number", "first_call"),
            observed=observed,
            rank=manifest.rank and _only(manifest.rank, "number", "of"),
            history=(
                *map(self._earlier_step, history[:-1]),
                *(_step(this_one, this_one.options) for this_one in history[-1:]),
            ),
        )

    def coverage(self, coverage: Coverage) -> Coverage:
        dropped = Counter[DropReason]()
        for reason, calls in coverage.dropped.items():
            dropped[reason if isinstance(reason, DropReason) else DropReason.OTHER] += calls
        return coverage.model_copy(update={"dropped": dict(dropped)})

    def dump(self, dump: Dump) -> Dump:
        return _only(
            dump, "calls", time_ns=self.time(dump.time_ns), reason=without_text(dump.reason)
        )

    def _earlier_step(self, step: Step) -> Step:
        """A step whose options lose their text, except for the patterns of a redaction."""
        keeps = self._keeps_patterns and step.verb == "redact"
        options = tuple(
            (name, value if keeps and are_patterns(value) else without_text(value))
            for name, value in step.options
            if is_code_name(name)
        )
        return _step(step, options)


def _with_renumbered_storages(
    leaves: list[dict[str, Any]], referenced: Container[int]
) -> list[dict[str, Any]]:
    """Removes storages that referenced tensors do not share, and renumbers the others."""
    shared = Counter(leaf.get("storage") for at, leaf in enumerate(leaves) if at in referenced)
    numbers: dict[int, int] = {}
    for leaf in leaves:
        storage = leaf.pop("storage", None)
        if storage is None or shared[storage] < 2:
            leaf.pop("offset", None)
        else:
            leaf["storage"] = numbers.setdefault(storage, len(numbers))
    return leaves


def _only(record: R, *names: str, **changes: Any) -> R:
    """A record with only these fields of another one, and with these changes."""
    return type(record)(**{name: getattr(record, name) for name in names}, **changes)


def _producer(producer: Producer) -> Producer:
    names = ("calltape", "torch", "python", "transformers")
    texts = {name: getattr(producer, name) for name in names}
    versions = {name: plain_version(text) for name, text in texts.items() if text is not None}
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
    """A parameter, without a default that no recorder writes."""
    if is_default(parameter.default):
        return parameter
    return parameter.model_copy(update={"default": None, "default_missing": True})


def _step(step: Step, options: tuple[tuple[str, str], ...]) -> Step:
    """A step of the history without file names."""
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
