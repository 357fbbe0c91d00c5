"""``calltape shapes`` and ``calltape args``: what the recorded calls say to an exporter."""

from __future__ import annotations

import keyword
import math
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calltape_analyzer.classes import loaded_namedtuple
from calltape_analyzer.cli.output import Json, Paths, command, line, opened, print_json, table
from calltape_analyzer.rendering import render
from calltape_analyzer.scripting import literal

if TYPE_CHECKING:
    from calltape_analyzer.findings import (
        ArgumentFinding,
        AxisFinding,
        LeafFinding,
        Nesting,
        ShapeFindings,
    )

__all__ = ["args", "python_source", "shapes"]

_MAX_SIZES = 6


@command
def shapes(
    paths: Paths,
    batch: Annotated[
        str | None,
        typer.Option(
            metavar="all|NAME,...",
            help="Declare dimension 0 dynamic for all tensor arguments, or for these (names or "
            "positions), also where it never varied.",
        ),
    ] = None,
    names: Annotated[
        bool, typer.Option("--names", help="Name the dynamic dimensions; equal ones share a name.")
    ] = False,
    python: Annotated[
        bool, typer.Option("--python", help="Print the Python expression to paste instead.")
    ] = False,
    json: Json = False,
) -> None:
    """Dynamic dimensions, and the sizes seen.

    \b
    calltape shapes runs/llm.tape
    calltape shapes runs/llm.tape --batch all --names
    calltape shapes runs/llm.tape --python
    """
    if python and json:
        raise typer.BadParameter("--python and --json exclude each other")
    with opened(paths) as tape:
        findings = tape.shape_findings(_batch(batch), names or None)
        if json:
            print_json({"dynamic_shapes": _plain(findings), **findings.model_dump()})
        elif python:
            print(python_source(findings))
        else:
            _print(findings)


def _batch(given: str | None) -> bool | set[int | str] | None:
    if given is None:
        return None
    if given == "all":
        return True
    return {int(name) if name.isdecimal() else name for name in given.split(",") if name}


def _print(findings: ShapeFindings) -> None:
    table(
        ("argument", "dtype", "shape", "calls", "sizes seen"),
        [row for argument in findings.arguments for row in _rows(argument, findings.calls)],
    )
    for note in findings.notes:
        line("note:", note)


def _rows(argument: ArgumentFinding, calls: int) -> Iterator[Sequence[str]]:
    if not argument.leaves:
        yield argument.name, "", "no tensor", "", ""
    for leaf in argument.leaves:
        name = _leaf_name(argument, leaf)
        shape = f"[{', '.join(_axis(axis) for axis in leaf.axes)}]"
        sizes = "; ".join(f"{axis.axis}: {_sizes(axis)}" for axis in leaf.axes if axis.dynamic)
        yield name, leaf.dtype or "", shape, f"{leaf.calls}/{calls}", sizes


def _leaf_name(argument: ArgumentFinding, leaf: LeafFinding) -> str:
    between = "." if leaf.path and leaf.path[0] not in ".[" else ""
    return f"{argument.name}{between}{leaf.path}"


def _axis(axis: AxisFinding) -> str:
    if axis.dynamic:
        return axis.name or "dynamic"
    return str(axis.sizes[0].size) if axis.sizes else "?"


def _sizes(axis: AxisFinding) -> str:
    sizes = [seen.size for seen in axis.sizes]
    declared = " (declared)" if axis.reason == "declared" else ""
    if axis.distinct > _MAX_SIZES:
        return f"{sizes[0]}..{sizes[-1]} ({axis.distinct} sizes){declared}"
    return ", ".join(map(str, sizes)) + declared


def _plain(findings: ShapeFindings) -> Any:
    """``dynamic_shapes`` as plain data: per tensor its dynamic axes with their name or None."""
    return findings.nested(_named_axes)


def _named_axes(leaf: LeafFinding) -> dict[int, str | None]:
    return {axis.axis: axis.name for axis in leaf.axes if axis.dynamic}


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
        axes = _named_axes(found).items()
        shown = [f"{axis}: {literal(name) if name else 'Dim.DYNAMIC'}" for axis, name in axes]
        return _Source(f"{{{', '.join(shown)}}}")

    def namedtuple(nesting: Nesting, parts: list[Any]) -> Any:
        # What is pasted is run: a tape may call anything a named tuple.
        module, _, cls = (nesting.type or "").partition(":")
        known = loaded_namedtuple(nesting.type or "", nesting.keys)
        if known is None or not _is_importable(module, cls):
            return tuple(parts)
        imports.add((module, cls.partition(".")[0]))
        return _Source(f"{cls}({', '.join(map(_source, parts))})")

    expression = _spread(findings.nested(leaf, namedtuple))
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


@command
def args(
    paths: Paths,
    call: Annotated[
        int | None,
        typer.Option(
            "--call", min=0, help="The arguments of this call instead of representative ones."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Representative arguments.

    Types, shapes and small values of what infer_arguments() gives an exporter.

    \b
    calltape args runs/llm.tape
    calltape args runs/llm.tape --call 3
    """
    with opened(paths) as tape:
        index = None if call is None else tape.find(call).index
        positional, keyword_args = tape.infer_arguments(index, as_args_kwargs=True)
        if json:
            print_json({"args": _documents(positional), "kwargs": _document(keyword_args)})
            return
        for position, value in enumerate(positional):
            line(f"{position}:", render(value))
        for name, value in keyword_args.items():
            line(f"{name}:", render(value))


def _documents(values: Any) -> list[Any]:
    return [_document(value) for value in values]


def _document(value: Any) -> Any:
    torch = sys.modules["torch"]
    if isinstance(value, torch.Tensor):
        return {
            "dtype": str(value.dtype).removeprefix("torch."),
            "shape": list(value.shape),
            "device": str(value.device),
        }
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is dict:
        return {str(key): _document(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return _documents(value)
    return {"type": f"{type(value).__module__}:{type(value).__qualname__}", "text": render(value)}
