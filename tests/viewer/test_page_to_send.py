"""``calltape view --out``: the page with the tapes in it, as one file."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import open_tape
from calltape_analyzer.cli.viewing import page_of_viewer
from calltape_analyzer.variants.variant_findings import VariantTable
from tests.analyzer.cli.commands import run
from tests.analyzer.tapes import write_tape
from tests.fixture_files import FIXTURES
from tests.viewer.node import node

HERE = Path(__file__).parent
TAPE = FIXTURES / "v1" / "calls.tape"


class _Scripts(HTMLParser):
    """All scripts of a page: their attributes and texts."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[tuple[dict[str, str | None], str]] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "script":
            self.found.append((dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        if self.found:
            attributes, text = self.found[-1]
            self.found[-1] = attributes, text + data

    def handle_endtag(self, tag: str) -> None:
        if tag == "script" and self.found[-1][0].get("type") == "application/x-calltape":
            attributes, text = self.found[-1]
            self.found[-1] = attributes, text.strip()


def tapes_in(page: Path) -> dict[str, bytes]:
    """The tapes in a page, by name. Nothing else in it may differ from the page of the viewer."""
    scripts = _Scripts(page).found
    assert [one.get("type") for one, _ in scripts][-2:] == ["text/plain", None]
    found = {}
    for (attributes, text), variants in zip(scripts[:-2:2], scripts[1:-2:2], strict=True):
        assert set(attributes) == {"type", "data-name"}
        assert attributes["type"] == "application/x-calltape"
        name = attributes["data-name"]
        assert name is not None
        found[name] = base64.b64decode(text.split("\n")[0], validate=True)
        assert variants[0] == {"type": "application/x-calltape-variants"}
        assert "<" not in variants[1]
        assert json.loads(variants[1]).keys() <= {"variants", "error"}
    ours = rb'<script type="application/x-calltape(?:-variants)?".*?</script>\n'
    rest = re.sub(ours, b"", page.read_bytes())
    assert rest == page_of_viewer()
    return found


def written(page: Path, *words: Any) -> str:
    ran = run("view", *words, "-o", page)
    assert (ran.code, ran.err) == (0, "")
    return ran.out


def test_a_page_to_send_has_the_tape_in_it(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert written(page, TAPE).splitlines() == [
        f"wrote {page}",
        "it holds 1 tape, values included; to omit values, run `calltape redact` first",
    ]
    assert tapes_in(page) == {"calls.tape": TAPE.read_bytes()}
    assert page.stat().st_mode & 0o777 == 0o600
    again = run("view", TAPE, "-o", page)
    assert again.code == 1
    assert "--force" in again.err
    assert run("view", TAPE, "-o", page, "--force").code == 0


def test_several_tapes_have_names_of_their_own(tmp_path: Path) -> None:
    for place in ("a/x.tape", "b/x.tape", "b/y.tape.gz"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        data = TAPE.read_bytes()
        (tmp_path / place).write_bytes(gzip.compress(data) if place.endswith("gz") else data)
    assert "holds 3 tapes" in written(tmp_path / "page.html", tmp_path)
    found = tapes_in(tmp_path / "page.html")
    assert found == dict.fromkeys(["a/x.tape", "b/x.tape", "b/y.tape.gz"], TAPE.read_bytes())


def test_a_page_to_send_has_the_variants_that_the_command_prints(tmp_path: Path) -> None:
    text = "</script><script>alert(1)</script>"
    calls = [((torch.zeros(2 + n, 3),), {text: n, "mode": text}) for n in range(3)]
    written(tmp_path / "page.html", write_tape(tmp_path / "a.tape", calls))
    scripts = _Scripts(tmp_path / "page.html").found
    (own,) = (text for kind, text in scripts if str(kind.get("type")).endswith("-variants"))
    with open_tape(tmp_path / "a.tape") as tape:
        tables = [VariantTable.of(variant).document() for variant in tape.variants()]
    assert json.loads(own) == json.loads(json.dumps({"variants": tables}))
    assert text in str(tables)


def test_a_name_ends_no_element(tmp_path: Path) -> None:
    name = "\"'><\x1b[1m\u202e&amp;script.tape"
    (tmp_path / name).write_bytes(TAPE.read_bytes())
    written(tmp_path / "page.html", tmp_path / name)
    assert list(tapes_in(tmp_path / "page.html")) == ["\"'><\\x1b[1m\\u202e&amp;script.tape"]


def test_a_page_to_send_has_a_tape_from_a_store_in_it(tmp_path: Path) -> None:
    memory = pytest.importorskip("fsspec").filesystem("memory")
    memory.pipe_file("/page/a.tape", TAPE.read_bytes())
    written(tmp_path / "page.html", "memory://page/a.tape")
    memory.rm("/page", recursive=True)
    assert tapes_in(tmp_path / "page.html") == {"a.tape": TAPE.read_bytes()}


def test_tapes_that_are_too_large_make_no_page(tmp_path: Path) -> None:
    path = tmp_path / "a.tape"
    path.write_bytes(TAPE.read_bytes())
    os.truncate(path, 2**27 + 1)  # a hole
    ran = run("view", path, "-o", tmp_path / "page.html")
    assert ran.code == 1
    assert "a page holds tapes of at most 128 MiB" in ran.err
    assert "calltape filter" in ran.err
    assert list(tmp_path.iterdir()) == [path]


def test_a_page_needs_the_suffix_of_html(tmp_path: Path) -> None:
    ran = run("view", TAPE, "-o", tmp_path / "page.txt")
    assert ran.code == 2
    assert "a page ends with .html" in ran.err
    assert not list(tmp_path.iterdir())


@pytest.mark.integration
def test_the_page_opens_them_and_tells_what_is_corrupted_or_omitted(tmp_path: Path) -> None:
    calls = [((torch.full((2 + n, 3), float(n)),), {}) for n in range(3)]
    whole = write_tape(tmp_path / "whole.tape", calls)
    assert run("redact", whole, "-o", tmp_path / "redacted.tape").code == 0
    data = bytearray(whole.read_bytes())
    at = data.index(b"float32")
    data[at] ^= 1
    (tmp_path / "corrupted.tape").write_bytes(data)
    written(tmp_path / "page.html", tmp_path)
    blocks = [
        {"name": name, "text": base64.b64encode(data).decode()}
        for name, data in tapes_in(tmp_path / "page.html").items()
    ]
    (tmp_path / "blocks.json").write_text(json.dumps(blocks))
    ran = node(HERE / "opened.mjs", tmp_path / "blocks.json")
    assert ran.returncode == 0, ran.stderr
    corrupted, redacted, sound = json.loads(ran.stdout)
    assert [one["name"] for one in (corrupted, redacted, sound)] == [
        "corrupted.tape", "redacted.tape", "whole.tape",
    ]  # fmt: skip
    for one in (corrupted, redacted, sound):
        size = (tmp_path / one["name"]).stat().st_size
        assert one["size"] == one["bytes"] == size
    assert (sound["calls"], sound["corruption"]) == (3, 0)
    assert sound["missing"][0][1] is None
    assert corrupted["corruption"] > 0
    assert redacted["facts"]["history 1"].startswith("redact by calltape")
    assert redacted["missing"][0][1] is not None
