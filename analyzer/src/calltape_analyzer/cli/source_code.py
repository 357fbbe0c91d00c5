"""Dynamic shapes as Python source, to paste.

In come findings, or shapes in the nesting of the arguments. Out goes a statement with the imports
that it needs. What is pasted is run, and a tape may call anything by any name: names become
literals in ASCII, and a class is named only if it is loaded here.
"""

from __future__ import annotations

import keyword
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from calltape_analyzer.observing.columns import Column
from calltape_analyzer.pytree.classes import loaded_named_tuple
from calltape_analyzer.scripting import literal
from calltape_analyzer.variant import Variant

if TYPE_CHECKING:
    from calltape_analyzer.inference.findings import LeafFinding, Nesting, ShapeFindings
    from calltape_analyzer.observing.declarations import BatchFor

__all__ = ["python_of_variants", "python_source"]


class _Source:
    """A value of which only the Python source is of interest."""

    def __init__(self, text: str) -> None:
        self.text = text


def python_source(findings: ShapeFindings) -> str:
    """The statement that assigns ``dynamic_shapes`` in the form of ``torch.export.export``, after
    the imports that it needs."""
    imports: set[tuple[str, str]] = set()

    def leaf(found: LeafFinding) -> _Source:
        if any(axis.dynamic and axis.name is None for axis in found.axes):
            imports.add(("torch.export", "Dim"))
        axes = found.named_axes.items()
        shown = [f"{axis}: {literal(name) if name else 'Dim.DYNAMIC'}" for axis, name in axes]
        return _Source(f"{{{', '.join(shown)}}}")

    def namedtuple(nesting: Nesting, parts: list[Any]) -> Any:
        # What is pasted is run: a tape may call anything a named tuple.
        module, _, cls = (nesting.type or "").partition(":")
        known = loaded_named_tuple(nesting.type or "", nesting.keys)
        if known is None or not _is_importable(module, cls):
            return tuple(parts)
        imports.add((module, cls.partition(".")[0]))
        return _Source(f"{cls}({', '.join(map(_source, parts))})")

    return _statement(_spread(findings.nested(leaf, namedtuple)), imports)


def python_of_variants(variants: Sequence[Variant], declared: BatchFor, *, names: bool) -> str:
    """The same for variants: of several a dict, by the name of the variant.

    Args:
        variants: at least one.
        declared: the arguments whose dimension 0 is declared dynamic.
        names: whether dynamic dimensions have names; else ``Dim.AUTO`` stands for them.
    """
    imports: set[tuple[str, str]] = set()

    def shown(name: str, column: Column) -> _Source:
        if names and column.axis is not None:
            return _Source(literal(name))
        imports.add(("torch.export", "Dim"))
        return _Source("Dim.DYNAMIC" if names else "Dim.AUTO")

    parts = {
        variant.name: _with_classes(variant._named_shapes(declared, shown), imports)
        for variant in variants
    }
    only = next(iter(parts.values())) if len(parts) == 1 else parts
    return _statement(_spread(only), imports)


def _with_classes(value: Any, imports: set[tuple[str, str]]) -> Any:
    """Shapes with source for named tuples."""
    if isinstance(value, dict):
        return {key: _with_classes(item, imports) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_classes(item, imports) for item in value]
    if not isinstance(value, tuple):
        return value
    parts = [_with_classes(item, imports) for item in value]
    cls = type(value)
    if cls is tuple or not _is_importable(cls.__module__, cls.__qualname__):
        return tuple(parts)
    imports.add((cls.__module__, cls.__qualname__.partition(".")[0]))
    return _Source(f"{cls.__qualname__}({', '.join(map(_source, parts))})")


def _statement(expression: str, imports: set[tuple[str, str]]) -> str:
    lines = [f"from {module} import {name}" for module, name in sorted(imports)]
    return "\n".join([*lines, *([""] if lines else []), f"dynamic_shapes = {expression}"])


def _is_importable(module: str, name: str) -> bool:
    parts = [*module.split("."), *name.split(".")]
    return all(part.isidentifier() and not keyword.iskeyword(part) for part in parts)


def _spread(value: Any) -> str:
    """A container with one line per item."""
    if isinstance(value, dict) and value:
        items = [f"    {_source(key)}: {_source(item)},\n" for key, item in value.items()]
        return f"{{\n{''.join(items)}}}"
    if isinstance(value, tuple) and value:
        return f"(\n{''.join(f'    {_source(item)},' + chr(10) for item in value)})"
    return _source(value)


def _source(value: Any) -> str:
    if isinstance(value, _Source):
        return value.text
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_source(k)}: {_source(v)}' for k, v in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_source, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(_source, value))}{',' * (len(value) == 1)})"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return literal(value) if isinstance(value, str) else ascii(value)
