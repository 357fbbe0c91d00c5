"""Whether a program takes sizes of 0 that no call had: it does where it was seen to do what the
model does.

A batch of 0 is usual, and no trace is made with one. The model and the program are run at it, once
per symbol. Outputs without elements have nothing but a dtype and a shape to compare, which is said.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from calltape_analyzer.arguments.samples import Sample, resized_row
from calltape_analyzer.arguments.sizings import Sizing, sizings_with_zero
from calltape_analyzer.comparison.comparing import Difference, compared
from calltape_analyzer.exporting.verifier import Verifier
from calltape_analyzer.observing.columns import Column
from calltape_analyzer.programs.program import Program
from calltape_analyzer.variants.zero_sizes import ZeroSizes

__all__ = ["try_zeros"]


class _Expected(NamedTuple):
    """What the model returned for a sample."""

    sample: Sample
    leaves: Mapping[str, Any]


def try_zeros(program: Program, verifier: Verifier, seconds: float) -> None:
    """Runs a program at sizes of 0, and notes which it takes. The others it refuses.

    Args:
        program: serves recorded sizes, and others as well.
        verifier: has the model.
        seconds: how long it took to make the program.
    """
    if program.only is not None or verifier.probing.probe == "none":
        return
    until = time.perf_counter() + verifier.probing.patience(seconds)
    right: dict[frozenset[Column], _Expected] = {}
    refused: dict[frozenset[Column], str] = {}
    for sizing in sizings_with_zero(program.variant):
        row = resized_row(program.variant, sizing.row, sizing.values)
        columns = frozenset(program.variant.new_zeros(row))
        if not columns or program.conditions_refuse(row) is not None:
            continue
        if time.perf_counter() > until or verifier.budget.is_spent:
            refused[columns] = "there was no time to try it"
            continue
        found = _expected(program, verifier, sizing)
        if isinstance(found, str):
            refused[columns] = found
        else:
            right[columns] = found
    taken = _taken(program, verifier, right, refused)
    program.variant = replace(program.variant, zeros=ZeroSizes(frozenset(taken), refused))
    _note(program, taken)


def _expected(program: Program, verifier: Verifier, sizing: Sizing) -> _Expected | str:
    """What the model returns, or why that proves nothing. The reason is saved with the program, and
    a message of the model may quote a call: only its type is kept."""
    variant, probing = program.variant, verifier.probing
    reason = verifier.refuses(variant, sizing)
    if reason is not None:
        return f"it was not tried ({reason})"
    limit = verifier.budget.within(probing.seconds)
    try:
        sample = verifier.sample(variant, sizing)
        leaves = probing.run(variant, sizing, lambda: verifier.eager(program.plan, sample), limit)
    except TimeoutError as error:
        return f"it was not tried ({error})"
    except Exception as error:  # models raise errors of any type
        return f"the model itself raised {type(error).__name__}"
    if not _is_finite(leaves):
        return "the model itself returned NaN or infinity"
    return _Expected(sample, leaves)


def _taken(
    program: Program,
    verifier: Verifier,
    right: Mapping[frozenset[Column], _Expected],
    refused: dict[frozenset[Column], str],
) -> dict[frozenset[Column], Difference]:
    """The dimensions at which the program does what the model does. The others go to ``refused``,
    with the reason."""
    if not right:
        return {}
    runs = [program.inputs(expected.sample) for expected in right.values()]
    limit = verifier.budget.within(verifier.probing.seconds)
    deaths = program.model.deaths(runs, limit)
    taken: dict[frozenset[Column], Difference] = {}
    for (columns, expected), death in zip(right.items(), deaths, strict=True):
        if death is not None:
            refused[columns] = f"{program.model.runtime} {death}"
            continue
        try:
            got = verifier.outputs(program, expected.sample)
        except Exception as error:  # torch and runtimes raise errors of any type
            refused[columns] = f"the program raised {type(error).__name__}"
            continue
        found = compared(expected.leaves, got, verifier.tolerances)
        if found.agrees:
            taken[columns] = found
        else:
            refused[columns] = "the program returned something else than the model"
    return taken


def _is_finite(leaves: Mapping[str, Any]) -> bool:
    import torch

    inexact = (
        leaf
        for leaf in leaves.values()
        if isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex())
    )
    return all(bool(leaf.isfinite().all()) for leaf in inexact)


def _note(program: Program, taken: Mapping[frozenset[Column], Difference]) -> None:
    """Says which dimensions may be 0, and what that was seen by."""
    name = program.variant.group.layout.column_name
    for has_values, how in (
        (True, "outputs were compared with the model's"),
        (False, "outputs have no elements there; their dtypes and shapes are the model's"),
    ):
        own = [columns for columns, found in taken.items() if bool(found.compared) is has_values]
        if own:
            shown = ", ".join(" and ".join(map(name, sorted(columns))) for columns in own)
            program.notes.append(f"takes a size of 0 for {shown}: {how}")
