"""The ways to redact that :mod:`benchmarks.redacting` tries, and what each has to take out."""

from __future__ import annotations

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
        keeps_ranges: whether findings tell the ranges that they told.
        fits: whether a tape has what it is for.
    """

    name: str
    options: Callable[[Secrets], dict[str, Any]]
    keeps_ranges: bool = True
    fits: Callable[[Secrets], bool] = lambda secrets: True

    def private(self, secrets: Secrets) -> tuple[list[bytes], list[bytes]]:
        """The texts and the rows that are to be gone."""
        gone = list(dict.fromkeys(_bytes(row) for row in secrets.rows))
        if "keep" not in self.options(secrets):
            return secrets.texts, gone
        kept = secrets.kept
        return (
            [one for one in secrets.texts if one not in kept],
            [one for one in gone if not any(one in whole for whole in kept)],
        )


def _bytes(row: torch.Tensor) -> bytes:
    return row.contiguous().numpy().tobytes()


WAYS = (
    Way("defaults", lambda secrets: {}),
    Way("--shapes-only '*'", lambda secrets: {"shapes_only": "*"}, keeps_ranges=False),
    Way("--keep ONE", lambda secrets: {"keep": secrets.first}, fits=lambda s: bool(s.first)),
)
"""Every policy by itself."""
