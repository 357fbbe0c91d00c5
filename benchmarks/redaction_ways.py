"""The ways to redact that :mod:`benchmarks.redacting` tries, and what each has to take out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from tests.analyzer.redacting.leaks import encoded, numbers, rows, texts
from tests.fixture_files import FIXTURES

from calltape_analyzer import Tape
from calltape_analyzer.pytree.node_paths import nodes_with_paths
from calltape_schema.packing import pack
from calltape_schema.tree import DictNode, FieldsNode, ScalarNode, TensorNode

__all__ = ["WAYS", "Secrets", "Way"]

_LEAST_TEXT, _LEAST_ROW, _LEAST_NUMBER = 6, 3, 9
_MOST_PATHS = 300
_BITS = 40.0
"""Rows that say less are found by chance, where other numbers of the same range are kept."""


class Secrets:
    """What is on a tape.

    Args:
        tape: as it was recorded.
    """

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    @cached_property
    def texts(self) -> list[bytes]:
        """Every text that only a call has. Words of the format, of the code and of the structures
        are in a tape anyway."""
        found = {encoded(one) for one in texts(self._tape)}
        words = self._words
        return [one for one in found if len(one) >= _LEAST_TEXT and one not in words]

    @cached_property
    def rows(self) -> list[torch.Tensor]:
        """Every row of three or more different numbers."""
        return [row for row in rows(self._tape) if len(set(row.tolist())) >= _LEAST_ROW]

    @cached_property
    def numbers(self) -> set[bytes]:
        """Every number that is an argument, or was returned, as it stands on a tape. Shorter ones
        are found by chance."""
        defaults = {pack(parameter.default) for parameter in self._tape.signature.parameters}
        return {one for one in numbers(self._tape) if len(one) >= _LEAST_NUMBER} - defaults

    @cached_property
    def _words(self) -> bytes:
        found = [(FIXTURES.parent / "schema" / "FORMAT.md").read_text()]
        found += (str(manifest.target) for manifest in self._tape.manifests)
        for call in self._tape.calls:
            for tree in (call.record.inputs, call.record.outputs):
                for _, node in nodes_with_paths(tree.spec().root) if tree is not None else ():
                    names: Any = getattr(node, "type", "")
                    if isinstance(node, DictNode | FieldsNode):
                        names = node.keys if isinstance(node, DictNode) else node.fields
                    found.append(str(names))
        return "\n".join(dict.fromkeys(found)).encode("utf-8", "surrogatepass")

    @cached_property
    def first(self) -> str:
        """The path of a tensor or a text of the first call."""
        for path, node in nodes_with_paths(self._tape.calls[0].record.inputs.spec().root):
            if isinstance(node, TensorNode | ScalarNode):
                return path
        return ""

    def paths(self, kind: str) -> list[str]:
        """The paths of ids, floats or texts."""
        return list(self._paths.get(kind, ()))[:_MOST_PATHS]

    @cached_property
    def _paths(self) -> dict[str, dict[str, None]]:
        found: dict[str, dict[str, None]] = {}
        for call in self._tape.calls:
            record = call.record
            for root, tree in (("", record.inputs), ("outputs", record.outputs)):
                for path, node in nodes_with_paths(tree.spec().root, root) if tree else ():
                    kind = node.kind if isinstance(node, ScalarNode) else ""
                    if isinstance(node, TensorNode) and tree is not None:
                        kind = "floats" if "float" in tree.facts()[node.leaf].dtype else "ids"
                    found.setdefault(kind, {})[path] = None
        return found

    @cached_property
    def kept(self) -> set[bytes]:
        """What stands at that path, and may stand elsewhere too."""
        found: set[bytes] = set()
        for call in self._tape.calls:
            tree = call.record.inputs
            for path, node in nodes_with_paths(tree.spec().root):
                if path != self.first:
                    continue
                if isinstance(node, ScalarNode):
                    value = tree.scalars[node.scalar]
                    found |= {encoded(value)} if isinstance(value, str | bytes) else set()
                if isinstance(node, TensorNode) and tree.facts()[node.leaf].key is not None:
                    found.add(bytes(call.stored("inputs", node.leaf) or b""))
        return found


@dataclass(frozen=True)
class Way:
    """One way to redact.

    Attributes:
        name: for people.
        options: of :func:`~calltape_analyzer.redact`.
        hides: whether a row must not be on the new tape.
        keeps_ranges: whether findings tell the ranges that they told.
        fits: whether a tape has what it is for.
    """

    name: str
    options: Callable[[Secrets], dict[str, Any]]
    hides: Callable[[torch.Tensor], bool] = lambda row: True
    keeps_ranges: bool = True
    fits: Callable[[Secrets], bool] = lambda secrets: True

    def private(self, secrets: Secrets) -> tuple[list[bytes], list[bytes]]:
        """The texts and the rows that are to be gone."""
        gone = list(dict.fromkeys(_bytes(row) for row in secrets.rows if self.hides(row)))
        if "keep" not in self.options(secrets):
            return secrets.texts, gone
        kept = secrets.kept
        return (
            [one for one in secrets.texts if one not in kept],
            [one for one in gone if not any(one in whole for whole in kept)],
        )


def _bytes(row: torch.Tensor) -> bytes:
    return row.contiguous().numpy().tobytes()


def _is_an_id_row(row: torch.Tensor) -> bool:
    """Whether a row is to be gone under --permute: floats, and whole numbers that say something. A
    mask says little. Positions, which follow each other, and offsets, which begin at 0 and are in
    order, stay, as docs/privacy.md says."""
    if row.dtype.is_floating_point:
        return True
    steps = row[1:] - row[:-1]
    are_positions = bool((steps == 1).all())
    are_offsets = int(row[0]) == 0 and bool((steps >= 0).all())
    return _says_something(row) and not are_positions and not are_offsets


def _is_signal(row: torch.Tensor) -> bool:
    """Whether a row is to be gone under --noise: it is finite, and says something. Few small
    integers are drawn again by chance."""
    if not row.dtype.is_floating_point:
        return _says_something(row)
    return bool(row.isfinite().all()) and len(set(row.tolist())) * 16 >= _BITS


def _says_something(row: torch.Tensor) -> bool:
    return len(set(row.tolist())) * math.log2(max(int(row.max()), 1)) >= _BITS


def _way(option: str, kind: str, hides: Callable[[torch.Tensor], bool] = lambda row: True) -> Way:
    """An option with all paths of one kind."""
    name = option.removeprefix("--")
    return Way(
        f"{option} {kind}", lambda secrets: {name: secrets.paths(kind)}, hides,
        keeps_ranges=name == "hash", fits=lambda secrets: bool(secrets.paths(kind)),
    )  # fmt: skip


WAYS = (
    Way("defaults", lambda secrets: {}),
    _way("--hash", "str"),
    Way("--shapes-only '*'", lambda secrets: {"shapes_only": "*"}, keeps_ranges=False),
    _way("--permute", "ids", _is_an_id_row),
    _way("--noise", "floats", _is_signal),
    Way("--hash '*'", lambda secrets: {"hash": "*"}),
    Way("--permute '*'", lambda secrets: {"permute": "*"}, _is_an_id_row, keeps_ranges=False),
    Way("--noise '*'", lambda secrets: {"noise": "*"}, _is_signal, keeps_ranges=False),
    Way("--keep ONE", lambda secrets: {"keep": secrets.first}, fits=lambda s: bool(s.first)),
)
"""Every policy by itself, for the paths that it is for and for all; and one leaf that is kept."""
