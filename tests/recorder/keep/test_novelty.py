"""A call is kept only if it adds evidence, and the analysis of those equals that of all."""

from __future__ import annotations

import itertools
import random
import sys
import threading
import tracemalloc
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calltape_analyzer import open_tape
from calltape_recorder import Every, First, Keep, Novelty, PerSecond, PerStructure, When, record
from calltape_recorder.capture.structures import Structure
from calltape_recorder.keep import novelty, policies
from calltape_recorder.keep.policies import (
    NOVEL,
    CallView,
    Decider,
    Verdict,
    settled,
    start_over,
)
from calltape_recorder.write import disk_file
from tests.recorder.models import Echo, Identity
from tests.recorder.reading import read


def kept(path: Path, calls: list[tuple[tuple[Any, ...], dict[str, Any]]]) -> list[int]:
    model = Echo()
    with record(model, path, keep=Novelty(), overwrite=True):
        for args, kwargs in calls:
            model(*args, **kwargs)
    return read(path).numbers


def of_shapes(*calls: Any) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Calls of tensors of these shapes; ints and texts stand for themselves."""
    return [
        (tuple(torch.zeros(v) if isinstance(v, tuple) else v for v in call), {}) for call in calls
    ]


@pytest.mark.parametrize(
    ("calls", "numbers"),
    [
        # Ints that no float holds.
        ([((3,), 2**1100), ((3,), 2**1100 + 1), ((3,), 2**1101)], [0, 1, 2]),
        ([((3,), -(2**1101)), ((3,), -(2**1100)), ((3,), 9)], [0, 1, 2]),
        # The same again is none; another size is; a third one in line is not.
        ([((3,),), ((3,),), ((4,),), ((5,),)], [0, 2]),
        # An equality that no longer holds.
        ([((3,), (3,)), ((4,), (4,)), ((5,), (6,)), ((8,), (9,))], [0, 1, 2, 3]),
        # A sum that no longer holds: past + new = mask.
        (
            [((5,), (2,), (7,)), ((6,), (3,), (9,)), ((8,), (2,), (10,)), ((9,), (3,), (12,)),
             ((9,), (3,), (13,))],
            [0, 1, 2, 4],
        ),
        # A multiple that no longer holds.
        ([((3,), (6,)), ((4,), (8,)), ((5,), (10,)), ((5,), (11,))], [0, 1, 3]),
        # Zero and one are kinds of their own.
        ([((3,),), ((4,),), ((1,),), ((0,),), ((1,),), ((0,),)], [0, 1, 2, 3]),
        # Ints are sizes too.
        ([((9,), 3), ((9,), 4), ((9,), 5)], [0, 1]),
        # Constants: each text once.
        ([((3,), "a"), ((3,), "b"), ((3,), "a"), ((3,), "b")], [0, 1]),
        ([((3,), 0.5), ((3,), 0.25), ((3,), 0.5)], [0, 1]),
        # Numbers that Python takes for one another by their hash.
        ([((3,), -1), ((3,), -2), ((3,), -1)], [0, 1]),
        ([((3,), 3), ((3,), 2**63 - 1)], [0, 1]),
        ([((3,), -1.0), ((3,), -2.0), ((3,), -2 + 0j), ((3,), -1 + 0j)], [0, 1, 2, 3]),
        # Growth: twice the largest, half the smallest.
        ([((10,),), ((11,),), ((19,),), ((22,),), ((43,),), ((44,),), ((6,),), ((5,),), ((4,),)],
         [0, 1, 3, 5, 7]),
    ],
)  # fmt: skip
def test_a_call_is_new_by_structure_shape_or_constant(
    tmp_path: Path, calls: Any, numbers: list[int]
) -> None:
    assert kept(tmp_path / "t.tape", of_shapes(*calls)) == numbers


def test_dtype_and_structure_are_evidence(tmp_path: Path) -> None:
    x = torch.zeros(3)
    calls: list[Any] = [((x,), {}), ((x.half(),), {}), (([x],), {}), ((), {"x": x}), ((x,), {})]
    assert kept(tmp_path / "t.tape", calls) == [0, 1, 2, 3]


def test_constants_that_never_repeat_do_not_fill_the_disk(tmp_path: Path) -> None:
    calls = of_shapes(*[((3,), f"request {n}") for n in range(1000)])
    assert len(kept(tmp_path / "t.tape", calls)) <= 300


def test_a_long_generation_is_a_few_calls(tmp_path: Path) -> None:
    """Decoding token by token: the cache grows, the mask is one longer."""
    model = Echo()
    with record(model, tmp_path / "t.tape", keep=Novelty(), outputs=False) as recorder:
        for length in range(2, 2000):
            past = [torch.empty(1, 2, length, 4).expand(2, 2, length, 4) for _ in range(4)]
            model(torch.zeros(2, 1), torch.zeros(2, length + 1), past)
    stats = recorder.stats()
    assert stats.seen == 1998
    assert stats.kept < 60


@st.composite
def traffic(draw: st.DrawFn) -> list[Any]:
    """Calls of one model whose sizes are affine in a few free ones, some of them always."""
    free = draw(st.integers(1, 3))
    rows = draw(
        st.lists(
            st.lists(st.integers(0, 4), min_size=free, max_size=free), min_size=free, max_size=7
        )
    )
    calls = draw(
        st.lists(
            st.lists(st.integers(0, 30), min_size=free, max_size=free), min_size=2, max_size=25
        )
    )
    return [tuple((sum(a * b for a, b in zip(row, call, strict=True)),) for row in rows)
            for call in calls]  # fmt: skip


def span(rows: list[list[int]]) -> list[list[Fraction]]:
    """A basis of the affine span, in exact arithmetic and echelon form."""
    basis: list[list[Fraction]] = []
    for numbers in rows:
        row = [Fraction(1), *map(Fraction, numbers)]
        for known in basis:
            at = next(i for i, v in enumerate(known) if v)
            if row[at]:
                factor = row[at] / known[at]
                row = [a - factor * b for a, b in zip(row, known, strict=True)]
        if any(row):
            basis.append(row)
    return basis


@settings(suppress_health_check=list(HealthCheck))
@given(traffic())
def test_what_is_kept_spans_everything(tmp_path: Path, calls: list[Any]) -> None:
    numbers = kept(tmp_path / "t.tape", of_shapes(*calls))
    rows = [[shape[0] for shape in call] for call in calls]
    assert len(span([rows[n] for n in numbers])) == len(span(rows))


# How often, in which call, and how far: the end of the tape knows these of all calls.
_COUNTS = {"calls", "first_call", "sizes", "distinct", "min", "max", "range", "warnings"}


def described(path: Path) -> Any:
    """What an analysis says of a tape, without counts."""
    with open_tape(path) as tape:
        found = [v.findings.model_dump(mode="json") for v in tape.variants()]
    return sorted((_uncounted(variant) for variant in found), key=str)


def _uncounted(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _uncounted(v) for k, v in value.items() if k not in _COUNTS}
    return [_uncounted(v) for v in value] if isinstance(value, list) else value


@pytest.mark.parametrize("seed", range(12))
def test_the_analysis_of_what_is_kept_is_that_of_everything(tmp_path: Path, seed: int) -> None:
    """A decoder's traffic: prefills and decode steps of several batches and lengths."""
    chance = random.Random(seed)
    calls: list[Any] = []
    for _ in range(12):
        batch, length = chance.choice([1, 2, 3, 5]), chance.randint(2, 9)
        calls.append(((torch.zeros(batch, length),), {"mask": torch.zeros(batch, length)}))
        for past in range(length, length + chance.randint(1, 6)):
            cache = [torch.zeros(batch, 2, past, 4), torch.zeros(batch, 2, past, 4)]
            keywords = {"mask": torch.zeros(batch, past + 1), "cache": cache}
            calls.append(((torch.zeros(batch, 1),), keywords))
    model = Echo()
    full, small = tmp_path / "full.tape", tmp_path / "small.tape"
    with record(model, full), record(model, small, keep=Novelty()) as recorder:
        for args, kwargs in calls:
            model(*args, **kwargs)
    assert recorder.stats().kept < len(calls) / 2
    assert described(small) == described(full)


