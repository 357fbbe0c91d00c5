"""What a report page says is what a loop over the calls finds, and is bounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch

from calltape_analyzer import TapeError, UsageError, open_tape, survey
from calltape_analyzer.reporting.contents import Contents, Histogram, TreeNode, cut, table
from calltape_analyzer.reporting.tape_parts import contents_of
from calltape_recorder import record
from tests.analyzer.reporting.traffic import LENGTHS
from tests.analyzer.tapes import Recorded, change_end, write_tape
from tests.fixture_files import FIXTURES


@pytest.fixture(scope="module")
def contents(runs: Path) -> Contents:
    with open_tape(runs / "llm.tape") as tape:
        return contents_of([tape])


def leaves(nodes: Iterable[TreeNode], path: str = "") -> Iterator[tuple[str, str]]:
    for node in nodes:
        if node.said:
            yield f"{path}{node.name}", node.said
        yield from leaves(node.children.values(), f"{path}{node.name}.")


PREFILL = [(1 + n % 3, length) for n, length in enumerate(LENGTHS) if not n % 2 and length != 13]


def test_calls_and_coverage(contents: Contents) -> None:
    (part,) = contents.parts
    assert contents.title == part.target == "tests.analyzer.reporting.traffic:Llm.forward"
    raised = LENGTHS[::2].count(13)
    served = len(LENGTHS) - raised
    assert dict(part.facts)["calls"] == (
        f"{len(LENGTHS)}, of which {served} in {len(part.variants)} variants; "
        f"{raised} calls raised and are left out"
    )
    assert f"{raised} calls raised and are left out" in part.overview.caption
    assert part.coverage[1].rows == (("kept", len(LENGTHS), 100.0),)
    assert sum(row[1] for row in part.overview.rows) == served


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


def histogram_of_sizes(path: Path, sizes: list[int]) -> Histogram:
    """That of a symbol with these sizes."""
    write_tape(path, [Recorded((torch.zeros(0, size),)) for size in sizes], target=lambda x: x)
    with open_tape(path) as tape:
        (symbol,) = contents_of([tape]).parts[0].variants[0].symbols
    assert symbol.histogram is not None
    return symbol.histogram


def test_few_sizes_have_a_bar_each(tmp_path: Path) -> None:
    found = histogram_of_sizes(tmp_path / "t.tape", [2, 600, 4, 8, 13, 100, 4])
    assert found.bins == (
        (2, 2, 1),
        (4, 4, 2),
        (8, 8, 1),
        (13, 13, 1),
        (100, 100, 1),
        (600, 600, 1),
    )
    assert found.text() == "6 sizes from 2 to 600; most calls, 2, had 4"
    assert found.sizes().rows == tuple((low, calls) for low, _, calls in found.bins)
    assert found.has_gaps
    assert found.is_by_size


def test_a_caption_of_ties(tmp_path: Path) -> None:
    found = histogram_of_sizes(tmp_path / "a.tape", [5, 6, 7, 12])
    assert found.text() == "4 sizes from 5 to 12, 1 call each"
    found = histogram_of_sizes(tmp_path / "b.tape", [5, 5, 6, 7, 7])
    assert found.text() == "3 sizes from 5 to 7; most calls, 2 each, had 5, 7"
    assert not found.has_gaps


def test_a_table_of_sizes_has_no_row_without_calls(tmp_path: Path) -> None:
    found = histogram_of_sizes(tmp_path / "t.tape", [*range(2, 40), 2000])
    assert len(found.bins) > len(found.sizes().rows) == 2
    assert not found.is_by_size
    assert not found.has_gaps


def test_what_is_not_there_is_not_unknown(tmp_path: Path) -> None:
    """A column without any cell is left out, and a single cell is a dash."""
    every = table("calls", ("size", "calls", "note"), [(1, None, ""), (2, 3, "")])
    assert every.head == ("size", "calls")
    assert every.rows == ((1, None), (2, 3))
    made = Recorded((torch.zeros(2),), {"k": 1})
    write_tape(tmp_path / "t.tape", [made], target=lambda x, k: x)
    change_end(tmp_path / "t.tape", lambda end: {"inputs": None})
    with open_tape(tmp_path / "t.tape") as tape:
        contents = contents_of([tape])
        page = tape.report().html
    (part,) = contents.parts
    assert part.variants[0].ints.head == ("int", "values")
    assert "counted" not in part.overview.head
    assert "counted" not in part.overview.caption
    assert "unknown" not in page


def test_counted_calls_are_explained(contents: Contents) -> None:
    (part,) = contents.parts
    at = part.overview.head.index("counted")
    known = [row[at] is not None for row in part.overview.rows]
    assert "; counted are all calls, on the tape or not" in part.overview.caption
    assert part.overview.caption.endswith("(–: not known)") == (not all(known))


def test_errors_and_times(contents: Contents) -> None:
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


def test_what_needs_records_is_said(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = runs.parent / "many.tape"
    calls = [
        Recorded(
            (torch.zeros(1, 99 if n == 5 else 2 + n % 7),), error=("m:E", "no") if n == 5 else None
        )
        for n in range(300)
    ]
    write_tape(path, calls, target=lambda x: x, values="none")
    monkeypatch.setattr("calltape_analyzer.reporting.tape_parts.MAX_READ", 299)
    with open_tape(path) as tape:
        (part,) = contents_of([tape]).parts
        assert tape.source == "end"  # nothing made anybody scan it
    assert any("--scan" in note for note in part.notes)
    assert part.errors[0].startswith("1 call raised, with 1 different input; the first is call 5.")
    assert part.timeline is not None
    assert part.timeline.is_rate
    with open_tape(path) as tape:
        (part,) = contents_of([tape], scan=True).parts
    assert part.errors[1] is not None
    assert part.notes == ()


def test_surveys(runs: Path, tmp_path: Path) -> None:
    surveyed = survey([str(runs / "llm.tape"), str(runs / "inner.tape")], processes=1)
    for number, target in enumerate(surveyed.targets):
        surveyed.write(tmp_path / f"{number}.tape", target=target)
    with open_tape(tmp_path / "0.tape") as one, open_tape(tmp_path / "1.tape") as two:
        found = contents_of([one, two])
    assert found.title == "2 recorded targets"
    assert {part.target.rpartition(":")[2] for part in found.parts} == {
        "Llm.forward",
        "_Inner.forward",
    }
    assert all("a survey has no single call" in part.errors[0] for part in found.parts)
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
    assert part.coverage[0].startswith("1 of 1 call that was seen is on the tape.")
    assert "counted the sizes of 1 call, in 1 kind." in part.coverage[0]


def test_two_calls_of_one_size(tmp_path: Path) -> None:
    write_tape(tmp_path / "t.tape", [Recorded((torch.zeros(2),))] * 2, target=lambda x: x)
    with open_tape(tmp_path / "t.tape") as tape:
        (variant,) = contents_of([tape]).parts[0].variants
    assert dict(variant.facts)["sizes"] == "the same in all calls"


def test_a_symbol_has_the_warnings_and_evidence_of_explain(tmp_path: Path) -> None:
    """Of the only call in a variant too, in which two dimensions are equal by chance."""
    sizes = [(2, 3), (4, 7), (5, 2), (6, 6)]
    calls = [
        Recorded((torch.zeros(a), torch.zeros(b)), {"mode": "slow" if a == b else "fast"})
        for a, b in sizes
    ]
    write_tape(tmp_path / "t.tape", calls, target=lambda x, y, mode: x)
    with open_tape(tmp_path / "t.tape") as tape:
        (part,) = contents_of([tape]).parts
        explained = [tape.explain("x", 0).parts, tape.explain("y", 0).parts]
    for number, variant in enumerate(part.variants):
        for symbol, parts in zip(variant.symbols, explained, strict=True):
            (dimension,) = parts[number].dimensions
            assert symbol.warnings == dimension.warnings
            assert f"symbol: {symbol.name}" in symbol.evidence
        told = sum(len(symbol.warnings) for symbol in variant.symbols)
        assert part.overview.rows[number][-1] == told
    assert any("another symbol never" in text for text in part.variants[1].symbols[0].warnings)
