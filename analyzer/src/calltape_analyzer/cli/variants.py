"""``calltape variants``, ``explain`` and ``diff``: which programs calls need, why, and what is new.

In come tapes. Out go variants, the reasons of one dimension, or what is new on another tape.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from calltape_analyzer.cli.options import (
    FILES,
    Calls,
    ClassNames,
    Ignore,
    Json,
    OfTarget,
    Paths,
    Scan,
    Variants,
    Verbose,
    classes_of,
)
from calltape_analyzer.cli.output import (
    command,
    json_of,
    line,
    lines,
    print_json,
    print_list,
    table,
    wrong_words,
)
from calltape_analyzer.cli.tapes import Part, opened, variants_meant
from calltape_analyzer.errors import InferenceError
from calltape_analyzer.observing.evidence import left_out_note
from calltape_analyzer.observing.memory_layout import layouts_in_words
from calltape_analyzer.observing.switches import shown_constant
from calltape_analyzer.scripting import part_expression
from calltape_analyzer.text import alike, counted, shown_value, some_of

if TYPE_CHECKING:
    from calltape_analyzer.variant import Variant
    from calltape_analyzer.variants.variant_findings import VariantFindings


__all__ = ["DIFFERS", "diff", "explain", "print_variants", "variants"]

_MOST_DIMENSIONS = 4
_AXIS = re.compile(r"-?\d{1,9}", re.ASCII)


@command
def variants(
    paths: Paths,
    target: OfTarget = None,
    calls: Calls = None,
    variant: Variants = None,
    ignore: Ignore = None,
    scan: Scan = False,
    python: Annotated[
        bool,
        typer.Option(
            "--python", help="Print Python instead: dynamic shapes, and arguments to export with."
        ),
    ] = False,
    classes: ClassNames = None,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """The programs that the calls need.

    Calls that one program can serve are one variant. Per variant its arguments, in which dynamic
    dimensions have names, and the sizes that stand behind the names. --classes is for --python.

    \b
    calltape variants runs/llm.tape
    calltape variants runs/ --ignore mask --json
    calltape variants runs/llm.tape --variant decode --python
    """
    if python and json:
        raise typer.BadParameter("--python and --json are two forms; take one")
    known = classes_of(classes)
    from calltape_analyzer.variant import calls_left_out

    part = Part(calls, None, ignore, target)
    with opened(paths, part, scan=scan, verbose=verbose, classes=known) as tape:
        meant = variants_meant(tape, variant)
        if json:
            print_list(json_of(one.findings) for one in meant)
            return
        if python:
            from calltape_analyzer.cli.source_code import python_of_variants

            if not meant:
                raise InferenceError("the tape has no calls", advice="record at least one call")
            chosen = part_expression(tape) if tape.calls.are_single else None
            named = classes or ()
            print(python_of_variants(meant, paths, target=target, classes=named, part=chosen))
            return
        if not meant:
            line("no calls")
        print_variants(meant)
        left_out = 0 if variant else calls_left_out(tape, meant)
        if left_out:
            print()
            line("note:", left_out_note(left_out))


def _fixed(variant: Variant) -> Iterator[Sequence[str]]:
    """A row per argument that is True, None, a dtype or the like, and not its default: a program
    wants it."""
    from calltape_analyzer.observing.fixed_values import structure_values

    layout = variant.facts.group.layout
    for value in structure_values(layout):
        if value.place in layout.nodes:
            yield value.place, value.kind, value.text


def print_variants(variants: Sequence[Variant]) -> None:
    """Prints the tables of each."""
    for number, one in enumerate(variants):
        if number:
            print()
        _print_variant(one)


def _print_variant(variant: Variant) -> None:
    found = variant.findings
    calls = counted(found.calls, "call")
    if found.all_calls is not None and found.all_calls > found.calls:
        calls = f"kept {found.calls:,} of {counted(found.all_calls, 'call')}"
    line(f"{found.name}:", f"{calls}, first call {found.address or found.first_call}")
    if found.context is not None:
        line("called with", found.context)
    if found.conditions:
        line("where", ", ".join(found.conditions))
    rows = [*_arguments(found), *_fixed(variant)]
    if rows:
        table(("argument", "dtype", "shape or value"), rows)
    if found.symbols:
        table(("symbol", "sizes", "always"), [*_symbols(found)])
    layouts = ((f"{t.argument}{t.path}", layouts_in_words(t.layouts)) for t in found.tensors)
    for name, words in alike((name, words) for name, words in layouts if words is not None):
        line(f"layout of {name}:", words)
    for text in found.warnings():
        line("warning:", text)


def _arguments(found: VariantFindings) -> Iterator[Sequence[str]]:
    """A row per argument; tensors of a list that look alike share one."""
    places = ((f"{t.argument}{t.path}", (t.dtype, t.shape)) for t in found.tensors)
    for name, (dtype, shape) in alike(places):
        yield name, dtype, f"[{', '.join(map(str, shape))}]"
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


def _symbols(found: VariantFindings) -> Iterator[Sequence[str]]:
    for symbol in found.symbols:
        sizes = _span(symbol.min, symbol.max)
        count = f" ({symbol.distinct} sizes)" if symbol.distinct > 1 else ""
        yield symbol.name, f"{sizes}{count}", symbol.expression or ""


def _span(low: int, high: int) -> str:
    return shown_value(low) if low == high else f"{shown_value(low)}..{shown_value(high)}"


@command
def explain(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="TAPE... [ARGUMENT [AXIS]]",
            help=f"{FILES}; then an argument, a place below it as variants prints it "
            "(cache.layers.*.keys), or a symbol; then one dimension. Without an argument, all "
            "symbols are listed.",
        ),
    ],
    target: OfTarget = None,
    variant: Variants = None,
    scan: Scan = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Why a dimension is dynamic or constant.

    Per variant the reason, the sizes seen and in which calls, what else is always equal, what it
    always follows from, and what has thin evidence. Without an argument, the symbols of each
    variant and the dimensions that they stand for.

    \b
    calltape explain runs/llm.tape
    calltape explain runs/llm.tape input_ids
    calltape explain runs/llm.tape 'cache.layers.*.keys' 2
    """
    from calltape_analyzer.explanation.subjects import explain as explained_subject

    paths, argument, axis = _asked(words)
    with opened(paths, Part(target=target), scan=scan, verbose=verbose) as tape:
        meant = variants_meant(tape, variant)
        if argument is None:
            if json:
                print_json(
                    {
                        one.name: [symbol.model_dump() for symbol in one.findings.symbols]
                        for one in meant
                    }
                )
                return
            _print_symbols(meant)
            return
        only = {one.name for one in meant}
        with wrong_words():
            explained = explained_subject(tape, tape.variants(), argument, axis, only=only)
        if json:
            print_json(explained)
            return
        lines(str(explained))


