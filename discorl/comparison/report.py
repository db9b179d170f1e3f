"""A comparison as one HTML page that needs nothing else: no server, no network, no other file."""

from __future__ import annotations

import html
import json
import re
from importlib.resources import files
from typing import Any

from discorl.comparison.result import Comparison
from discorl.printable import printable

# What would end the script element, or is no line break in JSON but is one in old JavaScript.
_UNSAFE = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def html_report(comparison: Comparison) -> str:
    """The whole page."""
    return page(_asset("report.html"), title(comparison), _asset("report.js"), comparison.as_dict())


def page(template: str, title: str, script: str, data: dict[str, Any]) -> str:
    """A page of this style: its script finds the data, which name their ``labels``, and the tools
    of plot.js and page.js.
    """
    text = json.dumps(_shown(data), allow_nan=False, separators=(",", ":"))
    parts = {
        "title": html.escape(printable(title)),
        "style": _asset("report.css"),
        "script": _asset("plot.js") + _asset("page.js") + script,
        "data": text.translate(_UNSAFE),
    }
    # One pass, so that nothing inside a part is taken for a place to fill in.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def title(comparison: Comparison) -> str:
    """What is compared, if it can be said in a line."""
    labels, tasks = comparison.labels, [task.task for task in comparison.tasks]
    what = " and ".join(labels) if len(labels) <= 2 else f"{len(labels)} rules"
    where = " and ".join(tasks) if len(tasks) <= 2 else f"{len(tasks)} tasks"
    return f"{what} on {where}"


def _shown(content: Any) -> Any:
    """The same with every text as it may be shown."""
    if isinstance(content, dict):
        return {name: _shown(x) for name, x in content.items()}
    if isinstance(content, list | tuple):
        return [_shown(x) for x in content]
    return printable(content) if isinstance(content, str) else content


def _asset(name: str) -> str:
    return (files("discorl.comparison") / "assets" / name).read_text(encoding="utf-8")
