"""Makes Sokoban levels: those that come with the package are its first 200 for seed 0."""

from __future__ import annotations

from collections import deque

import numpy as np

from discorl.envs.suites.sokoban_levels import MOVES, Cell, Level


def write_level(level: Level) -> str:
    """The rows of a level as text."""
    kinds = np.where(level.walls, "#", " ")
    kinds[level.targets] = "."
    kinds[level.boxes] = "$"
    kinds[level.boxes & level.targets] = "*"
    kinds[level.player] = "+" if level.targets[level.player] else "@"
    return "\n".join("".join(row) for row in kinds) + "\n"


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
