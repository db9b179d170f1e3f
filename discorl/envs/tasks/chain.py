"""A delayed chain: the first action decides a reward that comes many steps later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from discorl.envs.tasks import sampling as draw
from discorl.envs.tasks.sampling import IntRange, Range
from discorl.envs.tasks.task import Step, Task, later_step
from discorl.types import EnvSpec


class ChainSettings(NamedTuple):
    """Parameters of a task, each [B]."""

    delay: Tensor
    noise: Tensor
    good: Tensor  # the first action that is rewarded


class ChainState(NamedTuple):
    """Steps since the beginning, and 1 + the first action, or 0 before it. Each [B]."""

    time: Tensor
    choice: Tensor
    settings: ChainSettings


@dataclass(eq=False)
class Chain(Task[ChainSettings, ChainState]):
    """The reward comes with step ``delay``, the last: 1 if the first action was good, else -1.

    Rewards before it are noise, uniform within ``noise`` of 0. Observed are the time (one-hot),
    the first action (one-hot, from the second step on) and ``num_bits`` random bits.
    """

    delay: IntRange = (5, 30)
    noise: Range = 0.0
    num_bits: int = 0
    num_actions: int = 2
    shuffle_actions: bool = False
    """Draw which action is good; else it is the first one."""

    def _prepare(self) -> EnvSpec:
        draw.check_range("the delay of a chain", self.delay, 1, 10_000)
        draw.check_range("noise", self.noise, 0)
        draw.check_count("num_bits", self.num_bits, 0, 10_000)
        draw.check_count("num_actions", self.num_actions, 2, 10_000)
        longest = draw.ends(self.delay)[1]
        self._times = torch.eye(longest, device=self.device)
        self._choices = torch.eye(self.num_actions + 1, device=self.device)[:, 1:]
        return EnvSpec(
            observation_shape=(longest + self.num_actions + self.num_bits,),
            num_actions=self.num_actions,
            success_return=1.0 if self.noise == 0 else None,
        )

    def _draw(self, num: int, generator: Generator) -> ChainSettings:
        good = (0, self.num_actions - 1) if self.shuffle_actions else 0
        return ChainSettings(
            delay=draw.integers(self.delay, (num,), generator),
            noise=draw.uniform(self.noise, (num,), generator),
            good=draw.integers(good, (num,), generator),
        )

    def _begin(self, s: ChainSettings, generator: Generator) -> tuple[ChainState, Tensor]:
        zeros = torch.zeros_like(s.delay)
        state = ChainState(zeros, zeros, s)
        return state, self._observe(state, self._random(generator))

    def step(self, state: ChainState, actions: Tensor, generator: Generator) -> Step[ChainState]:
        s, random = state.settings, self._random(generator)
        choice = torch.where(state.time == 0, actions + 1, state.choice)
        time = state.time + 1
        ended = time >= s.delay
        result = 2.0 * (choice == s.good + 1) - 1.0
        reward = torch.where(ended, result, s.noise * (2.0 * random[:, 0] - 1.0))
        state = ChainState(torch.where(ended, 0, time), torch.where(ended, 0, choice), s)
        return state, later_step(self._observe(state, random), reward, ended)

    def _random(self, generator: Generator) -> Tensor:
        """Of the noise, and of the bits."""
        return self._chances(generator, 1 + self.num_bits)

    def _observe(self, state: ChainState, random: Tensor) -> Tensor:
        bits = (random[:, 1:] < 0.5).float()
        return torch.cat([self._times[state.time], self._choices[state.choice], bits], 1)
