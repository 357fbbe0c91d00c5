"""``calltape variants``, ``explain`` and ``diff``: which programs calls need, why, and what is new.

Takes tapes; returns variants, the reasons of one dimension, or what is new on another tape.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from calltape_analyzer.cli.options import (
    FILES,
    Calls,
    ClassNames,
    Ignore,
    Json,
    OfTarget,
    Part,
    Paths,
    Scan,
    Variants,
    Verbose,
    classes_of,
    opened_tape,
    wanted_variants,
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
from calltape_analyzer.errors import InferenceError
from calltape_analyzer.observing.traffic_counters import left_out_note
from calltape_analyzer.scripting import part_expression, python_of_variants
from calltape_analyzer.text import counted, some_of
from calltape_analyzer.variants.variant_findings import SYMBOLS, VariantTable, symbol_rows

if TYPE_CHECKING:
    from calltape_analyzer.variant import Variant


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
            "--python", help="Print Python: dynamic shapes, and arguments to export with."
        ),
    ] = False,
    classes: ClassNames = None,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """List the variants: calls that one program can serve.

    For each variant, variants prints the arguments, whose dynamic dimensions have names, and the
    sizes that each name stands for. --classes has an effect only with --python.

    \b
    calltape variants runs/llm.tape
    calltape variants runs/ --ignore mask --json
    calltape variants runs/llm.tape --variant decode --python
    """
    if python and json:
        raise typer.BadParameter("--python and --json exclude each other; pass one of them")
    class_objects = classes_of(classes)
    from calltape_analyzer.variant import calls_left_out

    part = Part(calls, None, ignore, target)
    with opened_tape(paths, part, scan=scan, verbose=verbose, classes=class_objects) as tape:
        wanted = wanted_variants(tape, variant)
        if json:
            print_list(json_of(each.findings) for each in wanted)
            return
        if python:
            if not wanted:
                raise InferenceError("the tape has no calls", advice="record at least one call")
            chosen = part_expression(tape) if tape.calls.has_single_calls else None
            named = classes or ()
            print(python_of_variants(wanted, paths, target=target, classes=named, part=chosen))
            return
        if not wanted:
            line("no calls")
        print_variants(wanted)
        left_out = 0 if variant else calls_left_out(tape, wanted)
        if left_out:
            print()
            line("note:", left_out_note(left_out))


def print_variants(variants: Sequence[Variant]) -> None:
    """Prints the table of each."""
    for number, variant in enumerate(variants):
        if number:
            print()
        shown = VariantTable.of(variant)
        line(f"{shown.name}:", shown.calls)
        for name, text in shown.facts:
            line(name, text)
        for head, rows in shown.tables:
            table(head, rows)
        for name, text in shown.notes:
            line(f"{name}:", text)


@command
def explain(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="TAPE... [ARGUMENT [AXIS]]",
            help=f"{FILES}; then an argument, a path below it as `variants` prints it "
            "(cache.layers.*.keys), or a symbol; then a dimension.",
        ),
    ],
    target: OfTarget = None,
    variant: Variants = None,
    scan: Scan = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Explain why a dimension is dynamic or constant.

    For each variant, explain prints the reason, the sizes with the calls that had them, the
    dimensions that are always equal or from which the size follows, and where evidence is thin.
    Without an argument, it lists the symbols of each variant and the dimensions they stand for.

    \b
    calltape explain runs/llm.tape
    calltape explain runs/llm.tape input_ids
    calltape explain runs/llm.tape 'cache.layers.*.keys' 2
    """
    from calltape_analyzer.explaining import explain as explained_subject

    paths, argument, axis = _tapes_and_subject(words)
    with opened_tape(paths, Part(target=target), scan=scan, verbose=verbose) as tape:
        chosen = wanted_variants(tape, variant)
        if argument is None:
            if json:
                print_json(
                    {
                        chosen_variant.name: [
                            symbol.model_dump() for symbol in chosen_variant.findings.symbols
                        ]
                        for chosen_variant in chosen
                    }
                )
                return
            _print_symbols(chosen)
            return
        only = {chosen_variant.name for chosen_variant in chosen}
        with wrong_words():
            explained = explained_subject(tape, tape.variants(), argument, axis, only=only)
        if json:
            print_json(explained)
            return
        lines(str(explained))


def _print_symbols(variants: Sequence[Variant]) -> None:
    """Prints the symbols of each variant, and where they stand."""
    for number, variant in enumerate(variants):
        findings = variant.findings
        if number:
            print()
        line(f"{findings.name}:", counted(findings.calls, "call"))
        if not findings.symbols:
            line("no dimension varied")
            continue
        rows = [
            (*row, some_of(symbol.dimensions, _MOST_DIMENSIONS))
            for row, symbol in zip(symbol_rows(findings), findings.symbols, strict=True)
        ]
        table((*SYMBOLS, "dimensions"), rows)


def _tapes_and_subject(words: Sequence[str]) -> tuple[list[str], str | None, int | None]:
    """Divides the words into tapes, argument and dimension. Only the last word may be a dimension.

    Raises:
        BadParameter: there are files that are not there.
    """
    rest = list(words)
    has_axis = len(rest) > 2 and _AXIS.fullmatch(rest[-1]) is not None
    axis = int(rest.pop()) if has_axis else None
    if rest[-1].startswith("--"):
        raise typer.BadParameter(f"no such option: {rest[-1]!r:.100}")
    if axis is None and (len(rest) == 1 or os.path.lexists(rest[-1])):
        return rest, None, None
    *paths, argument = rest
    for path in paths[1:]:
        if not os.path.lexists(path) and not glob.has_magic(path):
            reason = f"there is no file {path!r:.100}, and {argument!r:.100} is not a dimension"
            raise typer.BadParameter(f"{reason}: write TAPE... ARGUMENT [AXIS]")
    return paths, argument, axis


DIFFERS = 4
"""The exit code of two tapes that differ; 1 would be taken for a failure."""


@command
def diff(
    before: Annotated[
        list[str], typer.Argument(metavar="BEFORE...", help=f"The earlier tapes. {FILES}.")
    ],
    now: Annotated[
        str, typer.Argument(metavar="NOW", help="The later tape: a file, directory or pattern.")
    ],
    target: OfTarget = None,
    scan: Scan = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Compare tapes: show what is new in NOW, and what is gone.

    Lists new variants, arguments, constants and dtypes, sizes outside the earlier range, dimensions
    that used to be constant, equalities and sums that no longer hold, and then what disappeared.

    \b
    calltape diff runs/exported.tape runs/today.tape
    calltape diff runs/monday.tape runs/tuesday.tape runs/today.tape --json
    """
    from calltape_analyzer.differences import diff as compare

    part = Part(target=target)
    with (
        opened_tape(before, part, scan=scan, verbose=verbose) as a,
        opened_tape([now], part, scan=scan, verbose=verbose) as b,
    ):
        difference = compare(a, b)
        if json:
            print_json(difference)
        else:
            lines(str(difference))
        if not difference.same:
            raise typer.Exit(DIFFERS)
