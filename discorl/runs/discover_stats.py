"""Statistics of a population: returns of its agents, and how the rule moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from discorl.discovery.meta_step import StepInfo
from discorl.runs.population_ranks import Ranks

_SUMS = ("returns", "episodes", "successes", "born")


class PopulationStats:
    """Sums since the last summary, for each group; and the last known means, by task."""

    def __init__(self, tasks: Sequence[str], state: dict[str, Any] | None = None) -> None:
        self._tasks = [task.split("*")[0] for task in tasks]
        self._sums = torch.zeros(len(tasks), len(_SUMS), dtype=torch.float64)
        self._rule = torch.zeros(4, dtype=torch.float64)  # steps, skipped, gradient, update norm
        self._loss = torch.zeros(len(tasks), 2, dtype=torch.float64)  # meta-loss, policy entropy
        self.num_skipped = 0
        if state is not None:
            self._sums, self._rule, self._loss = state["sums"], state["rule"], state["loss"]
            self.num_skipped = state["num_skipped"]

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {
            "sums": self._sums,
            "rule": self._rule,
            "loss": self._loss,
            "num_skipped": self.num_skipped,
        }

    def observe(self, owned: Sequence[int], info: StepInfo) -> None:
        """Count a meta-step of this process's groups."""
        for index, result in zip(owned, info.results, strict=True):
            e = result.episodes
            counts = [float(x.sum()) for x in (e.returns, e.count, e.successes)]
            self._sums[index] += torch.tensor([*counts, result.num_born], dtype=torch.float64)
            self._loss[index, 0] += float(result.meta.loss.nanmean())
        self._rule += torch.tensor(
            [1, info.num_skipped, info.gradient_norm, info.update_norm], dtype=torch.float64
        )
        self.num_skipped += info.num_skipped

    def summary(self, ranks: Ranks) -> dict[str, float]:
        """Means since the last call, over all processes."""
        reduced = ranks.sum({"sums": self._sums, "loss": self._loss})
        sums, losses = reduced["sums"], reduced["loss"][:, 0] / self._rule[0]
        row: dict[str, float] = {}
        for task, (returns, episodes, successes, born), loss in zip(
            self._tasks, sums.tolist(), losses.tolist(), strict=True
        ):
            if episodes:
                row[f"return/{task}"] = returns / episodes
                row[f"success/{task}"] = successes / episodes
            row[f"meta_loss/{task}"] = loss
            row[f"born/{task}"] = born
        known = [v for k, v in row.items() if k.startswith("return/")]
        if known:
            row["meta_return"] = sum(known) / len(known)
        steps, skipped, gradient, update = self._rule.tolist()
        row |= {
            "gradient_norm": gradient / steps,
            "update_norm": update / steps,
            "skipped": skipped,
            "skipped_in_all": self.num_skipped,
        }
        self._sums = torch.zeros_like(self._sums)
        self._loss = torch.zeros_like(self._loss)
        self._rule = torch.zeros_like(self._rule)
        return row
