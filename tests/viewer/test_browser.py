"""The page in a real browser: from a disk and from ``calltape view``, with golden and hostile
tapes."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import torch
from selenium.webdriver.common.keys import Keys

from calltape_analyzer import open_tape
from calltape_analyzer.cli.viewing import PageServer, page_of_viewer
from calltape_analyzer.reading.tape_file import TapeFile
from calltape_analyzer.variants.variant_findings import ARGUMENTS, SYMBOLS, VariantTable
from calltape_schema.end import Coverage
from calltape_schema.storage import BytesSink
from calltape_schema.writer import TapeWriter
from tests.analyzer.cli.commands import run
from tests.browser import LOOKS, MISSING, network_requests
from tests.fixture_files import FIXTURES
from tests.hostile_names import HIDDEN, NAMES, hostile_tape
from tests.schema.container.tapes import MANIFEST, new_call, tape
from tests.viewer.recorded import record_calls, record_golden, record_structures
from tests.viewer.tab import FILE_PAGE, ViewerTab, viewer_tab

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(MISSING, reason="no chromium and chromium-driver on this machine"),
]


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record_golden(tmp_path_factory.mktemp("golden") / "golden.tape")


@pytest.fixture(scope="module")
def structures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record_structures(tmp_path_factory.mktemp("structures") / "structures.tape")


@pytest.fixture(scope="module")
def tab() -> Iterator[ViewerTab]:
    with viewer_tab() as made:
        yield made


@contextmanager
def viewed(*paths: Path) -> Iterator[PageServer]:
    with ExitStack() as stack:
        files = [stack.enter_context(closing(TapeFile(str(path)))) for path in paths]
        server = stack.enter_context(PageServer(page_of_viewer(), files))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize(("width", "dark"), LOOKS)
def test_a_dropped_tape_is_listed_sorted_and_searched(
    tab: ViewerTab, golden: Path, width: int, dark: bool
) -> None:
    tab.size(width, dark=dark)
    tab.go(FILE_PAGE)
    tab.expect_clean()
    tab.drop(golden)
    tab.shows("button.open", ["0", "1", "2"])
    tab.expect_clean()

    tab.click("#panel-calls button.sort", "Call")
    tab.until(lambda: tab.text("button.open") == ["2", "1", "0"])
    assert tab.one("#panel-calls th").get_attribute("aria-sort") == "descending"
    box = tab.one("#panel-calls input[type=search]")
    box.send_keys("float32[2, 1..2")
    tab.until(lambda: tab.text("button.open") == ["1"])
    box.send_keys(Keys.CONTROL, "a", Keys.NULL, Keys.DELETE)
    tab.until(lambda: len(tab.text("button.open")) == 3)

    tab.click("button.open", "1")
    tab.shows("h2", ["Call 1"])
    tab.click(".tree summary", "mask")
    tab.until(lambda: tab.text(".values tbody td")[:5] == ["0", "1", "2", "3", "4"])
    tab.click(".values button", "Whole tensor")
    tab.until(lambda: "largest" in tab.text(".values dt"))
    tab.click(".tree summary", "past_key_values")
    tab.expect_clean()

    tab.click("#tab-dimensions")
    rows = tab.until(lambda: tab.text("#panel-dimensions tbody tr:not(.spacer)"))
    assert rows[0].startswith("x1")
    tab.click("#panel-dimensions button.open", "x")
    label = "Sizes from 3 to 7 over calls 0 to 2"
    tab.until(lambda: tab.one("svg").get_attribute("aria-label") == label)
    tab.shows(".histogram tbody th", ["3", "5", "7"])
    tab.expect_clean()

    tab.click("#tab-corruption")
    tab.click("button", "Check every call")
    tab.until(lambda: any("no corruption" in text for text in tab.text("[role=status]")))
    tab.expect_clean()
    tab.click("#tab-tape")
    assert "tests.viewer.recorded:Model.forward, seen by hook" in tab.text("#panel-tape dd")
    tab.expect_clean()


@pytest.mark.parametrize("width", [390, 1280])
def test_the_variants_are_the_tables_of_the_command(
    tab: ViewerTab, structures: Path, width: int, tmp_path: Path
) -> None:
    with open_tape(structures) as tape:
        tables = [VariantTable.of(one) for one in tape.variants()]
    assert run("view", structures, "-o", tmp_path / "page.html").code == 0
    tab.size(width)
    with viewed(structures) as server:
        for address in (server.address, (tmp_path / "page.html").as_uri()):
            tab.go(address)
            tab.until(lambda: tab.all("#tab-variants"))
            tab.click("#tab-variants")
            tab.until(lambda: tab.text("#panel-variants h2"))
            assert tab.text("#panel-variants h2") == [f"{one.name}: {one.calls}" for one in tables]
            heads = [head for one in tables for head in (ARGUMENTS, SYMBOLS if one.symbols else ())]
            assert tab.text("#panel-variants th") == [title for head in heads for title in head]
            cells = [c for one in tables for row in (*one.arguments, *one.symbols) for c in row]
            assert tab.text("#panel-variants td") == cells
            tab.expect_clean()
    tab.go(FILE_PAGE)
    tab.drop(structures)
    assert not tab.all("#tab-variants")  # only Python finds them


@pytest.mark.parametrize("width", [390, 1280])
def test_dimensions_of_several_signatures_are_told_apart(
    tab: ViewerTab, structures: Path, width: int
) -> None:
    tab.size(width)
    tab.go(FILE_PAGE)
    tab.drop(structures)
    tab.click("#tab-dimensions")
    tab.until(lambda: tab.text("#panel-dimensions button.open"))
    if width > 760:  # the detail stands beside the list
        tab.click("#panel-dimensions button.open")
        tab.until(lambda: tab.text(".histogram"))
    shown = tab.driver.execute_script(
        "return [...document.querySelectorAll('#panel-dimensions tbody tr:not(.spacer)')]"
        ".map((row) => row.innerText)"
    )
    assert len(set(shown)) == len(shown)
    tab.click("#panel-dimensions .signatures summary")
    numbers = {row.split()[-1] for row in shown}
    assert {f"Signature {number}" for number in numbers} <= set(tab.text(".signatures dt"))
    tab.expect_clean()


def test_elements_are_shown_by_page_and_ints_by_value(tab: ViewerTab, tmp_path: Path) -> None:
    calls = [{"x": torch.zeros(300), "past_key_values": count} for count in (2, 5, 5)]
    path = record_calls(tmp_path / "a.tape", *calls)
    tab.size(1280)
    tab.go(FILE_PAGE)
    tab.drop(path)
    tab.click("button.open", "1")
    tab.click(".tree summary", "x float32")
    tab.until(lambda: "0 to 239 of 300 elements" in tab.text(".values .quiet"))
    assert tab.text(".values .bar button")[:4] == ["«", "‹", "›", "»"]
    tab.click(".values .bar button", "»")
    tab.until(lambda: "240 to 299 of 300 elements" in tab.text(".values .quiet"))
    tab.click("#tab-dimensions")
    tab.click("#panel-dimensions button.open", "past_key_values")
    tab.shows(".histogram caption", ["Calls by value"])
    widths = [bar.get_attribute("style") for bar in tab.all(".histogram .fill")]
    assert [round(float(width.split()[1].rstrip("%;"))) for width in widths] == [33, 67]
    assert tab.one("svg").get_attribute("aria-label") == "Values from 2 to 5 over calls 0 to 2"
    tab.expect_clean()


def test_a_tensor_of_an_earlier_call_is_shown_with_its_call(tab: ViewerTab, tmp_path: Path) -> None:
    first, second = new_call(3, [1, 2], [5, 6]), new_call(4, [9], [5, 6], at=[("x1", 3, "x1")])
    (tmp_path / "a.tape").write_bytes(tape([first], [second]))
    tab.size(1280)
    tab.go(FILE_PAGE)
    tab.drop(tmp_path / "a.tape")
    tab.click("button.open", "4")
    tab.click(".tree summary", ".1 float32")
    tab.shows(".tree dd", ["call 3"])
    tab.shows(".values td", ["5.0", "6.0"])
    tab.expect_clean()


def test_a_tape_without_calls_shows_what_was_counted(tab: ViewerTab, tmp_path: Path) -> None:
    sink = BytesSink()
    writer = TapeWriter(sink, MANIFEST)
    assert writer.table is not None
    for number in range(5):
        call = new_call(number, shape=(number % 2, 3))
        tree = call.record["inputs"]
        writer.table.add(tree["structure"], tree["leaves"], call.scalars, number)
    writer.seal(Coverage(seen=5, kept=5), elsewhere={})
    (tmp_path / "survey.tape").write_bytes(sink.data)
    tab.size(1280)
    tab.go(FILE_PAGE)
    tab.drop(tmp_path / "survey.tape")
    tab.click("#tab-dimensions")
    tab.click("#panel-dimensions button.open", "0")
    tab.shows(".histogram tbody td.number", ["3", "2"])
    assert "The calls are on other tapes." in tab.text("#panel-dimensions .quiet")
    tab.click("#tab-tape")
    assert "the calls are on other tapes, and none is here" in tab.text("#panel-tape dd")
    tab.expect_clean()


def test_a_large_tape_is_opened_from_its_end(tab: ViewerTab, tmp_path: Path) -> None:
    """Nothing but the groups that are shown is read, until somebody asks for more."""
    large = [0.0] * 2**22  # 16 MiB
    calls = [new_call(0, large), *(new_call(n, shape=(n % 3,)) for n in range(1, 30))]
    data = bytearray(tape(*([call] for call in calls)))
    data[data.index(b"records/00000029") + 600] ^= 1
    (tmp_path / "large.tape").write_bytes(data)
    tab.size(1280)
    tab.go(FILE_PAGE)
    tab.drop(tmp_path / "large.tape")
    tab.until(lambda: tab.text("button.open")[:3] == ["0", "1", "2"])
    assert "Opened from its end" in tab.text(".notice")[0]
    tab.click("#tab-dimensions")
    tab.until(lambda: tab.text("#panel-dimensions tbody tr:not(.spacer)"))
    assert "Corruption" in tab.text("[role=tab]")
    tab.click(".notice button", "Read every record")
    tab.until(lambda: "Corruption (1) ⚠" in tab.text("[role=tab]"))
    tab.click("#tab-calls")
    tab.until(lambda: tab.text("[role=status]")[0] == "29 calls")
    tab.expect_clean()


def test_no_request_leaves_the_page(golden: Path, structures: Path, tmp_path: Path) -> None:
    """By the log of the browser's network, which has the requests of all its threads."""
    log = tmp_path / "network.json"
    with viewer_tab(log) as tab, viewed(golden) as server:
        for url in (FILE_PAGE, server.address):
            tab.size(1280)
            tab.go(url)
            if url == server.address:  # the server's only tape is opened, before another one is
                tab.until(lambda: tab.text("button.open"))
            tab.drop(structures)
            tab.drop(golden)
            tab.click("button.open", "1")
            tab.click(".tree summary", "mask")
            tab.until(lambda: tab.text(".values tbody td"))
            for panel in ("dimensions", "corruption", "tape"):
                tab.click(f"#tab-{panel}")
        # A request that the page is not allowed does leave a trace: the log would show another one.
        tab.driver.execute_script("fetch('https://example.org/').catch(() => 0)")
        tab.until(lambda: any("example.org" in text for text in tab.complaints()))
    asked = network_requests(log)
    own = [url for url in asked if url.startswith(server.address)]
    assert {f"{server.address}tapes.json", f"{server.address}tapes/0"} <= set(own)
    local = ("file://", "blob:", "data:", "chrome", "devtools:", server.address)
    of_pages = {
        url for url, initiator in asked.items() if initiator in ("file://", "null", server.host)
    }
    assert [url for url in of_pages if not url.startswith(local)] == []
    assert not any("example" in url for url in asked)


