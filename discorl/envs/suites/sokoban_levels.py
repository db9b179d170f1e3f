"""Sokoban levels in Boxoban's text format."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from discorl.errors import DiscorlError

Cell = tuple[int, int]
MOVES: tuple[Cell, ...] = ((-1, 0), (1, 0), (0, -1), (0, 1))
"""Row and column steps of the actions: up, down, left, right."""

_SYMBOLS = "# .$*@+"


@dataclass(frozen=True)
class Level:
    """Where everything stands at the beginning."""

    walls: np.ndarray  # [H, W] bool
    targets: np.ndarray  # [H, W] bool
    boxes: np.ndarray  # [H, W] bool
    player: Cell


def read_levels(path: Path) -> list[Level]:
    """The levels of a file, or of all .txt files in a folder, in the order of their names."""
    files = sorted(path.rglob("*.txt")) if path.is_dir() else [path]
    if not path.exists():
        raise DiscorlError(f"there are no Sokoban levels at {path}: no such file or folder")
    levels = [level for file in files for level in parse_levels(_read(file), str(file))]
    if not levels:
        raise DiscorlError(f"{path} contains no Sokoban levels: use .txt files in Boxoban's format")
    shapes = {level.walls.shape for level in levels}
    if len(shapes) > 1:
        sizes = ", ".join(f"{h}x{w}" for h, w in sorted(shapes))
        raise DiscorlError(f"the Sokoban levels in {path} differ in size ({sizes}): separate them")
    return levels


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise DiscorlError(
            f"{file} is not UTF-8 text: Sokoban levels are .txt files in Boxoban's format"
        ) from None
    except OSError as e:
        raise DiscorlError(f"cannot read the Sokoban levels in {file}: {e.strerror}") from None


def parse_levels(text: str, source: str) -> list[Level]:
    """Levels of rows of '# .$*@+', each below a line that starts with ';'."""
    levels: list[Level] = []
    rows: list[str] = []
    for line in [*text.splitlines(), ";"]:
        if line.lstrip().startswith(";"):
            if rows:
                levels.append(_parse(rows, f"level {len(levels)} of {source}"))
            rows = []
        elif line.strip():
            rows.append(line.rstrip("\r\n"))
    return levels


def _parse(rows: list[str], what: str) -> Level:
    if len({len(row) for row in rows}) > 1:
        raise DiscorlError(f"{what} has rows of different lengths")
    grid = np.array([list(row) for row in rows])
    if not np.isin(grid, list(_SYMBOLS)).all():
        odd = sorted(set("".join(rows)) - set(_SYMBOLS))
        raise DiscorlError(f"{what} contains {odd}: use only the symbols '{_SYMBOLS}'")
    targets, boxes = np.isin(grid, list(".*+")), np.isin(grid, list("$*"))
    players = np.argwhere(np.isin(grid, list("@+")))
    if len(players) != 1 or boxes.sum() != targets.sum() or not boxes.any():
        raise DiscorlError(f"{what} needs exactly one player, and as many boxes as targets")
    if not all((edge == "#").all() for edge in (grid[0], grid[-1], grid[:, 0], grid[:, -1])):
        raise DiscorlError(f"{what} is not enclosed by walls")
    row, column = (int(n) for n in players[0])
    return Level(grid == "#", targets, boxes, (row, column))
