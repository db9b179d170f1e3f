"""The umbrella chain: one early choice among rewards that have nothing to do with it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from discorl import tree
from discorl.envs.tasks import sampling as draw
from discorl.envs.tasks.sampling import IntRange, Range
from discorl.envs.tasks.settings import first_step, later_step, settings_of
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


class Umbrella:
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
        draw.check_copies(num_envs)
        draw.check_range("the length of an umbrella chain", length, 1, 1_000_000)
        draw.check_range("noise", noise, 0)
        draw.check_count("num_bits", num_bits, 0, 10_000)
        draw.check_count("num_actions", num_actions, 2, 10_000)
        self.num_envs = num_envs
        self.device = torch.device(device)
        self.task_seed = task_seed
        self._length, self._noise, self._num_bits = length, noise, num_bits
        self._shuffle_actions = shuffle_actions
        self._copies = torch.arange(num_envs, device=self.device)
        self.spec = EnvSpec(
            observation_shape=(3 + num_bits,),
            num_actions=num_actions,
            success_return=1.0 if noise == 0 else None,
        )

    def sample_settings(self, num: int, generator: torch.Generator) -> UmbrellaSettings:
        settings = UmbrellaSettings(
            length=draw.integers(self._length, (num,), generator),
            noise=draw.uniform(self._noise, (num,), generator),
            actions=draw.permutations(num, self.spec.num_actions, generator)
            if self._shuffle_actions
            else None,
        )
        return tree.to(settings, self.device)

    def reset(
        self, generator: torch.Generator, settings: UmbrellaSettings | None = None
    ) -> tuple[UmbrellaState, TimeStep]:
        s: UmbrellaSettings = settings_of(self, settings)
        coins = self._coins(generator)
        zeros = torch.zeros_like(s.length)
        state = UmbrellaState(zeros, coins[:, 0], zeros.bool(), s)
        return state, first_step(self._observe(state, coins))

    def step(
        self, state: UmbrellaState, actions: Tensor, generator: torch.Generator
    ) -> tuple[UmbrellaState, TimeStep]:
        s, coins = state.settings, self._coins(generator)
        if s.actions is not None:
            actions = s.actions[self._copies, actions]
        have = torch.where(state.time == 0, actions == 1, state.have)
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
        size = (self.num_envs, 2 + self._num_bits)
        return torch.rand(size, generator=generator, device=self.device) < 0.5

    def _observe(self, state: UmbrellaState, coins: Tensor) -> Tensor:
        left = 1.0 - state.time / state.settings.length
        known = torch.stack([state.need.float(), state.have.float(), left], 1)
        return torch.cat([known, coins[:, 2:].float()], 1) if self._num_bits else known
