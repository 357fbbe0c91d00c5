"""``private_data``: what on a tape may identify a person or a machine.

A finding names a place and a kind, the number of calls, and what to do. It never contains a value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from calltape_analyzer.editing.omission import shown_path
from calltape_analyzer.errors import is_damage
from calltape_analyzer.limits import bounded
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.plain_data import PlainData, Sketch, Text
from calltape_analyzer.pytree.nodes import names_of_children, placed_nodes, unreferenced
from calltape_analyzer.reading.call import Call
from calltape_analyzer.redacting.policy import is_ordinal, number_fact
from calltape_analyzer.redacting.vocabulary import plain_platform
from calltape_analyzer.tape import Tape, check_tape
from calltape_analyzer.text import counted, merge_alike, printable, some_of
from calltape_schema.errors import TapeError
from calltape_schema.privacy import is_name, is_without_text
from calltape_schema.recent import Recent
from calltape_schema.records import Redacted, Tree
from calltape_schema.remedies import Remedy
from calltape_schema.tree import (
    DictNode,
    EnumNode,
    FieldsNode,
    Leaf,
    ScalarNode,
    TensorNode,
    children_of,
)

__all__ = ["PrivateData", "PrivateFinding", "private_data"]

_MAX_FINDINGS = 10_000
_INTEGERS = frozenset({"int64", "int32", "uint32", "uint64"})
_IMAGE_CHANNELS = frozenset({1, 3, 4})
_LEAST_IMAGE = 16
_LEAST_SAMPLES = 4000
_MAX_PLACES = 10_000
_ARGUMENTS = ("", "kwargs")
"""Calls may pass different keyword arguments. Their names are code."""

_OUT, _ALL_OUT = "`calltape redact` takes it out", "`calltape redact` takes them out"
_NEVER = Remedy(
    "record with values={'EXACT': 'none'} to never write it",
    "a recorder that omits EXACT never writes it",
)
_KINDS: dict[str, tuple[str, str | Remedy]] = {
    "text": ("text", _NEVER.after("`calltape redact` replaces it; ")),
    "unreferenced": (
        "values that nothing refers to, and that no recorder writes",
        f"{_ALL_OUT}; `calltape show` counts them",
    ),
    "key": (
        "a key that looks like data",
        "`calltape redact` replaces keys that look like data; a key that is a plain word stays",
    ),
    "varying_keys": (
        "keys that differ from call to call",
        "they stay, because nothing tells a name of a person from another word; if they are such "
        "names, record no dict of them",
    ),
    "exception": (
        "the message of an exception", "`calltape redact` keeps its class and its length"
    ),
    "files": ("names of files", _ALL_OUT),
    "host": ("the host's name", _OUT),
    "enum_value": ("the value of an enum", _OUT),
    "dump": ("the reason of a dump", "`calltape redact` keeps the length of the reason"),
    "token_ids": ("whole numbers that may be token ids", _ALL_OUT),
    "image": ("numbers that may be an image", _OUT),
    "audio": ("numbers that may be audio", _OUT),
    "long_list": ("a long list of numbers", "`calltape redact` takes its numbers out"),
    "values": ("values of a tensor", _ALL_OUT),
    "number": (
        "a number that may be data",
        _NEVER.after("`calltape redact` takes it out; "),
    ),
    "time": (
        "the date, and when each call began",
        "`calltape redact` keeps how long calls took and how far apart they were, and no date",
    ),
    "thread": ("ids of threads", "`calltape redact` renumbers threads"),
    "platform": (
        "the build of the operating system",
        "`calltape redact` keeps the system and the architecture",
    ),
    "policy": (
        "what the recorder was asked to keep",
        "`calltape redact` takes the recorder's words and patterns out",
    ),
    "module": (
        "names of modules and classes",
        "they stay, because they say what was recorded; rename the class if its name is a secret",
    ),
}  # fmt: skip
"""Description and advice for each kind, the most harmful first. ``EXACT`` stands for the path to
pass to ``values=``."""
_ORDER = {kind: number for number, kind in enumerate(_KINDS)}
_ALWAYS_NAMED = frozenset({"text", "unreferenced", "key", "varying_keys", "exception"})
"""Kinds that may contain whole texts of a person. A summary never omits them."""


class PrivateFinding(PlainData):
    """One thing that may identify a person or a machine. ``str()`` of it is text for people.

    Attributes:
        kind: ``text``, ``token_ids``, ``image``, ``audio``, ``values``, ``long_list``, ``number``,
            ``key``, ``varying_keys``, ``unreferenced``, ``enum_value``, ``exception``, ``thread``,
            ``time``, ``host``, ``platform``, ``files``, ``module``, ``policy`` or ``dump``.
        place: the path in a call (``prompt``, ``outputs.text``), with a star for each key that
            looks like data (``users.*``); None if it is about a call or the tape as a whole.
        calls: how many calls have it; None if it is about the tape.
        call: the address of the call, if calls are listed one by one.
        advice: what to do about it.
    """

    kind: str
    place: Text | None = None
    calls: int | None = None
    call: str | None = None
    advice: Text

    def summary(self) -> str:
        """Description, place and number of calls, without advice."""
        where = "" if self.place is None else f" at {printable(self.place)}"
        calls = "" if self.calls is None else f" ({counted(self.calls, 'call')})"
        return f"{_KINDS[self.kind][0]}{where}{calls}"

    def __str__(self) -> str:
        which = "" if self.call is None else f"call {self.call}: "
        return f"{which}{self.summary()}: {self.advice}."


class PrivateData(PlainData):
    """What a tape reveals. ``str()`` of it is text for people.

    Attributes:
        calls: how many calls were examined.
        findings: by place; or by call, if you asked for that.
        more: how many findings are not listed because there are too many.
        redacted: ``all`` if all calls were redacted; then the remaining texts and numbers are those
            that its history says were kept. ``part`` if only some calls were redacted, None if
            none was.
        never: what no tape contains, in words.
    """

    calls: int
    findings: tuple[PrivateFinding, ...] = ()
    more: int = 0
    redacted: Redacted | None = None
    never: Text = (
        "never on a tape: environment variables, the command line, the user's name, process ids, "
        "paths, source code, weights"
    )

    def __repr__(self) -> str:
        findings = counted(len(self.findings) + self.more, "finding")
        state = {None: "", "part": ", a part is redacted", "all": ", redacted"}[self.redacted]
        return f"<PrivateData of {counted(self.calls, 'call')}: {findings}{state}>"

    def _sketch(self) -> Sketch:
        rows = [
            (
                finding.call or "",
                _KINDS[finding.kind][0],
                finding.place or "",
                "" if finding.calls is None else finding.calls,
                finding.advice,
            )
            for finding in self._joined()
        ]
        facts = [("calls", self.calls), ("findings", len(self.findings) + self.more)]
        head = ("call", "what", "where", "calls", "advice")
        total, note = len(rows) + self.more, ". ".join(self._notes())
        return Sketch("PrivateData", facts, head=head, rows=rows, total=total, note=note)

    def __str__(self) -> str:
        lines = [str(finding) for finding in self._joined()]
        if self.more:
            lines.append(f"and {self.more} more")
        return "\n".join([*lines, *self._notes()])

    def short(self, most: int) -> str | None:
        """The findings in one line, with advice; None if there are none.

        Args:
            most: how many findings to name. All texts, keys and exceptions are named in any case.
        """
        findings = self._joined()
        if not findings:
            return None
        most = max(most, sum(finding.kind in _ALWAYS_NAMED for finding in findings))
        named = [finding.summary() for finding in findings]
        advice = {
            None: "`calltape redact` makes a tape that can be given away",
            "part": "Only a part of the tape was redacted; `calltape redact` redacts all of it",
            "all": "The tape was redacted, and this is left",
        }[self.redacted]
        return f"{some_of(named, most, '; ')}. {advice}"

    def _joined(self) -> list[PrivateFinding]:
        """The findings to show: one for places that differ only in positions in lists, and the
        most harmful of each call first."""
        groups: dict[tuple[str, str | None], list[PrivateFinding]] = {}
        for finding in self.findings:
            if finding.place is not None:
                groups.setdefault((finding.kind, finding.call), []).append(finding)
        joined: list[PrivateFinding] = []
        for (kind, call), group in groups.items():
            places = {finding.place for finding in group}
            for place, calls in merge_alike((f.place or "", f.calls) for f in group):
                # A place that stands for several is not a path that one can paste.
                advice = _advice(kind, place if place in places else "PATH")
                joined.append(
                    PrivateFinding(kind=kind, place=place, calls=calls, call=call, advice=advice)
                )
        joined += (finding for finding in self.findings if finding.place is None)
        order = {call: number for number, call in enumerate(dict.fromkeys(o.call for o in joined))}
        return sorted(joined, key=lambda finding: (order[finding.call], _ORDER[finding.kind]))

    def _notes(self) -> Iterator[str]:
        if self.redacted == "part":
            yield (
                "only a part of the tape was redacted: it was made of redacted tapes and of "
                "others; `calltape redact` redacts all of it"
            )
        if self.redacted == "all":
            yield (
                "the tape was redacted: what is left of texts and numbers was kept, as its history "
                "says"
            )
        yield self.never


def _advice(kind: str, place: str = "") -> str:
    # Only a path without wildcards omits numbers.
    exact = place.partition(".*")[0].replace("*", "PATH")
    return str(_KINDS[kind][1]).replace("EXACT", printable(exact))


@bounded()
def private_data(tape: Tape, *, by_call: bool = False) -> PrivateData:
    """Finds what may identify a person or a machine. Reads records, but no tensor values.

    Args:
        tape: the tape, or a part of one.
        by_call: whether to list each call separately.

    Raises:
        UsageError: this is not a tape.
    """
    check_tape(tape, "private_data")
    counts: dict[tuple[str, str | None, str | None], int] = {}
    by_tree = Recent()
    # By path of a dict whose keys differ from call to call, the keys that do not.
    fixed_keys = {
        path: frozenset(str(name[1]) for name in names if isinstance(name, tuple))
        for path, names in tape.signature.data_keys().items()
    }
    examined = more = 0
    for call in tape.calls:
        try:
            kinds = dict.fromkeys(_of_call(call, tape, by_tree, fixed_keys))
        except TapeError as error:
            if not is_damage(error):
                raise
            continue  # the tape's damage lists it
        examined += 1
        for kind, place in kinds:
            key = kind, place, call.address if by_call else None
            if key in counts or len(counts) < _MAX_FINDINGS:
                counts[key] = counts.get(key, 0) + 1
            else:
                more += 1
    findings = [
        PrivateFinding(
            kind=kind, place=place, calls=None if by_call else calls, call=address,
            advice=_advice(kind, place or ""),
        )
        for (kind, place, address), calls in counts.items()
    ]  # fmt: skip
    of_tape: list[tuple[str, str | None]] = [
        ("varying_keys", place) for place in varying_keys(tape)
    ]
    of_tape += ((kind, None) for kind in dict.fromkeys(_of_tape(tape, examined)))
    findings += (PrivateFinding(kind=k, place=p, advice=_advice(k)) for k, p in of_tape)
    return PrivateData(calls=examined, findings=tuple(findings), more=more, redacted=tape.redacted)


def _of_call(
    call: Call, tape: Tape, by_tree: Recent, fixed_keys: Mapping[str, frozenset[str]]
) -> Iterator[tuple[str, str | None]]:
    """Kinds and places of a call's findings."""
    record = call.record
    for tree, root in ((record.inputs, ""), (record.outputs, "outputs")):
        if tree is not None:
            key = tree.structure, tree.leaves, tree.ranges, tuple(tree.scalars), root
            size = 2 * len(tree.structure) + len(tree.leaves)
            findings: list[tuple[str, str]] = by_tree.once(
                key, partial(list, _of_tree(tree, root, tape.signature)), size
            )
            for path, kind in findings:
                if not path:
                    yield kind, None
                    continue
                place = shown_path(path, tape.signature)
                for dict_path, names in fixed_keys.items():
                    if place.startswith(f"{dict_path}."):
                        name, dot, below = place[len(dict_path) + 1 :].partition(".")
                        if name not in names:
                            place = f"{dict_path}.*{dot}{below}"
                yield kind, place
    if record.error is not None and not is_without_text(record.error.message):
        yield "exception", None


