"""Statistics of a run: finished episodes, and metrics fetched from the device in batches."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

from discorl.types import EnvSpec, Rollout, UpdateInfo


class EpisodeStats:
    """Returns of finished episodes, over the last ``window`` training steps."""

    def __init__(self, spec: EnvSpec, num_envs: int, window: int = 50) -> None:
        self._spec = spec
        self._return = torch.zeros(num_envs)
        self._length = torch.full((num_envs,), -1.0)  # the first time step follows no action
        self._was_dead = torch.zeros(num_envs, dtype=torch.bool)
        self._recent: deque[list[tuple[float, float]]] = deque(maxlen=window)
        self.num_episodes = 0

    def observe(self, rollout: Rollout) -> list[tuple[float, float]]:
        """Count a rollout; returns (return, length) of the episodes that ended in it."""
        raw, dead = rollout.raw_rewards, rollout.is_dead
        rewards = (rollout.rewards if raw is None else raw).cpu()
        all_ended = rollout.ended.cpu()
        all_dead = torch.zeros_like(all_ended) if dead is None else dead.cpu()
        finished = []
        for reward, ended, is_dead in zip(rewards, all_ended, all_dead, strict=True):
            self._return += reward
            self._length += ~self._was_dead
            self._was_dead = is_dead
            if bool(ended.any()):
                pairs = torch.stack([self._return[ended], self._length[ended]], 1)
                finished += [(float(r), float(n)) for r, n in pairs.tolist()]
                self._return[ended] = 0
                self._length[ended] = 0
        self._recent.append(finished)
        self.num_episodes += len(finished)
        return finished

    def summary(self) -> dict[str, float]:
        """Means over the window; empty before the first episode ends."""
        return summarise([e for step in self._recent for e in step], self._spec)


def summarise(episodes: list[tuple[float, float]], spec: EnvSpec) -> dict[str, float]:
    """Mean return and length, and the share of successes where the environment has them."""
    if not episodes:
        return {}
    summary = {
        "return": sum(r for r, _ in episodes) / len(episodes),
        "length": sum(n for _, n in episodes) / len(episodes),
    }
    if spec.success_return is not None:
        wins = sum(r >= spec.success_return for r, _ in episodes)
        summary["success"] = wins / len(episodes)
    return summary


class UpdateStats:
    """Metrics of updates, left on the device until someone asks: the loop never waits for them."""

    def __init__(self) -> None:
        self._pending: list[tuple[dict[str, Tensor], Tensor]] = []

    def observe(self, info: UpdateInfo) -> None:
        """Keep the scalars of an update."""
        names = {"loss": info.loss, "gradient_norm": info.gradient_norm}
        names |= {"update_norm": info.update_norm}
        names |= {f"loss/{k}": v for k, v in info.losses.items()}
        self._pending.append((names, torch.stack(list(names.values()))))

    def summary(self) -> dict[str, float]:
        """Means since the last call, fetched in one go."""
        if not self._pending:
            return {}
        means = torch.stack([row for _, row in self._pending]).mean(0).tolist()
        names = self._pending[-1][0]
        self._pending.clear()
        return dict(zip(names, means, strict=True))
