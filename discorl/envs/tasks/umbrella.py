"""The umbrella chain: one early choice among rewards that have nothing to do with it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from discorl.envs.tasks import sampling as draw
from discorl.envs.tasks.sampling import IntRange, Range
from discorl.envs.tasks.task import Task, in_order, later_step
from discorl.types import EnvSpec, TimeStep


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


class Umbrella(Task[UmbrellaSettings, UmbrellaState]):
    """At the first step, action 1 takes an umbrella; the last step asks if that was right.

    The last reward is 1 if there is an umbrella and it rains, or neither, else -1; those before
    it are plus or minus ``noise`` at random. Observed are the forecast, the umbrella, the share of
    time left, and ``num_bits`` random bits.
    """

    def __init__(
        self,
        num_envs: int,
        length: IntRange = 10,
        noise: Range = 1.0,
        num_bits: int = 0,
        num_actions: int = 2,
        device: torch.device | str = "cpu",
        *,
        shuffle_actions: bool = False,
        task_seed: int = 0,
    ) -> None:
        draw.check_range("the length of an umbrella chain", length, 1, 1_000_000)
        draw.check_range("noise", noise, 0)
        draw.check_count("num_bits", num_bits, 0, 10_000)
        draw.check_count("num_actions", num_actions, 2, 10_000)
        spec = EnvSpec(
            observation_shape=(3 + num_bits,),
            num_actions=num_actions,
            success_return=1.0 if noise == 0 else None,
        )
        super().__init__(num_envs, device, task_seed, spec)
        self._length, self._noise, self._num_bits = length, noise, num_bits
        self._shuffle_actions = shuffle_actions

    def _draw(self, num: int, generator: torch.Generator) -> UmbrellaSettings:
        return UmbrellaSettings(
            length=draw.integers(self._length, (num,), generator),
            noise=draw.uniform(self._noise, (num,), generator),
            actions=draw.shuffle(self._shuffle_actions, num, self.spec.num_actions, generator),
        )

    def _begin(
        self, s: UmbrellaSettings, generator: torch.Generator
    ) -> tuple[UmbrellaState, Tensor]:
        coins = self._coins(generator)
        zeros = torch.zeros_like(s.length)
        state = UmbrellaState(zeros, coins[:, 0], zeros.bool(), s)
        return state, self._observe(state, coins)

    def step(
        self, state: UmbrellaState, actions: Tensor, generator: torch.Generator
    ) -> tuple[UmbrellaState, TimeStep]:
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

    def _coins(self, generator: torch.Generator) -> Tensor:
        """Of the next forecast, of the noise, and of the bits."""
        return self._chances(generator, 2 + self._num_bits) < 0.5

    def _observe(self, state: UmbrellaState, coins: Tensor) -> Tensor:
        left = 1.0 - state.time / state.settings.length
        known = torch.stack([state.need.float(), state.have.float(), left], 1)
        return torch.cat([known, coins[:, 2:].float()], 1)
