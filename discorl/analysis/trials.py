"""Agents trained from scratch to see what a change of the rule is worth: many, side by side.

All of them have the small network, batches and replay of small discovered rules, on every task and
with every rule, so that hundreds of lives take minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from discorl import tree
from discorl.analysis.lives import Life
from discorl.analysis.questions import HAND_WRITTEN
from discorl.analysis.results import Line, NotApplicable, band, estimate
from discorl.comparison.statistics import Array, Estimate
from discorl.discovery.config import DiscoverConfig
from discorl.discovery.judge import mean_and_spread
from discorl.discovery.trials import trial_by
from discorl.envs.base import close_env
from discorl.meta.population import Group, GroupState, init_group
from discorl.meta.population_acting import Episodes
from discorl.meta.trial import Trial, act_untrained, live_trial
from discorl.rules.actor_critic import ActorCriticSettings
from discorl.rules.base import UpdateRule
from discorl.rules.built_in import ACTOR_CRITIC
from discorl.rules.cmpo import CMPO
from discorl.rules.values import ValueHead
from discorl.training.config import OptimiserConfig, TrainConfig
from discorl.training.presets import PAPER, SMALL_AGENT
from discorl.training.rule_choice import actor_critic
from discorl.types import Params

NUM_AGENTS = 3
"""With each variant of a rule."""
MAX_UPDATES, MANY_UPDATES = 300, 1000
"""Of each agent; many if a rule teaches nothing in fewer, as Disco103 does not."""
NUM_POINTS = 20
"""Of a learning curve."""
MAX_TOGETHER = 64
"""Agents side by side, to bound memory."""
X_LABEL, Y_LABEL = "environment steps of each agent", "mean return of episodes"


@dataclass(frozen=True)
class Outcome:
    """How agents learnt under one variant of a rule."""

    variant: str
    curve: Line
    """Mean return of episodes against environment steps of each agent."""
    final: Estimate
    """Mean return in the last fifth of training."""
    by_agent: list[float]
    """The same for each agent."""
    gain: Estimate
    """That less the mean return in the first fifth."""


@dataclass(frozen=True)
class School:
    """The setting that all variants share."""

    settings: TrainConfig
    num_updates: int

    @property
    def is_long(self) -> bool:
        """Whether agents learn for so long that few changes can be tried."""
        return self.num_updates > MAX_UPDATES

    @property
    def about(self) -> str:
        """What a reader should know of it."""
        s = self.settings
        return (
            f"{NUM_AGENTS} agents with each, a small network, {self.num_updates} updates of "
            f"{s.batch_size} trajectories of {s.rollout_length} steps"
        )


def school_of(life: Life) -> School:
    """Where fresh agents learn the life's task, by its learning rate and for no longer than it."""
    return school_by(life.config)


def school_by(config: TrainConfig) -> School:
    """Where fresh agents learn a task, by the learning rate and for no longer than in training."""
    if config.task.partition(":")[0] in PAPER:
        raise NotApplicable(
            f"{config.task} takes larger networks than dozens of agents can learn with side by "
            "side: choose a smaller task, such as catch or minatar:breakout"
        )
    net = replace(SMALL_AGENT["net"], torso_kind="mlp", zero_values=config.net.zero_values)
    settings = replace(
        config,
        **SMALL_AGENT | {"net": net},
        replay_transitions=0,
        burn_in=0,
        optimiser=OptimiserConfig(config.optimiser.learning_rate),
        env=replace(config.env, suite=None),
    )
    num_updates = min(MAX_UPDATES, config.steps * config.updates_per_step)
    return School(settings, num_updates)


