"""The same calls through torch.onnx.InputObserver and through the drop-in: the same answers
wherever the peer has one that torch.export takes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from calltape_analyzer import InputObserver, TapeError
from tests.analyzer.observer.questions import QUESTIONS, same

peer = pytest.importorskip("torch.onnx").__dict__.get("InputObserver")
pytestmark = pytest.mark.skipif(peer is None, reason="this torch has no InputObserver")

SIZES = st.integers(1, 4)
SETTINGS = settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


class Model(torch.nn.Module):
    """Takes anything and returns its first tensor; has one scalar default of each type."""

    def forward(self, a=None, b=None, c=None, d=None, flag=True, count=1, mode="x", scale=1.0):
        return next(iter(tensors_in((a, b, c, d))), torch.zeros(1)) + 1


class Variadic(torch.nn.Module):
    """With ``*args`` and ``**kwargs``."""

    def forward(self, a, *rest, **extra):
        return a + 1


def tensors_in(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [found for child in value.values() for found in tensors_in(child)]
    if isinstance(value, (list, tuple)):
        return [found for child in value for found in tensors_in(child)]
    return []


@dataclass
class Kind:
    """What a parameter takes in every call: a container of tensors of fixed ranks."""

    name: str
    ranks: list[int]
    make: Callable[[list[torch.Tensor]], Any]


@dataclass
class Made:
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"args={shapes_of(self.args)} kwargs={shapes_of(self.kwargs)}"


KINDS: dict[str, tuple[int, Callable[[list[torch.Tensor]], Any]]] = {
    "tensor": (1, lambda t: t[0]),
    "list": (2, list),
    "tuple": (2, tuple),
    "dict": (2, lambda t: dict(zip("pq", t, strict=True))),
    "nested": (3, lambda t: [t[0], {"r": t[1], "s": (t[2],)}]),
}


@st.composite
def kinds(draw: st.DrawFn, names: tuple[str, ...] = tuple(KINDS)) -> Kind:
    name = draw(st.sampled_from(names))
    count, make = KINDS[name]
    return Kind(name, draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)), make)


@st.composite
def values(draw: st.DrawFn, kind: Kind) -> Any:
    return kind.make([draw(tensors(rank)) for rank in kind.ranks])


@st.composite
def tensors(draw: st.DrawFn, rank: int) -> torch.Tensor:
    shape = draw(st.lists(SIZES, min_size=rank, max_size=rank))
    return torch.randn(shape) if draw(st.booleans()) else torch.arange(
        torch.Size(shape).numel(), dtype=torch.int64
    ).reshape(shape)  # fmt: skip


@st.composite
def call_sequences(draw: st.DrawFn) -> list[Made]:
    """One to four calls of ``Model``: every parameter passed or not, by position or by keyword."""
    parameters = {name: draw(kinds()) for name in "abcd"}
    # Beside a nested argument the peer loses count at a None passed by position, and gives the
    # shapes of one argument to another.
    may_be_none = all(kind.name == "tensor" for kind in parameters.values())
    constants = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "flag": st.booleans(),
                "count": st.integers(0, 2),
                "mode": st.sampled_from(["x", "y"]),
                "scale": st.sampled_from([1.0, 2.5]),
            },
        )
    )
    calls = []
    for _ in range(draw(st.integers(1, 4))):
        positional = draw(st.integers(0, 3))
        args = tuple(
            None
            if may_be_none and name != "a" and draw(st.integers(0, 7)) == 0
            else draw(values(parameters[name]))
            for name in "abcd"[:positional]
        )
        named = {
            name: draw(values(parameters[name]))
            for name in "abcd"[positional:]
            if draw(st.integers(0, 2))
        }
        named |= constants if draw(st.integers(0, 5)) else {}
        items = list(named.items())
        random.Random(draw(st.integers(0, 9))).shuffle(items)
        calls.append(Made(args, dict(items)))
    return calls


def observed(observer: Any, model: torch.nn.Module, calls: list[Made]) -> Any:
    with observer(model, store_n_calls=len(calls)):
        for call in calls:
            model(*call.args, **call.kwargs)
    return observer


def shapes_of(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    if isinstance(value, dict):
        return {key: shapes_of(child) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [shapes_of(child) for child in value]
    return value


def answer(question: Callable[[], Any]) -> tuple[str, Any]:
    try:
        return "answer", question()
    except Exception as error:
        return "error", error


def agrees(question: Callable[[Any], Any], ours: Any, theirs: Any) -> None:
    kind, expected = answer(lambda: question(theirs))
    got_kind, got = answer(lambda: question(ours))
    if got_kind == "error":
        assert isinstance(got, TapeError), repr(got)
    if kind == "answer":
        note(f"peer {shapes_of(expected)}")
        note(f"ours {got!r}" if got_kind == "error" else f"ours {shapes_of(got)}")
        assert got_kind == "answer"
        assert same(got, expected)


def compare(model: torch.nn.Module, calls: list[Made], missing: dict[Any, Any]) -> None:
    for call in calls:
        note(repr(call))
    theirs = observed(peer(value_if_missing=missing), model, calls)
    ours = observed(InputObserver(value_if_missing=missing), model, calls)
    for name, question in QUESTIONS.items():
        note(name)
        agrees(question, ours, theirs)


@SETTINGS
@given(calls=call_sequences())
def test_answers_for_any_calls_agree_with_the_peer(calls: list[Made]) -> None:
    compare(Model(), calls, {})


@st.composite
def missing_values(draw: st.DrawFn) -> dict[Any, Any]:
    # Not a name that is also passed by position: the peer counts the parameter twice then.
    keys = draw(st.lists(st.sampled_from(["c", "d", 0, 1]), max_size=2, unique=True))
    return {
        key: torch.zeros(draw(st.lists(st.integers(0, 2), min_size=2, max_size=2))) for key in keys
    }


@st.composite
def flat_calls(draw: st.DrawFn) -> list[Made]:
    """Calls of ``Model`` with matrices only."""
    calls = []
    for _ in range(draw(st.integers(1, 3))):
        positional = draw(st.integers(0, 2))
        args = tuple(draw(tensors(2)) for _ in range(positional))
        named = [name for name in "abcd"[positional:] if draw(st.booleans())]
        calls.append(Made(args, {name: draw(tensors(2)) for name in named}))
    return calls


@SETTINGS
@given(calls=flat_calls(), missing=missing_values())
def test_answers_with_values_for_missing_arguments_agree_with_the_peer(
    calls: list[Made], missing: dict[Any, Any]
) -> None:
    theirs, ours = peer(value_if_missing=missing), InputObserver(value_if_missing=missing)
    kind, refused = answer(lambda: observed(theirs, Model(), calls))
    got_kind, got = answer(lambda: observed(ours, Model(), calls))
    assert got_kind == kind
    if kind == "error":
        assert isinstance(got, type(refused))
        return
    for name in ("shapes", "batch", "arguments", "args_kwargs", "flat", "first", "aligned"):
        agrees(QUESTIONS[name], ours, theirs)


@st.composite
def variadic_calls(draw: st.DrawFn) -> list[Made]:
    """Calls of ``Variadic``: as many positional arguments in each, keywords that come and go."""
    count = draw(st.integers(2, 4))
    names = draw(st.lists(st.sampled_from("uvw"), unique=True))
    calls = []
    for _ in range(draw(st.integers(1, 3))):
        kept = [name for name in names if draw(st.integers(0, 3))]
        args = tuple(draw(tensors(2)) for _ in range(count))
        calls.append(Made(args, {name: draw(tensors(1)) for name in kept}))
    return calls


@SETTINGS
@given(calls=variadic_calls())
def test_answers_for_variadic_calls_agree_with_the_peer(calls: list[Made]) -> None:
    theirs, ours = observed(peer(), Variadic(), calls), observed(InputObserver(), Variadic(), calls)
    for name in ("shapes", "batch", "arguments", "args_kwargs", "flat", "first", "last"):
        agrees(QUESTIONS[name], ours, theirs)


@st.composite
def cache_calls(draw: st.DrawFn) -> list[Made]:
    """Prefill and decode with a DynamicCache of two layers, positional or by keyword."""
    from transformers import DynamicCache

    batch, by_keyword = draw(SIZES), draw(st.booleans())
    calls = []
    for _ in range(draw(st.integers(1, 4))):
        length = draw(st.integers(0, 3))
        tokens = torch.randn(batch, draw(SIZES))
        if length == 0:
            calls.append(Made((), {"a": tokens}) if by_keyword else Made((tokens,)))
            continue
        cache = DynamicCache(
            [(torch.randn(batch, 2, length, 4), torch.randn(batch, 2, length, 4)) for _ in "kv"]
        )
        calls.append(Made((), {"a": tokens, "c": cache}) if by_keyword else Made((tokens, cache)))
    return calls


@pytest.mark.integration
@pytest.mark.parametrize("registration", ["ours", "executorch", "exporters"])
def test_caches(registration: str, registrations: Callable[[str], Any]) -> None:
    @settings(SETTINGS, max_examples=25)
    @given(calls=cache_calls())
    def run(calls: list[Made]) -> None:
        compare(Model(), calls, {})

    with registrations(registration):
        run()


class Strict(torch.nn.Module):
    """Refuses more than four rows."""

    def forward(self, a=None, b=None):
        if len(a) > 4:
            raise ValueError("too many")
        return a + 1


def test_calls_that_raised_and_gradients() -> None:
    theirs, ours = peer(), InputObserver()
    for observer in (theirs, ours):
        model = Strict()
        with observer(model):
            model(a=torch.ones(2, 3, requires_grad=True))
            with pytest.raises(ValueError, match="too many"):
                model(a=torch.ones(5, 3))
    for name in ("shapes", "batch", "arguments", "flat", "first", "last", "outputs"):
        assert same(QUESTIONS[name](ours), QUESTIONS[name](theirs)), name
    gradients = [
        (o.infer_arguments()["a"].requires_grad, o.info.flat_outputs[0][0].requires_grad)
        for o in (ours, theirs)
    ]
    assert gradients[0] == gradients[1] == (False, False)


@pytest.mark.parametrize("extra", [{}, {"b": torch.ones(1)}, {"none_of_it": torch.ones(1)}])
def test_arguments_for_a_given_dict_agree_with_the_peer(extra: dict[str, Any]) -> None:
    calls = [Made((), {"a": torch.ones(2, 3)}), Made((), {"a": torch.ones(4, 3)})]
    theirs, ours = observed(peer(), Strict(), calls), observed(InputObserver(), Strict(), calls)
    given = {"a": torch.ones(3, 3), **extra}
    assert same(ours.infer_arguments(given), theirs.infer_arguments(given))


@pytest.mark.parametrize(
    "args",
    [
        (torch.ones(3, 2), [torch.ones(3, 2)]),
        (torch.ones(3, 2), {"k": torch.ones(3, 2)}),
    ],
    ids=["list", "dict"],
)
def test_containers_of_one_tensor_nest(args: tuple[Any, ...]) -> None:
    """The peer answers here, in a form that torch.export refuses."""
    taller = torch.utils._pytree.tree_map(lambda t: torch.ones(5, 2), args)
    calls = [Made(args), Made(taller)]
    model = Model()
    theirs, ours = observed(peer(), model, calls), observed(InputObserver(), model, calls)
    with pytest.raises(Exception, match="mismatch"):
        torch.export.export(model, args, dynamic_shapes=theirs.infer_dynamic_shapes())
    program = torch.export.export(model, args, dynamic_shapes=ours.infer_dynamic_shapes())
    assert program.module()(*taller).shape == (5, 2)
