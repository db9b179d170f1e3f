"""Bandits: episodes of one step."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from discorl.envs.tasks import sampling as draw
from discorl.envs.tasks.sampling import Range
from discorl.envs.tasks.task import Task, later_step
from discorl.types import EnvSpec, TimeStep


class BanditSettings(NamedTuple):
    """Parameters of a task."""

    means: Tensor  # [B, contexts, arms]
    noise: Tensor  # [B], standard deviation


class BanditState(NamedTuple):
    """The context, [B]."""

    context: Tensor
    settings: BanditSettings


class Bandit(Task[BanditSettings, BanditState]):
    """An action is an arm; its reward is its mean in this context, plus Gaussian noise.

    Observed is the context, one-hot. It is drawn anew for each episode.
    """

    def __init__(
        self,
        num_envs: int,
        num_arms: int = 5,
        num_contexts: int = 1,
        means: Range = (0.0, 1.0),
        noise: Range = 0.1,
        device: torch.device | str = "cpu",
        *,
        task_seed: int = 0,
    ) -> None:
        draw.check_count("the number of arms of a bandit", num_arms, 2, 10_000)
        draw.check_count("the number of contexts of a bandit", num_contexts, 1, 10_000)
        draw.check_range("means", means, float("-inf"))
        draw.check_range("noise", noise, 0)
        spec = EnvSpec(observation_shape=(num_contexts,), num_actions=num_arms)
        super().__init__(num_envs, device, task_seed, spec)
        self._num_arms, self._num_contexts = num_arms, num_contexts
        self._means, self._noise = means, noise
        self._contexts = torch.eye(num_contexts, device=self.device)

    def _draw(self, num: int, generator: torch.Generator) -> BanditSettings:
        size = (num, self._num_contexts, self._num_arms)
        return BanditSettings(
            means=draw.uniform(self._means, size, generator),
            noise=draw.uniform(self._noise, (num,), generator),
        )

    def _begin(self, s: BanditSettings, generator: torch.Generator) -> tuple[BanditState, Tensor]:
        state = BanditState(self._new_context(generator), s)
        return state, self._contexts[state.context]

    def step(
        self, state: BanditState, actions: Tensor, generator: torch.Generator
    ) -> tuple[BanditState, TimeStep]:
        s = state.settings
        noise = torch.randn(self.num_envs, generator=generator, device=self.device)
        reward = s.means[self._copies, state.context, actions] + s.noise * noise
        state = BanditState(self._new_context(generator), s)
        ended = torch.ones_like(actions, dtype=torch.bool)
        return state, later_step(self._contexts[state.context], reward, ended)

    def _new_context(self, generator: torch.Generator) -> Tensor:
        size = (self.num_envs,)
        return torch.randint(self._num_contexts, size, generator=generator, device=self.device)
