"""All that changes as a rule is discovered, and its way into a checkpoint and back.

Groups are kept by number, so that any number of processes can resume a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from discorl.discovery.stats import PopulationStats
from discorl.errors import DiscorlError
from discorl.meta.meta_step import Discovery
from discorl.runs import distributed
from discorl.runs.checkpoint import restore


@dataclass
class DiscoverState:
    """Everything that changes, in one process."""

    discovery: Discovery
    generators: list[torch.Generator]
    """Of each group, so that a population does the same however it is spread over processes."""
    stats: PopulationStats
    step: int = 0
    """Meta-steps done."""
    seconds: float = 0.0
    """Time that they took."""


def snapshot(state: DiscoverState, owned: Sequence[int], per_agent: bool) -> dict[str, Any] | None:
    """The tree for a checkpoint, gathered in the first process; None in the others.

    ``owned`` are the numbers of this process's groups; ``per_agent`` says whether each has an Adam.
    """
    discovery = state.discovery
    mine = {
        str(index): {
            "state": discovery.groups[i],
            "adam": discovery.adam[i] if per_agent else None,
            "generator": state.generators[i],
        }
        for i, index in enumerate(owned)
    }
    parts = distributed.gather({"groups": mine, "stats": state.stats.state()})
    if parts is None:
        return None
    return {
        "seconds": state.seconds,
        "rule": discovery.rule_params,
        "adam": None if per_agent else discovery.adam[0],
        "groups": {name: group for part in parts for name, group in part["groups"].items()},
        "stats": PopulationStats.merged([part["stats"] for part in parts]),
    }


def restore_state(
    state: DiscoverState,
    content: dict[str, Any] | None,
    owned: Sequence[Sequence[int]],
    rank: int,
    tasks: Sequence[str],
) -> None:
    """Set a new run's state to a checkpoint's, which only the first process needs to have.

    ``owned`` has the numbers of each process's groups.
    """
    own = distributed.scatter(_shares(content, owned, len(tasks)) if rank == 0 else None)
    template, groups, adam = state.discovery, [], []
    for i, index in enumerate(owned[rank]):
        saved, where = own["groups"][str(index)], f"group {index}"
        groups.append(restore(template.groups[i], saved["state"], where))
        if saved["adam"] is not None:
            adam.append(restore(template.adam[i], saved["adam"], where))
        state.generators[i] = restore(state.generators[i], saved["generator"], where)
    if own["adam"] is not None:
        adam = [restore(template.adam[0], own["adam"])]
    params = restore(template.rule_params, own["rule"], "rule")
    state.discovery = Discovery(params, tuple(groups), tuple(adam))
    state.stats = PopulationStats(tasks, own["stats"])
    state.seconds = own["seconds"]


def _shares(content: Any, owned: Sequence[Sequence[int]], num_groups: int) -> list[dict[str, Any]]:
    """What of a checkpoint each process needs."""
    if not isinstance(content, dict) or "groups" not in content:
        raise DiscorlError("the checkpoint is not one of 'discorl discover'")
    if len(content["groups"]) != num_groups:
        raise DiscorlError(
            f"the checkpoint has {len(content['groups'])} groups, but --tasks names {num_groups}"
        )
    shared = {"seconds": 0.0} | content  # early versions did not keep the time
    return [
        shared
        | {"groups": {str(i): content["groups"][str(i)] for i in of_one}}
        | {"stats": content["stats"] if rank == 0 else None}
        for rank, of_one in enumerate(owned)
    ]
