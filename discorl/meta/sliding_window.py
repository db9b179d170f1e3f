"""Updates that are kept until the meta-gradient goes back through them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from discorl import tree
from discorl.types import AgentState, Params, Rollout


@tree.register
@dataclass(frozen=True)
class KeptUpdate:
    """What is kept of an update of agents."""

    rule_params: Params  # with which it was made
    state: AgentState  # before it
    rollout: Rollout
    own: Tensor  # [] or [P] bool, whether it belongs to the agents' present lives


Earlier = tuple[KeptUpdate, ...]
"""The last updates of agents, oldest first, that their next window goes back through."""


def disowned(earlier: Earlier, due: Tensor | None = None) -> Earlier:
    """Updates that are no longer those of the agents that are due; of all if that is None."""
    return tuple(
        replace(x, own=torch.zeros_like(x.own) if due is None else x.own & ~due) for x in earlier
    )
