"""Records tiny modules, exports them, and compares programs with the modules."""

from __future__ import annotations

import copy
import dataclasses
import enum
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from calltape_analyzer import ExportOptions, Programs, Tape, export, open_tape
from calltape_recorder import record

__all__ = ["Call", "assert_as_module", "assert_same", "call", "made", "taped", "taped_as_is"]

Call = tuple[tuple[Any, ...], dict[str, Any]]


def call(*args: Any, **kwargs: Any) -> Call:
    """The arguments of a call."""
    return args, kwargs


def taped(
    folder: Path,
    module: torch.nn.Module,
    calls: Iterable[Call],
    *,
    name: str = "calls.tape",
    classes: Any = (),
    **options: Any,
) -> Tape:
    """A tape of calls of a module. Calls may raise."""
    with record(module, folder / name, **options), torch.no_grad():
        for args, kwargs in copy.deepcopy(list(calls)):
            try:
                module(*args, **kwargs)
            except ValueError:
                continue
    return open_tape(folder / name, classes=classes)


def taped_as_is(folder: Path, model: Any, given: Iterable[Any]) -> Tape:
    """A tape of calls with these tensors, and not with copies of them."""
    with record(model, folder / "calls.tape"), torch.no_grad():
        for x in given:
            model(x)
    return open_tape(folder / "calls.tape")


def export_with(tape: Tape, module: Any, *, to: str = "torch", **options: Any) -> Programs:
    """The programs of an export with some options."""
    return export(tape, module, to=to, options=ExportOptions(**options))  # type: ignore[arg-type]


def made(
    folder: Path,
    module: torch.nn.Module,
    calls: Sequence[Call],
    unseen: Iterable[Call] = (),
    *,
    classes: Any = (),
    **options: Any,
) -> Programs:
    """Programs for calls, which reproduce all of them and give what the module gives at others."""
    tape = taped(folder, module, calls, classes=classes)
    programs = export_with(tape, module, **options)
    report = programs.verify()
    assert report.ok, report.table()
    assert {row.against for row in report} == {"tape"}
    rtol = 1e-3 if options.get("to") == "onnx" else 1e-5
    assert_as_module(programs, module, [*calls, *unseen], rtol=rtol)
    return programs


def assert_as_module(
    programs: Any, module: torch.nn.Module, calls: Iterable[Call], rtol: float = 1e-5
) -> None:
    """Programs return what the module returns, in the same classes."""
    for args, kwargs in calls:
        with torch.no_grad():
            ours, their = copy.deepcopy(args), copy.deepcopy(kwargs)
            expected = module(*ours, **their)
        assert_same(expected, programs(*copy.deepcopy(args), **copy.deepcopy(kwargs)), rtol)


def assert_same(expected: Any, got: Any, rtol: float = 1e-5) -> None:
    """Equal in class, structure and values."""
    if isinstance(expected, torch.Tensor):
        assert isinstance(got, torch.Tensor)
        torch.testing.assert_close(got, expected, rtol=rtol, atol=rtol, equal_nan=True)
        return
    assert type(expected) is type(got), f"{got!r} instead of {expected!r}"
    if isinstance(expected, enum.Enum):
        assert expected is got
    elif isinstance(expected, Mapping):
        assert list(expected) == list(got)
        for key, value in expected.items():
            assert_same(value, got[key], rtol)
    elif isinstance(expected, tuple | list):
        assert len(expected) == len(got)
        for one, other in zip(expected, got, strict=True):
            assert_same(one, other, rtol)
    elif dataclasses.is_dataclass(expected) or type(expected).__name__.endswith("Cache"):
        assert_same(vars(expected), vars(got), rtol)
    else:
        assert expected == got
