"""What an environment is."""

from __future__ import annotations

from typing import Any, Protocol, TypeGuard

import torch
from torch import Tensor

from discorl.errors import DiscorlError
from discorl.types import EnvSpec, TimeStep


class Env(Protocol):
    """Many copies of one environment, stepped together; each resets itself when its episode ends.

    Environments on tensors keep everything in ``state`` and are pure. Others keep what they must
    inside and hand ``state`` through.
    """

    spec: EnvSpec
    num_envs: int

    def reset(self, generator: torch.Generator) -> tuple[Any, TimeStep]:
        """Begin. Rewards are 0 and discounts 1."""
        ...

    def step(self, state: Any, actions: Tensor, generator: torch.Generator) -> tuple[Any, TimeStep]:
        """Take ``actions`` [B]; see ``TimeStep`` for what comes back at the end of an episode."""
        ...


class TensorEnv(Env, Protocol):
    """An environment on tensors: pure, batched on one device, every parameter of it drawable.

    The parameters of a task are its settings, a NamedTuple of tensors [B, ...] that the state
    carries, so that every copy may be another task. P agents with E copies each are one
    environment of P * E copies whose settings are repeated E times. Shapes are those of the
    largest task that can be drawn; what a smaller one does not use is padded. Reaching the
    horizon ends an episode like any other end: the discount is 0.
    """

    device: torch.device
    task_seed: int
    """Chooses the task of a reset without settings, so that a name always means the same task."""

    def sample_settings(self, num: int, generator: torch.Generator) -> Any:
        """Draw ``num`` tasks, from the values and ranges given to the constructor. [num, ...]"""
        ...

    def reset(self, generator: torch.Generator, settings: Any = None) -> tuple[Any, TimeStep]:
        """Begin with ``settings`` [B, ...]; None: all copies are the one task of ``task_seed``."""
        ...


class RestartableEnv(Env, Protocol):
    """An environment of which some copies can begin an episode while the others play on."""

    def restart(
        self, state: Any, timestep: TimeStep, copies: Tensor, generator: torch.Generator
    ) -> tuple[Any, TimeStep]:
        """Begin in ``copies`` [B] bool, as ``reset`` does; the others stay as they are."""
        ...


def is_env(x: object) -> TypeGuard[Env]:
    """Whether it has what every environment has."""
    return all(hasattr(x, name) for name in ("spec", "num_envs", "reset", "step"))


def is_tensor_env(env: Env) -> TypeGuard[TensorEnv]:
    """Whether its tasks can be drawn."""
    return hasattr(env, "sample_settings")


def can_restart(env: Env) -> TypeGuard[RestartableEnv]:
    """Whether some of its copies can start over while the others play on."""
    return bool(getattr(env, "can_restart", False))


def close_env(env: Env) -> None:
    """End what the environment runs, such as processes; most have nothing to end."""
    getattr(env, "close", lambda: None)()


def set_timeout(env: Env, minutes: float) -> None:
    """How long to wait for what the environment runs, such as processes; most have none."""
    getattr(env, "set_timeout", lambda minutes: None)(minutes)


def check_copies(num_envs: int) -> None:
    """Raise unless there is something to step."""
    if num_envs < 1:
        raise DiscorlError(f"num_envs must be at least 1, not {num_envs}")
