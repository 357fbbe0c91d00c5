"""What an analysis of few calls knows: with the counters of all, what one of all calls knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calltape_analyzer import Tape, open_tape
from calltape_analyzer.errors import InferenceError
from calltape_analyzer.targets.engines import optimization_profile
from calltape_recorder import Novelty, record
from tests.analyzer.observing.doubling import ZEROS

# Novelty: a small tape, of which the analysis is that of the full one.


class Decoder(torch.nn.Module):
    def forward(
        self,
        ids: torch.Tensor,
        mask: torch.Tensor | None = None,
        cache: list[torch.Tensor] | None = None,
        n: int = 0,
        flag: bool = False,
        mode: str = "",
    ) -> torch.Tensor:
        return ids


@st.composite
def traffic(draw: st.DrawFn) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Prefills and decode steps whose sizes may be any, or follow from one another."""
    sizes = st.integers(0, 9)
    has_flags, has_ints, has_modes = draw(st.tuples(st.booleans(), st.booleans(), st.booleans()))
    is_affine, dtypes = draw(st.booleans()), draw(st.sampled_from([1, 2]))
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    for _ in range(draw(st.integers(1, 25))):
        batch, length, past, other = draw(st.tuples(sizes, sizes, sizes, sizes))
        dtype = [torch.int64, torch.int32][draw(st.integers(0, dtypes - 1))]
        kwargs: dict[str, Any] = {}
        if draw(st.booleans()):
            total = past + length if is_affine else other
            kwargs["mask"] = ZEROS(batch, total)
            kwargs["cache"] = [ZEROS(batch, 2, past) for _ in range(2)]
        if has_ints:
            kwargs["n"] = draw(sizes)
        if has_flags:
            kwargs["flag"] = draw(st.booleans())
        if has_modes:
            kwargs["mode"] = draw(st.sampled_from(["", "fast", "slow"]))
        calls.append(((ZEROS(batch, length, dtype=dtype),), kwargs))
    return calls


def dynamic_shapes(tape: Tape) -> Any:
    """What an export is told, or why it cannot be."""
    try:
        return tape.infer_dynamic_shapes()
    except InferenceError as error:
        return type(error)


def facts(tape: Tape) -> Any:
    """Everything that a program is made of: variants, dynamic dimensions, equalities, relations,
    constants; and the ranges of engines."""
    found = []
    for variant in tape.variants():
        findings = variant.findings
        columns = {symbol.name: symbol.dimensions for symbol in findings.symbols}
        found.append(
            (
                [(t.name, t.dtype) for t in findings.tensors],
                [
                    [columns[s] if isinstance(s, str) else s for s in t.shape]
                    for t in findings.tensors
                ],
                [(n.name, n.dynamic, n.counts) for n in findings.ints],
                sorted(findings.constants.items()),
                sorted((s.dimensions, s.expression) for s in findings.symbols),
                sorted(findings.conditions),
            )
        )
    return sorted(found, key=str)


def ranges(tape: Tape) -> Any:
    found = {}
    for variant in tape.variants():
        if variant.findings.all_calls is not None:  # the counters tell of this one alone
            profile = optimization_profile(variant).inputs
            found[variant.name] = {name: (r.min, r.max) for name, r in profile.items()}
    return found


@pytest.mark.integration
@settings(suppress_health_check=list(HealthCheck))
@given(traffic())
def test_a_small_tape_says_what_a_full_one_says(tmp_path: Path, calls: list[Any]) -> None:
    model = Decoder()
    full, small = tmp_path / "full.tape", tmp_path / "small.tape"
    with (
        record(model, full, overwrite=True),
        record(model, small, keep=Novelty(), overwrite=True),
    ):
        for args, kwargs in calls:
            model(*args, **kwargs)
    with open_tape(full) as everything, open_tape(small) as few:
        assert dynamic_shapes(few) == dynamic_shapes(everything)
        assert facts(few) == facts(everything)
        assert ranges(few) == ranges(everything)
        assert few.counters == everything.counters


def test_the_calls_of_one_constant_say_nothing_of_another(tmp_path: Path) -> None:
    """Sizes that were equal in the mode ``a`` until the last call, when ``b`` had shown all."""
    model = Decoder()
    calls = [(2, 2, "a"), (5, 5, "a"), (3, 3, "b"), (4, 5, "b"), (7, 3, "b"), (6, 7, "b"),
             (5, 6, "a")]  # fmt: skip
    with record(model, tmp_path / "a.tape", keep=Novelty()):
        for one, other, mode in calls:
            model(ZEROS(one), ZEROS(other), mode=mode)
    with open_tape(tmp_path / "a.tape") as tape:
        symbols = [[s.dimensions for s in v.findings.symbols] for v in tape.variants()]
    assert symbols == [[("ids[0]",), ("mask[0]",)]] * 2


def test_a_second_call_is_evidence_though_it_was_not_kept(tmp_path: Path) -> None:
    """An argument that was seen once takes its neighbour's dynamism; one that was seen twice, with
    one size, is constant. Only its first dimension is one with the batch, as long as they never
    differed."""
    model = Decoder()
    x, mask = ZEROS(3, 4), ZEROS(3, 4)
    for path, times in ((tmp_path / "once.tape", 1), (tmp_path / "twice.tape", 2)):
        with record(model, path, keep=Novelty()):
            model(ZEROS(2, 5))
            for _ in range(times):
                model(x, mask=mask)
        with open_tape(path) as tape:
            masked = next(v for v in tape.variants() if len(v.findings.tensors) == 2)
            first, second = (d.reason for d in masked.findings.tensors[1].dimensions)
            assert len(tape) == 2
        assert first == "neighbour"
        assert second == ("neighbour" if times == 1 else "constant")
