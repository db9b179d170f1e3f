"""Sokoban levels: reading Boxoban's text format, writing it, and making new ones."""

from __future__ import annotations

from collections import deque
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
        raise DiscorlError(f"there is no file or folder of Sokoban levels at {path}")
    levels = [level for file in files for level in parse_levels(_read(file), str(file))]
    if not levels:
        raise DiscorlError(f"{path} holds no Sokoban levels: they are .txt in Boxoban's format")
    shapes = {level.walls.shape for level in levels}
    if len(shapes) > 1:
        sizes = ", ".join(f"{h}x{w}" for h, w in sorted(shapes))
        raise DiscorlError(f"the Sokoban levels of {path} differ in size ({sizes}): sort them")
    return levels


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise DiscorlError(
            f"{file} is no text in UTF-8: Sokoban levels are .txt in Boxoban's format"
        ) from None
    except OSError as e:
        raise DiscorlError(f"the Sokoban levels of {file} cannot be read: {e.strerror}") from None


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


def write_level(level: Level) -> str:
    """The rows of a level as text."""
    kinds = np.where(level.walls, "#", " ")
    kinds[level.targets] = "."
    kinds[level.boxes] = "$"
    kinds[level.boxes & level.targets] = "*"
    kinds[level.player] = "+" if level.targets[level.player] else "@"
    return "\n".join("".join(row) for row in kinds) + "\n"


def _parse(rows: list[str], what: str) -> Level:
    if len({len(row) for row in rows}) > 1:
        raise DiscorlError(f"{what} has rows of different lengths")
    grid = np.array([list(row) for row in rows])
    if not np.isin(grid, list(_SYMBOLS)).all():
        odd = sorted(set("".join(rows)) - set(_SYMBOLS))
        raise DiscorlError(f"{what} has {odd}; levels are made of '{_SYMBOLS}'")
    targets, boxes = np.isin(grid, list(".*+")), np.isin(grid, list("$*"))
    players = np.argwhere(np.isin(grid, list("@+")))
    if len(players) != 1 or boxes.sum() != targets.sum() or not boxes.any():
        raise DiscorlError(f"{what} needs one player, and as many boxes as targets")
    if not all((edge == "#").all() for edge in (grid[0], grid[-1], grid[:, 0], grid[:, -1])):
        raise DiscorlError(f"{what} is not closed in by walls")
    row, column = (int(n) for n in players[0])
    return Level(grid == "#", targets, boxes, (row, column))


def generate(
    random: np.random.Generator, size: int = 10, num_boxes: int = 4, max_moves: int = 100
) -> tuple[Level, list[int]]:
    """A random level, with actions that solve it within ``max_moves``.

    It is played backwards: boxes begin on their targets, and are pulled away from them.
    """
    while True:
        walls = _carve(random, size)
        floor = [(int(row), int(column)) for row, column in np.argwhere(~walls)]
        picked = [floor[i] for i in random.permutation(len(floor))[: num_boxes + 1]]
        targets, end = picked[:-1], picked[-1]
        found = _pull(random, walls, targets, end)
        if found is None:
            continue
        boxes, player, actions = found
        if len(actions) <= max_moves and not set(boxes) & set(targets):
            return Level(walls, _mask(targets, size), _mask(boxes, size), player), actions


def _mask(cells: list[Cell], size: int) -> np.ndarray:
    mask = np.zeros((size, size), bool)
    mask[tuple(zip(*cells))] = True
    return mask


def _carve(random: np.random.Generator, size: int) -> np.ndarray:
    """Walls around what a random walk leaves free, about half of the inside."""
    walls = np.ones((size, size), bool)
    row, column = (int(n) for n in random.integers(1, size - 1, size=2))
    while (~walls).sum() < (size - 2) ** 2 // 2:
        walls[row, column] = False
        step = MOVES[int(random.integers(4))]
        row = min(max(row + step[0], 1), size - 2)
        column = min(max(column + step[1], 1), size - 2)
    return walls


def _pull(
    random: np.random.Generator, walls: np.ndarray, targets: list[Cell], player: Cell
) -> tuple[list[Cell], Cell, list[int]] | None:
    """Pull each box a few times: (boxes, player, actions that undo it), or None if one is stuck."""
    boxes = list(targets)
    back: list[int] = []
    for i in random.permutation(np.repeat(np.arange(len(boxes)), 2)):
        ways = []
        for action, step in enumerate(MOVES):
            beside = _add(boxes[i], step)
            path = _walk(walls, boxes, player, beside)
            if path is not None and _is_free(walls, boxes, _add(beside, step)):
                ways.append((action, path))
        if not ways:
            return None
        action, path = ways[int(random.integers(len(ways)))]
        step = MOVES[action]
        player = _add(boxes[i], step)
        back += path
        for _ in range(int(random.integers(1, 5))):
            if set(boxes) == set(targets):
                back = []  # played forwards, the level ends here
            if not _is_free(walls, boxes, _add(player, step)):
                break
            boxes[i], player = player, _add(player, step)
            back.append(action)
    # A move backwards is the opposite one forwards: 0 and 1, 2 and 3 are opposites.
    return boxes, player, [action ^ 1 for action in reversed(back)]


def _walk(walls: np.ndarray, boxes: list[Cell], start: Cell, goal: Cell) -> list[int] | None:
    """The shortest way that moves no box; None if there is none."""
    paths: dict[Cell, list[int]] = {start: []}
    queue = deque([start])
    while queue:
        cell = queue.popleft()
        if cell == goal:
            return paths[cell]
        for action, step in enumerate(MOVES):
            there = _add(cell, step)
            if there not in paths and _is_free(walls, boxes, there):
                paths[there] = [*paths[cell], action]
                queue.append(there)
    return None


def _add(cell: Cell, step: Cell) -> Cell:
    return cell[0] + step[0], cell[1] + step[1]


def _is_free(walls: np.ndarray, boxes: list[Cell], cell: Cell) -> bool:
    return not walls[cell] and cell not in boxes
