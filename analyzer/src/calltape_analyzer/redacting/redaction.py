"""``redact``: a copy of a tape without private data, in its calls, manifest, coverage and dumps."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from calltape_analyzer.editing.omission import leaf_document, without_value
from calltape_analyzer.editing.rewriting import EditReport, Rewrite, Rewriting, rewrite
from calltape_analyzer.limits import REDACTION_EFFORT, bounded
from calltape_analyzer.pytree.nodes import ReferencedOnly
from calltape_analyzer.reading.call import Call, Side
from calltape_analyzer.redacting.allowed_facts import check_file
from calltape_analyzer.redacting.plan import RedactionPlan, TreePlan
from calltape_analyzer.redacting.policy import KEEP, SHAPES_ONLY, Policy
from calltape_analyzer.redacting.private_data import varying_keys
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
from calltape_analyzer.tape import Tape, check_tape
from calltape_analyzer.text import counted, some_of
from calltape_analyzer.writing.output_file import (
    TemporaryFolder,
    compressor_of,
    copy_tape,
    move_into_place,
    reject_inputs,
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
    Producer,
    Range,
    Source,
    Step,
    Target,
    Tree,
)
from calltape_schema.tree import Leaf, decode_structure, encode_leaves

__all__ = ["BEGIN_NS", "Redaction", "copy_redacted", "redact"]

R = TypeVar("R", bound=Record)

BEGIN_NS = 946_684_800 * 10**9
"""When the first file of every redacted tape begins: 2000-01-01."""

_WORDS = {"keep", "leaf_values"}
"""Fields of the policy with the application's words: the name of a predicate, patterns of paths."""


class Redaction(Rewrite):
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

    def __init__(
        self, plan: RedactionPlan, created_ns: int, *, keeps_patterns: bool = False
    ) -> None:
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
            plain = kind.without_ints(plan.structure, lambda i: not plan.is_counted(i))
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
            policy=_only(manifest.policy, *(type(manifest.policy).model_fields.keys() - _WORDS)),
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
    shared = Counter(leaf.get("storage") for i, leaf in enumerate(leaves) if i in referenced)
    numbers: dict[int, int] = {}
    for leaf in leaves:
        storage = leaf.pop("storage", None)
        if storage is None or shared[storage] < 2:
            leaf.pop("offset", None)
        else:
            leaf["storage"] = numbers.setdefault(storage, len(numbers))
    return leaves


def _only(record: R, *names: str, **changes: Any) -> R:
    """A record with only these fields of another one, plus these changes."""
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


_MAX_NAMED = 8

Patterns = str | Sequence[str]


@bounded(effort=REDACTION_EFFORT)
def redact(
    tape: Tape,
    path: str | os.PathLike[str],
    *,
    keep: Patterns = (),
    shapes_only: Patterns = (),
    overwrite: bool = False,
) -> EditReport:
    """Writes a copy of a tape without what may identify a person or a machine.

    Tensors keep their shapes. Integer tensors keep a range: the one that tensors at the same place
    have over all calls. Texts, and keys of dicts that look like data, become ordinals: equal ones
    stay equal. Numbers that look like data are omitted, unless they are sizes of tensors of the
    same call. Exception messages and all outputs are omitted, times become relative, threads are
    renumbered, and the host name, file names and the kernel's build are removed. docs/privacy.md
    has a table.

    The new file is then read from its first byte to its last, and gets its name only if every byte
    belongs to a fact that a redacted tape may contain.

    Args:
        tape: the tape, or a part of one. It does not change.
        path: the path of the new file.
        keep: paths of values to keep, with the patterns of the recorder's ``values=``
            (``"past_key_values.*"``). If several patterns match, the longest one decides.
        shapes_only: paths of values to reduce to their shapes, without ordinals and ranges.
        overwrite: whether to replace an existing file.

    Raises:
        UsageError: for an empty path, or a path that is one of the tape's own files.
        RedactionError: if the result contains a fact that is not allowed; then no file is left.
        TapeError: ``exists``, ``io``, ``limit``; ``usage`` if the name ends with ``.tape.zst`` and
            Zstandard is not installed.
    """
    check_tape(tape, "redact")
    target = os.path.abspath(os.fspath(path))
    reject_inputs(target, tape.paths)
    compressor = compressor_of(target)
    if not overwrite and os.path.lexists(target):
        raise TapeError("exists", "it is there already", path=os.fspath(path))
    policy = Policy(tape.signature, _as_list(keep), _as_list(shapes_only))
    with _private_file(target) as new:
        report = _write_checked(tape, new, policy, "redact", policy.options)
        if compressor is None:
            move_into_place(new, target, overwrite=overwrite)
        else:
            copy_tape(new, target, overwrite=overwrite)
    unmatched = some_of(policy.unmatched, _MAX_NAMED)
    notes = [f"no value has a path like {unmatched}"] if unmatched else []
    return report.model_copy(update={"path": os.fspath(path)}).noting(*notes)


