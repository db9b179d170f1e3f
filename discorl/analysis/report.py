"""An analysis as one HTML page that needs nothing else."""

from __future__ import annotations

import base64
from importlib.resources import files
from pathlib import Path
from typing import Any

from discorl.comparison.report import page


def html_report(folder: Path, content: dict[str, Any]) -> str:
    """The page of what is in analysis.json, and of the figures beside it."""
    sections = [
        section | {"figures": [_with_picture(folder, f) for f in section["figures"]]}
        for section in content["sections"]
    ]
    missing = [
        f"No {x['name']} on {x['task']}: {x['reason']}." for x in content.get("left_out", ())
    ]
    lead = " ".join([content["lead"], *missing])
    # Each figure has colours of its own, so there are no labels that they share.
    data = content | {"labels": [], "sections": sections, "lead": lead}
    tasks = list(dict.fromkeys(s["task"] for s in sections))
    title = content.get("title") or f"What {content['rule']} does on {' and '.join(tasks)}"
    return page(_asset("analysis.html"), title, _asset("analysis.js"), data)


def _with_picture(folder: Path, figure: dict[str, Any]) -> dict[str, Any]:
    """What the page does not draw itself, it shows as a picture."""
    if figure["kind"] in ("curves", "dots"):
        return figure
    png = next(name for name in figure["files"] if name.endswith(".png"))
    data = base64.b64encode((folder / png).read_bytes()).decode()
    return {k: figure[k] for k in ("kind", "title")} | {"picture": f"data:image/png;base64,{data}"}


def _asset(name: str) -> str:
    return (files("discorl.analysis") / "assets" / name).read_text(encoding="utf-8")
