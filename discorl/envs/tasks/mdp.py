"""Random Markov decision processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from discorl.envs.tasks import sampling as draw
from discorl.envs.tasks.sampling import IntRange, Range
from discorl.envs.tasks.task import Step, Task, later_step
from discorl.types import EnvSpec


class MDPSettings(NamedTuple):
    """Parameters of a task. S states, A actions."""

    cumulative: Tensor  # [B, S, A, S], probability that the next state is this one or one before
    rewards: Tensor  # [B, S, A]
    terminate: Tensor  # [B], probability that a step ends the episode
    horizon: Tensor  # [B]


class MDPState(NamedTuple):
    """The state of the process and the steps since its beginning, each [B]."""

    place: Tensor
    time: Tensor
    settings: MDPSettings


@dataclass(eq=False)
class MDP(Task[MDPSettings, MDPState]):
    """Episodes begin in state 0; a share ``reward_density`` of actions in states is rewarded.

    ``determinism`` scales the Gaussian logits that next states are drawn by: at 0 all are equally
    likely. Observed is the state, one-hot.
    """

    num_states: int = 10
    num_actions: int = 3
    horizon: IntRange = (20, 100)
    rewards: Range = (-1.0, 1.0)
    reward_density: Range = (0.1, 0.5)
    terminate: Range = 0.0
    determinism: Range = (1.0, 10.0)

    def _prepare(self) -> EnvSpec:
        draw.check_count("the number of states of an MDP", self.num_states, 1, 1000)
        draw.check_count("the number of actions of an MDP", self.num_actions, 1, 1000)
        draw.check_range("horizon", self.horizon, 1)
        draw.check_range("rewards", self.rewards, float("-inf"))
        draw.check_range("reward_density", self.reward_density, 0, 1)
        draw.check_probability("terminate", self.terminate)
        draw.check_range("determinism", self.determinism, 0)
        self._states = torch.eye(self.num_states, device=self.device)
        return EnvSpec(observation_shape=(self.num_states,), num_actions=self.num_actions)

    def _draw(self, num: int, generator: Generator) -> MDPSettings:
        pairs = (num, self.num_states, self.num_actions)
        scale = draw.uniform(self.determinism, (num, 1, 1, 1), generator)
        logits = scale * torch.randn(
            *pairs, self.num_states, generator=generator, device=generator.device
        )
        density = draw.uniform(self.reward_density, (num, 1, 1), generator)
        rewarded = draw.uniform((0.0, 1.0), pairs, generator) < density
        return MDPSettings(
            cumulative=logits.softmax(-1).cumsum(-1),
            rewards=draw.uniform(self.rewards, pairs, generator) * rewarded,
            terminate=draw.log_uniform(self.terminate, (num,), generator),
            horizon=draw.log_integers(self.horizon, (num,), generator),
        )

    def _begin(self, s: MDPSettings, generator: Generator) -> tuple[MDPState, Tensor]:
        del generator  # every episode begins alike
        zeros = torch.zeros_like(s.horizon)
        return MDPState(zeros, zeros, s), self._states[zeros]

    def step(self, state: MDPState, actions: Tensor, generator: Generator) -> Step[MDPState]:
        s = state.settings
        chance = torch.rand((2, self.num_envs), generator=generator, device=self.device)
        now = (self._copies, state.place, actions)
        reward = s.rewards[now]
        # The last sum may be just below 1 by rounding, so it is not asked.
        place = (s.cumulative[now][:, :-1] <= chance[0, :, None]).sum(1)
        time = state.time + 1
        ended = (chance[1] < s.terminate) | (time >= s.horizon)
        state = MDPState(torch.where(ended, 0, place), torch.where(ended, 0, time), s)
        return state, later_step(self._states[state.place], reward, ended)