def _print_symbols(variants: Sequence[Variant]) -> None:
    """Prints the symbols of each variant, and where they stand."""
    for number, one in enumerate(variants):
        found = one.findings
        if number:
            print()
        line(f"{found.name}:", counted(found.calls, "call"))
        if not found.symbols:
            line("no dimension varied")
            continue
        rows = [
            (*row, some_of(symbol.dimensions, _MOST_DIMENSIONS))
            for row, symbol in zip(_symbols(found), found.symbols, strict=True)
        ]
        table(("symbol", "sizes", "always", "dimensions"), rows)


def _asked(words: Sequence[str]) -> tuple[list[str], str | None, int | None]:
    """The tapes, the argument and the dimension: words of which only the last may be a number.

    Raises:
        BadParameter: there are files that are not there.
    """
    given = list(words)
    has_axis = len(given) > 2 and _AXIS.fullmatch(given[-1]) is not None
    axis = int(given.pop()) if has_axis else None
    if given[-1].startswith("--"):
        raise typer.BadParameter(f"there is no option {given[-1]!r:.100}")
    if axis is None and (len(given) == 1 or os.path.lexists(given[-1])):
        return given, None, None
    *paths, argument = given
    for path in paths[1:]:
        if not os.path.lexists(path) and not glob.has_magic(path):
            what = f"there is no file {path!r:.100}, and {argument!r:.100} is no dimension"
            raise typer.BadParameter(f"{what}: write TAPE... ARGUMENT [AXIS]")
    return paths, argument, axis


DIFFERS = 4
"""The exit code of two tapes that differ; 1 would be taken for a failure."""


@command
def diff(
    before: Annotated[
        list[str], typer.Argument(metavar="BEFORE...", help=f"What was seen before. {FILES}.")
    ],
    now: Annotated[
        str, typer.Argument(metavar="NOW", help="What is seen now: a file, directory or pattern.")
    ],
    target: OfTarget = None,
    scan: Scan = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """What calls on tape NOW show that those on BEFORE do not.

    Variants, arguments, constants, dtypes, sizes outside the range seen, dimensions that were
    constant, and equalities and sums that no longer hold; then what disappeared. Ends with 4 if
    something differs, with 0 if nothing does, and with 3 if nothing does in what could be read of a
    damaged tape.

    \b
    calltape diff runs/exported.tape runs/today.tape
    calltape diff runs/monday.tape runs/tuesday.tape runs/today.tape --json
    """
    from calltape_analyzer.differences.difference import diff as compare

    part = Part(target=target)
    with (
        opened(before, part, scan=scan, verbose=verbose) as a,
        opened([now], part, scan=scan, verbose=verbose) as b,
    ):
        found = compare(a, b)
        if json:
            print_json(found)
        else:
            lines(str(found))
        if not found.same:
            raise typer.Exit(DIFFERS)
