"""Returns and lengths of episodes, counted as they run."""

from __future__ import annotations

import torch
from torch import Tensor


class RunningEpisodes:
    """Return and length of the episode under way in each environment."""

    def __init__(self, num_envs: int, dtype: torch.dtype = torch.float32) -> None:
        self.returns = torch.zeros(num_envs, dtype=dtype)
        self.lengths = torch.full_like(self.returns, -1.0)  # the first time step follows no action
        self.only_resets: Tensor | None = None
        """Where the next time step follows no action either."""

    def add(self, reward: Tensor, is_dead: Tensor | None) -> None:
        """Count a time step; ``is_dead`` as in ``TimeStep``. [B]"""
        self.returns += reward.cpu()
        self.lengths += 1.0 if self.only_resets is None else ~self.only_resets
        self.only_resets = None if is_dead is None else is_dead.cpu()

    def take(self, ended: Tensor) -> list[tuple[float, float]]:
        """Return and length of those that ``ended`` [B]; their counts start again from 0."""
        if not bool(ended.any()):
            return []
        pairs = torch.stack([self.returns[ended], self.lengths[ended]], 1)
        self.returns[ended] = 0
        self.lengths[ended] = 0
        return [(r, n) for r, n in pairs.tolist()]
