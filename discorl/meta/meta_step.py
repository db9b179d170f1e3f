"""One step of discovery: every group lives a window, and the rule follows their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from discorl import optim, tree
from discorl.bounds import check_above_0
from discorl.errors import DiscorlError
from discorl.meta.crew import Crew
from discorl.meta.estimators.base import Estimator
from discorl.meta.estimators.imitation import imitation
from discorl.meta.estimators.mixed import mixed
from discorl.meta.estimators.plain import plain
from discorl.meta.estimators.recompute import recompute
from discorl.meta.life import Life
from discorl.meta.population import Group, GroupState, init_group, reborn
from discorl.meta.population_acting import Episodes, PopulationRollouts
from discorl.ops import native
from discorl.optim import AdamState, global_norm
from discorl.types import Params

MODES = {"plain": plain, "recompute": recompute, "mixed": mixed}
"""The estimators by the memory mode that asks for them."""
SumFn = Callable[[Params], Params]
"""Adds up over the processes that share a population; the identity in one process."""


@dataclass(frozen=True)
class MetaOptimiser:
    """How the rule's gradients become steps."""

    learning_rate: float = 1e-3
    """Learning rate of the rule's Adam."""
    per_agent: bool = True
    """Give each agent's gradient its own Adam, then average; otherwise one Adam for the mean."""
    max_abs_update: float = 1.0
    """Clip each element of Adam's output, before the learning rate; 0 for no clipping."""
    max_norm: float = 1e3
    """Drop, and count, an agent's gradient if its norm exceeds this."""

    def __post_init__(self) -> None:
        check_above_0("meta_optimiser: ", self, "learning_rate")
        if not self.max_abs_update >= 0:
            raise DiscorlError("meta_optimiser: max_abs_update must be 0 (no clipping) or more")
        if not self.max_norm > 0:
            raise DiscorlError(f"meta_optimiser: max_norm must be above 0, not {self.max_norm}")

    @property
    def limit(self) -> float:
        """Where the clip is; infinity if there is none."""
        return self.max_abs_update or math.inf


@tree.register
@dataclass(frozen=True)
class Discovery:
    """All that changes as a rule is discovered, in one process."""

    rule_params: Params
    groups: tuple[GroupState, ...]  # of this process
    adam: tuple[AdamState, ...]  # of each group, leaves [P, ...]; or one for the mean gradient


@dataclass(frozen=True)
class WindowResult:
    """A group after a window: its state, what it says of the rule, and how it did."""

    state: GroupState
    loss: Tensor  # [P]
    gradient: Params  # of the rule, leaves [P, ...]
    episodes: Episodes
    num_born: int


@dataclass(frozen=True)
class StepInfo:
    """What a step did; sums are over all processes."""

    results: list[WindowResult]  # of this process
    num_agents: int
    num_skipped: int
    gradient_norm: float
    """Mean over the agents whose gradient was used."""
    update_norm: float


def init_discovery(
    groups: Sequence[Group],
    rule_params: Params,
    optimiser: MetaOptimiser,
    generators: Sequence[torch.Generator],
) -> Discovery:
    """The start: newborn groups."""
    states = tuple(init_group(g, rng) for g, rng in zip(groups, generators, strict=True))
    adam = optim.scale_by_adam().init
    if not optimiser.per_agent:
        return Discovery(rule_params, states, (adam(rule_params),))
    per_group = tuple(tree.stack([adam(rule_params)] * g.num_agents) for g in groups)
    return Discovery(rule_params, states, per_group)


LiveFn = Callable[[int, Params, GroupState, torch.Generator], WindowResult]
"""What the group of a number does between two steps of the rule."""


def live_window(
    group: Group,
    rule_params: Params,
    state: GroupState,
    generator: torch.Generator,
    imitate: bool = False,
) -> WindowResult:
    """Some updates of every agent, the gradient of the rule through the last K, births where due.

    With ``imitate`` the gradient is that of a warm start instead, see ``estimators/imitation.py``.
    """
    estimator: Estimator = imitation if imitate else MODES[group.settings.memory]
    source = PopulationRollouts(group, generator)
    with native.for_agents(group.kernels):
        life = Life(state.agents, state.values, source.begin(state))
        found = estimator(group.window, group.for_each(rule_params), life, source, state.earlier)
    life, age = found.life, state.age + group.settings.num_new
    due = (age >= state.budget) | ~_finite(life.agents) | ~_finite(life.values)
    state = replace(
        life.world.state, agents=life.agents, values=life.values, age=age, earlier=found.earlier
    )
    state = reborn(group, state, due, generator)
    return WindowResult(state, found.loss, found.gradient, life.world.episodes, int(due.sum()))


