"""A group acts: the source of its rollouts. State goes in, rollouts and the new state come out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from discorl import tree
from discorl.agents.acting import Acting, check_rollout, collect
from discorl.agents.network import Network, with_params
from discorl.agents.update import Each
from discorl.errors import EnvFailure
from discorl.meta.population import Group, GroupState
from discorl.meta.population_replay import sample_replay, store
from discorl.types import AgentOutput, AgentState, Memory, Observation, Params, Rollout, TimeStep


@tree.register
@dataclass(frozen=True)
class Episodes:
    """Sums over the episodes that ended, for each agent. [P]"""

    returns: Tensor
    count: Tensor
    successes: Tensor
    squares: Tensor  # of returns


def no_episodes(group: Group) -> Episodes:
    """Before the first."""
    return Episodes(*(torch.zeros(group.num_agents, device=group.device) for _ in range(4)))


@dataclass(frozen=True)
class GroupActing:
    """A group on its way through a window."""

    state: GroupState  # its agents are those of the start: they are updated elsewhere
    episodes: Episodes  # that ended on the way
    ahead: tuple[Rollout, ...] = ()  # collected before the first update and not used yet


@dataclass(frozen=True)
class PopulationRollouts:
    """The rollouts of a group's window, made by its agents: a ``Source[GroupActing]``."""

    group: Group
    generator: torch.Generator

    @property
    def num_updates(self) -> int:
        return self.group.settings.num_new

    def begin(self, state: GroupState) -> GroupActing:
        """The start of a window, with all rollouts where they are collected ahead."""
        acting = GroupActing(state, no_episodes(self.group))
        if not self.group.settings.acts_ahead:
            return acting
        length = self.group.settings.rollout_length
        training, acting = self._act(acting, state.agents, length, self.num_updates)
        validation, acting = self._act_to_judge(acting, state.agents)
        return replace(acting, ahead=(*training, validation))

    def collect(self, world: GroupActing, agents: AgentState) -> tuple[Rollout, GroupActing]:
        """A fresh rollout, joined by replayed trajectories."""
        settings, num_stacked = self.group.settings, self.group.num_stacked
        rollouts, acting = world.ahead, world
        if not rollouts:
            rollouts, acting = self._act(world, agents, settings.rollout_length)
        fresh, *ahead = rollouts
        acting = replace(acting, ahead=tuple(ahead))
        if acting.state.replay is None:
            return fresh, acting
        replay = store(acting.state.replay, fresh, num_stacked)
        old = sample_replay(replay, settings.num_replayed, self.generator, num_stacked)
        return _joined([fresh, old]), replace(acting, state=replace(acting.state, replay=replay))

    def collect_validation(
        self, world: GroupActing, agents: AgentState
    ) -> tuple[Rollout, GroupActing]:
        """Fresh rollouts of each copy, in sequence."""
        if world.ahead:
            return world.ahead[0], world
        return self._act_to_judge(world, agents)

    def _act_to_judge(self, acting: GroupActing, agents: AgentState) -> tuple[Rollout, GroupActing]:
        settings = self.group.settings
        rollouts, acting = self._act(acting, agents, settings.valid_length, settings.valid_rollouts)
        return _joined(rollouts), acting

    def _act(
        self, acting: GroupActing, agents: AgentState, num_steps: int, num_rollouts: int = 1
    ) -> tuple[list[Rollout], GroupActing]:
        rollouts, state, sums = [], acting.state, acting.episodes
        for _ in range(num_rollouts):
            rollout, state, ended = act_in_group(
                self.group, agents.params, state, num_steps, self.generator
            )
            rollouts.append(rollout)
            sums = tree.map(torch.add, sums, ended)
        return rollouts, replace(acting, state=state, episodes=sums)


