"""Updates that are kept until the meta-gradient goes back through them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from discorl import tree
from discorl.types import AgentState, Params, Rollout, Targets


@tree.register
@dataclass(frozen=True)
class KeptUpdate:
    """What is kept of an update of agents."""

    rule_params: Params  # with which it was made
    state: AgentState  # before it
    rollout: Rollout
    gradient: Params | None = None  # that the optimiser was given; for mode ``mixed``
    targets: Targets | None = None  # likewise


class KeptUpdates:
    """The updates of a window, in order.

    With ``offload`` all but the rule, which they share, waits in the memory of the CPU. Where that
    is the device anyway, nothing is copied. On a GPU this was not tested.
    """

    def __init__(self, offload: bool, device: torch.device) -> None:
        self._offload = offload
        self._device = device
        self._updates: list[KeptUpdate] = []

    def __len__(self) -> int:
        return len(self._updates)

    def add(self, update: KeptUpdate) -> None:
        """Keep the newest update."""
        self._updates.append(self._moved(update, torch.device("cpu")))

    def pop(self) -> KeptUpdate:
        """Take the newest one out, on the device where it was made."""
        return self._moved(self._updates.pop(), self._device)

    def _moved(self, update: KeptUpdate, device: torch.device) -> KeptUpdate:
        if not self._offload:
            return update
        own = tree.to(replace(update, rule_params={}), device)
        return replace(own, rule_params=update.rule_params)
