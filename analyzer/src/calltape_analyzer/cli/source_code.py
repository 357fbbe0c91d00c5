"""Dynamic shapes and representative arguments as Python source, to paste.

Takes variants; returns statements with the imports that they need. What is pasted is run, and a
tape may call anything by any name: names become literals in ASCII, and a class is named only if
somebody gave it.
"""

from __future__ import annotations

import keyword
import math
from collections.abc import Sequence
from typing import Any

from calltape_analyzer.observing.size_table import Column
from calltape_analyzer.scripting import literal
from calltape_analyzer.variant import Variant

__all__ = ["python_of_variants"]


class _Source:
    """A value of which only the Python source is of interest."""

    def __init__(self, text: str) -> None:
        self.text = text


def python_of_variants(
    variants: Sequence[Variant],
    paths: Sequence[str],
    *,
    target: str | None = None,
    classes: Sequence[str] = (),
    part: str | None = "tape",
) -> str:
    """The statements that assign ``dynamic_shapes`` in the form of ``torch.export.export``, and
    ``args`` and ``kwargs`` to export with; of several variants dicts by the name of the variant.

    Args:
        variants: at least one.
        paths: of the tapes.
        target: which of the targets on them is meant; None for the only one.
        classes: ``module:class`` of the classes that arguments are rebuilt from.
        part: the expression for the part of ``tape`` that is meant; None for tapes without calls,
            which have no arguments.
    """
    imports: set[tuple[str, str]] = set()

    def shown(name: str, column: Column) -> _Source:
        imports.add(("torch.export", "Dim"))
        return _Source("Dim.AUTO")

    parts = {variant.name: variant._named_shapes(None, shown) for variant in variants}
    shapes: Any = next(iter(parts.values())) if len(parts) == 1 else parts
    lines = [f"dynamic_shapes = {_spread(shapes, imports)}"]
    if part is not None:
        imports.add(("calltape_analyzer", "open_tape"))
        lines.append(f"with {_opening(paths, target, classes, imports)} as tape:")
        lines.append(f"    variants = {{variant.name: variant for variant in {part}.variants()}}")
        if len(parts) == 1:
            name = literal(variants[0].name)
            lines.append(f"    args, kwargs = variants[{name}].infer_arguments()")
        else:
            asked = "{name: variants[name].infer_arguments() for name in dynamic_shapes}"
            lines.append(f"    arguments = {asked}")
    head = [f"from {module} import {name}" for module, name in sorted(imports)]
    return "\n".join([*head, *([""] if head else []), *lines])


def _opening(
    paths: Sequence[str],
    target: str | None,
    classes: Sequence[str],
    imports: set[tuple[str, str]],
) -> str:
    """The expression that opens the tapes."""
    options = [_source(list(paths), imports)]
    if target is not None:
        options.append(f"target={literal(target)}")
    if classes:
        named = [name.partition(":") for name in classes]
        imports |= {(module, name.partition(".")[0]) for module, _, name in named}
        options.append(f"classes=[{', '.join(name for *_, name in named)}]")
    return f"open_tape({', '.join(options)})"


def _is_importable(module: str, name: str) -> bool:
    parts = [*module.split("."), *name.split(".")]
    return all(part.isidentifier() and not keyword.iskeyword(part) for part in parts)


def _spread(value: Any, imports: set[tuple[str, str]]) -> str:
    """A container with one line per item."""
    if isinstance(value, dict) and value:
        items = [
            f"    {_source(key, imports)}: {_source(item, imports)},\n"
            for key, item in value.items()
        ]
        return f"{{\n{''.join(items)}}}"
    if type(value) is tuple and value:
        return f"(\n{''.join(f'    {_source(item, imports)},' + chr(10) for item in value)})"
    return _source(value, imports)


def _source(value: Any, imports: set[tuple[str, str]]) -> str:
    """A value on one line; named tuples that can be imported are, and others are tuples."""
    if isinstance(value, _Source):
        return value.text
    if isinstance(value, dict):
        pairs = [f"{_source(k, imports)}: {_source(v, imports)}" for k, v in value.items()]
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, (list, tuple)):
        inner, cls = ", ".join(_source(item, imports) for item in value), type(value)
        if isinstance(value, list):
            return f"[{inner}]"
        if cls is tuple or not _is_importable(cls.__module__, cls.__qualname__):
            return f"({inner}{',' * (len(value) == 1)})"
        imports.add((cls.__module__, cls.__qualname__.partition(".")[0]))
        return f"{cls.__qualname__}({inner})"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return literal(value) if isinstance(value, str) else ascii(value)