# --- evidence that is lost -----------------------------------------------------------------------


def view_of(*scalars: Any) -> Any:
    row = tuple(None for _ in scalars)
    return CallView(0, (), {}, Structure(b"one", (), {}), row, list(scalars))


class Seldom(Keep):
    """A policy of a user, which keeps a call of each structure."""

    def decider(self) -> Decider:
        kept = set()

        def keep(structure: bytes) -> int:
            kept.add(structure)
            return NOVEL

        def decide(number: int, view: CallView) -> Verdict:
            structure = view.structure.encoded
            return False if structure in kept else partial(keep, structure)

        return decide


@pytest.mark.parametrize(
    "keep",
    [Novelty(), PerStructure(1), Novelty() & Every(), Every() & PerStructure(1),
     First(0) | Novelty(), Novelty() | First(0), (First(0) | Novelty()) & Every()],
    ids=str,
)  # fmt: skip
def test_what_is_forgotten_is_kept_again(keep: Keep) -> None:
    decide, view = keep.decider(), view_of("a")
    assert [settled(decide(n, view)) for n in range(3)] == [NOVEL, False, False]
    start_over(decide)
    assert [settled(decide(n, view)) for n in range(3)] == [NOVEL, False, False]


@pytest.mark.parametrize("around", [
    lambda novel, limit: novel & limit,
    lambda novel, limit: limit & novel,
    lambda novel, limit: novel & Every() & limit,
    lambda novel, limit: novel & (Every() & limit),
    lambda novel, limit: (First(0) | novel) & limit,
    lambda novel, limit: (novel | First(0)) & (First(0) | limit),
])  # fmt: skip
@pytest.mark.parametrize(
    "novel", [Novelty(), PerStructure(1), Seldom()], ids=["novelty", "per_structure", "own"]
)
def test_what_another_policy_refused_is_no_evidence(novel: Keep, around: Any) -> None:
    is_open = [True]
    decide = around(novel, When(lambda args, kwargs: is_open[0])).decider()

    def asked(number: int, likes: list[bool]) -> list[int]:
        views = [CallView(0, (), {}, Structure(b"%d" % number, (), {}), ((number,),), [])]
        found = []
        for is_open[0] in likes:
            found += [settled(decide(0, view)) for view in views]
        return found

    assert asked(3, [True, True]) == [NOVEL, False]
    assert asked(4, [False, False, True, True]) == [False, False, NOVEL, False]


