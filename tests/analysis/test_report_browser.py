"""The page of an analysis in a real browser: Chromium, without a window, from a file on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from discorl.analysis.analyse import ANALYSES, _add
from discorl.analysis.report import html_report
from tests.analysis.test_attention import life_with
from tests.browser import Browser, Visit, contrast, overflow

pytestmark = pytest.mark.browser

SHOWN = ("response", "confidence", "attention")
"""They have figures of every kind."""


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("analysis")
    lives = [life_with(lambda x: x, 36, seed) for seed in range(2)]
    told: dict[str, Any] = {"version": "1.2.3", "rule": "the <b>rule", "lead": "Two agents."}
    told |= {"tasks": ["a board"], "sections": []}
    for name in SHOWN:
        _add(folder, told, "a board", name, ANALYSES[name].function(lives))
    dots = next(f for f in told["sections"][-1]["figures"] if f["kind"] == "dots")
    dots["rows"][0]["estimate"] = {"value": -0.0503, "low": -0.1192, "high": -0.0411}
    return folder, told


@pytest.fixture(scope="module")
def example(content: tuple[Path, dict[str, Any]]) -> Path:
    page = content[0] / "analysis.html"
    page.write_text(html_report(*content), encoding="utf-8")
    return page


def figures(content: tuple[Path, dict[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    every = [figure for section in content[1]["sections"] for figure in section["figures"]]
    return [figure for figure in every if figure["kind"] in kinds]


def loaded_pictures(browser: Browser) -> list[dict[str, Any]]:
    return browser.run(
        "return [...document.querySelectorAll('.picture')].map(e => ({alt: e.alt, "
        "natural: e.naturalWidth, width: e.getBoundingClientRect().width}))"
    )


def test_every_figure_is_on_the_page(
    visit: Visit, example: Path, content: tuple[Path, dict[str, Any]]
) -> None:
    browser = visit(example)
    assert browser.driver.title == "What the <b>rule does on a board"
    assert browser.all("main b b") == []
    titles = [ANALYSES[name].title for name in SHOWN]
    assert [h.text for h in browser.all("#sections h2")] == [f"{t} a board" for t in titles]
    every = figures(content, "curves", "dots", "heat_map", "film", "maps")
    assert [h.text for h in browser.all("article h3")] == [f["title"] for f in every]
    assert {f["kind"] for f in every} == {"curves", "dots", "heat_map", "film", "maps"}
    for i, figure in enumerate(figures(content, "curves")):
        assert browser.series(i) == [line["label"] for line in figure["lines"]]
        texts = browser.texts(i)
        assert figure["x_label"] in texts and figure["y_label"] in texts
    rows = [row for figure in figures(content, "dots") for row in figure["rows"]]
    assert len(browser.all(".tracks .track")) == len(rows)
    found = loaded_pictures(browser)
    kinds = ("heat_map", "film", "maps")
    assert [p["alt"] for p in found] == [f["title"] for f in figures(content, *kinds)]
    assert all(p["natural"] > 600 for p in found), "pictures came with the page"


def test_dots_have_the_colour_of_their_group(visit: Visit, example: Path) -> None:
    browser = visit(example)
    cards = browser.run(
        "return [...document.querySelectorAll('.tracks')].map(card => "
        "[...card.querySelectorAll('.track')].map(e => [e.querySelector('.who small').textContent, "
        "getComputedStyle(e.querySelector('.scale')).color]))"
    )
    assert max(len(dict(card)) for card in cards) >= 3
    for card in cards:
        groups = dict(card)
        assert all(groups[name] == colour for name, colour in card)
        assert len(set(groups.values())) == len(groups)


@pytest.mark.parametrize("width", [320, 390, 1200])
def test_nothing_sticks_out_or_becomes_illegible(visit: Visit, example: Path, width: int) -> None:
    browser = visit(example)
    browser.resize(width)
    assert browser.run("return document.documentElement.scrollWidth") <= width
    assert overflow(browser) == []
    for picture in loaded_pictures(browser):
        # Text of 9 points on 4.2 inches is at least 8 pixels high on a phone.
        assert 9 / (4.2 * 72) * picture["width"] >= (8 if width >= 390 else 6.5)
    size = browser.run("return getComputedStyle(document.querySelector('.plot text')).fontSize")
    assert size == "12px", "text does not shrink with the plot"
    beyond = browser.run(
        "return [...document.querySelectorAll('.card')].flatMap(card => {"
        "const {right} = card.getBoundingClientRect();"
        "return [...card.querySelectorAll('*')].filter(e => "
        "e.checkVisibility() && e.getBoundingClientRect().right > right)"
        ".map(e => `${e.tagName}: ${e.textContent}`)})"
    )
    assert beyond == []
    # What is written in a plot does not reach out of it.
    outside = browser.run(
        "return [...document.querySelectorAll('.plot svg')].flatMap(svg => {"
        "const box = svg.getBoundingClientRect();"
        "return [...svg.querySelectorAll('text')].filter(t => {"
        "const {left, right} = t.getBoundingClientRect();"
        "return right > box.right + 2 || left < box.left - 2"
        "}).map(t => t.textContent)})"
    )
    assert outside == []


def test_values_are_shown_where_one_points(visit: Visit, example: Path) -> None:
    browser = visit(example)
    svg, tip = browser.all(".plot svg")[0], browser.all(".plot .tip")[0]
    browser.hover(svg, 0.5)
    assert tip.is_displayed() and "the rule" in tip.text


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes_are_legible(visit: Visit, example: Path, scheme: str) -> None:
    browser = visit(example)
    browser.scheme(scheme)
    for selector in ("h1", ".hint", ".plot text", ".who small", ".found li", ".key li"):
        assert contrast(browser, selector) >= 4.5, selector
