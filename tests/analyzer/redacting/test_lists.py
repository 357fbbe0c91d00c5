"""Which numbers are data because they stand in a list: the recorder and redaction decide alike."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calltape_analyzer import filter_tape, open_tape, redact
from calltape_analyzer.pytree.nodes import placed_nodes
from calltape_recorder import record
from calltape_recorder.capture.omissions import Omissions
from calltape_recorder.capture.structures import Structures
from calltape_recorder.capture.walk import capture_inputs
from calltape_schema.records import Parameter
from calltape_schema.tree import OpaqueNode, ScalarNode, Structure, decode_structure
from tests.recorder.models import Echo


class SomeCache:
    def __init__(self, state: Any) -> None:
        self.state = state


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(inner, max_size=6)
    return st.one_of(
        lists,
        lists.map(tuple),
        lists.map(deque),
        st.lists(inner, max_size=3).map(lambda found: dict(zip("abc", found, strict=False))),
        lists.map(lambda found: dict(enumerate(found))),
        lists.map(lambda found: {str(n): one for n, one in enumerate(found)}),
        inner.map(lambda found: SimpleNamespace(state=found)),
        inner.map(SomeCache),
        st.builds(slice, st.just(7), st.just(8)),
        st.lists(st.integers(5, 9), max_size=6).map(torch.Size),
    )


VALUES = st.recursive(st.sampled_from([7, 0.5, "x", None, True]), containers, max_leaves=14)


def structure_of(args: list[Any], omissions: Omissions) -> Structure:
    """Of a call of ``forward(first, *rest, **more)``."""
    tokens, _, _ = capture_inputs(tuple(args), {"more": args})
    surveyed = Structures(lambda structure: None, omissions).of(tokens)
    return decode_structure(surveyed.encoded)


FIRST = Parameter(name="first", kind="POSITIONAL_OR_KEYWORD")


@given(args=st.lists(VALUES, max_size=7))
def test_recorder_and_redaction_decide_alike(args: list[Any]) -> None:
    whole = structure_of(args, Omissions([("*", "all")], [FIRST]))
    told = {placed.path: placed for placed in placed_nodes(whole.root, named=1)}
    less = structure_of(args, Omissions([("*", "none")], [FIRST]))
    for placed in placed_nodes(less.root, named=1):
        here = told[placed.path]
        assert (placed.in_list, placed.in_cache) == (here.in_list, here.in_cache)
        if isinstance(here.node, ScalarNode) and here.node.kind != "str":
            is_withheld = isinstance(placed.node, OpaqueNode)
            assert is_withheld == (here.in_list and not here.in_cache), placed.path


@pytest.mark.parametrize("ids", [[15339, 1917, 30, 7, 11], [[15339, 1917], [30, 7], [11]]])
def test_a_prompt_in_a_list_is_replaced(tmp_path: Path, ids: Any) -> None:
    model = Echo()
    with record(model, tmp_path / "t.tape"):
        model(prompt=ids, size=[224, 225])
    with open_tape(tmp_path / "t.tape") as tape:
        redact(tape, tmp_path / "r.tape")
    with open_tape(tmp_path / "r.tape") as tape:
        kwargs = tape.calls[0].inputs.kwargs
    assert kwargs["size"] == [224, 225]
    flat = [one for row in kwargs["prompt"] for one in (row if isinstance(row, list) else [row])]
    assert len(flat) == 5
    assert not {15339, 1917} & set(flat)


def test_scale_and_zero_point_go_with_the_elements(tmp_path: Path) -> None:
    quantized = torch.quantize_per_tensor(torch.rand(4), 0.123, 3, torch.quint8)
    model = Echo()
    with record(model, tmp_path / "t.tape"):
        model(x=quantized, y=quantized.clone())
    made = {}
    with open_tape(tmp_path / "t.tape") as tape:
        filter_tape(tape, tmp_path / "filtered.tape", drop=["x"])
        redact(tape, tmp_path / "kept.tape", keep=["x"])
        redact(tape, tmp_path / "shapes_only.tape", shapes_only=["*"])
    for path in sorted(tmp_path.glob("*.tape")):
        with open_tape(path) as tape:
            leaves = tape.calls[0].record.inputs.facts()
            made[path.stem] = [leaf.quantizer is not None for leaf in leaves]
            assert made[path.stem] == [leaf.key is not None for leaf in leaves]
    assert made == {
        "t": [True, True], "filtered": [False, True], "kept": [True, False],
        "shapes_only": [False, False],
    }  # fmt: skip


def test_filter_leaves_what_the_recorder_would_have_left(tmp_path: Path) -> None:
    """A pattern with a wildcard takes numbers that are data, and no settings."""
    model, given = Echo([5, 6]), {"ids": [15339, 1917, 30, 7, 11], "k": 5, "size": [224, 225]}
    for values in ("all", "none"):
        with record(model, tmp_path / f"{values}.tape", values=values):  # type: ignore[arg-type]
            model(given, **given)
    with open_tape(tmp_path / "all.tape") as tape:
        filter_tape(tape, tmp_path / "filtered.tape", drop=["*"])
    trees = []
    for name in ("none", "filtered"):
        with open_tape(tmp_path / f"{name}.tape") as tape:
            found = tape.calls[0].record
            trees.append((found.inputs.spec(), found.outputs.spec()))  # type: ignore[union-attr]
            assert tape.calls[0].inputs.kwargs["k"] == 5
            assert tape.calls[0].inputs.kwargs["size"] == [224, 225]
    for recorded, filtered in zip(*trees, strict=True):
        shown = [
            [(p.path, type(p.node).__name__) for p in placed_nodes(one.root)]
            for one in (recorded, filtered)
        ]
        assert shown[0] == shown[1]
