"""Grid worlds by name: the published ones, and distributions to draw from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Generator, Tensor

from discorl.envs.tasks import sampling as draw
from discorl.envs.tasks.sampling import IntRange, Range
from discorl.errors import DiscorlError


@dataclass(frozen=True)
class Objects:
    """Objects of one type. Probabilities that are ranges are drawn on a logarithmic scale."""

    count: IntRange
    reward: Range
    terminate: Range
    """Probability that collecting one ends the episode."""
    respawn: Range
    """Probability, at each step, that a missing one comes back."""

    def __post_init__(self) -> None:
        draw.check_range("the count of objects", self.count, 0)
        draw.check_range("the reward of objects", self.reward, float("-inf"))
        draw.check_probability("terminate", self.terminate)
        draw.check_probability("respawn", self.respawn)

    @property
    def max_count(self) -> int:
        """The most there can be of them."""
        return draw.ends(self.count)[1]

    @property
    def can_be_missing(self) -> bool:
        """Whether an agent can ever see that one is not there."""
        always = 1 in (self.terminate, self.respawn)
        return not always or isinstance(self.count, tuple)


@dataclass(frozen=True)
class GridTask:
    """A grid world, or a distribution of them where values are ranges."""

    size: IntRange
    """Rows, and as many columns."""
    objects: tuple[Objects, ...]
    horizon: IntRange
    description: str = "a grid world"
    random_layout: bool = False
    """Objects and agent get new positions in every episode, rather than once for each task."""
    tabular: bool = True
    """Show the index of the state instead of boards."""
    walls: Literal["none", "middle", "cross", "random"] = "none"
    """A wall down the middle, or one across it too, with two gaps each; or single wall cells."""
    num_walls: IntRange = 0
    """How many single wall cells, at most a quarter of the board."""
    success_return: float | None = None

    def __post_init__(self) -> None:
        draw.check_range("the size of a grid world", self.size, 2, 64)
        draw.check_range("horizon", self.horizon, 1)
        if not self.objects:
            raise DiscorlError("a grid world needs at least one type of object")
        if self.tabular and self.random_layout:
            raise DiscorlError("a state's index cannot show a random layout: set tabular=False")
        smallest = draw.ends(self.size)[0]
        if self.walls in ("middle", "cross") and smallest < 3:
            raise DiscorlError("a wall with two gaps needs a grid world of size 3 or more")
        draw.check_range("num_walls", self.num_walls, 0, (smallest // 2) ** 2)
        most = draw.ends(self.num_walls)[1]
        walls = {"none": 0, "middle": smallest, "cross": 2 * smallest, "random": most}[self.walls]
        num_objects = sum(kind.max_count for kind in self.objects)
        # Room for every object and the agent, beside where they all are now.
        if smallest**2 - walls < 2 * (num_objects + 1):
            raise DiscorlError(
                f"a grid world of size {smallest} is too small for {num_objects} objects and its "
                "walls: make it larger"
            )


def wall_cells(task: GridTask, num: int, generator: Generator) -> Tensor:
    """Walls of ``num`` drawn boards, laid out on the largest; the last is nowhere. [num, C + 1]"""
    size = draw.integers(task.size, (num, 1), generator)
    side = torch.arange(draw.ends(task.size)[1], device=size.device)
    row, column = (x.flatten() for x in torch.meshgrid(side, side, indexing="ij"))
    walls = (row >= size) | (column >= size)
    middle, gap = size // 2, (size - 1) // 4
    if task.walls in ("middle", "cross"):
        walls |= (column == middle) & (row != gap) & (row != size - 1 - gap)
    if task.walls == "cross":
        walls |= (row == middle) & (column != gap) & (column != size - 1 - gap)
    if task.walls == "random":
        count = draw.integers(task.num_walls, (num, 1), generator)
        scores = torch.rand(num, len(row), generator=generator, device=size.device)
        # With odd rows and columns no wall touches another, and every cell can be reached.
        pillar = (row % 2 == 1) & (column % 2 == 1) & ~walls
        rank = scores.masked_fill(~pillar, 2.0).argsort(1).argsort(1)
        walls |= rank < count
    return torch.nn.functional.pad(walls, (0, 1), value=True)


_DENSE = (Objects(2, 1, 0, 0.05), Objects(1, -1, 0.5, 0.1), Objects(1, -1, 0, 0.5))
_LONG = (Objects(2, 1, 0, 0.01), Objects(2, -1, 0.5, 1))
_LONGER = (Objects(2, 1, 0.1, 0.01), Objects(5, -1, 0.8, 1))
_SLOW = (Objects(4, 1, 0, 0.005),)
_SMALL = (Objects(2, 1, 0, 0.05), Objects(2, -1, 0.5, 0.1))
_ENDS = (Objects(1, 1, 1, 0), Objects(1, -1, 1, 0))
_MANY_ENDS = (Objects(1, 1, 1, 1), Objects(2, -1, 1, 1))
_ONE = (Objects(1, 1, 0, 1),)

_scattered = partial(GridTask, random_layout=True, tabular=False)


def _drawn(count: IntRange) -> tuple[Objects, ...]:
    """A good type of objects and two of any kind, everything about them drawn."""
    rewards = ((0.0, 1.0), (-1.0, 1.0), (-1.0, 1.0))
    return tuple(Objects(count, reward, (0.01, 1.0), (0.001, 0.1)) for reward in rewards)


GRID_TASKS: dict[str, GridTask] = {
    "dense": GridTask(11, _DENSE, 500, "four objects that soon come back, fixed places"),
    "sparse": GridTask(
        13, _ENDS, 50, "one good and one bad end, 50 steps, fixed places", success_return=1.0
    ),
    "long": GridTask(
        11, _LONG, 1000, "objects that take long to come back, 1000 steps, fixed places"
    ),
    "longer": GridTask(
        9, _LONGER, 2000, "a wall, many bad ends, 2000 steps, fixed places", walls="middle"
    ),
    "long-dense": GridTask(
        11,
        _SLOW,
        2000,
        "two walls, objects that take long to come back, 2000 steps, fixed places",
        walls="cross",
    ),
    "random-dense": _scattered(11, _DENSE, 500, "grid:dense, with new positions every episode"),
    "random-long": _scattered(11, _LONG, 1000, "grid:long, with new positions every episode"),
    "random-small": _scattered(
        7,
        _SMALL,
        500,
        "four objects and two wall cells on a 7x7 board, with new positions every episode",
        walls="random",
        num_walls=2,
    ),
    "random-sparse": _scattered(
        7,
        _MANY_ENDS,
        50,
        "one good end and two bad ones, 50 steps, with new positions every episode",
        success_return=1.0,
    ),
    "random-very-dense": _scattered(
        11, _ONE, 2000, "one object that comes back elsewhere at once, 2000 steps"
    ),
    "sampled": _scattered(
        (5, 8),
        _drawn((1, 2)),
        (20, 100),
        "everything drawn: size, walls, horizon, three types of objects",
        walls="random",
        num_walls=(0, 4),
    ),
    "sampled-tabular": GridTask(
        (5, 8),
        _drawn(1),
        (25, 50),
        "everything drawn, fixed places",
        walls="random",
        num_walls=(0, 4),
    ),
}
"""The ten published tasks, and two distributions. Fixed places are drawn once for each task."""
