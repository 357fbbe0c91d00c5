"""The pictures of a report page as figures."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from calltape_analyzer import UsageError, open_tape
from tests.analyzer.tapes import Recorded, write_tape


def test_pictures(runs: Path) -> None:
    with open_tape(runs / "llm.tape") as tape:
        sizes = tape.plot("batch_size")
        assert [axes.get_xlabel() for axes in sizes.axes] == ["batch_size"]
        assert tape.plot("calls").axes
        assert tape.plot("latency").axes
        name = tape.variants()[-1].name
        assert tape.plot("batch_size", variant=name).axes


def test_each_of_few_sizes_has_a_label_and_a_bar(tmp_path: Path) -> None:
    sizes = [2, 600, 4, 8, 13, 100]
    calls = [Recorded((torch.zeros(0, size),)) for size in sizes]
    write_tape(tmp_path / "t.tape", calls, target=lambda x: x)
    with open_tape(tmp_path / "t.tape") as tape:
        name = tape.variants()[0].findings.symbols[0].name
        (axes,) = tape.plot(name).axes
    assert [text.get_text() for text in axes.get_xticklabels()] == list(map(str, sorted(sizes)))
    (bars,) = axes.patches
    heights, edges, _ = bars.get_data()  # type: ignore[attr-defined]
    assert list(heights) == [1, 0] * 5 + [1]  # bars and gaps
    assert all(high > low for low, high in pairwise(edges))


def test_times_have_one_axis(runs: Path) -> None:
    with open_tape(runs / "llm.tape") as tape:
        calls, latency = tape.plot("calls").axes[0], tape.plot("latency").axes[0]
    assert calls.get_xlim() == latency.get_xlim()
    assert calls.get_xlim()[0] < 0


def test_a_legend_is_within_its_picture_and_beside_what_is_drawn(runs: Path) -> None:
    with open_tape(runs / "llm.tape") as tape:
        picture = tape.plot("latency")
    (axes,) = picture.axes
    legend = axes.get_legend()
    assert legend is not None
    picture.draw_without_rendering()
    (_, low), (_, high) = legend.get_window_extent().get_points()
    assert low >= axes.get_window_extent().y1
    assert high <= picture.bbox.height


def test_what_is_not_there(runs: Path) -> None:
    with open_tape(runs / "llm.tape") as tape:
        with pytest.raises(UsageError, match=r"no symbol 'nothing'.*The symbols are"):
            tape.plot("nothing")
        with pytest.raises(UsageError, match="no variant 'none'"):
            tape.plot("batch_size", variant="none")
