"""What a report page says is what a loop over the calls finds, and is bounded."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from calltape_analyzer import TapeError, UsageError, open_tape, survey
from calltape_analyzer.reporting.contents import Contents, TreeNode, cut
from calltape_analyzer.reporting.report import contents_of
from calltape_recorder import record
from tests.analyzer.reporting.traffic import LENGTHS
from tests.analyzer.tapes import Recorded, write_tape
from tests.fixture_files import FIXTURES


@pytest.fixture(scope="module")
def contents(runs: Path) -> Contents:
    with open_tape(runs / "llm.tape") as tape:
        return contents_of([tape])


def leaves(nodes: tuple[TreeNode, ...], path: str = "") -> Iterator[tuple[str, str]]:
    for node in nodes:
        if node.said:
            yield f"{path}{node.name}", node.said
        yield from leaves(node.children, f"{path}{node.name}.")


PREFILL = [(1 + n % 3, length) for n, length in enumerate(LENGTHS) if not n % 2 and length != 13]


def test_calls_and_coverage(contents: Contents) -> None:
    (part,) = contents.parts
    assert contents.title == part.target == "tests.analyzer.reporting.traffic:Llm.forward"
    assert dict(part.facts)["calls"] == f"{len(LENGTHS)} in {len(part.variants)} variants"
    assert part.coverage.shares == (("kept", len(LENGTHS), 100.0),)
    assert sum(row[1] for row in part.overview.rows) == len(LENGTHS) - LENGTHS[::2].count(13)


def test_the_tree_has_symbols(contents: Contents) -> None:
    trees = [dict(leaves(variant.arguments)) for variant in contents.parts[0].variants]
    decode = next(tree for tree in trees if any(name.startswith("past") for name in tree))
    (past,) = (said for name, said in decode.items() if name.startswith("past"))
    assert any("past.* (4 of them)" in name for name in decode)
    assert past.startswith("float32[batch_size, 2, ")
    assert decode["input_ids"].startswith("int64[batch_size, 1]")


def test_histograms_count_each_call_once(contents: Contents) -> None:
    sizes: Counter[int] = Counter()
    for variant in contents.parts[0].variants:
        for symbol in variant.symbols:
            found = symbol.histogram
            if symbol.name == "sequence_length" and found is not None:
                sizes.update({low: calls for low, high, calls in found.bins if low == high})
    assert +sizes == Counter(length for _, length in PREFILL)


def test_pairs_and_buckets(contents: Contents) -> None:
    variants = contents.parts[0].variants
    pair = next(pair for variant in variants for pair in variant.pairs)
    assert pair.said
    assert sum(calls for *_, calls in pair.spots) in [
        row[1] for row in contents.parts[0].overview.rows
    ]
    for variant in variants:
        for symbol in variant.symbols:
            if symbol.buckets is not None:
                wasted = [row[2] for row in symbol.buckets.rows]
                assert wasted == sorted(wasted, reverse=True)


def test_errors_times_and_nesting(contents: Contents, runs: Path) -> None:
    (part,) = contents.parts
    raised = LENGTHS[::2].count(13)
    said, table = part.errors
    assert said == f"{raised} calls raised."
    assert table is not None
    first = 2 * LENGTHS[::2].index(13)
    message = "13 <b>tokens</b> are unlucky"
    assert table.rows == (("builtins:ValueError", message, raised, str(first)),)
    assert part.timeline is not None
    assert sum(part.timeline.calls) == len(LENGTHS)
    assert part.timeline.slowest is not None
    assert len(part.timeline.steps().rows) == len(part.timeline.calls)
    with open_tape(runs / "inner.tape") as inner, open_tape(runs / "llm.tape") as outer:
        both = contents_of([inner, outer])
    nested = both.parts[0].nested[1]
    assert nested is not None
    assert nested.rows == ((both.parts[1].target, len(LENGTHS) - raised),)


def test_what_needs_records_is_said(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = runs.parent / "many.tape"
    calls = [
        Recorded((torch.zeros(1, 2 + n % 7),), error=("m:E", "no") if n == 5 else None)
        for n in range(300)
    ]
    write_tape(path, calls, target=lambda x: x, values="none", summary=True)
    monkeypatch.setattr("calltape_analyzer.reporting.tape_parts.MAX_READ", 299)
    with open_tape(path) as tape:
        (part,) = contents_of([tape]).parts
        assert tape.source == "summary"  # nothing made anybody scan it
    assert any("--scan" in note for note in part.notes)
    assert part.errors[0].startswith("1 call raised, with 1 different input; the first is call 5.")
    assert part.timeline is not None
    assert part.timeline.is_rate
    with open_tape(path) as tape:
        (part,) = contents_of([tape], scan=True).parts
    assert part.errors[1] is not None
    assert part.notes == ()


def test_a_survey(runs: Path) -> None:
    tapes = survey([str(runs / "llm.tape"), str(runs / "inner.tape")], jobs=1).tapes
    found = contents_of(tapes)
    assert found.title == "2 recorded targets"
    assert {part.target.rpartition(":")[2] for part in found.parts} == {
        "Llm.forward",
        "_Inner.forward",
    }
    assert all("a survey has no single call" in part.nested[0] for part in found.parts)
    assert all(part.variants for part in found.parts)


def test_everything_is_bounded(tmp_path: Path) -> None:
    """400 arguments, 5,000 sizes, 2,000 messages, long names."""
    names = {f"argument_{n}_{'x' * 300}": torch.zeros(1, 1) for n in range(400)}
    wide = [Recorded((), names)]
    sizes = [Recorded((torch.zeros(0, 2 + n),)) for n in range(5000)]
    raising = [
        Recorded((torch.zeros(1),), error=("m:E", f"no {n} {'y' * 5000}")) for n in range(2000)
    ]
    write_tape(tmp_path / "t.tape", wide + sizes + raising, target=lambda *a, **k: 0)
    with open_tape(tmp_path / "t.tape") as tape:
        (part,) = contents_of([tape]).parts
    assert len(str(part)) < 500_000
    tree = next(
        variant for variant in part.variants if any("not in the tree" in n for n in variant.notes)
    )
    assert sum(1 for _ in leaves(tree.arguments)) == 300
    assert part.errors[1] is not None
    assert len(part.errors[1].rows) == 50
    assert "1,000 of them raised something else" in part.errors[0]
    histogram = next(s.histogram for v in part.variants for s in v.symbols if s.histogram)
    assert len(histogram.bins) <= 48
    assert sum(calls for *_, calls in histogram.bins) == 5000


@pytest.mark.parametrize("text", ["a\u202eb", "a\x1b[2Jb", "a\nb", "\ud800", "x" * 10_000_000])
def test_texts_are_printable_and_short(text: str) -> None:
    assert cut(text).isprintable()
    assert len(cut(text)) <= 201


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*/*.tape")), ids=lambda path: path.stem)
def test_every_fixture_has_contents_or_one_error(path: Path) -> None:
    """Golden and hostile: nothing but a TapeError comes of them, and no text a terminal obeys."""
    try:
        with open_tape(path) as tape:
            found = contents_of([tape])
    except TapeError:
        return
    assert repr(found).isprintable()


def test_a_tape_without_calls(tmp_path: Path) -> None:
    write_tape(tmp_path / "t.tape", [], target=lambda x: x)
    with open_tape(tmp_path / "t.tape") as tape:
        (part,) = contents_of([tape]).parts
        page = tape.report().html
        for what in ("latency", "calls"):
            with pytest.raises(UsageError, match=r"no call to draw\. Open a tape that has calls"):
                tape.plot(what)
    assert part.timeline is None
    assert part.variants == ()
    assert "<p>There are none: the tape has no call that can be read.</p>" in page


def test_a_tape_of_one_call(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    with record(model, tmp_path / "t.tape"):
        model(torch.zeros(1, 2))
    with open_tape(tmp_path / "t.tape") as tape:
        (part,) = contents_of([tape]).parts
    (variant,) = part.variants
    assert dict(variant.facts)["sizes"] == "of one call, which tells nothing of sizes that vary"
    assert part.coverage.said.startswith("1 of 1 call that was seen is on the tape.")
    assert "counted the sizes of 1 call, in 1 kind." in part.coverage.said


def test_two_calls_of_one_size(tmp_path: Path) -> None:
    write_tape(tmp_path / "t.tape", [Recorded((torch.zeros(2),))] * 2, target=lambda x: x)
    with open_tape(tmp_path / "t.tape") as tape:
        (variant,) = contents_of([tape]).parts[0].variants
    assert dict(variant.facts)["sizes"] == "the same in all calls"


def test_symbols_without_a_pair_are_said(tmp_path: Path) -> None:
    drawn = random.Random(0)
    calls = [
        Recorded(tuple(torch.zeros(drawn.randint(2, 30)) for _ in range(6))) for _ in range(40)
    ]
    write_tape(tmp_path / "t.tape", calls, target=lambda a, b, c, d, e, f: a)
    with open_tape(tmp_path / "t.tape") as tape:
        (variant,) = contents_of([tape]).parts[0].variants
    assert len(variant.pairs) == 6
    assert any("2 symbols beside the first 4" in note for note in variant.notes)