@pytest.mark.parametrize("policy", [Novelty(), PerStructure(1)], ids=str)
def test_calls_that_another_policy_refuses_take_no_room(
    policy: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(novelty, "MAX_NOVELTY_STRUCTURES", 20)
    monkeypatch.setattr(policies, "MAX_POLICY_STRUCTURES", 20)
    is_open = False
    decide = (policy & When(lambda args, kwargs: is_open)).decider()

    def asked(structure: int) -> int:
        view = CallView(0, (), {}, Structure(b"%d" % structure, (), {}), ((3,),), [])
        return settled(decide(0, view))

    assert not any(map(asked, range(100)))
    is_open = True
    assert [asked(n) for n in range(200, 230)] == [NOVEL] * 20 + [False] * 10


def test_what_is_kept_after_a_start_anew_is_remembered_anew() -> None:
    decide = Novelty().decider()
    sizes = [CallView(0, (), {}, Structure(b"x", (), {}), ((n,),), []) for n in (3, 4, 5)]
    assert [settled(decide(0, view)) for view in sizes[:1]] == [NOVEL]
    late = decide(0, sizes[1])
    start_over(decide)
    assert settled(late) == NOVEL
    assert [settled(decide(0, view)) for view in sizes] == [NOVEL, NOVEL, False]


@pytest.mark.parametrize(
    ("answers", "numbers"),
    [([None, object(), 0, 1], [1, 3]), ([torch.tensor(True), torch.tensor(False)], [0])],
)
def test_a_policy_of_a_user_may_answer_with_anything(
    tmp_path: Path, answers: list[Any], numbers: list[int]
) -> None:
    class Own(Keep):
        def decider(self) -> Decider:
            return lambda number, view: answers[number]

    model = Identity()
    with record(model, tmp_path / "t.tape", keep=Own()):
        for _ in answers:
            model(torch.ones(2))
    assert read(tmp_path / "t.tape").numbers == numbers


def test_a_size_that_a_limit_refused_is_kept_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, model = [0.0], Echo()
    monkeypatch.setattr(policies, "time", type("Clock", (), {"monotonic": lambda: now[0]}))
    with record(model, tmp_path / "t.tape", keep=Novelty() & PerSecond(0.1)):
        for size in (3, 4, 3, 4, 5):
            now[0] += 4
            model(torch.zeros(size))
    assert read(tmp_path / "t.tape").numbers == [0, 3]  # the limit loses nothing to what is known


def test_a_call_that_the_disk_refused_is_no_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any) -> int:
        raise OSError(5, "the disk failed")

    model, path, x = Identity(), tmp_path / "t.tape", torch.ones(3)
    with record(model, path, keep=Novelty()) as recorder:
        with monkeypatch.context() as patch:
            patch.setattr(disk_file, "pwritev", broken)
            model(x)
            assert recorder.flush()
        assert recorder.stats().dropped == {"io": 1}
        model(x)
        model(x)
    assert recorder.stats().dropped == {"io": 1, "policy": 1}
    assert read(path).numbers == [1]


