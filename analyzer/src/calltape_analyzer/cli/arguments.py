"""``calltape args``: representative arguments.

In comes a tape. Out go types, shapes and small values of the arguments that an exporter traces
with, by variant if one program cannot hold all calls.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from calltape_analyzer.cli.models import ClassNames, classes_of
from calltape_analyzer.cli.output import Json, command, line, print_json, wrong_words
from calltape_analyzer.cli.shapes import by_variant, why_several
from calltape_analyzer.cli.tapes import (
    Calls,
    Ignore,
    OfTarget,
    Part,
    Paths,
    Variants,
    address,
    opened,
)
from calltape_analyzer.errors import InferenceError
from calltape_analyzer.pytree.inputs import Inputs
from calltape_analyzer.pytree.rendering import render
from calltape_analyzer.tape import Tape

__all__ = ["args"]


@command
def args(
    paths: Paths,
    target: OfTarget = None,
    call: Annotated[
        str | None,
        typer.Option(
            "--call",
            parser=address,
            metavar="CALL",
            help="From this call, instead of representative ones. What it lacks is filled in.",
        ),
    ] = None,
    calls: Calls = None,
    variant: Variants = None,
    ignore: Ignore = None,
    classes: ClassNames = None,
    json: Json = False,
) -> None:
    """Representative arguments.

    Types, shapes and small values of what infer_arguments() gives an exporter; by variant if one
    program cannot hold all calls.

    \b
    calltape args runs/bert.tape
    calltape args runs/bert.tape --call 3
    calltape args runs/llm.tape --classes transformers:DynamicCache
    """
    part = Part(calls, variant, ignore, target)
    with wrong_words():
        known = classes_of(classes)
    with opened(paths, part, classes=known) as tape:
        found, reason = _answers(tape, call)
        if json and reason is None:
            print_json(_document_of(found[""]))
        elif json:
            documents = {name: _document_of(inputs) for name, inputs in found.items()}
            print_json({"reason": reason, "variants": documents})
        else:
            _print(found, reason)


def _answers(tape: Tape, call: str | None) -> tuple[dict[str, Inputs], str | None]:
    """The arguments by variant, and why one program cannot hold all calls; by no name if one
    can."""
    with wrong_words():
        index = None if call is None else tape.find(call).index
    try:
        return {"": tape.infer_arguments(index)}, None
    except InferenceError as error:
        variants = by_variant(tape, error)
        if index is None:
            made = {variant.name: variant.infer_arguments() for variant in variants}
            return made, why_several(variants, error)
        for variant in variants:
            refs = [one.ref for one in variant.calls]
            if tape.calls[index].ref in refs:
                place = refs.index(tape.calls[index].ref)
                return {"": variant.infer_arguments(place)}, None
        raise


def _print(found: dict[str, Inputs], reason: str | None) -> None:
    if reason is not None:
        line(reason)
    for name, inputs in found.items():
        if reason is not None:
            print()
            line(f"{name}:")
        for position, value in enumerate(inputs.args):
            line(f"{position}:", render(value))
        for key, value in inputs.kwargs.items():
            line(f"{key}:", render(value))


def _document_of(inputs: Inputs) -> dict[str, Any]:
    return {"args": _documents(inputs.args), "kwargs": _document(inputs.kwargs)}


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
