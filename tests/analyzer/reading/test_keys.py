"""A value is read back at the place where it was passed, whatever the keys around it are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

from calltape_analyzer import open_tape
from calltape_analyzer.writing.new_tape import NewTape
from calltape_analyzer.writing.synthetic import build_call
from calltape_recorder import record
from tests.recorder.models import Echo

_PARTS = st.text("ab.~2[0]?\u00e9\ud800 ", max_size=6) | st.text(max_size=3)
_KEYS = st.one_of(
    _PARTS,
    _PARTS.map(lambda part: (part * 200)[:400]),
    st.integers(0, 3),
    st.sampled_from([None, True, b"a", ("a", 2)]),
)
_LEAF = st.none()
_TREES = st.recursive(
    _LEAF,
    lambda tree: st.dictionaries(_KEYS, tree, max_size=4) | st.lists(tree, max_size=3),
    max_leaves=12,
)


def _tensors(tree: Any) -> Any:
    """The tree with a tensor in the place of each leaf, each of another value."""
    leaves, spec = pytree.tree_flatten(tree, is_leaf=lambda node: node is None)
    return pytree.tree_unflatten([torch.tensor([float(n)]) for n in range(len(leaves))], spec)


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return [*one] == [*other] and all(_is_same(one[key], other[key]) for key in one)
    return len(one) == len(other) and all(map(_is_same, one, other))


@given(st.lists(_TREES, max_size=2), st.dictionaries(_PARTS, _TREES, max_size=4))
@example([], {"a.b~2": None, "a.b": None, "a": {"b": None}})
@example([{"0": None, 0: None}, {"1~3": None, "1": None, 1: None}], {})
@example([], {"a": {"x" * 250 + one: None for one in "abc"}})
def test_each_value_is_read_where_it_was_passed(
    tmp_path_factory: Any, args: list[Any], kwargs: dict[str, Any]
) -> None:
    path: Path = tmp_path_factory.mktemp("keys")
    args, kwargs = _tensors((args, kwargs))
    model = Echo()
    with record(model, path / "recorded.tape", outputs=False):
        model(*args, **kwargs)
    with open_tape(path / "recorded.tape") as tape:
        with NewTape(path / "built.tape", tape.manifest) as writer:
            writer.write(*build_call(0, args, kwargs))
            writer.seal()
        with open_tape(path / "built.tape") as built:
            for one in (tape, built):
                inputs = one.calls[0].inputs
                assert _is_same((list(args), kwargs), (list(inputs.args), inputs.kwargs))
