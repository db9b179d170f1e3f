"""Everything that changes as a rule is discovered, and how it gets into a checkpoint and back.

Groups are kept by number, so that any number of processes can resume a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from discorl.discovery.judge import Judged
from discorl.discovery.stats import PopulationStats
from discorl.errors import DiscorlError
from discorl.meta.meta_step import Discovery
from discorl.meta.population import Group, GroupState
from discorl.runs import distributed
from discorl.runs.checkpoint import restore


@dataclass
class DiscoverState:
    """Everything that changes, in one process."""

    discovery: Discovery
    per_agent: bool
    """Whether each group has an Adam of its own, rather than one for all."""
    generators: list[torch.Generator]
    """One per group, so that a population does the same however it is spread over processes."""
    stats: PopulationStats
    groups: Sequence[Group]
    """The fixed structure of this process's groups."""
    judged: Judged | None = None
    """What is known about the rule on held-out tasks, if there are any."""
    step: int = 0
    """Meta-steps done."""
    seconds: float = 0.0
    """Time they took."""


def snapshot(state: DiscoverState, owned: Sequence[int]) -> dict[str, Any] | None:
    """The tree for a checkpoint, gathered in the first process; None in the others.

    ``owned`` are the numbers of this process's groups.
    """
    parts = distributed.gather(_tree(state, owned))
    if parts is None:
        return None
    groups = {name: group for part in parts for name, group in part["groups"].items()}
    stats = PopulationStats.merged([part["stats"] for part in parts])
    return parts[0] | {"groups": groups, "stats": stats}


def _tree(state: DiscoverState, owned: Sequence[int]) -> dict[str, Any]:
    """What a checkpoint keeps of this process."""
    discovery, per_agent = state.discovery, state.per_agent
    return {
        "seconds": state.seconds,
        "rule": discovery.rule_params,
        "adam": None if per_agent else discovery.adam[0],
        "groups": {
            str(index): {
                "state": _saved(state.groups[i], discovery.groups[i]),
                "env": getattr(state.groups[i].env, "state_dict", dict)() or None,
                "adam": discovery.adam[i] if per_agent else None,
                "generator": state.generators[i],
            }
            for i, index in enumerate(owned)
        },
        "stats": state.stats.state(),
        "judged": state.judged,
    }


def _saved(group: Group, state: GroupState) -> GroupState:
    """What can be saved of a group: environments that are not on tensors cannot."""
    if group.is_on_tensors:
        return state
    nothing: Any = None
    return replace(state, env_state=nothing, timestep=nothing, memory=None)


def _revived(group: Group, found: GroupState, newborn: GroupState) -> GroupState:
    """A saved group; where its environments could not be saved, at the start of new episodes."""
    if group.is_on_tensors:
        return found
    return replace(
        found,
        env_state=newborn.env_state,
        timestep=newborn.timestep,
        memory=newborn.memory,
        running_return=torch.zeros_like(found.running_return),
    )


def restore_state(
    state: DiscoverState, content: Any, owned: Sequence[Sequence[int]], rank: int
) -> None:
    """Set a new run's state to a checkpoint's, which only the first process needs to have.

    ``owned`` has the numbers of each process's groups.
    """
    shares = [_share(content, of_one) for of_one in owned] if rank == 0 else None
    content, template = distributed.scatter(shares), _tree(state, owned[rank])
    if content.get("judged") is None:  # early versions did not judge
        template["judged"] = None
    found = restore(template, content)
    groups = found["groups"].values()
    adam = [group["adam"] for group in groups] if state.per_agent else [found["adam"]]
    states = tuple(
        _revived(group, saved["state"], newborn)
        for group, saved, newborn in zip(state.groups, groups, state.discovery.groups, strict=True)
    )
    for group, saved in zip(state.groups, groups, strict=True):
        if saved["env"] is not None:
            group.env.load_state_dict(saved["env"])  # pyright: ignore[reportAttributeAccessIssue]
    state.discovery = Discovery(found["rule"], states, tuple(adam))
    state.generators = [group["generator"] for group in groups]
    state.stats.load(found["stats"], is_first=rank == 0)
    state.seconds = found["seconds"]
    if state.judged is not None:
        anew = replace(state.judged, average=found["rule"])
        state.judged = found["judged"] or anew


def _share(content: Any, owned: Sequence[int]) -> dict[str, Any]:
    """The part of a checkpoint that a process needs."""
    try:
        groups = {str(i): content["groups"][str(i)] for i in owned}
    except (KeyError, TypeError) as e:
        raise DiscorlError(f"the checkpoint is not from this discovery ({e!r:.60})") from None
    return {"seconds": 0.0} | content | {"groups": groups}  # early versions kept no seconds
