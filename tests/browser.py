"""Headless Chromium, for tests of pages that are opened from disk.

The fixtures ``chromium`` and ``visit`` are for every test: conftest.py has them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@contextmanager
def chromium_driver(profile: Path) -> Iterator[Any]:
    """A driver with a profile of its own; skips the test where there is no browser."""
    webdriver = _webdriver()
    binary = shutil.which("chromium") or shutil.which("google-chrome")
    driver_path = shutil.which("chromedriver")
    if not binary or not driver_path:
        pytest.skip("needs Chromium: install Debian's chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=driver_path)
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield driver
    finally:
        driver.quit()


def _webdriver() -> Any:
    return pytest.importorskip("selenium.webdriver", reason="needs selenium (extra dev)")


@dataclass(frozen=True)
class Browser:
    """Headless Chromium with a page open in it."""

    driver: Any

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements("css selector", selector)

    def one(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def run(self, script: str, *args: Any) -> Any:
        return self.driver.execute_script(script, *args)

    def resize(self, width: int, height: int = 800) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.settle()

    def settle(self) -> None:
        """Wait for two frames: what the page does on a change of size is done in the first."""
        self.driver.execute_async_script(
            "const done = arguments[0];"
            "requestAnimationFrame(() => requestAnimationFrame(() => done()))"
        )

    def scheme(self, name: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def hover(self, svg: Any, x: float) -> None:
        """Point at a share of the plot's width."""
        self.run("arguments[0].scrollIntoView({block: 'center'})", svg)
        offset = round((x - 0.5) * svg.size["width"])
        actions = _webdriver().ActionChains(self.driver)
        actions.move_to_element_with_offset(svg, offset, 0).perform()

    def series(self, plot: int) -> list[str]:
        """Names of the curves drawn in a plot."""
        return self.run(
            "return [...document.querySelectorAll('.plot')[arguments[0]]"
            ".querySelectorAll('.series')].map(e => e.dataset.label)",
            plot,
        )

    def texts(self, plot: int) -> list[str]:
        """All that is written in a plot. In one go, because drawing again replaces it."""
        return self.run(
            "return [...document.querySelectorAll('.plot')[arguments[0]]"
            ".querySelectorAll('text')].map(e => e.textContent)",
            plot,
        )


Visit = Callable[[Path], Browser]


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One browser for the tests of a module."""
    with chromium_driver(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


@pytest.fixture
def visit(chromium: Any) -> Iterator[Visit]:
    """Opens a page from disk; at the end it must have logged no error."""

    def visit(page: Path) -> Browser:
        browser = Browser(chromium)
        browser.scheme("light")
        browser.resize(1200, 900)
        chromium.get(page.as_uri())
        browser.settle()
        return browser

    yield visit
    assert chromium.get_log("browser") == []


def overflow(browser: Browser) -> list[str]:
    """What sticks out of the page to the right."""
    return browser.run(
        "const wide = document.documentElement.clientWidth;"
        "return [...document.querySelectorAll('main *, header *, footer *')]"
        ".filter(e => e.getBoundingClientRect().right > wide + 1 && e.checkVisibility())"
        ".map(e => `${e.tagName}.${e.getAttribute('class')}`)"
    )


def contrast(browser: Browser, selector: str) -> float:
    """Contrast of text with the page behind it, by WCAG's formula."""
    return browser.run(
        """
        const lum = (c) => {
          const [r, g, b] = c.match(/[\\d.]+/g).map((v) => {
            v /= 255;
            return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
          });
          return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const e = document.querySelector(arguments[0]);
        const style = getComputedStyle(e);
        const ink = e.namespaceURI.endsWith("svg") ? style.fill : style.color;
        const [a, b] = [lum(ink), lum(getComputedStyle(document.body).backgroundColor)];
        return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        """,
        selector,
    )
