"""A run in a line, and in a notebook."""

from __future__ import annotations

import base64
import html
from pathlib import Path

from discorl.errors import DiscorlError
from discorl.printable import printable
from discorl.runs.config_file import kind_of, read_config_file
from discorl.runs.metrics import last_row

UNITS = {"train": "step", "discover": "meta-step"}
SHOWN = ("return", "success", "eval/sampled", "eval/greedy", "meta_return", "validation")
"""Metrics that say how good it is."""
MAX_PICTURE_BYTES = 2**22


def run_line(folder: Path, note: str = "") -> str:
    """What was run and how far it got, for ``repr``; never raises."""
    said = ", ".join(_facts(folder).values()) or "its folder is gone"
    return f"<Run {printable(str(folder))}: {said}{f'; {note}' if note else ''}>"


def run_html(folder: Path, note: str = "") -> str:
    """The same as a small table, and the learning curve."""
    facts = {"folder": str(folder), **_facts(folder)} | ({"note": note} if note else {})
    rows = "".join(
        f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
        f"<td style='text-align:left'>{html.escape(printable(fact))}</td></tr>"
        for name, fact in facts.items()
    )
    picture = folder / "curve.png"
    image = ""
    if picture.is_file() and picture.stat().st_size <= MAX_PICTURE_BYTES:
        data = base64.b64encode(picture.read_bytes()).decode()
        image = (
            f"<img alt='learning curve' style='max-width:640px' src='data:image/png;base64,{data}'>"
        )
    return f"<div><table>{rows}</table>{image}</div>"


def _facts(folder: Path) -> dict[str, str]:
    """What is known about a run, by name; nothing if its files cannot be read."""
    try:
        config, row = read_config_file(folder), last_row(folder / "metrics.jsonl")
    except (DiscorlError, OSError):
        return {}
    kind = str(kind_of(config))
    facts = {k: str(config[k]) for k in ("task", "rule") if kind == "train" and k in config}
    if "seed" in config:
        facts["seed"] = f"seed {config['seed']}"
    if row is None:
        return facts | {"steps": "nothing logged yet"}
    facts["steps"] = f"{row['step']:,} {UNITS.get(kind, 'step')}s"
    if "env_steps" in row:
        facts["environment steps"] = f"{row['env_steps']:,} environment steps"
    facts |= {name: f"{name} {row[name]:.4g}" for name in SHOWN if name in row}
    return facts
