"""A memory task: a cue is shown once and asked for later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from discorl.envs.tasks import sampling as draw
from discorl.envs.tasks.sampling import IntRange
from discorl.envs.tasks.task import Step, Task, in_order, later_step
from discorl.errors import DiscorlError
from discorl.types import EnvSpec


class MemorySettings(NamedTuple):
    """Parameters of a task."""

    length: Tensor  # [B]
    actions: Tensor | None  # [B, A], the cue that each action answers, if they are shuffled


class MemoryState(NamedTuple):
    """Steps since the cue, and the cue. Each [B]."""

    time: Tensor
    cue: Tensor
    settings: MemorySettings


@dataclass(eq=False)
class Memory(Task[MemorySettings, MemoryState]):
    """The cue is seen at time 0 only; at time ``length`` the right answer is rewarded with 1.

    A wrong one costs 1; actions before it do nothing. Observed are the cue (one-hot), whether the
    question is asked, and ``num_bits`` random bits. No policy without a memory does better than
    chance.
    """

    length: IntRange = 8
    num_cues: int = 2
    num_bits: int = 0
    num_actions: int | None = None
    """None: as many as there are cues; more to have useless ones."""
    shuffle_actions: bool = False

    def _prepare(self) -> EnvSpec:
        num_actions = self.num_cues if self.num_actions is None else self.num_actions
        draw.check_range("the length of a memory task", self.length, 1, 1_000_000)
        draw.check_count("num_cues", self.num_cues, 2, 10_000)
        draw.check_count("num_bits", self.num_bits, 0, 10_000)
        if num_actions < self.num_cues:
            raise DiscorlError(
                f"{num_actions} actions cannot answer {self.num_cues} cues: set num_actions to "
                f"{self.num_cues} or more"
            )
        # The last shows nothing.
        self._cues = torch.eye(self.num_cues + 1, device=self.device)[:, :-1]
        size = self.num_cues + 1 + self.num_bits
        return EnvSpec(observation_shape=(size,), num_actions=num_actions, success_return=1.0)

    def _draw(self, num: int, generator: Generator) -> MemorySettings:
        return MemorySettings(
            length=draw.integers(self.length, (num,), generator),
            actions=draw.shuffle(self.shuffle_actions, num, self.spec.num_actions, generator),
        )

    def _begin(self, s: MemorySettings, generator: Generator) -> tuple[MemoryState, Tensor]:
        random = self._random(generator)
        state = MemoryState(torch.zeros_like(s.length), self._new_cue(random), s)
        return state, self._observe(state, random)

    def step(self, state: MemoryState, actions: Tensor, generator: Generator) -> Step[MemoryState]:
        s, random = state.settings, self._random(generator)
        answer = in_order(s.actions, actions)
        ended = state.time >= s.length
        reward = ended * (2.0 * (answer == state.cue) - 1.0)
        state = MemoryState(
            torch.where(ended, 0, state.time + 1),
            torch.where(ended, self._new_cue(random), state.cue),
            s,
        )
        return state, later_step(self._observe(state, random), reward, ended)

    def _random(self, generator: Generator) -> Tensor:
        """Of the next cue, and of the bits."""
        return self._chances(generator, 1 + self.num_bits)

    def _new_cue(self, random: Tensor) -> Tensor:
        return (random[:, 0] * self.num_cues).long()

    def _observe(self, state: MemoryState, random: Tensor) -> Tensor:
        shown = self._cues[torch.where(state.time == 0, state.cue, self.num_cues)]
        asked = (state.time == state.settings.length).float()
        return torch.cat([shown, asked[:, None], (random[:, 1:] < 0.5).float()], 1)
