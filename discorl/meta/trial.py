"""A trial: fresh agents, side by side, each trained by a fixed rule as in training.

This is how a rule is judged. The agents act and learn by turns and replay what they saw, with all
settings those of a training run; that they live side by side is the only difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from discorl import tree
from discorl.agents.first_values import begin_values_at, mean_value
from discorl.meta.life import Life, Update, live
from discorl.meta.population import Group, GroupState, init_group
from discorl.meta.population_acting import Episodes, act_in_group, no_episodes
from discorl.meta.population_replay import sample_replay, store
from discorl.ops import native
from discorl.types import AgentState, Params, Rollout


@dataclass(frozen=True)
class Trial:
    """The fixed structure of a trial."""

    group: Group
    """The agents; its ``settings`` give environments, trajectories and the size of the replay."""
    batch_size: int
    """Trajectories in each update."""
    num_fresh: int = 0
    """How many of them come from the newest rollout; the rest comes from the whole replay."""
    updates_per_step: int = 1
    """Updates after each rollout, once the replay holds a batch."""
    estimates_values: bool = False
    """Whether values begin at what the first rollouts suggest."""

    def num_rollouts(self, num_updates: int) -> int:
        """How often every agent acts until it has made this many updates."""
        num_first = -(-self.batch_size // self.group.settings.num_envs)
        return num_first - 1 + -(-num_updates // self.updates_per_step)


@dataclass(frozen=True)
class TrialActing:
    """The agents of a trial on their way through it."""

    state: GroupState  # its agents are those of the start: they are updated elsewhere
    episodes: Episodes  # that ended on the way
    updates_left: int = 0  # before the agents act again


@dataclass(frozen=True)
class TrialRollouts:
    """Batches for the updates of a trial, as training samples them: a ``Source[TrialActing]``."""

    trial: Trial
    num_updates: int
    generator: torch.Generator

    def collect(self, world: TrialActing, agents: AgentState) -> tuple[Rollout, TrialActing]:
        """A sample of the replay, after another rollout where one is due."""
        trial, group = self.trial, self.trial.group
        if not world.updates_left:
            world = replace(self._act(world, agents), updates_left=trial.updates_per_step)
        size, replay = _replay_size(world.state), world.state.replay
        assert replay is not None
        num_newest = min(max(trial.num_fresh, group.settings.num_envs), size)
        batch = sample_replay(
            *(replay, trial.batch_size, self.generator, group.num_stacked),
            *(trial.num_fresh, num_newest),
        )
        return batch, replace(world, updates_left=world.updates_left - 1)

    def collect_validation(
        self, world: TrialActing, agents: AgentState
    ) -> tuple[Rollout, TrialActing]:
        """A fresh rollout, which nothing is learnt from."""
        num_steps = self.trial.group.settings.rollout_length
        rollout, state, ended = act_in_group(
            self.trial.group, agents.params, world.state, num_steps, self.generator
        )
        return rollout, replace(world, state=state, episodes=_sum(world.episodes, ended))

    def begin(self, world: TrialActing, agents: AgentState) -> tuple[TrialActing, AgentState]:
        """The first rollouts, by newborn agents, whose values then begin where these suggest."""
        trial, window = self.trial, self.trial.group.window
        world = self._act(world, agents)
        size, replay = _replay_size(world.state), world.state.replay
        assert replay is not None
        seen = tree.map(lambda x: x[:, :size].transpose(1, 2), replay.storage)
        discount = window.agent.rule.returns.discount
        value = window.each(lambda seen: mean_value(seen, discount))(seen)
        agents = begin_values_at(value, window.agent, agents)
        return replace(world, updates_left=trial.updates_per_step), agents

    def _act(self, world: TrialActing, agents: AgentState) -> TrialActing:
        """One rollout; at the start as many as a batch needs."""
        while True:
            rollout, world = self.collect_validation(world, agents)
            assert world.state.replay is not None
            replay = store(world.state.replay, rollout, self.trial.group.num_stacked)
            world = replace(world, state=replace(world.state, replay=replay))
            if _replay_size(world.state) >= self.trial.batch_size:
                return world


def run_trial(
    trial: Trial, rule_params: Params, num_updates: int, generator: torch.Generator
) -> Tensor:
    """Mean return of the episodes that ended before each update, for each agent. [updates, P]

    Before an agent's first episode ends this is NaN; where none ended, it repeats the last.
    """
    return curve_of(live_trial(trial, trial.group.for_each(rule_params), num_updates, generator))


def live_trial(
    trial: Trial,
    rule_params: Params,
    num_updates: int,
    generator: torch.Generator,
    state: GroupState | None = None,
) -> list[Episodes]:
    """The episodes that have ended, at the start and before each update.

    Each agent may have a rule of its own: the parameters have leaves [P, ...]. The agents are
    newborn unless a ``state`` is given.
    """
    group = trial.group
    state = state or init_group(group, generator)
    source = TrialRollouts(trial, num_updates, generator)
    agents, world = state.agents, TrialActing(state, no_episodes(group))
    start = [world.episodes]
    if trial.estimates_values:
        world, agents = source.begin(world, agents)
    life = Life(agents, state.values, world)

    def keep(kept: list[Episodes], update: Update[TrialActing]) -> list[Episodes]:
        return [*kept, update.world.episodes]

    with native.for_agents(group.kernels):
        _, counts = live(group.window, rule_params, life, source, keep, start, judged=False)
    return counts


def curve_of(counts: Sequence[Episodes]) -> Tensor:
    """Mean return of the episodes between each two counts, see ``run_trial``. [counts - 1, P]"""
    means = [torch.full_like(counts[0].returns, float("nan"))]
    for before, now in pairwise(counts):
        means.append(mean_since(now, before, means[-1]))
    return torch.stack(means[1:])


def final_score(curve: Tensor) -> float:
    """The mean over the last fifth of a trial; NaN if no episode had ended by then."""
    return float(curve[-_fifth(curve) :].nanmean())


def last_fifth(curve: Tensor) -> Tensor:
    """The same for each agent. [updates, P] -> [P]"""
    return curve[-_fifth(curve) :].nanmean(0)


def _fifth(curve: Tensor) -> int:
    return max(1, len(curve) // 5)


def act_untrained(trial: Trial, num_updates: int, generator: torch.Generator) -> Episodes:
    """The episodes of a trial without learning: newborn agents act for as long."""
    state, episodes = init_group(trial.group, generator), no_episodes(trial.group)
    for _ in range(trial.num_rollouts(num_updates)):
        _, state, ended = act_in_group(
            *(trial.group, state.agents.params, state),
            *(trial.group.settings.rollout_length, generator),
        )
        episodes = _sum(episodes, ended)
    return episodes


def mean_since(now: Episodes, before: Episodes, otherwise: Tensor) -> Tensor:
    """Mean return of the episodes between two counts. [P]"""
    count = now.count - before.count
    return torch.where(count > 0, (now.returns - before.returns) / count.clamp(min=1), otherwise)


def _replay_size(state: GroupState) -> int:
    """Trajectories in the replay; all agents have as many."""
    assert state.replay is not None, "a trial needs a replay"
    return int(state.replay.size[0])


def _sum(episodes: Episodes, more: Episodes) -> Episodes:
    return tree.map(torch.add, episodes, more)
