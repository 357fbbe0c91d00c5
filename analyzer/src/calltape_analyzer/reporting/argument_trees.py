"""The inputs of a variant as a tree with symbols, short enough to read.

In come the findings of a variant. Out go the nodes of a tree; items of a list that are alike are
one node.
"""

from __future__ import annotations

from collections.abc import Iterator

from calltape_analyzer.observing.memory_layout import layouts_in_words
from calltape_analyzer.observing.switches import shown_constant
from calltape_analyzer.reporting.contents import TreeNode, cut
from calltape_analyzer.text import alike, counted, shown_value
from calltape_analyzer.variants.variant_findings import TensorFinding, VariantFindings

__all__ = ["argument_tree"]

_MAX_LEAVES = 300
_MAX_DEPTH = 24


class _Branch:
    """A node that is being made."""

    def __init__(self) -> None:
        self.said = ""
        self.children: dict[str, _Branch] = {}

    def nodes(self) -> tuple[TreeNode, ...]:
        return tuple(
            TreeNode(cut(name), cut(branch.said, 400), branch.nodes())
            for name, branch in self.children.items()
        )


def argument_tree(findings: VariantFindings) -> tuple[tuple[TreeNode, ...], str | None]:
    """The inputs as trees, and how many are left out, in words; None if all are there."""
    root = _Branch()
    shown = 0
    left_out = 0
    for name, said in alike(_leaves(findings)):
        if shown == _MAX_LEAVES:
            left_out += 1
            continue
        shown += 1
        branch = root
        parts = name.split(".")
        if len(parts) > _MAX_DEPTH:
            parts = [*parts[: _MAX_DEPTH - 1], ".".join(parts[_MAX_DEPTH - 1 :])]
        for part in parts:
            branch = branch.children.setdefault(part, _Branch())
        branch.said = said
    return root.nodes(), f"{counted(left_out, 'input')} more" if left_out else None


def _leaves(findings: VariantFindings) -> Iterator[tuple[str, str]]:
    """Each leaf and scalar with what it is."""
    for tensor in findings.tensors:
        yield f"{tensor.argument}{tensor.path}", _tensor(tensor)
    for number in findings.ints:
        if number.dynamic:
            said = f"int, {number.symbol or 'varies'}, {number.min} to {number.max}"
        elif number.counts is not None:
            said = f"int, always {number.counts}"
        else:
            said = f"int {shown_value(number.min)}"
        yield f"{number.argument}{number.path}", said
    for place, value in findings.constants.items():
        yield place, f"constant {shown_constant(value)}"
    for place, kind in findings.varying.items():
        yield place, f"{kind}, varies"


def _tensor(found: TensorFinding) -> str:
    shape = ", ".join(str(size) for size in found.shape)
    elements = "" if found.range is None else f", elements {found.range[0]} to {found.range[1]}"
    layouts = layouts_in_words(found.layouts)
    memory = "" if layouts is None else f", layout in memory: {layouts}"
    return f"{found.dtype}[{shape}]{elements}{memory}"
