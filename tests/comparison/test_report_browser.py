"""The report in a real browser: Chromium, without a window, from a file on disk."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from discorl.comparison.compare import compare
from discorl.comparison.report import html_report
from discorl.printable import printable
from tests.browser import Visit, contrast, overflow
from tests.comparison.run_folders import NASTY, constant, line, write_example, write_run

webdriver: Any = pytest.importorskip("selenium.webdriver", reason="needs selenium (extra dev)")
pytestmark = pytest.mark.browser


def page_of(root: Path) -> Path:
    page = root / "report.html"
    page.write_text(html_report(compare([root], samples=500)), encoding="utf-8")
    return page


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return page_of(write_example(tmp_path_factory.mktemp("example")))


def test_curves_are_drawn(visit: Visit, example: Path) -> None:
    browser = visit(example)
    assert browser.driver.title == "3 rules on 3 tasks"
    assert [h.text for h in browser.all("article h3")] == [
        "gym:Acrobot-v1",
        "catch",
        "gym:CartPole-v1",
    ]
    every = ["disco103", "actor-critic", "policy-gradient"]
    assert [browser.series(i) for i in range(3)] == [["disco103"], every, every]
    # The line of Disco103 on catch climbs: its end is far above its start, and inside the plot.
    x0, y0, x1, y1 = browser.run(
        "const path = document.querySelectorAll('.plot')[1].querySelector('.middle');"
        "const [a, b] = [path.getPointAtLength(0), path.getPointAtLength(path.getTotalLength())];"
        "return [a.x, a.y, b.x, b.y]"
    )
    assert x1 - x0 > 300 and y0 - y1 > 150
    # One seed has no band.
    assert [len(p.find_elements("css selector", ".band")) for p in browser.all(".plot")] == [
        0,
        3,
        3,
    ]
    colours = browser.run(
        "return [...document.querySelectorAll('.plot')[1].querySelectorAll('.middle')]"
        ".map(p => getComputedStyle(p).stroke)"
    )
    assert len(set(colours)) == 3


def test_the_end_of_the_shortest_run_is_marked(visit: Visit, tmp_path: Path) -> None:
    """Only where others go on, and not on the axis of time."""
    for rule, steps in (("short", 2), ("long", 4)):
        rows = [line(100 * n, float(n)) for n in range(1, steps + 1)]
        write_run(tmp_path / rule, rows, rule=rule)
    browser = visit(page_of(tmp_path))
    (mark,) = browser.all(".limit text")
    assert mark.text == "compared up to here"
    ends = browser.run(
        "const x = (path) => path.getPointAtLength(path.getTotalLength()).x;"
        "const plot = document.querySelector('.plot');"
        "const at = (label) => x(plot.querySelector(`[data-label=${label}] .middle`));"
        "return [at('short'), at('long'), +plot.querySelector('.limit line').getAttribute('x1')]"
    )
    short, long, marked = ends
    assert abs(short - marked) < 1 and long - marked > 100
    browser.one("#axis input[value=seconds] + span").click()
    assert browser.all(".limit") == []


def test_hovering_shows_values(visit: Visit, example: Path) -> None:
    browser = visit(example)
    svg, tip = browser.all(".plot svg")[1], browser.all(".plot .tip")[1]
    assert not tip.is_displayed()
    browser.hover(svg, 0.95)
    assert tip.is_displayed()
    lines = tip.text.splitlines()
    assert re.fullmatch(r"9\d(\.\d)?k steps", lines[0])
    shown = dict(zip(lines[1::2], lines[2::2], strict=True))
    assert list(shown) == ["disco103", "actor-critic", "policy-gradient"]
    value, low, high = map(float, re.findall(r"[\d.]+", shown["disco103"]))
    assert low <= value <= high and value > 0.97
    assert len(svg.find_elements("css selector", ".cursor circle")) == 3
    browser.hover(svg, 0.3)
    assert float(tip.text.splitlines()[4].split()[0]) < 0.2, "the actor-critic has just begun"
    webdriver.ActionChains(browser.driver).move_to_element(browser.one("h1")).perform()
    assert not tip.is_displayed()


def test_values_can_be_read_with_the_keyboard(visit: Visit, example: Path) -> None:
    browser = visit(example)
    svg, tip = browser.all(".plot svg")[2], browser.all(".plot .tip")[2]
    browser.run("arguments[0].focus()", svg)
    svg.send_keys(webdriver.Keys.END)
    assert tip.text.splitlines()[0] == "100k steps"
    svg.send_keys(webdriver.Keys.ARROW_LEFT)
    assert tip.text.splitlines()[0] == "97.5k steps"
    svg.send_keys(webdriver.Keys.ESCAPE)
    assert not tip.is_displayed()
    said = svg.get_attribute("aria-label")
    assert "gym:CartPole-v1: Return against Environment steps" in said
    assert "disco103 ends at 4" in said


def test_the_legend_switches_rules_off_and_on(visit: Visit, example: Path) -> None:
    browser = visit(example)
    buttons = browser.all("#legend button")
    assert [b.text for b in buttons] == ["disco103", "actor-critic", "policy-gradient"]
    buttons[1].click()
    assert buttons[1].get_attribute("aria-pressed") == "false"
    assert [browser.series(i) for i in (1, 2)] == [["disco103", "policy-gradient"]] * 2
    browser.hover(browser.all(".plot svg")[1], 0.9)
    assert "actor-critic" not in browser.all(".plot .tip")[1].text
    assert len(browser.all("article tr.off")) == 2
    browser.run("window.scrollTo(0, 0)")
    buttons[1].click()
    assert "actor-critic" in browser.series(1)
    for button in buttons:
        button.click()
    assert browser.series(1) == []
    assert "All rules are hidden" in browser.texts(1)


def test_the_axis_can_be_time_and_seeds_can_be_seen(visit: Visit, example: Path) -> None:
    browser = visit(example)
    assert "Environment steps" in browser.texts(1)
    browser.one("#axis input[value=seconds] + span").click()
    assert "Wall-clock (min)" in browser.texts(1)
    # The policy gradient is the quickest: its curve ends far to the left of Disco103's.
    ends = browser.run(
        "return [...document.querySelectorAll('.plot')[1].querySelectorAll('.middle')]"
        ".map(p => p.getPointAtLength(p.getTotalLength()).x)"
    )
    assert ends[2] < ends[0] / 2
    assert browser.all(".seed") == []
    browser.one("#seeds").click()
    assert len(browser.all(".plot")[1].find_elements("css selector", ".seed")) == 15


def test_intervals_and_runs_are_listed(visit: Visit, example: Path) -> None:
    browser = visit(example)
    rows = [row.text.split("\n") for row in browser.all("#improvement .track")]
    assert "disco103" in rows[0][0] and "over actor-critic" in " ".join(rows[0])
    assert all(re.search(r"\(.+ to .+\)", " ".join(row)) for row in rows)
    assert len(browser.all("#overall .track")) == 3
    assert "one seed" in browser.one("#notes").text
    browser.one("#runs-summary").click()
    assert len(browser.all("#runs tbody tr")) == 31


@pytest.mark.parametrize("width", [320, 390, 768])
def test_narrow_screens_need_no_sideways_scroll(visit: Visit, example: Path, width: int) -> None:
    browser = visit(example)
    browser.resize(width)
    browser.one("#runs-summary").click()
    assert browser.run("return document.documentElement.scrollWidth") <= width
    assert overflow(browser) == []
    svg, tip = browser.all(".plot svg")[1], browser.all(".plot .tip")[1]
    assert svg.size["width"] > 0.75 * min(width, 450)
    for x in (0.15, 0.5, 0.97):
        browser.hover(svg, x)
        box = tip.rect
        assert tip.is_displayed()
        assert box["x"] >= 0 and box["x"] + box["width"] <= width
    assert browser.run("return document.documentElement.scrollWidth") <= width
    size = browser.run("return getComputedStyle(document.querySelector('.plot text')).fontSize")
    assert size == "12px", "text does not shrink with the plot"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes_are_legible(visit: Visit, example: Path, scheme: str) -> None:
    browser = visit(example)
    browser.scheme(scheme)
    bright = browser.run("return getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]")
    assert (int(bright) > 128) == (scheme == "light")
    for selector in ("h1", ".hint", ".plot text", "td small", "#legend button"):
        assert contrast(browser, selector) >= 4.5, selector


def test_the_theme_can_be_switched(visit: Visit, example: Path) -> None:
    browser = visit(example)
    before = browser.run("return getComputedStyle(document.body).backgroundColor")
    browser.one("#theme").click()
    assert browser.run("return getComputedStyle(document.body).backgroundColor") != before
    assert browser.one("#theme").text == "Light"


def test_odd_runs_are_drawn_too(visit: Visit, tmp_path: Path) -> None:
    """A run of one line, a flat one, names that look like markup, and many rules."""
    write_run(tmp_path / "a", [line(10, 4.0)], task="short", rule="a")
    for i in range(10):
        write_run(tmp_path / f"many{i}", constant(0.0), task=NASTY, rule=f"<b>rule {i}")
    browser = visit(page_of(tmp_path))
    assert browser.driver.title == f"11 rules on short and {printable(NASTY)}"
    assert browser.series(0) == ["a"]
    assert browser.all(".plot")[0].find_element("css selector", ".series circle").is_displayed()
    assert len(browser.series(1)) == 10
    assert browser.all("main b b") == []
    browser.resize(320)
    assert browser.run("return document.documentElement.scrollWidth") <= 320
