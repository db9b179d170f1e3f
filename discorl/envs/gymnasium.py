"""Gymnasium environments: Discrete actions, Box observations."""

from __future__ import annotations

from collections.abc import Callable

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor

from discorl.errors import DiscorlError
from discorl.types import EnvSpec, TimeStep


class GymnasiumEnv:
    """Copies of a registered Gymnasium environment, reset in the step that ends an episode.

    Truncated episodes end like terminated ones, as in the reference.
    """

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        device: torch.device | str = "cpu",
        factory: Callable[[], gymnasium.Env] | None = None,
    ) -> None:
        """``factory`` makes one copy where ``gymnasium.make(env_id)`` would not do."""
        try:
            self._envs = SyncVectorEnv(
                [factory or (lambda: gymnasium.make(env_id))] * num_envs,
                autoreset_mode=AutoresetMode.SAME_STEP,
            )
        except (gymnasium.error.Error, ImportError) as e:
            raise DiscorlError(f"Gymnasium cannot make '{env_id}': {e}") from None
        self.num_envs = num_envs
        self.device = torch.device(device)
        self.spec = EnvSpec(
            observation_shape=_observation_shape(env_id, self._envs.single_observation_space),
            num_actions=_num_actions(env_id, self._envs.single_action_space),
        )

    def reset(self, generator: torch.Generator) -> tuple[None, TimeStep]:
        seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
        observation, _ = self._envs.reset(seed=seed)
        zeros = torch.zeros(self.num_envs, device=self.device)
        return None, TimeStep(self._tensor(observation), zeros, torch.ones_like(zeros))

    def step(
        self, state: None, actions: Tensor, generator: torch.Generator
    ) -> tuple[None, TimeStep]:
        del state, generator
        observation, reward, terminated, truncated, _ = self._envs.step(actions.cpu().numpy())
        ended = np.logical_or(terminated, truncated)
        return None, TimeStep(
            self._tensor(observation), self._tensor(reward), self._tensor(1.0 - ended)
        )

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.as_tensor(array, dtype=torch.float32, device=self.device)


def _observation_shape(env_id: str, space: gymnasium.Space) -> tuple[int, ...]:
    if not isinstance(space, gymnasium.spaces.Box):
        raise DiscorlError(
            f"'{env_id}' has observations of kind {type(space).__name__}; only Box is supported: "
            "wrap it with gymnasium.wrappers.FlattenObservation"
        )
    return tuple(int(n) for n in space.shape)


def _num_actions(env_id: str, space: gymnasium.Space) -> int:
    if not isinstance(space, gymnasium.spaces.Discrete):
        raise DiscorlError(
            f"'{env_id}' has actions of kind {type(space).__name__}, but update rules are for "
            "Discrete ones: choose another environment or wrap its actions into a Discrete space"
        )
    if space.start != 0:
        raise DiscorlError(f"'{env_id}' numbers actions from {space.start}; they must start at 0")
    return int(space.n)
