"""Grid worlds with things to collect, as in the work on learned policy gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from discorl.envs.tasks import sampling as draw
from discorl.envs.tasks.grid_tasks import GridTask, wall_cells
from discorl.envs.tasks.task import Step, Task, in_order, later_step
from discorl.errors import DiscorlError
from discorl.types import EnvSpec

MOVES = [(-1, 0), (0, 1), (1, 0), (0, -1), (0, 0), (-1, -1), (-1, 1), (1, 1), (1, -1)]
"""Rows and columns: up, right, down, left; stay; the diagonals."""


class GridSettings(NamedTuple):
    """Parameters of a task. K objects on C cells."""

    horizon: Tensor  # [B]
    exists: Tensor  # [B, K], whether there is this object at all
    reward: Tensor  # [B, K]
    terminate: Tensor  # [B, K], probability that collecting the object ends the episode
    respawn: Tensor  # [B, K], probability of coming back, at each step
    walls: Tensor  # [B, C + 1]; cells off a small board are walls, and so is the last, nowhere
    homes: Tensor | None  # [B, K + 1], cells of the objects and of the agent, if they are fixed
    actions: Tensor | None  # [B, A], the move that each action makes, if they are shuffled


class GridState(NamedTuple):
    """Where everything is."""

    agent: Tensor  # [B], cell
    cells: Tensor  # [B, K]
    present: Tensor  # [B, K]
    time: Tensor  # [B]
    settings: GridSettings


@dataclass(eq=False)
class Grid(Task[GridSettings, GridState]):
    """The agent collects every object in its cell; the horizon ends an episode for good.

    At each step: the agent moves, collects and perhaps ends the episode; then every missing
    object, also one just collected, comes back with its probability, in its old place or, where
    layouts are random, in a random free one. Tabular observations are the one-hot index of the
    state, others boards: one for each type of object, one for the agent, and one for the walls if
    there can be any (cells off a small board count as walls). ``num_actions``: 4, 5 (stay) or 9.
    """

    task: GridTask
    num_actions: int = 5
    shuffle_actions: bool = False

    def _prepare(self) -> EnvSpec:
        task, num_actions = self.task, self.num_actions
        if num_actions not in (4, 5, 9):
            raise DiscorlError(f"a grid world has 4, 5 or 9 moves, not {num_actions}")
        self.size = draw.ends(task.size)[1]
        self._num_cells = self.size**2
        self._has_walls = task.walls != "none" or isinstance(task.size, tuple)
        slots = [i for i, kind in enumerate(task.objects) for _ in range(kind.max_count)]
        self._slot_type = torch.tensor(slots, device=self.device)
        self.targets = _move_targets(self.size, num_actions, self.device)
        # Objects that are always there, as long as the episode lasts, need no bit in the index.
        bits = [i for i, slot in enumerate(slots) if task.objects[slot].can_be_missing]
        self.bits = torch.zeros(len(slots), dtype=torch.long, device=self.device)
        self.bits[bits] = 2 ** torch.arange(len(bits), device=self.device)
        self.num_layouts = 2 ** len(bits)
        self._num_indices = self._num_cells * self.num_layouts
        boards = (len(task.objects) + 1 + self._has_walls, self.size, self.size)
        return EnvSpec(
            observation_shape=(self._num_indices,) if task.tabular else boards,
            num_actions=num_actions,
            success_return=task.success_return,
        )

    def _draw(self, num: int, generator: Generator) -> GridSettings:
        task, slot_type = self.task, self._slot_type.to(generator.device)
        walls = wall_cells(task, num, generator)
        reward, terminate, respawn, exists = [], [], [], []
        for kind in task.objects:
            reward.append(draw.uniform(kind.reward, (num,), generator))
            terminate.append(draw.log_uniform(kind.terminate, (num,), generator))
            respawn.append(draw.log_uniform(kind.respawn, (num,), generator))
            count = draw.integers(kind.count, (num, 1), generator)
            exists.append(torch.arange(kind.max_count, device=count.device) < count)
        there = torch.cat(exists, 1)
        homes = None
        if not task.random_layout:
            scores = torch.rand(num, self._num_cells + 1, generator=generator, device=walls.device)
            homes = self._places(scores.masked_fill(walls, 2.0))
        actions = draw.shuffle(self.shuffle_actions, num, self.num_actions, generator)
        return GridSettings(
            horizon=draw.log_integers(task.horizon, (num,), generator),
            exists=there,
            reward=torch.stack(reward, 1)[:, slot_type],
            terminate=torch.stack(terminate, 1)[:, slot_type],
            respawn=torch.stack(respawn, 1)[:, slot_type] * there,
            walls=walls,
            homes=homes,
            actions=actions,
        )

    def _begin(self, s: GridSettings, generator: Generator) -> tuple[GridState, Tensor]:
        places = s.homes
        if places is None:
            scores = self._chances(generator, self._num_cells + 1)
            places = self._places(scores.masked_fill(s.walls, 2.0))
        time = torch.zeros_like(s.horizon)
        state = GridState(places[:, -1], places[:, :-1], s.exists, time, s)
        return state, self._observe(state)

    def step(self, state: GridState, actions: Tensor, generator: Generator) -> Step[GridState]:
        s, num_objects = state.settings, len(self._slot_type)
        num_chances = 2 * num_objects + (self._num_cells + 1 if s.homes is None else 0)
        chance = self._chances(generator, num_chances)

        agent = self.targets[in_order(s.actions, actions), state.agent]
        if self._has_walls:
            agent = torch.where(s.walls[self._copies, agent], state.agent, agent)
        hit = state.present & (state.cells == agent[:, None])
        reward = (hit * s.reward).sum(1)
        over = hit & (chance[:, :num_objects] < s.terminate)
        time = state.time + 1
        ended = over.any(1) | (time >= s.horizon)

        stays = state.present ^ hit
        returns = chance[:, num_objects : 2 * num_objects] < s.respawn
        ended_row = ended[:, None]
        present = torch.where(ended_row, s.exists, stays | returns)
        if s.homes is None:
            scores = chance[:, 2 * num_objects :].masked_fill(s.walls, 2.0)
            agent, cells = self._place_anew(scores, agent, state.cells, stays, ended_row)
        else:
            agent, cells = torch.where(ended, s.homes[:, -1], agent), state.cells
        state = GridState(agent, cells, present, torch.where(ended, 0, time), s)
        return state, later_step(self._observe(state), reward, ended)

    def _places(self, scores: Tensor) -> Tensor:
        """Different cells for the objects and the agent: those of the lowest scores. [B, K + 1]"""
        return scores.topk(len(self._slot_type) + 1, largest=False).indices

    def _place_anew(
        self, scores: Tensor, agent: Tensor, cells: Tensor, stays: Tensor, ended: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Free cells for what is missing, and for everything where an episode ended."""
        stays = stays & ~ended
        nowhere = self._num_cells
        taken = torch.cat([torch.where(stays, cells, nowhere), agent[:, None]], 1)
        # In a new episode nothing is taken.
        taken = torch.where(ended, nowhere, taken)
        places = self._places(scores.scatter(1, taken, 2.0))
        agent = torch.where(ended[:, 0], places[:, -1], agent)
        return agent, torch.where(stays, cells, places[:, :-1])

    def _observe(self, state: GridState) -> Tensor:
        if self.task.tabular:
            there = (state.present * self.bits).sum(1)
            index = torch.add(there, state.agent, alpha=self.num_layouts)
            zeros = torch.zeros(self.num_envs, self._num_indices, device=self.device)
            return zeros.scatter_(1, index[:, None], 1.0)
        num_cells, num_types = self._num_cells, len(self.task.objects)
        end = (num_types + 1) * num_cells
        objects = torch.where(state.present, state.cells + self._slot_type * num_cells, end)
        marks = torch.cat([objects, (state.agent + num_types * num_cells)[:, None]], 1)
        boards = torch.zeros(self.num_envs, end + 1, device=self.device).scatter_(1, marks, 1.0)
        boards = boards[:, :-1]
        if self._has_walls:
            boards = torch.cat([boards, state.settings.walls[:, :-1]], 1)
        return boards.unflatten(1, (-1, self.size, self.size))


def _move_targets(size: int, num_actions: int, device: torch.device) -> Tensor:
    """The cell that each move leads to from each cell; moves off the board stay. [A, C]"""
    cell = torch.arange(size**2, device=device)
    targets = []
    for down, right in MOVES[:num_actions]:
        row, column = cell // size + down, cell % size + right
        inside = (row >= 0) & (row < size) & (column >= 0) & (column < size)
        targets.append(torch.where(inside, row * size + column, cell))
    return torch.stack(targets)
