"""Dynamic shapes and representative arguments as Python source, to paste.

In come variants. Out go statements with the imports that they need. What is pasted is run, and a
tape may call anything by any name: names become literals in ASCII, and a class is named only if
somebody gave it.
"""

from __future__ import annotations

import keyword
import math
from collections.abc import Sequence
from typing import Any

from calltape_analyzer.observing.columns import Column
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

    parts = {
        variant.name: _with_classes(variant._named_shapes(None, shown), imports)
        for variant in variants
    }
    shapes: Any = next(iter(parts.values())) if len(parts) == 1 else parts
    lines = [f"dynamic_shapes = {_spread(shapes)}"]
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
    options = [_source(list(paths))]
    if target is not None:
        options.append(f"target={literal(target)}")
    if classes:
        named = [name.partition(":") for name in classes]
        imports |= {(module, name.partition(".")[0]) for module, _, name in named}
        options.append(f"classes=[{', '.join(name for *_, name in named)}]")
    return f"open_tape({', '.join(options)})"


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
