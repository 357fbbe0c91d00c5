"""The viewer in a browser: a tab on which tapes are dropped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.browser import Browser, browser
from tests.viewer.node import VIEWER

__all__ = ["FILE_PAGE", "ViewerTab", "viewer_tab"]

FILE_PAGE = (VIEWER / "calltape-viewer.html").as_uri()

_DROP = """
const [input] = arguments, data = new DataTransfer();
data.items.add(input.files[0]);
const given = {dataTransfer: data, bubbles: true, cancelable: true};
document.body.dispatchEvent(new DragEvent("drop", given));
input.remove();
"""
_NEW_INPUT = """
const input = document.createElement("input");
input.type = "file"; input.id = "dropped"; document.body.append(input);
"""


class ViewerTab(Browser):
    """One tab with the viewer."""

    def drop(self, tape: Path) -> None:
        """Drops a file on the page, and waits for what comes of it."""
        self.driver.execute_script(_NEW_INPUT)
        box = self.driver.find_element("id", "dropped")
        box.send_keys(str(tape))
        self.driver.execute_script(_DROP, box)
        self.until(lambda: self.text("strong") == [tape.name] or any(self.text("[role=alert]")))
        self.until(self.is_idle)

    def is_idle(self) -> bool:
        return bool(
            self.driver.execute_script(
                "return document.querySelector('.progress').hidden &&"
                "!document.querySelector('[aria-busy]')"
            )
        )


@contextmanager
def viewer_tab(network_log: Path | None = None) -> Iterator[ViewerTab]:
    """A tab in a browser of its own; see :func:`tests.browser.browser`."""
    with browser(network_log, ViewerTab) as made:
        yield made
