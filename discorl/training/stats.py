"""Statistics of a run: finished episodes, and metrics fetched from the device in batches."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor

from discorl.agents.episodes import RunningEpisodes
from discorl.bounds import MAX_COUNT, check_between
from discorl.ops.moments import MeanFn, alone
from discorl.runs.checkpoint import restore
from discorl.types import EnvSpec, Rollout, UpdateInfo


class EpisodeStats:
    """Returns of finished episodes, over the last ``window`` training steps."""

    def __init__(self, spec: EnvSpec, num_envs: int, window: int = 50) -> None:
        self._spec = spec
        self._running = RunningEpisodes(num_envs)
        self._recent: deque[list[tuple[float, float]]] = deque(maxlen=window)
        self.num_episodes = 0

    def observe(self, rollout: Rollout) -> list[tuple[float, float]]:
        """Count a rollout; returns (return, length) of the episodes that ended in it."""
        raw, dead = rollout.raw_rewards, rollout.is_dead
        rewards = (rollout.rewards if raw is None else raw).cpu()
        all_dead = [None] * len(rewards) if dead is None else dead.cpu()
        finished = []
        for reward, ended, is_dead in zip(rewards, rollout.ended.cpu(), all_dead, strict=True):
            self._running.add(reward, is_dead)
            finished += self._running.take(ended)
        self._recent.append(finished)
        self.num_episodes += len(finished)
        return finished

    def restart(self) -> None:
        """The environments start over: their unfinished episodes never end."""
        self._running = RunningEpisodes(len(self._running.returns))

    def summary(self, across: MeanFn = alone) -> dict[str, float]:
        """Means over the window; empty before the first episode ends.

        ``across`` averages over processes with environments of their own.
        """
        return summarise([e for step in self._recent for e in step], self._spec, across)

    def state_dict(self) -> dict[str, Any]:
        """All that is counted, for a checkpoint."""
        return {
            "returns": self._running.returns,
            "lengths": self._running.lengths,
            "recent": [torch.tensor(step, dtype=torch.float64) for step in self._recent],
            "num_episodes": self.num_episodes,
            "only_resets": self._running.only_resets,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue counting from what ``state_dict`` gave."""
        of_any_size = ("recent", "only_resets")
        fixed = {k: v for k, v in state.items() if k not in of_any_size}
        template = {k: v for k, v in self.state_dict().items() if k not in of_any_size}
        fixed = restore(template, fixed, "episodes")
        check_between(0, MAX_COUNT, "num_episodes in the checkpoint", fixed["num_episodes"])
        self._running.returns, self._running.lengths = fixed["returns"], fixed["lengths"]
        self.num_episodes = fixed["num_episodes"]
        if (only_resets := state.get("only_resets")) is not None:  # early versions did not save it
            template = torch.zeros_like(fixed["returns"], dtype=torch.bool)
            only_resets = restore(template, only_resets, "episodes.only_resets")
        self._running.only_resets = only_resets
        self._recent.clear()
        self._recent.extend([(r, n) for r, n in step.tolist()] for step in state["recent"])


def summarise(
    episodes: list[tuple[float, float]], spec: EnvSpec, across: MeanFn = alone
) -> dict[str, float]:
    """Mean return and length, and the share of successes where the environment has them."""
    threshold = float("inf") if spec.success_return is None else spec.success_return
    totals = [
        float(len(episodes)),
        sum(r for r, _ in episodes),
        sum(n for _, n in episodes),
        float(sum(r >= threshold for r, _ in episodes)),
    ]
    count, returns, lengths, wins = across(torch.tensor(totals, dtype=torch.float64)).tolist()
    if not count:
        return {}
    summary = {"return": returns / count, "length": lengths / count}
    if spec.success_return is not None:
        summary["success"] = wins / count
    return summary


class UpdateStats:
    """Metrics of updates, left on the device until someone asks: the loop never waits for them."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._pending: list[Tensor] = []
        self._latest: dict[str, Tensor] = {}

    def observe(self, info: UpdateInfo) -> None:
        """Keep the scalars of an update."""
        scalars = scalars_of(info)
        self._names = list(scalars)
        self._pending.append(torch.stack(list(scalars.values())))

    def diagnose(self, diagnostics: dict[str, Tensor]) -> None:
        """Keep what the rule says about the latest update; too costly to ask at every one."""
        self._latest = {f"rule/{name}": x.detach() for name, x in diagnostics.items()}

    def summary(self, across: MeanFn = alone) -> dict[str, float]:
        """Means since the last call, fetched in one go."""
        if not self._pending:
            return {}
        device = self._pending[-1].device  # those of a checkpoint come from the CPU
        means = torch.stack([x.to(device) for x in self._pending]).mean(0)
        values = torch.cat([means, *(x.reshape(1) for x in self._latest.values())])
        names = [*self._names, *self._latest]
        self._pending, self._latest = [], {}
        return dict(zip(names, across(values).tolist(), strict=True))

    def clear(self) -> None:
        """Forget what was not asked for."""
        self._pending, self._latest = [], {}

    def state_dict(self) -> dict[str, Any]:
        """What is pending, for a checkpoint, which should not have an entry for each update."""
        pending = torch.stack(self._pending) if self._pending else []
        return {"names": self._names, "pending": pending, "latest": self._latest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what ``state_dict`` gave."""
        names, pending, latest = list(state["names"]), list(state["pending"]), dict(state["latest"])
        if any(type(name) is not str for name in names):
            raise ValueError("a metric without a name")
        if any(x.shape != (len(names),) or not x.is_floating_point() for x in pending):
            raise ValueError("other metrics than their names say")
        if any(x.numel() != 1 or not x.is_floating_point() for x in latest.values()):
            raise ValueError("a metric that is not a number")
        self._names, self._pending, self._latest = names, pending, latest


def scalars_of(info: UpdateInfo) -> dict[str, Tensor]:
    """The numbers of an update by the names they are logged under."""
    scalars = {"loss": info.loss, "gradient_norm": info.gradient_norm}
    scalars |= {"update_norm": info.update_norm}
    return scalars | {f"loss/{k}": v for k, v in info.losses.items()}


def replay_age(size: int, num_envs: int, num_fresh: int, batch_size: int) -> float:
    """Training steps since a trajectory of a batch was made, on average.

    ``num_fresh`` of the batch are the newest; the rest are drawn uniformly from all that are kept.
    """

    def mean_age(newest: int) -> float:  # there are num_envs of each age
        full, rest = divmod(newest, num_envs)
        return (num_envs * full * (full - 1) / 2 + rest * full) / max(newest, 1)

    fresh = num_fresh / batch_size
    return fresh * mean_age(num_fresh) + (1 - fresh) * mean_age(size)
