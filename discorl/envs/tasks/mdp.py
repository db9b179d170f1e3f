"""Random Markov decision processes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from discorl.envs.tasks import sampling as draw
from discorl.envs.tasks.sampling import IntRange, Range
from discorl.envs.tasks.task import Task, later_step
from discorl.types import EnvSpec, TimeStep


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


class MDP(Task[MDPSettings, MDPState]):
    """Episodes begin in state 0; a share ``reward_density`` of actions in states is rewarded.

    ``determinism`` scales the Gaussian logits that next states are drawn by: at 0 all are equally
    likely. Observed is the state, one-hot.
    """

    def __init__(
        self,
        num_envs: int,
        num_states: int = 10,
        num_actions: int = 3,
        horizon: IntRange = (20, 100),
        device: torch.device | str = "cpu",
        *,
        rewards: Range = (-1.0, 1.0),
        reward_density: Range = (0.1, 0.5),
        terminate: Range = 0.0,
        determinism: Range = (1.0, 10.0),
        task_seed: int = 0,
    ) -> None:
        draw.check_count("the number of states of an MDP", num_states, 1, 1000)
        draw.check_count("the number of actions of an MDP", num_actions, 1, 1000)
        draw.check_range("horizon", horizon, 1)
        draw.check_range("rewards", rewards, float("-inf"))
        draw.check_range("reward_density", reward_density, 0, 1)
        draw.check_probability("terminate", terminate)
        draw.check_range("determinism", determinism, 0)
        spec = EnvSpec(observation_shape=(num_states,), num_actions=num_actions)
        super().__init__(num_envs, device, task_seed, spec)
        self._horizon, self._terminate = horizon, terminate
        self._rewards, self._reward_density = rewards, reward_density
        self._determinism = determinism
        self._states = torch.eye(num_states, device=self.device)

    def _draw(self, num: int, generator: torch.Generator) -> MDPSettings:
        num_states, num_actions = len(self._states), self.spec.num_actions
        pairs = (num, num_states, num_actions)
        scale = draw.uniform(self._determinism, (num, 1, 1, 1), generator)
        logits = scale * torch.randn(
            (*pairs, num_states), generator=generator, device=generator.device
        )
        density = draw.uniform(self._reward_density, (num, 1, 1), generator)
        rewarded = draw.uniform((0.0, 1.0), pairs, generator) < density
        return MDPSettings(
            cumulative=logits.softmax(-1).cumsum(-1),
            rewards=draw.uniform(self._rewards, pairs, generator) * rewarded,
            terminate=draw.log_uniform(self._terminate, (num,), generator),
            horizon=draw.log_integers(self._horizon, (num,), generator),
        )

    def _begin(self, s: MDPSettings, generator: torch.Generator) -> tuple[MDPState, Tensor]:
        del generator  # every episode begins alike
        zeros = torch.zeros_like(s.horizon)
        return MDPState(zeros, zeros, s), self._states[zeros]

    def step(
        self, state: MDPState, actions: Tensor, generator: torch.Generator
    ) -> tuple[MDPState, TimeStep]:
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
