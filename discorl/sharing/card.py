"""The page that a shared rule or agent shows on the hub."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from discorl.printable import printable
from discorl.sharing import hub

ABOUT = "[discorl](https://pypi.org/project/discorl): agents that learn with a learned update rule"
CURVE = "curve.png"


def write_card(
    title: str,
    text: str,
    tables: Mapping[str, Mapping[str, Any]],
    has_curve: bool,
    **header: Any,
) -> str:
    """A card: what it is, how to use it, what is known about it, and its curve."""
    parts = [f"---\n{hub.card_data(library_name='discorl', **header)}\n---", f"# {title}", text]
    for name, rows in tables.items():
        if rows:
            parts.append(f"## {name}\n\n{_table(rows)}")
    if has_curve:
        parts.append(f"## Curve\n\n![The curve of the run]({CURVE})")
    return "\n\n".join(parts) + "\n"


def _table(rows: Mapping[str, Any]) -> str:
    lines = [f"| {_cell(name)} | {_cell(value)} |" for name, value in rows.items()]
    return "\n".join(["| | |", "|---|---|", *lines])


def _cell(value: Any) -> str:
    """Text from a file, as text: it may neither break the table nor be taken for markup."""
    if isinstance(value, float):
        value = f"{value:.4g}"
    text = printable(value)[:500]
    return "".join(f"&#{ord(c)};" if c in "|<>`[]*_\\&!#" else c for c in text)
