"""Statistics of a population: returns of its agents, and how the rule moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from discorl.discovery.config import GroupConfig
from discorl.meta.meta_step import StepInfo
from discorl.nets.net_config import NetConfig
from discorl.runs import distributed


def metric_names(entries: Sequence[str]) -> list[str]:
    """The name of each group in the metrics: its task, or the whole entry where tasks repeat."""
    tasks = [GroupConfig.parse(entry, NetConfig()).task for entry in entries]
    count, seen = Counter(tasks), Counter[str]()
    names = []
    for task, entry in zip(tasks, entries, strict=True):
        name = task if count[task] == 1 else entry
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return names


class PopulationStats:
    """Sums since the last summary, over the groups of this process."""

    def __init__(self, tasks: Sequence[str]) -> None:
        self._names = metric_names(tasks)
        # Of each group: returns, episodes, successes, births, meta-loss.
        self._sums = torch.zeros(len(tasks), 5, dtype=torch.float64)
        # Of the rule, the same in every process: steps, skipped, gradient norm, update norm.
        self._rule = torch.zeros(4, dtype=torch.float64)
        self._skipped_in_all = 0

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {
            "sums": self._sums,
            "rule": self._rule,
            "skipped_in_all": self._skipped_in_all,
        }

    def load(self, state: dict[str, Any], is_first: bool) -> None:
        """Take over what a checkpoint kept; the sums of all groups go to the first process."""
        self._sums = state["sums"] if is_first else torch.zeros_like(state["sums"])
        self._rule, self._skipped_in_all = state["rule"], state["skipped_in_all"]

    @staticmethod
    def merged(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The states of all processes in one."""
        return states[0] | {"sums": torch.stack([s["sums"] for s in states]).sum(0)}

    def observe(self, owned: Sequence[int], info: StepInfo) -> None:
        """Count a meta-step of this process's groups."""
        for index, result in zip(owned, info.results, strict=True):
            e = result.episodes
            sums = [float(x.sum()) for x in (e.returns, e.count, e.successes)]
            sums += [result.num_born, float(result.loss.nanmean().nan_to_num())]
            self._sums[index] += torch.tensor(sums, dtype=torch.float64)
        self._rule += torch.tensor(
            [1, info.num_skipped, info.gradient_norm, info.update_norm], dtype=torch.float64
        )
        self._skipped_in_all += info.num_skipped

    def summary(self) -> dict[str, float]:
        """Means since the last call, over all processes."""
        parts = distributed.gather({"sums": self._sums})
        merged = self.merged(parts) if parts else {"sums": torch.zeros_like(self._sums)}
        steps, skipped, gradient, update = self._rule.tolist()
        row: dict[str, float] = {}
        known = []
        for name, sums in zip(self._names, merged["sums"].tolist(), strict=True):
            returns, episodes, successes, born, loss = sums
            if episodes:
                row[f"return/{name}"] = returns / episodes
                row[f"success/{name}"] = successes / episodes
                known.append(returns / episodes)
            row[f"meta_loss/{name}"] = loss / steps
            row[f"born/{name}"] = born
        if known:
            row["meta_return"] = sum(known) / len(known)
        row |= {
            "gradient_norm": gradient / steps,
            "update_norm": update / steps,
            "skipped": skipped,
            "skipped_in_all": self._skipped_in_all,
        }
        self._sums = torch.zeros_like(self._sums)
        self._rule = torch.zeros_like(self._rule)
        return row
