"""A headless Chromium that looks at pages: what they show, ask for, complain of.

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

__all__ = ["LOOKS", "MISSING", "Browser", "browser", "network_requests"]

T = TypeVar("T")
B = TypeVar("B", bound="Browser")

AXE = Path(__file__).parent / "axe" / "axe.min.js"

LOOKS = [(1280, False), (1280, True), (390, False), (390, True)]
"""Widths of a screen and of a phone, each light and dark."""

_CHROMIUM, _DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
MISSING = _CHROMIUM is None or _DRIVER is None
"""Whether this machine has no browser to test with."""

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
        self.patience = 60.0  # seconds

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

    def is_idle(self) -> bool:
        """Whether the page has done what it was asked to."""
        return True

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
        self.until(lambda: self._clicked(selector, text))
        self.until(self.is_idle)

    def _clicked(self, selector: str, text: str | None) -> bool:
        """Whether there was such an element. One that the page draws anew just now is none."""
        from selenium.common.exceptions import StaleElementReferenceException

        try:
            matches = [one for one in self.all(selector) if text is None or text in one.text]
            if not matches:
                return False
            self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", matches[0])
            matches[0].click()
        except StaleElementReferenceException:
            return False
        return True

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
            message["message"]["params"]["request"]["url"]
            for message in messages
            if message["message"]["method"] == "Network.requestWillBeSent"
        ]

    def expect_clean(self) -> None:
        """No complaint, nothing that axe-core finds serious, and nothing that is too wide."""
        assert self.complaints() == []
        assert self.violations() == []
        assert not self.is_too_wide()

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
def browser(network_log: Path | None = None, kind: type[B] = Browser) -> Iterator[B]:  # type: ignore[assignment]
    """A tab in a browser of its own, which writes down what it asks the network for.

    Args:
        network_log: where to.
        kind: of the tab.
    """
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
        yield kind(driver)
    finally:
        driver.quit()


def network_requests(log: Path) -> dict[str, str]:
    """The addresses that a browser asked for, each with the origin of the page that did."""
    document = json.loads(log.read_text())
    params = (event.get("params", {}) for event in document["events"])
    return {
        parameter["url"]: parameter.get("initiator", "").removeprefix("http://")
        for parameter in params
        if isinstance(parameter, dict) and "url" in parameter
    }
