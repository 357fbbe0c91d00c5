"""The report page in a real browser, from a disk."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from calltape_analyzer import check, open_tape, replay
from tests.analyzer.reporting.traffic import Llm
from tests.browser import LOOKS, MISSING, Browser, browser, network_requests
from tests.hostile_names import HIDDEN, NAMES, hostile_tape

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(MISSING, reason="no chromium and chromium-driver on this machine"),
]

FOLDED = "return document.querySelectorAll('details:not([open])').length"


def open_all(tab: Browser) -> None:
    tab.driver.execute_script(
        "for (const one of document.querySelectorAll('details')) one.open = true"
    )


def printed_pages(tab: Browser) -> int:
    pdf = base64.b64decode(tab.driver.execute_cdp_cmd("Page.printToPDF", {})["data"])
    return pdf.count(b"/Type /Page\n")


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    with browser() as made:
        yield made


@pytest.fixture(scope="module")
def page(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pages") / "page.html"
    with open_tape(runs / "llm.tape") as tape:
        outcomes = {"Replay": replay(tape, Llm())}
        return tape.report(outcomes=outcomes).write(path)


@pytest.mark.parametrize(("width", "dark"), LOOKS)
def test_it_looks_right(tab: Browser, page: Path, width: int, dark: bool) -> None:
    tab.size(width, dark=dark)
    tab.go(page.as_uri())
    assert tab.text("h1") == ["tests.analyzer.reporting.traffic:Llm.forward"]
    tab.expect_clean()
    open_all(tab)
    tab.expect_clean()
    colors = tab.driver.execute_script(
        "return ['body', 'figure path.fill-first', 'svg text'].map((one) =>"
        "getComputedStyle(document.querySelector(one))).map((one) => [one.backgroundColor,"
        "one.fill])"
    )
    assert colors[0][0] == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")
    assert colors[1][1] == ("rgb(86, 180, 233)" if dark else "rgb(0, 114, 178)")
    assert colors[2][1] == ("rgb(232, 234, 237)" if dark else "rgb(27, 27, 27)")


def test_sorting(tab: Browser, page: Path) -> None:
    tab.size(1280)
    tab.go(page.as_uri())
    tables = tab.driver.find_elements("tag name", "table")
    (table,) = (one for one in tables if one.text.startswith("the programs that can"))
    head = table.find_elements("css selector", "th")[1]
    button = head.find_element("tag name", "button")

    def calls() -> list[int]:
        cells = table.find_elements("css selector", "tbody td:nth-child(2)")
        return [int(one.text.replace(",", "")) for one in cells]

    before = calls()
    assert len(before) > 1
    button.send_keys("\n")  # by the keyboard
    assert calls() == sorted(before)
    assert head.get_attribute("aria-sort") == "ascending"
    button.click()
    assert calls() == sorted(before, reverse=True)
    assert head.get_attribute("aria-sort") == "descending"
    assert len(table.find_elements("css selector", "[aria-sort]")) == 1
    tab.expect_clean()


def test_trees_and_tables_open(tab: Browser, page: Path) -> None:
    tab.size(1280)
    tab.go(page.as_uri())
    shown = len(tab.all("table"))
    tab.click("summary", "The same as a table")
    assert len(tab.all("table")) > shown
    (tree,) = (one for one in tab.all(".tree summary") if one.text.startswith("past"))
    inner = tree.find_element("xpath", "..")
    before = inner.text
    tree.click()
    assert inner.text != before
    tab.expect_clean()


def test_it_prints_everything(tab: Browser, page: Path) -> None:
    """What is folded on the screen is on paper."""
    tab.size(1280)
    tab.go(page.as_uri())
    folded = tab.driver.execute_script(FOLDED)
    pages = printed_pages(tab)
    assert tab.driver.execute_script(FOLDED) == folded > 3  # as it was, after printing
    open_all(tab)
    assert pages == printed_pages(tab) > 2
    tab.expect_clean()


def test_no_heading_ends_a_page(tab: Browser, page: Path) -> None:
    tab.go(page.as_uri())
    found = tab.driver.execute_script(
        "return ['h3', 'h4', 'caption'].map((one) =>"
        "getComputedStyle(document.querySelector(one)).breakAfter)"
    )
    assert found == ["avoid", "avoid", "avoid"]


def test_a_table_that_scrolls_shows_it(tab: Browser, page: Path) -> None:
    """The side where there is more is darker, until somebody scrolls there."""
    tab.size(390)
    tab.go(page.as_uri())
    (table,) = (one for one in tab.all(".scrolls") if one.text.startswith("the programs that can"))
    tab.driver.execute_script("arguments[0].scrollIntoView()", table)
    assert tab.driver.execute_script(
        "return arguments[0].scrollWidth > arguments[0].clientWidth", table
    )
    before = table.screenshot_as_base64
    tab.driver.execute_script("arguments[0].style.backgroundImage = 'none'", table)
    assert table.screenshot_as_base64 != before


def test_no_request_leaves_the_page(page: Path, tmp_path: Path) -> None:
    log = tmp_path / "network.json"
    with browser(log) as tab:
        tab.size(1280)
        tab.go(page.as_uri())
        open_all(tab)
        # A request that the page is not allowed does leave a trace: the log would show another one.
        tab.driver.execute_script("fetch('https://example.org/').catch(() => 0)")
        tab.until(lambda: any("example.org" in text for text in tab.complaints()))
    asked = network_requests(log)
    local = ("file://", "blob:", "data:", "chrome", "devtools:")
    of_page = [url for url, origin in asked.items() if origin in ("file://", "null")]
    assert [url for url in of_page if not url.startswith(local)] == []
    assert not any("example" in url for url in asked)


def test_names_stay_text(tab: Browser, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    with open_tape(hostile_tape(tmp_path / "hostile.tape")) as tape:
        tape.report().write(path)
    tab.size(390)
    tab.go(path.as_uri())
    open_all(tab)
    shown = "".join(tab.text("body"))
    for key in ("script", "image", "template"):
        assert NAMES[key] in shown
    assert not set(HIDDEN) & set(shown)
    count = "return document.querySelectorAll('script, img, b').length"
    assert tab.driver.execute_script(count) == 1
    assert tab.driver.execute_script("return window.owned") is None
    tab.expect_clean()


def test_calls_that_programs_refuse(tab: Browser, runs: Path, tmp_path: Path) -> None:
    from calltape_analyzer import export

    with open_tape(runs / "inner.tape") as tape:
        some = tape.only(calls="0..9")
        programs = export(some, Llm().inner)
        programs.save(tmp_path / "exported")
        found = {"Check": check(tape, tmp_path / "exported")}
        path = tape.report(outcomes=found).write(tmp_path / "page.html")
    tab.size(1280)
    tab.go(path.as_uri())
    tab.expect_clean()
    assert any(text in ("accepted", "REFUSED") for text in tab.text("td"))
