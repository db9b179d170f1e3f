"""The umbrella chain: one early choice among rewards that have nothing to do with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from discorl.envs.tasks import sampling as draw
from discorl.envs.tasks.sampling import IntRange, Range
from discorl.envs.tasks.task import Step, Task, in_order, later_step
from discorl.types import EnvSpec


class UmbrellaSettings(NamedTuple):
    """Parameters of a task."""

    length: Tensor  # [B]
    noise: Tensor  # [B]
    actions: Tensor | None  # [B, A], what each action does, if they are shuffled


class UmbrellaState(NamedTuple):
    """Steps since the beginning, whether it will rain, whether there is an umbrella. Each [B]."""

    time: Tensor
    need: Tensor
    have: Tensor
    settings: UmbrellaSettings


@dataclass(eq=False)
class Umbrella(Task[UmbrellaSettings, UmbrellaState]):
    """At the first step, action 1 takes an umbrella; the last step asks if that was right.

    The last reward is 1 if there is an umbrella and it rains, or neither, else -1; those before
    it are plus or minus ``noise`` at random. Observed are the forecast, the umbrella, the share of
    time left, and ``num_bits`` random bits.
    """

    length: IntRange = 10
    noise: Range = 1.0
    num_bits: int = 0
    num_actions: int = 2
    shuffle_actions: bool = False

    def _prepare(self) -> EnvSpec:
        draw.check_range("the length of an umbrella chain", self.length, 1, 1_000_000)
        draw.check_range("noise", self.noise, 0)
        draw.check_count("num_bits", self.num_bits, 0, 10_000)
        draw.check_count("num_actions", self.num_actions, 2, 10_000)
        return EnvSpec(
            observation_shape=(3 + self.num_bits,),
            num_actions=self.num_actions,
            success_return=1.0 if self.noise == 0 else None,
        )

    def _draw(self, num: int, generator: Generator) -> UmbrellaSettings:
        return UmbrellaSettings(
            length=draw.integers(self.length, (num,), generator),
            noise=draw.uniform(self.noise, (num,), generator),
            actions=draw.shuffle(self.shuffle_actions, num, self.spec.num_actions, generator),
        )

    def _begin(self, s: UmbrellaSettings, generator: Generator) -> tuple[UmbrellaState, Tensor]:
        coins = self._coins(generator)
        zeros = torch.zeros_like(s.length)
        state = UmbrellaState(zeros, coins[:, 0], zeros.bool(), s)
        return state, self._observe(state, coins)

    def step(
        self, state: UmbrellaState, actions: Tensor, generator: Generator
    ) -> Step[UmbrellaState]:
        s, coins = state.settings, self._coins(generator)
        takes = in_order(s.actions, actions) == 1
        have = torch.where(state.time == 0, takes, state.have)
        time = state.time + 1
        ended = time >= s.length
        sign = 2.0 * torch.where(ended, have == state.need, coins[:, 1]) - 1.0
        reward = torch.where(ended, sign, sign * s.noise)
        state = UmbrellaState(
            torch.where(ended, 0, time),
            torch.where(ended, coins[:, 0], state.need),
            have & ~ended,
            s,
        )
        return state, later_step(self._observe(state, coins), reward, ended)

    def _coins(self, generator: Generator) -> Tensor:
        """Of the next forecast, of the noise, and of the bits."""
        return self._chances(generator, 2 + self.num_bits) < 0.5

    def _observe(self, state: UmbrellaState, coins: Tensor) -> Tensor:
        left = 1.0 - state.time / state.settings.length
        known = torch.stack([state.need.float(), state.have.float(), left], 1)
        return torch.cat([known, coins[:, 2:].float()], 1)