def test_the_page_works_by_keyboard_alone(tab: ViewerTab, structures: Path) -> None:
    tab.size(1280)
    tab.go(FILE_PAGE)
    tab.drop(structures)
    for _ in range(40):
        tab.press(Keys.TAB)
        if tab.driver.switch_to.active_element.get_attribute("class") == "open":
            break
    assert tab.driver.switch_to.active_element.text == "0"
    tab.press(Keys.ARROW_DOWN)
    tab.until(lambda: tab.driver.switch_to.active_element.text == "1")
    tab.press(Keys.END)
    last = tab.text("button.open")[-1]
    tab.until(lambda: tab.driver.switch_to.active_element.text == last)
    tab.press(Keys.ENTER)
    tab.until(lambda: tab.text("h2") == [f"Call {last}"])
    assert tab.driver.switch_to.active_element.text == f"Call {last}"
    tab.one("#tab-calls").send_keys(Keys.ARROW_RIGHT)
    assert tab.driver.switch_to.active_element.get_attribute("id") == "tab-dimensions"
    tab.expect_clean()


def test_the_command_offers_its_tapes_in_the_page(
    tab: ViewerTab, golden: Path, structures: Path
) -> None:
    tab.size(1280)
    with viewed(golden, structures) as server:
        tab.go(server.address)
        tab.until(lambda: tab.text("button.link") == [golden.name, structures.name])
        tab.expect_clean()
        tab.click("button.link", "structures")
        tab.shows("button.open", ["0", "1", "2", "3"])
        tab.expect_clean()
    with viewed(golden) as server:
        tab.go(server.address)
        tab.until(lambda: tab.text("button.open") == ["0", "1", "2"])  # the only one is opened
        tab.click("button.open", "0")
        tab.click(".tree summary", "mask")
        tab.until(lambda: tab.text(".values tbody td")[:3] == ["0", "1", "2"])
        assert tab.complaints() == []