def meta_step(
    groups: Sequence[Group],
    discovery: Discovery,
    optimiser: MetaOptimiser,
    generators: Sequence[torch.Generator],
    total: SumFn = lambda x: x,
    imitate: bool = False,
    live: LiveFn | None = None,
    crew: Crew | None = None,
) -> tuple[Discovery, StepInfo]:
    """Every group lives a window; then the rule takes a step, the same in every process.

    With ``live`` they do what that says instead. Groups live side by side if torch has more than
    one thread; the results do not depend on it. A ``crew`` that was there before knows which of
    them to begin with.
    """
    params = discovery.rule_params

    def live_one(i: int) -> _Said:
        before, generator = discovery.groups[i], generators[i]
        if live is None:
            result = live_window(groups[i], params, before, generator, imitate)
        else:
            result = live(i, params, before, generator)
        return _said(result, optimiser, discovery.adam[i] if optimiser.per_agent else None)

    at_home = [i for i, group in enumerate(groups) if not group.may_move]
    said = (crew or Crew()).run(live_one, range(len(groups)), at_home)
    results, adam = [x.result for x in said], discovery.adam
    if optimiser.per_agent:
        adam = tuple(x.adam for x in said if x.adam is not None)
    sums = {k: torch.zeros_like(p) for k, p in params.items()}
    zero = torch.zeros((), device=next(iter(params.values())).device)
    used, norms, num_agents = zero, zero, 0
    for x in said:
        sums = {k: s + x.gradient[k] for k, s in sums.items()}
        used, norms, num_agents = used + x.used, norms + x.norms, num_agents + len(x.result.loss)

    counts = torch.stack([used, norms, torch.full_like(zero, num_agents)])
    reduced = total(sums | {"counts": counts})
    num_used, norm_sum, num_all = reduced.pop("counts").tolist()
    step: Params = {k: s / max(num_used, 1.0) for k, s in reduced.items()}
    if not optimiser.per_agent and num_used:
        step, moved = optim.scale_by_adam().update(step, adam[0], params)
        step, _ = optim.clip(optimiser.limit).update(step, (), params)
        adam = (moved,)
    rate = optimiser.learning_rate
    new_params = {k: p - rate * step[k] for k, p in params.items()}
    info = StepInfo(
        results=results,
        num_agents=int(num_all),
        num_skipped=int(num_all - num_used),
        gradient_norm=norm_sum / max(num_used, 1.0),
        update_norm=rate * float(global_norm(step)),
    )
    return Discovery(new_params, tuple(x.state for x in results), adam), info


@dataclass(frozen=True)
class _Said:
    """What a group says of the rule, summed over the agents whose gradient is used."""

    result: WindowResult
    gradient: Params
    adam: AdamState | None
    used: Tensor  # [], how many they are
    norms: Tensor  # [], of their gradients


def _said(result: WindowResult, optimiser: MetaOptimiser, adam: AdamState | None) -> _Said:
    """Leave unsound gradients out; with ``adam``, each agent's goes through its own."""
    limit, norm = optimiser.limit, global_norm(result.gradient, batch_dims=1)
    sound = norm.isfinite() & (norm <= optimiser.max_norm)
    gradient = tree.where(sound, result.gradient)
    if adam is not None:
        scaled, moved = tree.vmap(optim.scale_by_adam().update)(gradient, adam, {})
        adam = tree.where(sound, moved, adam)
        gradient = tree.where(sound, {k: g.clamp(-limit, limit) for k, g in scaled.items()})
    gradient = {k: g.sum(0) for k, g in gradient.items()}
    return _Said(result, gradient, adam, sound.sum(), tree.where(sound, norm).sum())


def _finite(state: Any) -> Tensor:
    """Which agents are free of NaN and infinity. [P]"""
    parts = [x for x in tree.leaves(state) if x.is_floating_point() and x.dim() > 1]
    return torch.stack([x.isfinite().flatten(1).all(1) for x in parts]).all(0)