def _of_tree(tree: Tree, root: str, signature: Signature) -> Iterator[tuple[str, str]]:
    if any(unreferenced(tree)):
        yield "", "unreferenced"
    facts = tree.facts()
    masks = {span.leaf for span in tree.ranges if span.min >= 0 and span.max <= 1}
    sizes = {size for leaf in facts for size in leaf.shape}
    defaults = {(type(parameter.default), parameter.default) for parameter in signature.parameters}
    for placed in placed_nodes(tree.spec().root, root, signature.positional):
        path, node = placed.pattern, placed.node
        if isinstance(node, ScalarNode) and node.kind in ("str", "bytes"):
            value = tree.scalars[node.scalar]
            if value and not is_ordinal(value):
                yield path, "text"
        elif isinstance(node, ScalarNode):
            fact = number_fact(tree.scalars[node.scalar], sizes, defaults)
            if fact == "number" and not (placed.in_list or placed.in_cache):
                yield path, "number"
        elif isinstance(node, TensorNode) and facts[node.leaf].key is not None:
            kinds = _looks_like(facts[node.leaf], is_mask=node.leaf in masks) or ("values",)
            yield from ((path, kind) for kind in kinds)
        elif isinstance(node, EnumNode) and isinstance(node.value, str | bytes):
            yield path, "enum_value"
        elif placed.is_data:
            if any(isinstance(child, ScalarNode) for child in children_of(node)):
                yield path, "long_list"
        elif isinstance(node, DictNode | FieldsNode):
            names: Any = names_of_children(node)
            if any(not is_name(name) and not is_ordinal(str(name)) for name in names):
                yield path, "key"


