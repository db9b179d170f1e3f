"""What an environment is."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

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
