"""Bandits: episodes of one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from discorl.envs.tasks import sampling as draw
from discorl.envs.tasks.sampling import Range
from discorl.envs.tasks.task import Step, Task, later_step
from discorl.types import EnvSpec


class BanditSettings(NamedTuple):
    """Parameters of a task."""

    means: Tensor  # [B, contexts, arms]
    noise: Tensor  # [B], standard deviation


class BanditState(NamedTuple):
    """The context, [B]."""

    context: Tensor
    settings: BanditSettings


@dataclass(eq=False)
class Bandit(Task[BanditSettings, BanditState]):
    """An action is an arm; its reward is its mean in this context, plus Gaussian noise.

    The observation is the context, one-hot. It is drawn for each episode.
    """

    num_arms: int = 5
    num_contexts: int = 1
    means: Range = (0.0, 1.0)
    noise: Range = 0.1

    def _prepare(self) -> EnvSpec:
        draw.check_count("the number of arms of a bandit", self.num_arms, 2, 10_000)
        draw.check_count("the number of contexts of a bandit", self.num_contexts, 1, 10_000)
        draw.check_range("means", self.means, float("-inf"))
        draw.check_range("noise", self.noise, 0)
        self._contexts = torch.eye(self.num_contexts, device=self.device)
        return EnvSpec(observation_shape=(self.num_contexts,), num_actions=self.num_arms)

    def _draw(self, num: int, generator: Generator) -> BanditSettings:
        size = (num, self.num_contexts, self.num_arms)
        return BanditSettings(
            means=draw.uniform(self.means, size, generator),
            noise=draw.uniform(self.noise, (num,), generator),
        )

    def _begin(self, s: BanditSettings, generator: Generator) -> tuple[BanditState, Tensor]:
        state = BanditState(self._new_context(generator), s)
        return state, self._contexts[state.context]

    def step(self, state: BanditState, actions: Tensor, generator: Generator) -> Step[BanditState]:
        s = state.settings
        noise = torch.randn(self.num_envs, generator=generator, device=self.device)
        reward = s.means[self._copies, state.context, actions] + s.noise * noise
        state = BanditState(self._new_context(generator), s)
        ended = torch.ones_like(actions, dtype=torch.bool)
        return state, later_step(self._contexts[state.context], reward, ended)

    def _new_context(self, generator: Generator) -> Tensor:
        size = (self.num_envs,)
        return torch.randint(self.num_contexts, size, generator=generator, device=self.device)
