"""A population is groups: agents of one structure on one kind of task, living side by side.

Every tensor of their states has a leading axis of P agents, each of which acts in E copies of its
own draw of the task. A group has its own generator, so that what it does depends neither on the
other groups nor on which process it lives in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from discorl import tree
from discorl.envs.base import TensorEnv
from discorl.meta.life import Earlier, KeptUpdate, disowned
from discorl.meta.meta_value import MetaValueState
from discorl.meta.population_replay import PopulationReplay, empty_replay, zero_rollouts
from discorl.meta.window import Window, WindowSettings
from discorl.types import AgentState, Params, TimeStep

FOR_EVER = 2**62


@dataclass(frozen=True)
class Lifetimes:
    """How long agents live before they are born again: a budget drawn with weight 1 / budget."""

    budgets: tuple[int, ...] = ()
    """In updates; empty if agents live forever."""

    def draw(self, num: int, generator: torch.Generator) -> Tensor:
        """Budgets of ``num`` agents, where the generator is. [num]"""
        if not self.budgets:
            return torch.full((num,), FOR_EVER, device=generator.device)
        budgets = torch.tensor(self.budgets, device=generator.device)
        index = torch.multinomial(1 / budgets, num, replacement=True, generator=generator)
        return budgets[index]


@dataclass(frozen=True)
class Group:
    """The fixed structure of a group."""

    name: str
    window: Window
    env: TensorEnv
    num_agents: int
    settings: WindowSettings
    lifetimes: Lifetimes = Lifetimes()

    def for_each(self, rule_params: Params) -> Params:
        """The rule's parameters for each agent. Leaves [P, ...]"""
        return {k: p.expand(self.num_agents, *p.shape) for k, p in rule_params.items()}


@tree.register
@dataclass(frozen=True)
class GroupState:
    """All that changes as a group lives."""

    agents: AgentState  # leaves [P, ...]
    values: MetaValueState  # leaves [P, ...]
    env_state: Any  # leaves [P * E, ...]
    timestep: TimeStep  # leaves [P * E, ...]
    age: Tensor  # [P], updates since birth
    budget: Tensor  # [P]
    running_return: Tensor  # [P * E], of the episodes under way
    replay: PopulationReplay | None = None
    earlier: Earlier = ()


def init_group(group: Group, generator: torch.Generator) -> GroupState:
    """Newborn agents, each with a draw of the task."""
    env_state, timestep = _new_tasks(group, generator)
    agents, values = _newborn(group, group.num_agents, generator)
    device = group.env.device
    budget = group.lifetimes.draw(group.num_agents, generator).to(device)
    # First lives are cut short at random, so that not all agents are born again at once.
    share = torch.rand(group.num_agents, generator=generator, device=generator.device).to(device)
    return GroupState(
        agents=agents,
        values=values,
        env_state=env_state,
        timestep=timestep,
        age=(share * budget).long() if group.lifetimes.budgets else torch.zeros_like(budget),
        budget=budget,
        running_return=torch.zeros(group.env.num_envs, device=device),
        replay=_new_replay(group, timestep),
        earlier=_nobodys_updates(group, agents, timestep),
    )


def reborn(group: Group, state: GroupState, due: Tensor, generator: torch.Generator) -> GroupState:
    """Agents that are due start from scratch, on a new draw of the task. ``due`` [P]"""
    index = due.nonzero().flatten()
    if len(index) == 0:
        return state
    newborn = _newborn(group, len(index), generator)
    tasks = _new_tasks(group, generator)
    budget = group.lifetimes.draw(group.num_agents, generator).to(group.env.device)
    agents, values = tree.map(
        lambda old, new: old.index_copy(0, index, new), (state.agents, state.values), newborn
    )
    copies = due.repeat_interleave(group.settings.num_envs)
    env_state, timestep = tree.where(copies, tasks, (state.env_state, state.timestep))
    replay = state.replay
    if replay is not None:
        replay = replace(replay, size=torch.where(due, 0, replay.size))
    return GroupState(
        agents=agents,
        values=values,
        env_state=env_state,
        timestep=timestep,
        age=torch.where(due, 0, state.age),
        budget=torch.where(due, budget, state.budget),
        running_return=torch.where(copies, 0.0, state.running_return),
        replay=replay,
        earlier=disowned(state.earlier, due),
    )


def _newborn(
    group: Group, num: int, generator: torch.Generator
) -> tuple[AgentState, MetaValueState]:
    window, device = group.window, group.env.device
    agents = [window.agent.init_state(generator, device) for _ in range(num)]
    values = [window.meta_value.init_state(generator, device) for _ in range(num)]
    return tree.stack(agents), tree.stack(values)


def _new_tasks(group: Group, generator: torch.Generator) -> tuple[Any, TimeStep]:
    """A draw of the task for each agent, at its start in all copies. Leaves [P * E, ...]"""
    drawn = group.env.sample_settings(group.num_agents, generator)
    copies = tree.map(lambda x: x.repeat_interleave(group.settings.num_envs, 0), drawn)
    return group.env.reset(generator, copies)


def _new_replay(group: Group, timestep: TimeStep) -> PopulationReplay | None:
    capacity = group.settings.replay_capacity
    if not capacity:
        return None
    lead = (group.num_agents, capacity, group.settings.rollout_length)
    return empty_replay(zero_rollouts(lead, timestep.observation, group.env.spec.num_actions))


def _nobodys_updates(group: Group, agents: AgentState, timestep: TimeStep) -> Earlier:
    """Stand-ins for updates before an agent's first, so that a state keeps its structure."""
    settings, device = group.settings, group.env.device
    if not settings.num_earlier:
        return ()
    batch = settings.num_envs + (settings.num_replayed if settings.replay_capacity else 0)
    lead = (group.num_agents, settings.rollout_length, batch)
    rollout = zero_rollouts(lead, timestep.observation, group.env.spec.num_actions)
    params = tree.to(group.window.agent.rule.init_params(torch.Generator()), device)
    nobody = torch.zeros(group.num_agents, dtype=torch.bool, device=device)
    update = KeptUpdate(group.for_each(params), agents, rollout, nobody)
    return (update,) * settings.num_earlier