def test_names_stay_text(tab: ViewerTab, tmp_path: Path) -> None:
    name = f"{NAMES['quotes']}{NAMES['bidi']}.tape".replace("/", "")
    tape = hostile_tape(tmp_path / name)
    tab.size(1280)
    tab.go(FILE_PAGE)
    before = tab.driver.execute_script("return document.querySelectorAll('script, img, b').length")
    tab.driver.execute_script("window.owned = 0")
    box = tab.driver.find_element("id", "picker")
    box.send_keys(str(tape))
    tab.until(tab.is_idle)
    tab.click("button.open")
    for summary in range(1, 4):
        tab.until(lambda at=summary: len(tab.all(".tree details > summary")) > at)
        tab.all(".tree details > summary")[summary].click()
    shown = "".join(tab.text("#page"))
    for key in ("script", "image", "template"):
        assert NAMES[key] in shown
    for hidden in HIDDEN:
        assert hidden not in shown
    assert {"U+202E", r"\x1b", r"\x07", "U+200B"} <= set(tab.text(".control"))
    for panel in ("dimensions", "corruption", "tape"):
        tab.click(f"#tab-{panel}")
    tab.click("#tab-dimensions")
    tab.click("#panel-dimensions button.open")
    after = tab.driver.execute_script("return document.querySelectorAll('script, img, b').length")
    assert (before, tab.driver.execute_script("return window.owned")) == (after, 0)
    tab.expect_clean()


