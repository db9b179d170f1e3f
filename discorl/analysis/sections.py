"""The sections of an analysis: figures, analysis.json and the page, added to one by one."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from discorl import __version__
from discorl.analysis.drawing import save_figure
from discorl.analysis.report import html_report
from discorl.analysis.results import Result
from discorl.errors import DiscorlError
from discorl.runs.files import write_json, write_text
from discorl.runs.terminal import say


def begun(folder: Path, new: dict[str, Any]) -> dict[str, Any]:
    """What analysis.json holds so far, if it has the settings of ``new``; else that."""
    path = folder / "analysis.json"
    if not path.exists():
        return {"version": __version__, **new, "sections": []}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        settings = content["settings"], content["version"]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise DiscorlError(f"{path} is damaged: remove it, or choose another --out") from None
    if settings != (new["settings"], __version__):
        raise DiscorlError(
            f"{folder} holds an analysis with other settings: choose another --out, or remove it"
        )
    return content


def add_section(
    folder: Path,
    content: dict[str, Any],
    about: dict[str, str],
    result: Result,
    order: Sequence[str],
) -> None:
    """Draw a result and write it down; ``about`` has its name, task and title.

    Sections are ordered by the tasks in ``content`` and the names in ``order``, whichever ends
    first.
    """
    place = f"{about['task'].replace(':', '-').replace('/', '-')}-{about['name']}"
    figures = []
    for figure in result.figures():
        own = replace(figure, name=f"{place}-{figure.name}")
        (folder / "figures").mkdir(parents=True, exist_ok=True)
        files = [f"figures/{file}" for file in save_figure(folder / "figures", own)]
        figures.append(dataclasses.asdict(own) | {"files": files})
    section = about | {
        "findings": result.findings(),
        "figures": figures,
        "result": dataclasses.asdict(result),  # pyright: ignore[reportArgumentType]
    }
    sections = [*content["sections"], section]
    tasks = content["tasks"]
    sections.sort(key=lambda s: (tasks.index(s["task"]), order.index(s["name"])))
    content["sections"] = sections
    write_json(folder / "analysis.json", content)


def report(folder: Path, content: dict[str, Any], console: Console) -> None:
    """Write the page, if there is anything to show, and say what was found."""
    if not content["sections"]:
        return
    write_text(folder / "analysis.html", html_report(folder, content))
    for section in content["sections"]:
        say(console, f"{section['title']} on {section['task']}")
        say(console, *(f"  {text}" for text in section["findings"]))
    say(console, f"Report: {folder / 'analysis.html'}")
