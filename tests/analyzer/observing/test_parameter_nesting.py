"""Dynamic shapes stand under the parameters in one way, whichever analysis gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import Tape, open_tape
from calltape_analyzer.errors import UsageError
from calltape_analyzer.observing.signature import Signature, nested
from tests.analyzer.tapes import Recorded, target_of, write_tape

D = torch.export.Dim.DYNAMIC


def t(*shape: int) -> torch.Tensor:
    return torch.zeros(shape)


def tape_of(path: Path, function: Any, *calls: tuple[tuple[Any, ...], dict[str, Any]]) -> Tape:
    recorded = [Recorded(args=args, kwargs=kwargs) for args, kwargs in calls]
    return open_tape(write_tape(path, recorded, target=function))


def plain(x, y=None):
    return x


def with_members(x, *rest, y=None):
    return x


def with_extra(x, **more):
    return x


def with_both(x, *rest, **more):
    return x


CASES: list[tuple[Any, Any, Any]] = [
    (plain, lambda n: ((t(n, 3), [t(n), t(2)]), {}), ({0: D}, [{0: D}, {}])),
    (plain, lambda n: ((t(n, 3),), {"y": t(n)}), {"x": {0: D}, "y": {0: D}}),
    (with_members, lambda n: ((t(n),), {}), ({0: D},)),
    (with_members, lambda n: ((t(n), t(2), t(n)), {}), {"x": {0: D}, "rest": ({}, {0: D})}),
    (with_members, lambda n: ((t(n), t(n)), {"y": t(1)}),
     {"x": {0: D}, "rest": ({0: D},), "y": {}}),
    (with_extra, lambda n: ((t(n),), {"a": t(n), "b": t(1)}),
     {"x": {0: D}, "more": {"a": {0: D}, "b": {}}}),
    (with_both, lambda n: ((t(n), t(n)), {"a": {"k": t(n)}}),
     {"x": {0: D}, "rest": ({0: D},), "more": {"a": {"k": {0: D}}}}),
]  # fmt: skip


@pytest.mark.parametrize(("function", "call", "expected"), CASES)
def test_both_analyses_nest_alike(tmp_path: Path, function: Any, call: Any, expected: Any) -> None:
    with tape_of(tmp_path / "a.tape", function, call(4), call(6)) as tape:
        (variant,) = tape.variants()
        assert tape.infer_dynamic_shapes() == expected
        assert variant.infer_dynamic_shapes(dim="dynamic") == expected


def test_an_argument_with_the_name_of_the_variadic_one_is_rejected(tmp_path: Path) -> None:
    calls = [((t(n),), {"more": t(n), "a": t(n)}) for n in (2, 3)]
    with tape_of(tmp_path / "a.tape", with_extra, *calls) as tape:
        (variant,) = tape.variants()
        for ask in (tape.infer_dynamic_shapes, variant.infer_dynamic_shapes):
            with pytest.raises(UsageError, match="collision"):
                ask()


def test_members_keep_their_place() -> None:
    signature = Signature.of(target_of(with_both))
    made = nested(signature, 2, {"x": 1, "rest.0": 2, "a": 3})
    assert isinstance(made, dict)
    assert list(made.items()) == [("x", 1), ("rest", (2,)), ("more", {"a": 3})]
