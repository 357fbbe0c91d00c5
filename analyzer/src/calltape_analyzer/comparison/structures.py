"""Whether two results have the same structure, dtypes and shapes, whatever their values are.

It is what remains to be compared if the values of a recorded call are not on the tape. It proves
that a call works, and nothing about its values.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from calltape_analyzer.comparison.comparing import (
    NO_VALUE,
    Difference,
    Tolerances,
    because,
    compared,
    has_values,
    is_within,
    other_outputs,
    shown_path,
)
from calltape_analyzer.comparison.renamed_outputs import as_recorded
from calltape_analyzer.pytree.placeholder import Placeholder
from calltape_analyzer.pytree.result_values import Constant, Unknown

__all__ = ["compared_against", "same_structure", "what_to_compare", "without_value"]

_SCALARS = ("int", "float", "complex", "str", "bytes")


def without_value(leaves: Mapping[str, Any]) -> frozenset[str]:
    """The paths of leaves of which the tape has a dtype and a shape, or a type, and no value."""
    return frozenset(path for path, leaf in leaves.items() if not has_values({path: leaf}))


def what_to_compare(expected: Mapping[str, Any], made_up: bool) -> str:
    """What a result can be compared with: :attr:`ReportRow.against`.

    Args:
        expected: what was recorded.
        made_up: whether some of the arguments are not the recorded ones. Then no value that comes
            out need be the recorded one.
    """
    withheld = without_value(expected)
    if made_up or (withheld and len(withheld) == len(expected)):
        return "shapes"
    return "part" if withheld else "tape"


def compared_against(
    against: str,
    expected: Mapping[str, Any],
    got: Mapping[str, Any],
    tolerances: Tolerances,
    omitted: Collection[str] = (),
) -> Difference:
    """Compares what :func:`what_to_compare` says, and no more.

    Args:
        against: ``"shapes"``, ``"part"``, or anything else for all values.
        expected, got, tolerances, omitted: as for :func:`compared`.
    """
    if against not in ("shapes", "part"):
        return compared(expected, got, tolerances, omitted)
    structure = same_structure(expected, got, omitted)
    if against == "shapes" or not structure.ok:
        return structure
    known = {path: leaf for path, leaf in got.items() if path in expected}
    return compared(expected, known, tolerances, {*omitted, *without_value(expected)})


def same_structure(
    expected: Mapping[str, Any], got: Mapping[str, Any], omitted: Collection[str] = ()
) -> Difference:
    """Compares paths, dtypes, shapes and types. No value is compared, so that ``compared`` is 0.

    Args:
        expected: what was recorded, with or without values.
        got: what came out.
        omitted: paths of ``expected`` that the model does not return; they are left out.
    """
    got = as_recorded(expected, got)
    wanted = {path: leaf for path, leaf in expected.items() if path not in omitted}
    # Of a withheld value nobody knows what is in it.
    withheld = {p: v for p, v in wanted.items() if isinstance(v, Unknown) and v.is_withheld}
    known = {path: leaf for path, leaf in wanted.items() if path not in withheld}
    given = {path: leaf for path, leaf in got.items() if not is_within(path, withheld)}
    if known.keys() != given.keys():
        return _wrong(other_outputs(known, given))
    if not wanted:
        return _wrong(f"nothing was compared: {NO_VALUE}")
    unknown = [
        f"outputs{path} {because(leaf)}"
        for path, leaf in [*known.items(), *given.items()]
        if isinstance(leaf, Placeholder | Unknown)
    ]
    if unknown:
        return _wrong(f"not verified: {unknown[0]}")
    for path, leaf in known.items():
        if _form(leaf) != _form(given[path]):
            error = f"{shown_path(path)} is {_form(given[path])} instead of {_form(leaf)}"
            return _wrong(error)
    for path, one in withheld.items():
        name = one.type_name.rpartition(":")[2]
        if name in _SCALARS and (found := type(got.get(path)).__name__) != name:
            return _wrong(f"{shown_path(path)} is a {found} instead of a {name}")
    return Difference(True, agrees=True)


def _wrong(error: str) -> Difference:
    return Difference(False, error=error)


def _form(leaf: Any) -> str:
    """What is compared of a leaf: ``float32[2,3]``, ``str``."""
    if isinstance(leaf, Constant):
        return leaf.kind
    if not hasattr(leaf, "untyped_storage"):
        return type(leaf).__name__
    dtype = str(leaf.dtype).removeprefix("torch.")
    layout = str(leaf.layout).removeprefix("torch.")
    shape = ",".join(map(str, leaf.shape))
    return f"{dtype}[{shape}]" + (f" ({layout})" if layout != "strided" else "")