def test_texts_are_not_held() -> None:
    text = "y" * 1000
    decide = Novelty().decider()
    view = view_of(text)
    before = sys.getrefcount(text)
    assert settled(decide(0, view))
    assert sys.getrefcount(text) == before


# --- bounds --------------------------------------------------------------------------------------


def of_sizes(sizes: list[int]) -> CallView:
    row = (*[torch.float32] * len(sizes), *[(size,) for size in sizes])
    return CallView(0, (), {}, Structure(b"s", (), {}), row, [])


@pytest.mark.integration
def test_evidence_of_sizes_without_a_pattern_has_a_bound_in_bytes() -> None:
    decide, sizes = Novelty().decider(), random.Random(0)
    tracemalloc.start()
    try:
        kept = [
            settled(decide(n, of_sizes([sizes.randrange(2, 9000) for _ in range(1000)])))
            for n in range(300)
        ]
        assert tracemalloc.get_traced_memory()[0] < 32 * 2**20
    finally:
        tracemalloc.stop()
    assert kept[:80] == [NOVEL] * 80
    assert not any(kept[100:])
    assert settled(decide(300, of_sizes([2, 2]))) == NOVEL  # other kinds of leaves
    assert not decide(301, of_sizes([2, 3]))  # no pattern is new any more


def test_a_call_takes_a_bounded_number_of_steps_and_growth_stays_evidence() -> None:
    decide, number, sizes = Novelty().decider(), itertools.count(), random.Random(0)

    def call(*, at: int = 0) -> int:
        row = [1000 * (place + 2) + sizes.randrange(999) for place in range(400)]
        if at:
            row[0] = at
        return settled(decide(next(number), of_sizes(row)))

    kept = [call() for _ in range(60)]
    assert kept == [NOVEL] * 41 + [False] * 19  # 41 rows of 401 numbers are 16,441
    assert call(at=1_000_000)
    assert not call(at=1_000_001)


# --- many threads --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "around", [lambda when: when, Novelty().__and__], ids=["alone", "composed"]
)
def test_a_predicate_that_waits_holds_up_no_other_call(tmp_path: Path, around: Any) -> None:
    """As that of a host does whose other thread calls the model within the host's own lock."""
    inside, is_over = threading.Event(), threading.Event()
    model, x = Identity(), torch.ones(3)

    def wants(args: Any, kwargs: Any) -> bool:
        if threading.current_thread() is waiting:
            inside.set()
            assert is_over.wait(60)
        return True

    def other() -> None:
        model(x[:2])
        is_over.set()

    with record(model, tmp_path / "t.tape", keep=around(When(wants))) as recorder:
        waiting = threading.Thread(target=model, args=(x,))
        waiting.start()
        assert inside.wait(60)
        second = threading.Thread(target=other)
        second.start()
        waiting.join()
        second.join()
    assert recorder.stats().kept == 2
