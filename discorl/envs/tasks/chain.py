"""A delayed chain: the first action decides a reward that comes many steps later."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from discorl.envs.tasks import sampling as draw
from discorl.envs.tasks.sampling import IntRange, Range
from discorl.envs.tasks.task import Task, later_step
from discorl.types import EnvSpec, TimeStep


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


class Chain(Task[ChainSettings, ChainState]):
    """The reward comes with step ``delay``, the last: 1 if the first action was good, else -1.

    Rewards before it are noise, uniform within ``noise`` of 0. Observed are the time (one-hot),
    the first action (one-hot, from the second step on) and ``num_bits`` random bits.
    """

    def __init__(
        self,
        num_envs: int,
        delay: IntRange = (5, 30),
        noise: Range = 0.0,
        num_bits: int = 0,
        num_actions: int = 2,
        device: torch.device | str = "cpu",
        *,
        shuffle_actions: bool = False,
        task_seed: int = 0,
    ) -> None:
        """``shuffle_actions`` draws which action is good; else it is the first one."""
        draw.check_range("the delay of a chain", delay, 1, 10_000)
        draw.check_range("noise", noise, 0)
        draw.check_count("num_bits", num_bits, 0, 10_000)
        draw.check_count("num_actions", num_actions, 2, 10_000)
        longest = draw.int_ends(delay)[1]
        spec = EnvSpec(
            observation_shape=(longest + num_actions + num_bits,),
            num_actions=num_actions,
            success_return=1.0 if noise == 0 else None,
        )
        super().__init__(num_envs, device, task_seed, spec)
        self._delay, self._noise, self._num_bits = delay, noise, num_bits
        self._good = (0, num_actions - 1) if shuffle_actions else 0
        self._times = torch.eye(longest, device=self.device)
        self._choices = torch.eye(num_actions + 1, device=self.device)[:, 1:]

    def _draw(self, num: int, generator: torch.Generator) -> ChainSettings:
        return ChainSettings(
            delay=draw.integers(self._delay, (num,), generator),
            noise=draw.uniform(self._noise, (num,), generator),
            good=draw.integers(self._good, (num,), generator),
        )

    def _begin(self, s: ChainSettings, generator: torch.Generator) -> tuple[ChainState, Tensor]:
        zeros = torch.zeros_like(s.delay)
        state = ChainState(zeros, zeros, s)
        return state, self._observe(state, self._random(generator))

    def step(
        self, state: ChainState, actions: Tensor, generator: torch.Generator
    ) -> tuple[ChainState, TimeStep]:
        s, random = state.settings, self._random(generator)
        choice = torch.where(state.time == 0, actions + 1, state.choice)
        time = state.time + 1
        ended = time >= s.delay
        result = 2.0 * (choice == s.good + 1) - 1.0
        reward = torch.where(ended, result, s.noise * (2.0 * random[:, 0] - 1.0))
        state = ChainState(torch.where(ended, 0, time), torch.where(ended, 0, choice), s)
        return state, later_step(self._observe(state, random), reward, ended)

    def _random(self, generator: torch.Generator) -> Tensor:
        """Of the noise, and of the bits."""
        return self._chances(generator, 1 + self._num_bits)

    def _observe(self, state: ChainState, random: Tensor) -> Tensor:
        bits = (random[:, 1:] < 0.5).float()
        return torch.cat([self._times[state.time], self._choices[state.choice], bits], 1)