def test_hostile_files_do_not_stop_the_page(tab: ViewerTab) -> None:
    """Each is refused in words, or its sound calls are listed. The page lives on without a
    complaint."""
    tab.size(1280)
    tab.go(FILE_PAGE)
    for path in sorted((FIXTURES / "hostile").glob("*.tape")):
        tab.drop(path)
        expected = json.loads(path.with_suffix(".json").read_text())
        alerts = "".join(tab.text("[role=alert]"))
        if "refused" in expected:
            assert alerts.startswith(path.name), path.name
        else:
            assert alerts == "", path.name
            first = sorted(expected["calls"], key=int)[:15]  # it scrolls
            tab.until(lambda calls=set(first): calls <= set(tab.text("button.open")))
        assert tab.complaints() == [], path.name


def test_corruption_is_told(tab: ViewerTab, golden: Path, tmp_path: Path) -> None:
    whole = golden.read_bytes()
    record, tensor = bytearray(whole), bytearray(whole)
    record[whole.index(b"records/00000001") + 600] ^= 1
    tensor[whole.index(b"blobs/00000001") + 512 + 620] ^= 1  # the last element but one
    names = {"record": record, "tensor": tensor, "cut": whole[: whole.index(b"records/00000002")]}
    for name, data in names.items():
        (tmp_path / f"{name}.tape").write_bytes(data)
    tab.size(1280)
    tab.go(FILE_PAGE)
    tab.drop(tmp_path / "record.tape")
    tab.until(lambda: "Corruption (1) ⚠" in tab.text("[role=tab]"))
    tab.click("#tab-corruption")
    tab.until(lambda: "checksum" in "".join(tab.text("#panel-corruption tbody")))
    tab.expect_clean()
    tab.drop(tmp_path / "tensor.tape")
    assert "Corruption" in tab.text("[role=tab]")
    tab.click("#tab-corruption")
    tab.click("button", "Check every call")
    tab.until(lambda: "Corruption (1) ⚠" in tab.text("[role=tab]"))
    tab.drop(tmp_path / "cut.tape")
    tab.click("#tab-corruption")
    tab.until(lambda: any("being written" in text for text in tab.text("[role=status]")))


