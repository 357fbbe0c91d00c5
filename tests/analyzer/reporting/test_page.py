"""The page as a file: one piece, a strict policy, nothing of a tape is markup."""

from __future__ import annotations

import base64
import builtins
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import TapeError, UsageError, open_tape, replay
from calltape_analyzer.reporting.contents import Timeline
from calltape_analyzer.reporting.page import ReportPage
from calltape_analyzer.reporting.tape_parts import contents_of
from calltape_analyzer.tape import Tape
from tests.analyzer.tapes import Recorded, write_tape
from tests.hostile_names import HIDDEN, NAMES, hostile_tape


class Parsed(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def html(runs: Path) -> str:
    with open_tape(runs / "llm.tape") as tape:
        return tape.report().html


def test_the_policy_allows_the_own_script_and_style_only(html: str) -> None:
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    for tag, kind in (("script", "script-src"), ("style", "style-src")):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind} &#39;sha256-{digest}&#39;" in policy
    assert "default-src &#39;none&#39;" in policy
    assert "unsafe" not in policy


def test_it_asks_for_nothing(html: str) -> None:
    found = Parsed(html)
    for tag, attributes in found.elements:
        assert "style" not in attributes
        assert not any(name.startswith("on") for name in attributes)
        assert tag not in ("img", "link", "iframe", "object", "embed", "base", "form")
        for name in ("src", "srcset", "action", "xlink:href"):
            assert name not in attributes
        assert (attributes.get("href") or "#").startswith("#")
    ids = [attributes["id"] for _, attributes in found.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = {(attributes.get("href") or "#")[1:] for _, attributes in found.elements} - {""}
    assert links <= set(ids)
    assert len(html) < 1_000_000


def page_of(tapes: list[Tape], outcomes: dict[str, Any] | None = None) -> str:
    return ReportPage.of(contents_of(tapes, outcomes=outcomes)).html


def test_every_heading_of_a_part_has_a_link(runs: Path, tmp_path: Path) -> None:
    with open_tape(runs / "inner.tape") as tape:
        outcomes = {"Replay: another": replay(tape, lambda hidden: hidden[:1])}
        pages = [page_of([tape], outcomes), page_of([tape, tape])]
        assert "damage-1" not in pages[0]
    torn = tmp_path / "torn.tape"
    data = bytearray((runs / "inner.tape").read_bytes())
    data[data.rindex(b"records/") + 512 + 48] ^= 1  # one group may have all calls
    torn.write_bytes(data)
    with open_tape(torn) as tape:
        tape.verify()
        pages.append(tape.report().html)
    assert 'href="#damage-1"' in pages[2]
    assert '<a href="#verdict-1-1">Replay: another</a>' in pages[0]
    for page in pages:
        head, _, rest = page.partition("</nav>")
        headings = dict(re.findall(r'<h[23] id="([^"]+)">([^<]+)</h[23]>', rest))
        links = dict(re.findall(r'<a href="#([^"]+)">([^<]+)</a>', head))
        assert len(headings) >= 6
        assert links.keys() == headings.keys()
        assert all(headings[at] in (name, f"Variant {name}") for at, name in links.items())
        assert "<h3>" not in page
        assert "A report of recorded calls, made by calltape" in head


def test_only_failures_are_said_to_come_first(runs: Path) -> None:
    with open_tape(runs / "inner.tape") as tape:
        fine = replay(tape, lambda hidden: hidden * 2)
        wrong = replay(tape, lambda hidden: hidden[:1])
        (part,) = contents_of([tape], outcomes={"fine": fine, "wrong": wrong}).parts
    failed = sum(not row.ok for row in wrong.rows)
    assert [one.rows.caption for one in part.verdicts] == [
        "call by call",
        f"call by call, {failed} that failed first",
    ]


def test_each_picture_has_words(html: str) -> None:
    pictures = [attributes for tag, attributes in Parsed(html).elements if tag == "svg"]
    assert len(pictures) > 4
    assert all(one["role"] == "img" and one["aria-label"] for one in pictures)
    # Text, and no outlines of letters: a page of these is ten times as large.
    assert html.count("<text") > 10 * len(pictures)


def test_names_stay_text(tmp_path: Path) -> None:
    name = f"{NAMES['quotes']}{NAMES['bidi']}.tape".replace("/", "")
    with open_tape(hostile_tape(tmp_path / name)) as tape:
        page = tape.report()
    found = Parsed(page.html)
    text = "".join(found.text)
    tags = {tag for tag, _ in found.elements}
    assert tags.isdisjoint({"img", "b"})
    assert sum(tag == "script" for tag, _ in found.elements) == 1
    for key in ("script", "image", "template"):
        assert NAMES[key] in text
    assert not set(HIDDEN) & set(page.html)
    assert not set(HIDDEN) & set(repr(page))
    assert r"\u202e" in text


def test_a_step_without_calls_has_a_dash(tmp_path: Path) -> None:
    write_tape(tmp_path / "t.tape", [Recorded((torch.zeros(1),))], target=lambda x: x)
    with open_tape(tmp_path / "t.tape") as tape:
        contents = contents_of([tape])
    times = Timeline("now", (0.0, 1.0, 2.0), (3, 0), False, (1.5, None), (2.5, None), "3 calls")
    part = replace(contents.parts[0], timeline=times)
    html = ReportPage.of(replace(contents, parts=(part,))).html
    assert html.count('<td class="number">–</td>') == 2


@pytest.mark.integration
def test_a_large_page_is_bounded(tmp_path: Path) -> None:
    """As much of everything as can be on a page: variants, symbols, sizes, errors."""
    calls = []
    for variant in range(30):
        for n in range(40):
            names = {
                f"a{i}_{'<' * 150}": torch.zeros(2 + (n * (i + 1)) % (40 + i), 1) for i in range(8)
            }
            error = ("m:" + "E" * 180, f"{n} {'<' * 1000}") if n > 35 else None
            calls.append(Recorded((), names | {f"v{variant}": True}, error=error))
    write_tape(tmp_path / "t.tape", calls, target=lambda **k: 0, values="none")
    with open_tape(tmp_path / "t.tape") as tape:
        page = tape.report()
    assert len(page.html.encode()) < 6_000_000
    assert "of 30 variants the first 24 are on this page" in page.html
    assert "pictures, the others are tables only" in page.html


def test_an_earlier_page_stays_unless_it_is_to_be_replaced(html: str, tmp_path: Path) -> None:
    write_tape(tmp_path / "t.tape", [Recorded((torch.zeros(1),))], target=lambda x: x)
    with open_tape(tmp_path / "t.tape") as tape:
        page = tape.report()
    path = page.write(tmp_path / "page.html")
    assert path.read_text() == page.html
    path.write_text("mine")
    with pytest.raises(TapeError, match="there already"):
        page.write(path)
    assert path.read_text() == "mine"
    page.write(path, overwrite=True)
    assert path.read_text() == page.html
    assert [file.name for file in tmp_path.iterdir() if file.suffix == ".html"] == ["page.html"]
    with pytest.raises(TapeError, match="cannot write it"):
        page.write(tmp_path / "none" / "page.html")
    with open_tape(tmp_path / "t.tape") as tape:
        assert tape.report().html == page.html  # nothing of it is chance, or the time of day


@pytest.mark.parametrize("missing", ["jinja2", "matplotlib"])
def test_without_the_extra(runs: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    real = builtins.__import__

    def fails(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == missing:
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", fails)
    refused = pytest.raises(UsageError, match=r"Install calltape-analyzer\[report\]")
    with open_tape(runs / "llm.tape") as tape, refused:
        tape.report()