@dataclass(frozen=True)
class Crowd:
    """Agents that share an environment, each in E copies of its own: an ``Actor``."""

    net: Network
    params: Params  # leaves [P, ...]
    num_agents: int
    each: Each

    def initial_memory(self, batch: int) -> Memory:
        return self.net.initial_memory(batch)

    def step(self, now: TimeStep, memory: Memory) -> tuple[Tensor, Memory]:
        def step_one(params: Params, now: TimeStep, memory: Memory) -> tuple[Tensor, Memory]:
            return with_params(self.net, params, lambda net: net.step(now, memory))

        seen = TimeStep(now.observation, now.reward, now.discount)
        apart = tree.map(lambda x: x.unflatten(0, (self.num_agents, -1)), (seen, memory))
        return tree.map(lambda x: x.flatten(0, 1), self.each(step_one)(self._acting, *apart))

    @cached_property
    def _acting(self) -> Params:
        """The parameters that a step reads. It is small, so each of them takes some of its time."""
        is_for_acting = getattr(self.net, "is_for_acting", lambda name: True)
        return {name: p for name, p in self.params.items() if is_for_acting(name)}

    def output_at(self, rows: Tensor, observation: Observation, memory: Memory) -> AgentOutput:
        """Agent by agent: episodes are seldom cut off, and then only of a few agents."""
        copies = len(tree.leaves(observation)[0]) // self.num_agents
        outputs = []
        for agent in (rows // copies).unique().tolist():
            own = rows[rows // copies == agent]
            seen, kept = tree.index((observation, memory), own)
            params = tree.index(self.params, agent)
            output = partial(_output, observation=seen, memory=kept)
            outputs.append(with_params(self.net, params, output))
        return tree.map(lambda *x: torch.cat(x), *outputs)  # rows are in the order of agents


def _output(net: Network, observation: Observation, memory: Memory) -> AgentOutput:
    return net.output(observation, memory)


def act_in_group(
    group: Group, params: Params, state: GroupState, num_steps: int, generator: torch.Generator
) -> tuple[Rollout, GroupState, Episodes]:
    """Every agent acts for ``num_steps`` in its copies of the task. Leaves [P, T, E, ...]"""
    agent = group.window.agent
    crowd = Crowd(agent.net, params, group.num_agents, group.window.each)
    start = Acting(state.env_state, state.timestep, generator, state.memory)
    bootstrap = agent.rule if group.bootstraps else None
    try:
        rollout, end = collect(crowd, group.env, start, num_steps, bootstrap)
        if not group.is_on_tensors:
            check_rollout(rollout)
    except EnvFailure as e:
        copies = group.settings.num_envs
        raise EnvFailure(
            f"in the group '{group.name}', whose agents have {copies} environments each: {e}"
        ) from e
    running, episodes = _count_episodes(group, state.running_return, rollout)
    rollout = replace(rollout, raw_rewards=None)  # only for statistics
    rollout = tree.map(lambda x: x.unflatten(1, (group.num_agents, -1)).transpose(0, 1), rollout)
    state = replace(
        state,
        env_state=end.env_state,
        timestep=end.timestep,
        memory=end.memory,
        running_return=running,
    )
    return rollout, state, episodes


def _joined(rollouts: list[Rollout]) -> Rollout:
    """The trajectories of several rollouts in one. Leaves [P, T, E, ...]"""
    return rollouts[0] if len(rollouts) == 1 else tree.map(lambda *x: torch.cat(x, 2), *rollouts)


def _count_episodes(group: Group, running: Tensor, rollout: Rollout) -> tuple[Tensor, Episodes]:
    """Follow the returns of episodes, ``running`` [P * E], through a rollout [T, P * E].

    NaN is the return of an episode that another agent began; it is not counted.
    """
    goal = group.env.spec.success_return
    rewards = rollout.rewards if rollout.raw_rewards is None else rollout.raw_rewards
    returns, count, successes, squares = (torch.zeros_like(running) for _ in range(4))
    for reward, ended in zip(rewards, rollout.ended, strict=True):
        running = running + reward
        counts = ended & ~running.isnan()
        counted = torch.where(counts, running, 0.0)
        returns += counted
        squares.addcmul_(counted, counted)
        count += counts
        if goal is not None:
            successes += counts & (running >= goal)
        running = torch.where(ended, 0.0, running)
    sums = (returns, count, successes, squares)
    return running, Episodes(*(x.unflatten(0, (group.num_agents, -1)).sum(1) for x in sums))
