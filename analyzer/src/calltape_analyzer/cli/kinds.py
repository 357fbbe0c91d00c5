"""What tells kinds of counted calls apart, where their sizes do not, in words.

In come counted groups. Out goes per group what its arguments are that others do not have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from calltape_analyzer.observing.layout import ArgumentLayout
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.observing.traffic_counters import CountedGroup, Values
from calltape_analyzer.pytree.rendering import render_node
from calltape_analyzer.text import counted, some_of
from calltape_schema.tree import ScalarNode, TensorNode, children_of, walk

__all__ = ["differences", "span"]

_MAX_SHOWN = 3


def differences(groups: Sequence[CountedGroup], signature: Signature) -> list[str]:
    """Of each group the arguments that are not the same in all: ``want_masks: True``, ``without
    mask``. Nothing if no argument as such differs.

    Args:
        groups: several kinds.
        signature: gives the names.
    """
    every = [dict(_arguments(group, signature)) for group in groups]
    names = dict.fromkeys(name for arguments in every for name in arguments)
    differ = [name for name in names if len({arguments.get(name) for arguments in every}) > 1]
    return [
        some_of([_shown(name, arguments.get(name)) for name in differ], _MAX_SHOWN, "; ")
        for arguments in every
    ]


def span(values: Values) -> str:
    """``3``, ``3..7``."""
    return f"{values.min}..{values.max}" if values.varied else str(values.min)


def _shown(name: str, text: str | None) -> str:
    return f"without {name}" if text is None else f"{name}: {text}"


def _arguments(group: CountedGroup, signature: Signature) -> Iterator[tuple[str, str]]:
    layout = group.layout(signature)
    for name, node in layout.nodes.items():
        yield name, _text(node, layout, group)


def _text(node: Any, layout: ArgumentLayout, group: CountedGroup) -> str:
    """What is known of an argument: ``float16[2, 3..7]``, ``True``, ``dict of 4 tensors``."""
    if isinstance(node, TensorNode):
        number = layout.tensors[node.leaf].number
        return f"{group.kind.dtypes[number]}[{', '.join(map(span, group.leaves[number]))}]"
    if isinstance(node, ScalarNode):
        values = group.scalars[layout.scalars[node.scalar].number]
        return node.kind if values is None else span(values)
    if not children_of(node):
        return render_node(node, (), ())
    tensors = [one for one in walk(node) if isinstance(one, TensorNode)]
    dtypes = {group.kind.dtypes[layout.tensors[one.leaf].number] for one in tensors}
    held = (
        f"{counted(len(tensors), 'tensor')}{f' ({some_of(sorted(dtypes), 2)})' if dtypes else ''}"
    )
    return f"{(node.type or node.kind).rpartition(':')[2]} of {held}"
