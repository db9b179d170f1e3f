"""A life: agents act and learn by the rule from what they saw, and so do their value functions.

This is the only loop over updates. What is kept of an update is up to the caller: the estimators of
the rule's gradient (``estimators/``) keep what they differentiate, a trial keeps returns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from discorl import tree
from discorl.meta.meta_value import MetaValueState
from discorl.meta.window import Window
from discorl.types import AgentState, Params, Rollout, UpdateInfo

W = TypeVar("W")
K = TypeVar("K")

Graph = Literal["none", "each update", "all updates"]
"""What autograd can go back through: nothing, every update by itself, or all of them in a row."""


class Source(Protocol[W]):
    """Where rollouts come from. What changes as they are made is its ``world``, in and out."""

    @property
    def num_updates(self) -> int:
        """How many updates there are rollouts for."""
        ...

    def collect(self, world: W, agents: AgentState) -> tuple[Rollout, W]:
        """The rollout for the next update of ``agents``."""
        ...

    def collect_validation(self, world: W, agents: AgentState) -> tuple[Rollout, W]:
        """The rollout that judges the updated agents, after the last update."""
        ...


@dataclass(frozen=True)
class Life(Generic[W]):
    """All that changes as agents live."""

    agents: AgentState
    values: MetaValueState
    world: W


@dataclass(frozen=True)
class Update(Generic[W]):
    """One update, for callers that keep some of it."""

    before: AgentState
    rollout: Rollout
    learnt_from: Rollout  # the rollout without its burn-in
    info: UpdateInfo
    world: W  # after the rollout


@tree.register
@dataclass(frozen=True)
class KeptUpdate:
    """What is kept of an update until the meta-gradient goes back through it."""

    rule_params: Params  # with which it was made
    state: AgentState  # before it
    rollout: Rollout
    own: Tensor  # [] or [P] bool, whether it belongs to the agents' present lives


Earlier = tuple[KeptUpdate, ...]
"""The last updates of agents, oldest first, that their next window goes back through."""


def disowned(earlier: Earlier, due: Tensor | None = None) -> Earlier:
    """Mark the updates as no longer belonging to the agents that are due; all if that is None."""
    return tuple(
        replace(x, own=torch.zeros_like(x.own) if due is None else x.own & ~due) for x in earlier
    )


def live(
    window: Window,
    rule_params: Params,
    life: Life[W],
    source: Source[W],
    keep: Callable[[K, Update[W]], K],
    kept: K,
    *,
    graph: Graph = "none",
    judged: bool = True,
) -> tuple[Life[W], K]:
    """All updates that ``source`` has rollouts for; ``keep`` adds each to what was ``kept`` so far.

    Agents that are not ``judged`` at the end need no value functions: theirs stay as they are.
    """

    # A separate function, so that nothing of an update outlives it except what is kept.
    def once(life: Life[W], kept: K) -> tuple[Life[W], K]:
        rollout, world = source.collect(life.world, tree.detach(life.agents))
        follow = graph != "none"
        agents, info = window.update(rule_params, life.agents, rollout, differentiable=follow)
        learnt_from, values = window.learnt_from(rollout), life.values
        if judged:
            logits = info.predictions.logits.detach()
            values = window.meta_value.update(values, learnt_from, logits, window.each)
        kept = keep(kept, Update(life.agents, rollout, learnt_from, info, world))
        if graph == "each update":
            agents = tree.detach(agents)
        return Life(agents, values, world), kept

    for _ in range(source.num_updates):
        life, kept = once(life, kept)
    return life, kept