def _looks_like(leaf: Leaf, *, is_mask: bool) -> tuple[str, ...]:
    """What the values of a tensor may be, by its dtype and shape: ``token_ids``, ``image`` or
    ``audio``. A mask, whose elements are all 0 or 1, has no ids, but may be a scanned page."""
    if leaf.dtype in _INTEGERS and len(leaf.shape) in (1, 2) and max(leaf.shape, default=0) > 1:
        return () if is_mask else ("token_ids",)
    if not leaf.dtype.startswith(("float", "bfloat", "uint8")) or not leaf.shape:
        return ()
    sizes = leaf.shape
    if len(sizes) in (3, 4):
        first, second, third = sizes[-3:]
        for channels, height, width in ((first, second, third), (third, first, second)):
            if channels in _IMAGE_CHANNELS and min(height, width) >= _LEAST_IMAGE:
                return ("image",)
    if len(sizes) <= 3 and leaf.shape[-1] >= _LEAST_SAMPLES:
        return ("audio",)
    return ()


def _of_tape(tape: Tape, calls: int) -> Iterator[str]:
    if calls and tape.redacted != "all":
        yield from ("thread", "time")
    for manifest in tape.manifests:
        producer, policy = manifest.producer, manifest.policy
        sources = [source for step in manifest.history or () for source in step.sources]
        if producer.host is not None or any(source.host is not None for source in sources):
            yield "host"
        if producer.platform is not None and plain_platform(producer.platform) != producer.platform:
            yield "platform"
        if any(source.files for source in sources):
            yield "files"
        if policy.keep is not None or policy.leaf_values:
            yield "policy"
        if manifest.target is not None:
            yield "module"
    if any(not is_without_text(dump.reason) for dump in tape.dumps):
        yield "dump"


def varying_keys(tape: Tape) -> list[str]:
    """Paths of the dicts whose keys differ from call to call, although they are plain words.

    Redaction keeps plain words, because nothing distinguishes ``alice`` from ``image``. Names of
    settings are the same in all calls, though, and names of users are not. Keys that look like data
    are replaced, and do not count here.
    """
    first: dict[str, frozenset[Any]] = {}
    varying: dict[str, None] = {}
    visited: set[tuple[str, bytes]] = set()
    for call in tape.calls:
        for tree, root in ((call.record.inputs, ""), (call.record.outputs, "outputs")):
            if tree is None or (root, tree.structure) in visited:
                continue
            visited.add((root, tree.structure))
            for placed in placed_nodes(tree.spec().root, root):
                node, path = placed.node, placed.pattern
                if not isinstance(node, DictNode) or placed.path in _ARGUMENTS:
                    continue
                keys = frozenset(k for k in node.keys if isinstance(k, str) and is_name(k))
                if len(first) < _MAX_PLACES and first.setdefault(path, keys) != keys:
                    varying[path] = None
    return [shown_path(path, tape.signature) for path in varying]
