"""A headless Chromium that looks at the page: what it shows, asks for, complains of.

Debian's packages `chromium` and `chromium-driver` are used where they are installed.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.viewer.node import VIEWER

__all__ = ["AXE", "FILE_PAGE", "MISSING", "Browser", "browser"]

T = TypeVar("T")

FILE_PAGE = (VIEWER / "calltape-viewer.html").as_uri()
AXE = Path(__file__).parent / "axe" / "axe.min.js"

_CHROMIUM, _DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
MISSING = _CHROMIUM is None or _DRIVER is None
"""Whether this machine has no browser to test with."""

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
_AXE = """
const done = arguments[arguments.length - 1];
axe.run({resultTypes: ["violations"]}).then(({violations}) => done(violations.map((one) => (
    {id: one.id, impact: one.impact, nodes: one.nodes.slice(0, 3).map((node) => node.html)}))),
    (error) => done([{id: String(error), impact: "critical", nodes: []}]));
"""


class Browser:
    """One tab."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.patience = 20.0  # seconds

    def size(self, width: int, height: int = 850, *, dark: bool = False) -> None:
        metrics = {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500
        }  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def go(self, url: str) -> None:
        """Opens a page, and forgets what was logged before."""
        self.driver.get("about:blank")
        self.complaints()
        self.requests()
        self.driver.get(url)

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

    def all(self, selector: str) -> list[Any]:
        return [
            one
            for one in self.driver.find_elements("css selector", selector)
            if one.is_displayed()
        ]  # fmt: skip

    def one(self, selector: str) -> Any:
        return self.until(lambda: self.all(selector))[0]

    def text(self, selector: str) -> list[str]:
        """The texts of all elements that are shown, as they stand in the page."""
        found = self.driver.execute_script(
            "return [...document.querySelectorAll(arguments[0])]"
            ".filter((one) => one.checkVisibility()).map((one) => one.textContent)",
            selector,
        )
        return list(found)

    def shows(self, selector: str, expected: list[str]) -> None:
        """Waits until the elements that are shown have these texts."""
        try:
            self.until(lambda: self.text(selector) == expected)
        except AssertionError as error:
            raise AssertionError(f"{self.text(selector)} instead of {expected}: {error}") from None

    def click(self, selector: str, text: str | None = None) -> None:
        """Clicks on the first element that has this text."""
        matches = self.until(
            lambda: [one for one in self.all(selector) if text is None or text in one.text]
        )
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", matches[0])
        matches[0].click()
        self.until(self.is_idle)

    def press(self, key: str) -> None:
        """Presses a key, wherever the focus is."""
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(key).perform()

    def until(self, condition: Callable[[], T]) -> T:
        """Waits for a condition."""
        end = time.monotonic() + self.patience
        while not (found := condition()):
            if time.monotonic() > end:
                body = self.driver.execute_script("return document.body.innerText")
                raise AssertionError(f"in vain; the page shows: {body[:1000]!r}")
            time.sleep(0.03)
        return found

    def complaints(self) -> list[str]:
        """What the console has, errors and reports of the policy, since the last question."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """The addresses that the page and its thread asked for, since the last question."""
        messages = [json.loads(entry["message"]) for entry in self.driver.get_log("performance")]
        return [
            found["message"]["params"]["request"]["url"]
            for found in messages
            if found["message"]["method"] == "Network.requestWillBeSent"
        ]

    def violations(self) -> list[dict[str, Any]]:
        """What axe-core finds serious or critical in the page as it is now."""
        # By the protocol, and not as a script of the page, whose policy would refuse it.
        self.driver.execute_cdp_cmd("Runtime.evaluate", {"expression": AXE.read_text()})
        found = self.driver.execute_async_script(_AXE)
        return [one for one in found if one["impact"] in ("serious", "critical")]

    def is_too_wide(self) -> bool:
        return bool(
            self.driver.execute_script(
                "const all = document.scrollingElement; return all.scrollWidth > all.clientWidth"
            )
        )


@contextmanager
def browser(network_log: Path | None = None) -> Iterator[Browser]:
    """A tab in a browser of its own, which writes down what it asks the network for."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(_CHROMIUM)
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    if network_log is not None:
        options.add_argument(f"--log-net-log={network_log}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(_DRIVER)))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
