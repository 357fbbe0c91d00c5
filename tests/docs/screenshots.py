"""``make screenshots``: the pictures of the pages, made with Chromium.

A small Llama with random weights answers prompts of many lengths. The viewer shows its tape in a
browser, and what is on the screen becomes ``docs/screenshots/NAME.png``.
"""

from __future__ import annotations

import base64
import io
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from PIL import Image

from calltape_recorder import record
from tests.docs.page import DOCS
from tests.viewer.tab import FILE_PAGE, ViewerTab, viewer_tab
from tests.zoo.decoders import llama
from tests.zoo.language import VOCAB

__all__ = ["FOLDER", "NAMES", "make"]

FOLDER = DOCS / "screenshots"
_PROMPTS, _LONGEST, _NEW_TOKENS = 24, 60, 12
_COLORS = 64
"""A picture of text and lines needs no more, and is a third as large."""


def _recorded(path: Path) -> Path:
    model, lengths = llama(), random.Random(0)
    torch.manual_seed(0)
    with record(model, path):
        for _ in range(_PROMPTS):
            shape = lengths.randint(1, 3), lengths.randint(3, _LONGEST)
            ids = torch.randint(2, VOCAB, shape)
            options = {"max_new_tokens": _NEW_TOKENS, "do_sample": False}
            model.generate(ids, attention_mask=torch.ones_like(ids), **options)
    return path


def _viewer_call(tab: ViewerTab, tape: Path) -> None:
    tab.size(1280, 900)
    tab.go(FILE_PAGE)
    tab.drop(tape)
    tab.click("button.open", "1")
    tab.until(lambda: any("logits" in text for text in tab.text(".tree summary")))
    tab.click(".tree summary", "input_ids")


def _viewer_dimensions(tab: ViewerTab, tape: Path) -> None:
    _viewer_call(tab, tape)
    tab.click("#tab-dimensions")
    tab.click("#panel-dimensions button.open", "input_ids")


_STEPS = {"viewer-call": _viewer_call, "viewer-dimensions": _viewer_dimensions}
NAMES = tuple(_STEPS)
"""Of the pictures."""


def make(folder: Path) -> Iterator[Path]:
    """Makes all pictures, and yields the path of each.

    Raises:
        selenium.common.WebDriverException: there is no chromium or no chromedriver.
    """
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as made, viewer_tab() as tab:
        tape = _recorded(Path(made) / "llm.tape")
        for name, step in _STEPS.items():
            step(tab, tape)
            yield _taken(tab, folder / f"{name}.png")


def _taken(tab: ViewerTab, path: Path) -> Path:
    data = base64.b64decode(tab.driver.execute_cdp_cmd("Page.captureScreenshot", {})["data"])
    Image.open(io.BytesIO(data)).convert("RGB").quantize(_COLORS).save(path, optimize=True)
    return path


if __name__ == "__main__":
    for file in make(FOLDER):
        print(f"docs/screenshots/{file.name}: {file.stat().st_size / 1024:.0f} KiB")
