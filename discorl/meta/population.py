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
from discorl.envs.base import Env, can_restart, is_tensor_env
from discorl.meta.life import Earlier, KeptUpdate, disowned
from discorl.meta.meta_value import MetaValueState
from discorl.meta.population_replay import PopulationReplay, blank_rollout, empty_replay
from discorl.meta.window import Window, WindowSettings
from discorl.optim import OwnRate
from discorl.types import AgentState, Memory, Params, TimeStep

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
    env: Env  # of P * E copies: those of the first agent, then those of the second, ...
    num_agents: int
    settings: WindowSettings
    lifetimes: Lifetimes = Lifetimes()
    num_stacked: int = 1
    """Frames in an observation, which a replay stores singly."""
    bootstraps: bool = True
    """Whether the value of its last state stands in for the rest of an episode that is cut off."""
    rate_spread: float = 1.0
    """How many times higher or lower the learning rate of an agent may be than that of another."""
    kernels: bool = False
    """Whether its windows are computed by the kernels for many agents, where those apply."""

    @property
    def device(self) -> torch.device:
        """Where its agents live."""
        return getattr(self.env, "device", torch.device("cpu"))

    @property
    def is_on_tensors(self) -> bool:
        """Whether the task is drawn for each agent, and saved with it; see ``TensorEnv``."""
        return is_tensor_env(self.env)

    @property
    def may_move(self) -> bool:
        """Whether it may live in another thread, beside other groups.

        Environments that are not on tensors may belong to the thread that made them. Forward-mode
        derivatives (memory mode ``mixed``) are the whole process's: only one thread can take them.
        """
        is_mixed = self.settings.memory == "mixed"
        return self.is_on_tensors and self.device.type == "cpu" and not is_mixed

    def for_each(self, rule_params: Params) -> Params:
        """The rule's parameters for each agent. Leaves [P, ...]"""
        return {k: p.expand(self.num_agents, *p.shape) for k, p in rule_params.items()}


def without_replay(group: Group) -> Group:
    """The group, if its agents remember nothing."""
    return replace(group, settings=replace(group.settings, replay_capacity=0))


@tree.register
@dataclass(frozen=True)
class GroupState:
    """All that changes as a group lives."""

    agents: AgentState  # leaves [P, ...]
    values: MetaValueState  # leaves [P, ...]
    env_state: Any  # leaves [P * E, ...]; what environments not on tensors keep inside is not here
    timestep: TimeStep  # leaves [P * E, ...]
    age: Tensor  # [P], updates since birth
    budget: Tensor  # [P]
    running_return: Tensor  # [P * E], of the episodes under way; NaN if another agent began them
    replay: PopulationReplay | None = None
    earlier: Earlier = ()
    memory: Memory = None  # of recurrent agents as they act, leaves [P * E, ...]


def init_group(group: Group, generator: torch.Generator) -> GroupState:
    """Newborn agents, each with a draw of the task."""
    env_state, timestep = _new_tasks(group, generator)
    agents, values = _newborn(group, group.num_agents, generator)
    device = group.device
    budget = group.lifetimes.draw(group.num_agents, generator).to(device)
    # First lives are cut short at random, so that not all agents are born again at once.
    share = torch.rand(group.num_agents, generator=generator, device=generator.device).to(device)
    memory = group.window.agent.initial_memory(group.env.num_envs, device)
    return GroupState(
        agents=agents,
        values=values,
        env_state=env_state,
        timestep=timestep,
        age=(share * budget).long() if group.lifetimes.budgets else torch.zeros_like(budget),
        budget=budget,
        running_return=torch.zeros(group.env.num_envs, device=device),
        replay=_new_replay(group, timestep, memory),
        earlier=_nobodys_updates(group, agents, timestep, memory),
        memory=memory,
    )


