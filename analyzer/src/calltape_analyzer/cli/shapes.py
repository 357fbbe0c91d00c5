"""``calltape shapes``: the dynamic dimensions.

In comes a tape. Out go its dynamic shapes as one program, or by variant if one program cannot hold
all calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from calltape_analyzer.cli.output import Json, command, line, print_model, print_models, table
from calltape_analyzer.cli.source_code import python_of_variants, python_source
from calltape_analyzer.cli.tapes import (
    Calls,
    Ignore,
    OfTarget,
    Part,
    Paths,
    Scan,
    Variants,
    opened,
    variants_meant,
)
from calltape_analyzer.cli.variants import print_left_out, print_variant
from calltape_analyzer.errors import InferenceError, NotOneProgramError
from calltape_analyzer.tape import Tape
from calltape_analyzer.variant import Variant, VariantShapes

if TYPE_CHECKING:
    from calltape_analyzer.inference.findings import (
        ArgumentFinding,
        AxisFinding,
        LeafFinding,
        ShapeFindings,
    )
    from calltape_analyzer.observing.declarations import BatchFor

__all__ = ["by_variant", "shapes"]

_MAX_SIZES = 6


Batch = Annotated[
    str | None,
    typer.Option(
        metavar="all|NAME,...",
        help="Declare dimension 0 dynamic for all tensor arguments, or for these (names or "
        "positions), also if it never varied.",
    ),
]
Names = Annotated[
    bool, typer.Option("--names", help="Name the dynamic dimensions; equal ones share a name.")
]
Python = Annotated[
    bool, typer.Option("--python", help="Print the Python expression to paste instead.")
]


@command
def shapes(
    paths: Paths,
    target: OfTarget = None,
    batch: Batch = None,
    names: Names = False,
    python: Python = False,
    calls: Calls = None,
    variant: Variants = None,
    ignore: Ignore = None,
    scan: Scan = False,
    json: Json = False,
) -> None:
    """Dynamic dimensions, and the sizes seen.

    Of all calls as one program; by variant if one program cannot hold them, and of what --variant
    names.

    \b
    calltape shapes runs/llm.tape --batch all --names
    calltape shapes runs/llm.tape --variant decode --python
    """
    if python and json:
        raise typer.BadParameter("--python and --json exclude each other")
    with opened(paths, Part(calls, None, ignore, target), scan=scan) as tape:
        declared = _batch(batch)
        variants = variants_meant(tape, variant) if variant else []
        findings = reason = None
        try:
            if not variants:
                findings = tape.shape_findings(declared, names or None)
        except InferenceError as error:
            variants = by_variant(tape, error)
            reason = why_several(variants, error)
        if findings is None and python:
            print(python_of_variants(variants, declared, names=names))
        elif findings is None:
            _print_by_variant([one.shape_findings(declared) for one in variants], reason, json)
            if reason is not None and not json:
                print_left_out(tape)
        elif json:
            print_model(findings)
        elif python:
            print(python_source(findings))
        else:
            _print(findings)


def by_variant(tape: Tape, error: InferenceError) -> list[Variant]:
    """The variants of calls that cannot be one program.

    Raises:
        InferenceError: that is not why there was no answer.
    """
    variants = tape.variants()
    if not variants or not isinstance(error, NotOneProgramError):
        raise error
    return variants


def why_several(variants: Sequence[Variant], error: InferenceError) -> str:
    """Why the answer is by variant, with what the command line has for it: the advice of the error
    is for Python."""
    ignore = "--ignore ARG leaves an argument out that the model does without"
    if len(variants) == 1:
        return f"calls differ in a constant: {error.reason}. {ignore}"
    return (
        f"one program cannot hold all calls: {error.reason}. The variants follow, each a program; "
        f"--variant NAME asks for one of them, and {ignore}"
    )


def _print_by_variant(found: Sequence[VariantShapes], reason: str | None, json: bool) -> None:
    if json:
        print_models(found)
        return
    if reason is not None:
        line(reason)
    for number, shapes in enumerate(found):
        if number or reason is not None:
            print()
        print_variant(shapes.findings)


def _batch(given: str | None) -> BatchFor:
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
