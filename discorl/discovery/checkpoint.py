"""Checkpoints of discovery: everything that changes, of all processes, in one file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from discorl.discovery.stats import PopulationStats
from discorl.errors import DiscorlError
from discorl.meta.meta_step import Discovery
from discorl.runs import distributed
from discorl.runs.checkpoint import CheckpointFolder, restore

if TYPE_CHECKING:
    from discorl.discovery.discover import DiscoverRun


@dataclass
class DiscoverState:
    """Everything that changes, in one process."""

    discovery: Discovery
    stats: PopulationStats
    step: int = 0
    """Meta-steps done."""
    seconds: float = 0.0
    """Time that they took."""


class DiscoveryCheckpoints:
    """The last few checkpoints. Groups are kept by number, so any number of processes can go on."""

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder = CheckpointFolder(folder, keep)

    def save(self, run: DiscoverRun, state: DiscoverState) -> None:
        """Gather the groups of all processes and write them."""
        discovery = state.discovery
        per_agent = run.optimiser.per_agent
        mine = {
            str(index): {
                "state": discovery.groups[i],
                "adam": discovery.adam[i] if per_agent else None,
                "generator": run.generators[i],
            }
            for i, index in enumerate(run.owned)
        }
        parts = distributed.gather({"groups": mine, "stats": state.stats.state()})
        if parts is None:
            return
        content = {
            "seconds": state.seconds,
            "rule": discovery.rule_params,
            "adam": None if per_agent else discovery.adam[0],
            "groups": {name: group for part in parts for name, group in part["groups"].items()},
            "stats": PopulationStats.merged([part["stats"] for part in parts]),
        }
        self._folder.save(state.step, content)

    def restore(self, run: DiscoverRun, state: DiscoverState) -> None:
        """Set a new run's state to the newest checkpoint that is whole, if there is one yet."""
        found = self._folder.latest()
        if found is None:
            return
        tasks, template, content = run.config.tasks, state.discovery, found.content
        if len(content["groups"]) != len(tasks):
            raise DiscorlError(
                f"{found.path} has {len(content['groups'])} groups, but --tasks names {len(tasks)}"
            )
        groups, adam = [], []
        for i, index in enumerate(run.owned):
            saved = content["groups"][str(index)]
            groups.append(restore(template.groups[i], saved["state"], f"group {index}"))
            if run.optimiser.per_agent:
                adam.append(restore(template.adam[i], saved["adam"], f"group {index}"))
            run.generators[i] = restore(run.generators[i], saved["generator"])
        if not run.optimiser.per_agent:
            adam = [restore(template.adam[0], content["adam"])]
        params = restore(template.rule_params, content["rule"], "rule")
        state.discovery = Discovery(params, tuple(groups), tuple(adam))
        state.stats = PopulationStats(tasks, content["stats"] if run.ranks.is_first else None)
        state.step = found.step
        state.seconds = content.get("seconds", 0.0)  # early versions did not keep it
