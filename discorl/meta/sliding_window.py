"""Updates that are kept until the meta-gradient goes back through them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from discorl import tree
from discorl.agents.agent import Agent
from discorl.types import AgentState, Params, Rollout, TimeStep

T = TypeVar("T")


@tree.register
@dataclass(frozen=True)
class KeptUpdate:
    """What is kept of an update of agents."""

    rule_params: Params  # with which it was made
    state: AgentState  # before it
    rollout: Rollout
    own: Tensor | None = (
        None  # [P] bool, whether it belongs to the agents' present lives; None: all
    )


class KeptUpdates:
    """The updates of a window, in order, the ``earlier`` ones first.

    With ``offload`` all but the rule, which they share, waits in the memory of the CPU. Where that
    is the device anyway, nothing is copied. On a GPU this was not tested.
    """

    def __init__(
        self, offload: bool, device: torch.device, earlier: Sequence[KeptUpdate] = ()
    ) -> None:
        self._offload = offload
        self._device = device
        self._updates = list(earlier)

    def __len__(self) -> int:
        return len(self._updates)

    def add(self, update: KeptUpdate) -> None:
        """Keep the newest update."""
        self._updates.append(self._moved(update, torch.device("cpu")))

    def newest(self, num: int) -> tuple[KeptUpdate, ...]:
        """The last ``num`` of them, as they are kept."""
        return tuple(self._updates[len(self._updates) - num :])

    def num_own(self, like: Tensor) -> Tensor:
        """How many of them belong to each agent's present life. [] or [P], as ``like``"""
        ones = torch.ones_like(like)
        counts = [ones if x.own is None else x.own.to(ones) for x in self._updates]
        return torch.stack(counts).sum(0)

    def pop(self) -> KeptUpdate:
        """Take the newest one out, on the device where it was made."""
        return self._moved(self._updates.pop(), self._device)

    def _moved(self, update: KeptUpdate, device: torch.device) -> KeptUpdate:
        if not self._offload:
            return update
        own = tree.to(replace(update, rule_params={}), device)
        return replace(own, rule_params=update.rule_params)


def only_own(own: Tensor, tensors: T) -> T:
    """The tensors with 0 for agents whose update it was not, whatever they are. Leaves [P, ...]"""

    def masked(x: Tensor) -> Tensor:
        return torch.where(own.reshape(-1, *(1,) * (x.dim() - 1)), x, torch.zeros_like(x))

    return tree.map(masked, tensors)


def disowned(earlier: tuple[KeptUpdate, ...], due: Tensor | None = None) -> tuple[KeptUpdate, ...]:
    """Updates that are no longer those of the agents that are due; of all if that is None."""
    kept = []
    for update in earlier:
        assert update.own is not None
        own = torch.zeros_like(update.own) if due is None else update.own & ~due
        kept.append(replace(update, own=own))
    return tuple(kept)


def nobodys_updates(
    num: int,
    agent: Agent,
    agents: AgentState,
    timestep: TimeStep,
    shape: tuple[int, int, int],
    num_actions: int,
) -> tuple[KeptUpdate, ...]:
    """Stand-ins for updates before an agent's first, so that a state keeps its structure.

    ``shape`` is that of rollouts, [P, T, B].
    """
    seen, num_agents = timestep.observation, shape[0]
    assert isinstance(seen, Tensor)
    zeros = torch.zeros(shape, device=seen.device)
    rollout = Rollout(
        observations=seen.new_zeros(*shape, *seen.shape[1:]),
        actions=zeros.long(),
        rewards=zeros,
        discounts=zeros,
        behaviour_logits=zeros.new_zeros(*shape, num_actions),
    )
    params = tree.to(agent.rule.init_params(torch.Generator()), seen.device)
    params = {k: p.expand(num_agents, *p.shape) for k, p in params.items()}
    nobody = torch.zeros(num_agents, dtype=torch.bool, device=seen.device)
    return (KeptUpdate(params, agents, rollout, nobody),) * num
