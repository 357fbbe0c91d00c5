"""``calltape variants`` and ``calltape explain``: which programs a tape needs, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from calltape_analyzer.cli.output import Json, Paths, command, line, opened, print_json, table
from calltape_analyzer.explanation import alike, counted, shown_value
from calltape_analyzer.switches import shown_constant

if TYPE_CHECKING:
    from calltape_analyzer.variant_findings import TensorFinding, VariantFindings

__all__ = ["OnePath", "explain", "variants"]

OnePath = Annotated[
    str, typer.Argument(metavar="TAPE", help="A file, a directory of *.tape, or a pattern.")
]


@command
def variants(paths: Paths, json: Json = False) -> None:
    """The programs that the calls need.

    Calls that one program can serve are one variant. Per variant its arguments, in which dynamic
    dimensions have names, and the sizes that stand behind the names.

    \b
    calltape variants runs/llm.tape
    calltape variants runs/ --json
    """
    with opened(paths) as tape:
        findings = [variant.findings for variant in tape.variants()]
        if json:
            # Not in pydantic's JSON mode, which takes bytes for UTF-8.
            print_json([found.model_dump() for found in findings])
            return
        if not findings:
            line("no calls")
        for number, found in enumerate(findings):
            if number:
                print()
            _print(found)


def _print(found: VariantFindings) -> None:
    calls = counted(found.calls, "call")
    if found.all_calls is not None and found.all_calls > found.calls:
        calls = f"kept {found.calls:,} of {counted(found.all_calls, 'call')}"
    line(f"{found.name}:", f"{calls}, first call {found.first_call}")
    if found.conditions:
        line("where", ", ".join(found.conditions))
    rows = list(_arguments(found))
    if rows:
        table(("argument", "dtype", "shape or value"), rows)
    if found.symbols:
        table(("symbol", "sizes", "always"), [*_symbols(found)])
    for text in found.warnings():
        line("warning:", text)


def _arguments(found: VariantFindings) -> Iterator[Sequence[str]]:
    """A row per argument; tensors of a list that look alike share one."""
    yield from _tensors(found)
    for given in found.ints:
        if given.counts is not None:
            value = f"counts {given.counts}"
        elif given.dynamic:
            value = given.symbol or _span(given.min, given.max)
        else:
            value = shown_value(given.min)
        yield given.name, "int", value
    for place, constant in found.constants.items():
        yield place, type(constant).__name__, shown_constant(constant)
    for place, kind in found.varying.items():
        yield place, kind, "varies"


def _tensors(found: VariantFindings) -> Iterator[Sequence[str]]:
    places = ((f"{t.argument}{t.path}", (t.dtype, _shape(t))) for t in found.tensors)
    for name, look in alike(places):
        yield name, *look


def _shape(tensor: TensorFinding) -> str:
    return f"[{', '.join(map(str, tensor.shape))}]"


def _symbols(found: VariantFindings) -> Iterator[Sequence[str]]:
    for symbol in found.symbols:
        sizes = _span(symbol.min, symbol.max)
        count = f" ({symbol.distinct} sizes)" if symbol.distinct > 1 else ""
        yield symbol.name, f"{sizes}{count}", symbol.expression or ""


def _span(low: int, high: int) -> str:
    return shown_value(low) if low == high else f"{shown_value(low)}..{shown_value(high)}"


@command
def explain(
    path: OnePath,
    argument: Annotated[
        str,
        typer.Argument(
            metavar="ARGUMENT",
            help="An argument, or a place below it, such as past_key_values.layers.0.keys.",
        ),
    ],
    axis: Annotated[
        int | None, typer.Argument(metavar="[AXIS]", help="One dimension; all by default.")
    ] = None,
    json: Json = False,
) -> None:
    """Why a dimension is dynamic or constant.

    Per variant the reason, the sizes seen and in which calls, what else is always equal, what it
    always follows from, and where the evidence is thin.

    \b
    calltape explain runs/llm.tape input_ids
    calltape explain runs/llm.tape past_key_values.layers.0.keys 2
    """
    with opened([path]) as tape:
        explained = tape.explain(argument, axis)
        if json:
            print_json(explained.as_dict())
            return
        for text in str(explained).splitlines():
            line(text)
