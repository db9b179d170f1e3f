"""The report as a file. What a browser makes of it is in test_report_browser.py."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from discorl.comparison.compare import compare
from discorl.comparison.report import html_report
from discorl.printable import printable
from tests.comparison.run_folders import NASTY, constant, write_example, write_run


def embedded(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_the_page_refers_to_nothing_outside(tmp_path: Path) -> None:
    page = html_report(compare([write_example(tmp_path)], samples=500))
    text = re.sub(r'<script type="application/json".*?</script>', "", page, flags=re.DOTALL)
    addresses = set(re.findall(r"https?://[^\"'\s]+", text))
    assert addresses == {"http://www.w3.org/2000/svg"}, "a name, not an address to load from"
    assert not re.search(r"\b(src|href)\s*=|@import|url\(|fetch\(|XMLHttp", text)
    assert "default-src 'none'" in text


def test_the_page_holds_the_numbers(tmp_path: Path) -> None:
    write_example(tmp_path)
    comparison = compare([tmp_path], samples=500)
    read = embedded(html_report(comparison))
    assert read["labels"] == ["disco103", "actor-critic", "policy-gradient"]
    assert (
        read["tasks"][1]["groups"][0]["score"]["value"] == comparison.tasks[1].groups[0].score.value
    )


def test_names_cannot_break_the_page(tmp_path: Path) -> None:
    write_run(tmp_path / "a", constant(1.0), task=NASTY, rule="<i>{{data}}")
    page = html_report(compare([tmp_path]))
    assert embedded(page)["tasks"][0]["task"] == printable(NASTY)
    assert page.count("<script") == 2
    assert "<i>" not in page
