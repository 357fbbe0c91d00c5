"""A recorded signature as Python's own."""

from __future__ import annotations

import inspect

import pytest

from calltape_analyzer.observing.signature import Signature
from calltape_schema.records import Parameter


def test_a_signature_as_python_has_it() -> None:
    def function(x, /, mask=None, *args, scale: float = 2.0, **kwargs): ...

    own = tuple(
        Parameter(
            name=p.name, kind=p.kind.name, has_default=p.default is not p.empty,
            default=None if p.default is p.empty else p.default,
        )
        for p in inspect.signature(function).parameters.values()
    )  # fmt: skip
    found = Signature(own).as_python()
    assert str(found) == "(x, /, mask=None, *args, scale=2.0, **kwargs)"
    without = Signature(own).without(frozenset({"mask"})).as_python()
    assert str(without) == "(x, /, *args, scale=2.0, **kwargs)"


@pytest.mark.parametrize("name", ["", "1x", "a b", "class"])
def test_a_name_that_no_function_has_gives_none(name: str) -> None:
    parameter = Parameter(name=name, kind="POSITIONAL_OR_KEYWORD")
    assert Signature((parameter,)).as_python() is None


def test_an_order_that_no_function_has_gives_none() -> None:
    kinds = ("KEYWORD_ONLY", "POSITIONAL_ONLY")
    made = tuple(Parameter(name=kind.lower(), kind=kind) for kind in kinds)  # type: ignore[arg-type]
    assert Signature(made).as_python() is None
