"""The memory of recurrent agents: what is passed to their network beside the observations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from discorl import tree
from discorl.types import Params, Rollout


def is_recurrent(net: nn.Module) -> bool:
    """Whether the network has a core."""
    return getattr(net, "core", None) is not None


def memory_args(net: nn.Module, rollout: Rollout) -> dict[str, Any]:
    """Where episodes begin and the state before the first step; nothing for other networks."""
    if not is_recurrent(net):
        return {}
    state = tree.map(lambda x: x.squeeze(0), rollout.core_state)
    resets = rollout.discounts == 0
    if rollout.is_dead is not None:  # the step after a dead one sees the same again
        resets = resets | torch.cat([torch.zeros_like(resets[:1]), rollout.is_dead[:-1]])
    return {"resets": resets, "core_state": state}


def warm_up(net: nn.Module, params: Params, rollout: Rollout, num_steps: int) -> Rollout:
    """The rollout without its first steps, beginning in the state that they lead to.

    That state is a constant: neither the agent's gradient nor the meta-gradient follows it back.
    """
    if not num_steps:
        return rollout
    first = _cut(rollout, slice(None, num_steps))
    _, state = functional_call(
        net,
        tree.detach(params),
        (first.observations,),
        {"method": "embed", **memory_args(net, first)},
    )
    rest = _cut(rollout, slice(num_steps, None))
    return replace(rest, core_state=tree.map(lambda x: x.unsqueeze(0), state))


def without_burn_in(rollout: Rollout, num_steps: int) -> Rollout:
    """The time steps that are learnt from."""
    return _cut(rollout, slice(num_steps, None)) if num_steps else rollout


def _cut(rollout: Rollout, steps: slice) -> Rollout:
    """Some time steps; the core's state is that before step 0 as it was."""
    without_state = replace(rollout, core_state=None)
    return replace(tree.index(without_state, steps), core_state=rollout.core_state)