def reborn(group: Group, state: GroupState, due: Tensor, generator: torch.Generator) -> GroupState:
    """Agents that are due start from scratch, on a new draw of the task. ``due`` [P]

    Environments that can neither draw a task nor restart some of their copies stay where they are:
    the newborn takes over in the middle of an episode, whose return is not counted.
    """
    index = due.nonzero().flatten()
    if len(index) == 0:
        return state
    newborn = _newborn(group, len(index), generator)
    copies = due.repeat_interleave(group.settings.num_envs)
    env_state, timestep, restarted = _new_tasks_where(group, state, due, copies, generator)
    budget = group.lifetimes.draw(group.num_agents, generator).to(group.device)
    agents, values = tree.map(
        lambda old, new: old.index_copy(0, index, new), (state.agents, state.values), newborn
    )
    replay = state.replay
    if replay is not None:
        replay = replace(replay, size=torch.where(due, 0, replay.size))
    fresh = group.window.agent.initial_memory(group.env.num_envs, group.device)
    return GroupState(
        agents=agents,
        values=values,
        env_state=env_state,
        timestep=timestep,
        age=torch.where(due, 0, state.age),
        budget=torch.where(due, budget, state.budget),
        running_return=state.running_return.masked_fill(copies, 0.0 if restarted else torch.nan),
        replay=replay,
        earlier=disowned(state.earlier, due),
        memory=tree.where(copies, fresh, state.memory),
    )


def _newborn(
    group: Group, num: int, generator: torch.Generator
) -> tuple[AgentState, MetaValueState]:
    window, device = group.window, group.device
    agents = [window.agent.init_state(generator, device) for _ in range(num)]
    values = [window.meta_value.init_state(generator, device) for _ in range(num)]
    born = tree.stack(agents)
    if group.rate_spread > 1:
        born = replace(born, optimiser=_with_own_rates(group, born.optimiser, num, generator))
    return born, tree.stack(values)


def _with_own_rates(group: Group, state: tuple, num: int, generator: torch.Generator) -> tuple:
    """Rates around the common one, evenly on a logarithmic scale."""
    drawn = torch.rand(num, generator=generator, device=generator.device).to(group.device)
    return *state[:-1], OwnRate(group.rate_spread ** (drawn - 0.5))


def _new_tasks(group: Group, generator: torch.Generator) -> tuple[Any, TimeStep]:
    """All copies at the start of an episode, on a draw of the task for each agent if possible."""
    if not is_tensor_env(group.env):
        _forget(group, torch.ones(group.num_agents, dtype=torch.bool))
        return group.env.reset(generator)
    drawn = group.env.sample_settings(group.num_agents, generator)
    copies = tree.map(lambda x: x.repeat_interleave(group.settings.num_envs, 0), drawn)
    return group.env.reset(generator, copies)


def _new_tasks_where(
    group: Group, state: GroupState, due: Tensor, copies: Tensor, generator: torch.Generator
) -> tuple[Any, TimeStep, bool]:
    """The same for the agents that are due, and whether it was possible."""
    before = (state.env_state, state.timestep)
    if is_tensor_env(group.env):
        return *tree.where(copies, _new_tasks(group, generator), before), True
    _forget(group, due)
    if not can_restart(group.env):
        return *before, False
    return *group.env.restart(*before, copies, generator), True


def _forget(group: Group, due: Tensor) -> None:
    """What an environment has learnt about observations belongs to the agent, and dies with it."""
    getattr(group.env, "forget", lambda _: None)(due.cpu().numpy())


def _new_replay(group: Group, timestep: TimeStep, memory: Memory) -> PopulationReplay | None:
    settings, num_actions = group.settings, group.env.spec.num_actions
    if not settings.replay_capacity:
        return None
    lead = (group.num_agents, settings.rollout_length, 1)
    one = blank_rollout(lead, timestep, num_actions, memory)
    return empty_replay(one, settings.replay_capacity, group.num_stacked)


def _nobodys_updates(
    group: Group, agents: AgentState, timestep: TimeStep, memory: Memory
) -> Earlier:
    """Stand-ins for updates before an agent's first, so that a state keeps its structure."""
    settings, device = group.settings, group.device
    if not settings.num_earlier:
        return ()
    batch = settings.num_envs + (settings.num_replayed if settings.replay_capacity else 0)
    lead = (group.num_agents, settings.rollout_length, batch)
    rollout = blank_rollout(lead, timestep, group.env.spec.num_actions, memory)
    params = tree.to(group.window.agent.rule.init_params(torch.Generator()), device)
    nobody = torch.zeros(group.num_agents, dtype=torch.bool, device=device)
    update = KeptUpdate(group.for_each(params), agents, rollout, nobody)
    return (update,) * settings.num_earlier