def teach(
    school: School, rule: UpdateRule, variants: dict[str, Params], seed: int = 0
) -> list[Outcome]:
    """Train agents with each variant of the rule's parameters."""
    found = []
    names, at_once = list(variants), max(1, MAX_TOGETHER // NUM_AGENTS)
    for start in range(0, len(names), at_once):
        some = names[start : start + at_once]
        x, curves = _curves(school, rule, [variants[n] for n in some], seed)
        found += [_outcome(name, x, curve) for name, curve in zip(some, curves, strict=True)]
    return found


def school_that_teaches(life: Life, label: str) -> tuple[School, Outcome]:
    """Where the life's rule teaches its task, and what agents learn there by the rule as it is.

    If that is nothing, they have more time, and values that begin at 0: small networks would have
    to unlearn others first.
    """
    school = school_of(life)
    rule, params = life.agent.rule, life.rule_params
    (outcome,) = teach(school, rule, {label: params})
    num_updates = min(MANY_UPDATES, life.config.steps * life.config.updates_per_step)
    if not learns(outcome) and num_updates > school.num_updates:
        net = replace(school.settings.net, zero_values=True)
        school = School(replace(school.settings, net=net), num_updates)
        (outcome,) = teach(school, rule, {label: params})
    if not learns(outcome):
        raise NotApplicable(
            f"agents learn too little of {life.task} by {life.label} in so short a time for any "
            f"change to cost something ({school.about})"
        )
    return school, outcome


def learns(outcome: Outcome) -> bool:
    """Whether the agents got better at all; if not, there is nothing that a change could cost."""
    return outcome.gain.low is not None and outcome.gain.low > 0


def hand_written(school: School, rule: UpdateRule, seed: int = 0) -> list[Outcome]:
    """The same for the rules written by hand, but for ``rule`` if it is one of them.

    Their values are represented as those of the rule, if it has any. The actor-critic has the
    setting that benchmarks/rule_trials found best for all tasks.
    """
    settings = school.settings
    head = head_of(rule) or ValueHead(81, 20.0)
    written = CMPO(num_bins=head.num_bins, max_abs_value=head.max_abs, returns=settings.returns)
    own = ActorCriticSettings(entropy_cost=0.03, num_bins=head.num_bins, max_abs_value=head.max_abs)
    slower = replace(settings, actor_critic=own, optimiser=OptimiserConfig(3e-3))
    by_cmpo = [] if type(rule) is CMPO else teach(school, written, {HAND_WRITTEN: {}}, seed)
    return [
        *by_cmpo,
        *teach(replace(school, settings=slower), actor_critic(slower), {ACTOR_CRITIC: {}}, seed),
    ]


def untrained(school: School, rule: UpdateRule, seed: int = 0) -> tuple[float, float]:
    """Mean and standard deviation of the returns of agents that learn nothing."""
    trial = _trial(school, rule, NUM_AGENTS)
    try:
        generator = torch.Generator().manual_seed(seed)
        return mean_and_spread(act_untrained(trial, school.num_updates, generator))
    finally:
        close_env(trial.group.env)


def _curves(
    school: School, rule: UpdateRule, variants: Sequence[Params], seed: int
) -> tuple[list[float], Array]:
    """Environment steps [points], and mean returns [variants, agents, points]."""
    trial = _trial(school, rule, len(variants) * NUM_AGENTS)
    params = tree.stack([p for p in variants for _ in range(NUM_AGENTS)])
    generator = torch.Generator().manual_seed(seed)
    try:
        state = _alike(trial.group, init_group(trial.group, generator))
        counts = live_trial(trial, params, school.num_updates, generator, state)
    finally:
        close_env(trial.group.env)
    x, curves = _points(trial, counts)
    return x, curves.reshape(len(variants), NUM_AGENTS, -1)


def _trial(school: School, rule: UpdateRule, num_agents: int) -> Trial:
    settings = school.settings
    config = DiscoverConfig(env=settings.env, timeout_minutes=settings.timeout_minutes)
    cpu = torch.device("cpu")
    return trial_by(
        *(config, settings, rule, cpu), num_agents=num_agents, num_updates=school.num_updates
    )


def _alike(group: Group, state: GroupState) -> GroupState:
    """Every variant begins with the same newborn agents and, if tasks are drawn, the same draws."""

    def repeated(x: Tensor, first: int) -> Tensor:
        return x[:first].repeat(len(x) // first, *(1 for _ in x.shape[1:]))

    agents = tree.map(lambda x: repeated(x, NUM_AGENTS), state.agents)
    state = replace(state, agents=agents)
    if not group.is_on_tensors:
        return state
    first = NUM_AGENTS * group.settings.num_envs
    env_state, timestep = tree.map(lambda x: repeated(x, first), (state.env_state, state.timestep))
    return replace(state, env_state=env_state, timestep=timestep)


def _points(trial: Trial, counts: Sequence[Episodes]) -> tuple[list[float], Array]:
    """Environment steps, and the mean return of the episodes since the point before. [P, points]

    Points before every agent has ended an episode are left out; where none ended later, the mean
    is that of the point before.
    """
    last = len(counts) - 1
    rollouts = -(-last // trial.updates_per_step)
    chosen = np.linspace(0, rollouts, min(NUM_POINTS, rollouts) + 1).round().astype(int)
    places = np.where(chosen > 0, (chosen - 1) * trial.updates_per_step + 1, 0)
    returns, ended = (
        np.stack([getattr(counts[i], k).double().numpy() for i in places])
        for k in ("returns", "count")
    )
    gained, number = np.diff(returns, axis=0), np.diff(ended, axis=0)
    means = np.where(number > 0, gained / np.maximum(number, 1), np.nan)
    for i in range(1, len(means)):
        means[i] = np.where(np.isnan(means[i]), means[i - 1], means[i])
    known = np.isfinite(means).all(axis=1, keepdims=True).ravel()
    if not known.any():
        raise NotApplicable(
            f"{trial.group.name}: no episode ended in {last} updates: raise --steps"
        )
    a_rollout = trial.group.settings.num_envs * trial.group.settings.rollout_length
    steps = [float(trial.num_rollouts(int(i)) * a_rollout) for i in places[1:]]
    return [s for s, k in zip(steps, known, strict=True) if k], means[known].T


def _outcome(variant: str, x: list[float], curve: Array) -> Outcome:
    count = max(1, len(x) // 5)
    first, final = curve[:, :count].mean(1), curve[:, -count:].mean(1)
    by_agent = [float(f"{v:.6g}") for v in final]
    line = Line(variant, band(x, curve))
    return Outcome(variant, line, estimate(final), by_agent, estimate(final - first))


def head_of(rule: Any) -> ValueHead | None:
    """How the agents of a rule represent values, if they have any."""
    return getattr(rule, "value_head", None)
