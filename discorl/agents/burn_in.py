"""Burn-in: the first steps of a rollout only warm up the memory of a recurrent network."""

from __future__ import annotations

from dataclasses import replace

from discorl import tree
from discorl.agents.network import Network, with_params
from discorl.types import Params, Rollout


def warm_up(net: Network, params: Params, rollout: Rollout, num_steps: int) -> Rollout:
    """The rollout without its first steps, beginning with the memory that they lead to.

    That memory is a constant: neither the agent's gradient nor the meta-gradient follows it back.
    """
    if not num_steps:
        return rollout
    first, rest = _cut(rollout, slice(None, num_steps)), without_burn_in(rollout, num_steps)
    memory = with_params(net, tree.detach(params), lambda net: net.memory_after(first))
    return replace(rest, memory=tree.map(lambda x: x.unsqueeze(0), memory))


def without_burn_in(rollout: Rollout, num_steps: int) -> Rollout:
    """The time steps that are learnt from."""
    return _cut(rollout, slice(num_steps, None)) if num_steps else rollout


def _cut(rollout: Rollout, steps: slice) -> Rollout:
    """Some time steps; the memory is that before step 0 as it was."""
    return replace(tree.index(replace(rollout, memory=None), steps), memory=rollout.memory)