def test_a_compressed_tape_is_opened_or_rejected_in_words(
    tab: ViewerTab, golden: Path, tmp_path: Path
) -> None:
    packed = tmp_path / "golden.tape.gz"
    packed.write_bytes(gzip.compress(golden.read_bytes()))
    cut = tmp_path / "cut.tape.gz"
    cut.write_bytes(packed.read_bytes()[:-20])
    bomb = tmp_path / "bomb.tape.gz"
    with gzip.open(bomb, "wb") as file:
        for _ in range(300):
            file.write(bytes(2**20))
    tab.size(1280)
    tab.go(FILE_PAGE)
    tab.drop(packed)
    tab.shows("button.open", ["0", "1", "2"])
    for path, words in ((cut, "cannot be decompressed"), (bomb, "larger than 268435456 bytes")):
        tab.drop(path)
        assert words in "".join(tab.text("[role=alert]"))
    assert tab.complaints() == []


@pytest.mark.parametrize("count", [1, 2])
def test_a_page_with_tapes_in_it_needs_no_server(
    tab: ViewerTab, golden: Path, structures: Path, tmp_path: Path, count: int
) -> None:
    page = tmp_path / "page.html"
    assert run("view", *(golden, structures)[:count], "-o", page).code == 0
    tab.size(1280)
    tab.go(page.as_uri())
    if count == 2:
        tab.shows("button.link", ["golden.tape", "structures.tape"])
        tab.click("button.link", "golden.tape")
    tab.shows("button.open", ["0", "1", "2"])
    tab.expect_clean()
    assert not [url for url in tab.requests() if url.startswith("http")]


def test_the_page_of_modules_is_the_same_page(tab: ViewerTab, golden: Path) -> None:
    """``viewer/index.html`` from any server of files, without a step to build it."""
    from functools import partial
    from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

    class Quiet(SimpleHTTPRequestHandler):
        def guess_type(self, path: object) -> str:
            return "text/javascript" if str(path).endswith("mjs") else super().guess_type(str(path))

        def log_message(self, format: str, *args: object) -> None:
            pass

    handler = partial(Quiet, directory=str(FIXTURES.parent / "viewer"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        root = f"http://127.0.0.1:{server.server_port}/"
        tab.size(1280)
        tab.go(f"{root}index.html")
        tab.drop(golden)
        tab.shows("button.open", ["0", "1", "2"])
        tab.expect_clean()
        hosts = {urlsplit(url).netloc for url in tab.requests() if url.startswith("http")}
        assert hosts == {urlsplit(root).netloc}
        server.shutdown()
    # From a disk it says what to open instead.
    tab.driver.get((FIXTURES.parent / "viewer" / "index.html").as_uri())
    assert "calltape-viewer.html" in tab.text("body")[0]