def copy_redacted(tape: Tape, path: str) -> EditReport:
    """Copies a tape whose history says that it was redacted, with all values. The history may be
    wrong, so the copy is made and checked as by :func:`redact`.

    Raises:
        RedactionError: the result contains a fact that is not allowed; then no file is left.
        TapeError: ``exists``, ``io``, ``limit``.
    """
    try:
        return _write_checked(tape, path, Policy(tape.signature, keep=["*"]), "filter", {})
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise


def _write_checked(
    tape: Tape, path: str, policy: Policy, verb: str, options: Mapping[str, Any]
) -> EditReport:
    """Writes the new tape, and checks it.

    Raises:
        RedactionError: it contains a fact that is not allowed.
    """
    plan = RedactionPlan(tape, policy)
    created_ns = min(manifest.created_ns for manifest in tape.manifests)
    redaction = Redaction(plan, created_ns, keeps_patterns=verb != "redact")
    how = Rewriting(
        verb, {**tape.selected, **options}, redaction, validate=True, allow_later_dtypes=True
    )
    report = rewrite(tape, path, tape.calls, len(tape.calls), how)
    check_file(path, policy)
    return report.noting(*_notes(tape, plan, redaction))


def _notes(tape: Tape, plan: RedactionPlan, redaction: Redaction) -> Iterator[str]:
    if redaction.unknown_dtypes:
        tensors = counted(redaction.unknown_dtypes, "tensor")
        yield f"{tensors} without values: only a later version knows the dtype"
    if redaction.omitted:
        yield f"{counted(redaction.omitted, 'tensor')} without values"
    if plan.omitted_numbers:
        yield (
            f"the numbers at {some_of(sorted(plan.omitted_numbers), _MAX_NAMED)} may be data and "
            f"are not on the new tape; name those that are settings in `{KEEP}`"
        )
    if plan.replaced_names:
        yield (
            f"the texts at {some_of(sorted(plan.replaced_names), _MAX_NAMED)} were replaced; "
            f"name those that are settings in `{KEEP}`"
        )
    if keys := varying_keys(tape):
        yield (
            f"the keys of the dicts at {some_of(keys, _MAX_NAMED)} differ from call to call, and "
            "stay where they are plain words; if they are names of persons, do not give the tape "
            "away"
        )
    if redaction.few_ranged:
        yield (
            "the smallest and the largest of few numbers stay, at "
            f"{some_of(sorted(redaction.few_ranged), _MAX_NAMED)}; `{SHAPES_ONLY}` omits them"
        )


def _as_list(patterns: Patterns) -> list[str]:
    return [patterns] if isinstance(patterns, str) else list(patterns)


@contextlib.contextmanager
def _private_file(target: str) -> Iterator[str]:
    """The path for a new file next to the final one, in a temporary folder that only the owner may
    read."""
    try:
        folder = TemporaryFolder(Path(target).with_name(f".redact-{secrets.token_hex(8)}"))
    except OSError as error:
        reason = f"cannot write it: {error.strerror or type(error).__name__}"
        raise TapeError("io", reason, path=target) from None
    with folder as path:
        yield str(path / "new.tape")
