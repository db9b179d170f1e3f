"""Settings of tasks: how a reset comes by them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from discorl import tree
from discorl.envs.base import TensorEnv
from discorl.errors import DiscorlError
from discorl.types import TimeStep


def settings_of(env: TensorEnv, settings: Any) -> Any:
    """``settings`` after a check of their number, or for None the task of ``env.task_seed``."""
    if settings is None:
        # Drawn on the CPU, so that the task is the same on every device.
        drawn = env.sample_settings(1, torch.Generator().manual_seed(env.task_seed))
        return tree.map(lambda x: x.expand(env.num_envs, *x.shape[1:]).contiguous(), drawn)
    for x in tree.leaves(settings):
        if len(x) != env.num_envs:
            raise DiscorlError(
                f"{len(x)} settings were given to {env.num_envs} copies: give one for each, as by "
                "repeat_interleave"
            )
    return settings


def first_step(observation: Tensor) -> TimeStep:
    """The time step of a reset."""
    zeros = observation.new_zeros(len(observation))
    return TimeStep(observation, zeros, torch.ones_like(zeros))


def later_step(observation: Tensor, reward: Tensor, ended: Tensor) -> TimeStep:
    """The time step after an action; ``ended`` is bool."""
    return TimeStep(observation, reward, 1.0 - ended.float())
