"""``calltape convert``: tapes in the forms of other tools, and the other way round."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calltape_analyzer.cli.budget import reading
from calltape_analyzer.cli.options import FORM, Calls, Force, OfTarget, Out, Variants
from calltape_analyzer.cli.output import command, forced, line
from calltape_analyzer.cli.tapes import Part, opened
from calltape_analyzer.tape import Tape
from calltape_analyzer.text import counted, some_of

if TYPE_CHECKING:
    from calltape_analyzer.converting.flat_calls import Written

__all__ = ["convert"]

_MAX_NAMED = 8


class Form(str, Enum):
    """What can be written: of a tape, or, as a tape, of a folder."""

    onnx = "onnx"
    polygraphy = "polygraphy"
    polygraphy_outputs = "polygraphy-outputs"
    safetensors = "safetensors"
    tape = "tape"


_OF_A_TAPE = frozenset({"target", "calls", "variant"})
_USED: dict[Form, frozenset[str]] = {
    Form.onnx: _OF_A_TAPE | {"onnx"},
    Form.polygraphy: _OF_A_TAPE | {"onnx"},
    Form.polygraphy_outputs: _OF_A_TAPE | {"onnx"},
    Form.safetensors: _OF_A_TAPE,
    Form.tape: frozenset({"force"}),
}
"""The options that each form has a use for."""


@command
def convert(
    paths: Annotated[
        list[str], typer.Argument(metavar="IN...", help="Tapes; or, for a tape, one folder.")
    ],
    out: Out,
    to: Annotated[Form, FORM],
    onnx: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The .onnx that the values are for: names, order."),
    ] = None,
    target: OfTarget = None,
    calls: Calls = None,
    variant: Variants = None,
    force: Force = False,
) -> None:
    """Calls in the form of another tool, or a tape of what one wrote.

    onnx: test data sets for ONNX's backend tests and onnxruntime_perf_test. polygraphy: JSON for
    --load-inputs (and -outputs for --load-outputs). safetensors: a folder of .safetensors and
    .json. tape: a tape, of such a folder.

    \b
    calltape convert runs/llm.tape --to onnx --onnx llm.onnx -o testcase
    calltape convert runs/llm.tape --to polygraphy --onnx llm.onnx -o in.json
    calltape convert folder --to tape -o calls.tape
    """
    given = {"target": target, "calls": calls, "variant": variant, "onnx": onnx, "force": force}
    _refuse_unmeant(to, given)
    if to is Form.tape:
        if len(paths) != 1:
            raise typer.BadParameter("--to tape takes one folder")
        with reading(_files_in(paths[0])), forced():
            made = _from_folder(paths[0], out, force)
        _end(made, out)
        return
    part = Part(calls, variant, target=target)
    with opened(paths, part, runs=True) as tape, forced(is_option=False):
        _end(_to(to, tape, out, onnx), out)


def _files_in(folder: str) -> Iterator[str]:
    """All files of a folder, and of the folders in it; no link is followed."""
    for parent, _, names in os.walk(folder):
        yield from (os.path.join(parent, name) for name in names)


def _refuse_unmeant(form: Form, given: Mapping[str, object]) -> None:
    """Raises BadParameter for an option that the form has no use for."""
    for name, value in given.items():
        if value and name not in _USED[form]:
            raise typer.BadParameter(f"--{name} has no use with --to {form.value}; leave it out")


def _from_folder(path: str, out: Path, force: bool) -> Written:
    from calltape_analyzer.converting.flat_calls import Written
    from calltape_analyzer.converting.safetensors_folder import read_safetensors_folder

    return Written(read_safetensors_folder(path, out, overwrite=force))


def _to(to: Form, tape: Tape, out: Path, model: Path | None) -> Written:
    if to is Form.onnx:
        from calltape_analyzer.converting.onnx_test_data import write_onnx_test_data

        return write_onnx_test_data(tape, out, model=model)
    if to is Form.safetensors:
        from calltape_analyzer.converting.flat_calls import Written
        from calltape_analyzer.converting.safetensors_folder import write_safetensors_folder

        return Written(write_safetensors_folder(tape, out))
    from calltape_analyzer.converting import polygraphy_json

    if to is Form.polygraphy:
        return polygraphy_json.write_polygraphy_inputs(tape, out, model=model)
    return polygraphy_json.write_polygraphy_outputs(tape, out, model=model)


def _end(written: Written, out: Path) -> None:
    left_out = dict(written._asdict())
    calls, not_in_all = left_out.pop("calls"), left_out.pop("not_in_all")
    line(f"{out}: {counted(calls, 'call')}")
    if any(left_out.values()):
        line(f"left out: {'; '.join(_left_out(written))}")
    if not_in_all:
        line(
            f"note: only some of the calls have {some_of(not_in_all, _MAX_NAMED)}; for calls that "
            "all have the same inputs choose one variant with --variant"
        )


def _left_out(written: Written) -> Iterator[str]:
    if written.raised:
        yield f"{counted(written.raised, 'call')} that raised"
    if written.under_way:
        yield f"{counted(written.under_way, 'call')} that had not ended"
    if written.without_outputs:
        yield f"outputs of {counted(written.without_outputs, 'call')}, which are not on the tape"
    if written.not_tensors:
        yield f"values that are no tensors: {some_of(written.not_tensors, _MAX_NAMED)}"
    if written.not_inputs:
        yield f"tensors that the model does not take: {some_of(written.not_inputs, _MAX_NAMED)}"
