"""A group: agents of one structure on one kind of task, lived side by side.

Every tensor of their states has a leading axis of P agents, each of which acts in E copies of its
own draw of the task. A group has a generator of its own, so that what it does depends neither on
the other groups nor on which process it lives in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from discorl import tree
from discorl.agents.network import with_params
from discorl.envs.base import TensorEnv
from discorl.meta.imitation import imitation_gradient
from discorl.meta.meta_value import MetaValueState
from discorl.meta.population_replay import PopulationReplay, empty_replay, sample_replay, store
from discorl.meta.sliding_window import KeptUpdate, disowned, nobodys_updates
from discorl.meta.unroll import MemoryMode, MetaGradient, Window, meta_gradient
from discorl.types import AgentState, Params, Rollout, TimeStep

FOR_EVER = 2**62


@dataclass(frozen=True)
class Lifetimes:
    """How long agents live before they are born again: a budget drawn with weight 1 / budget."""

    budgets: tuple[int, ...] = ()
    """In updates; none: agents live for ever."""

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
    num_updates: int
    """Updates of the agents that the meta-gradient goes back through: the window."""
    rollout_length: int
    valid_length: int
    lifetimes: Lifetimes
    valid_rollouts: int = 1
    """Validation rollouts, one after the other, that each copy of the task makes."""
    acts_ahead: bool = False
    """Collect all rollouts of a window before its first update, as the public notebook does; else
    agents act anew before each update, and the updated ones make their own validation rollout."""
    num_replayed: int = 0
    """Replayed trajectories that join the fresh ones in each update."""
    replay_capacity: int = 0
    """Trajectories that each agent keeps."""
    mode: MemoryMode = "plain"
    offload: bool = False
    """Keep the states of a window in the memory of the CPU."""
    stride: int | None = None
    """Updates between two steps of the rule, by which the window slides; None for a window."""

    @property
    def num_new(self) -> int:
        """Updates that the agents make in a window; the rest they have made before."""
        return self.num_updates if self.stride is None else self.stride

    @property
    def num_envs(self) -> int:
        """Copies of the environment for each agent."""
        return self.env.num_envs // self.num_agents


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
    earlier: tuple[KeptUpdate, ...] = ()  # the last updates that the next window goes back through


@dataclass(frozen=True)
class Episodes:
    """Sums over the episodes that ended, for each agent. [P]"""

    returns: Tensor
    count: Tensor
    successes: Tensor

    def __add__(self, other: Episodes) -> Episodes:
        return Episodes(
            self.returns + other.returns,
            self.count + other.count,
            self.successes + other.successes,
        )


@dataclass(frozen=True)
class WindowResult:
    """A group after a window: its state, what it says of the rule, and how it did."""

    state: GroupState
    meta: MetaGradient
    episodes: Episodes
    num_born: int


def init_group(group: Group, generator: torch.Generator) -> GroupState:
    """Newborn agents, each with a draw of the task."""
    settings = group.env.sample_settings(group.num_agents, generator)
    env_state, timestep = group.env.reset(generator, _for_copies(settings, group.num_envs))
    agents, values = _newborn(group, group.num_agents, generator)
    device = group.env.device
    budget = group.lifetimes.draw(group.num_agents, generator).to(device)
    # First lives are cut short at random, so that not all agents are born again at once.
    share = torch.rand(group.num_agents, generator=generator, device=generator.device).to(device)
    age = (share * budget).long() if group.lifetimes.budgets else torch.zeros_like(budget)
    state = GroupState(
        agents=agents,
        values=values,
        env_state=env_state,
        timestep=timestep,
        age=age,
        budget=budget,
        running_return=torch.zeros(group.env.num_envs, device=device),
        replay=empty_replay(
            group.num_agents,
            group.replay_capacity,
            group.rollout_length,
            timestep.observation,
            group.env.spec.num_actions,
        )
        if group.replay_capacity
        else None,
    )
    return replace(state, earlier=_nothing_earlier(group, state))


def live_window(
    group: Group,
    rule_params: Params,
    state: GroupState,
    generator: torch.Generator,
    imitate: bool = False,
) -> WindowResult:
    """Some updates of every agent, the gradient of the rule through the last K, births where due.

    With ``imitate`` the gradient is that of a warm start instead, see ``imitation.py``.
    """
    source = Acting(group, state, generator)
    for_each = {k: p.expand(group.num_agents, *p.shape) for k, p in rule_params.items()}
    args = (group.window, for_each, state.agents, state.values, source)
    if imitate:
        meta, earlier = imitation_gradient(*args), disowned(state.earlier)
    else:
        meta = meta_gradient(*args, group.mode, group.offload, state.earlier)
        everyone = torch.ones_like(state.age, dtype=torch.bool)
        earlier = tuple(x if x.own is not None else replace(x, own=everyone) for x in meta.kept)
        meta = replace(meta, kept=())
    state = replace(
        source.state,
        agents=meta.state,
        values=meta.value_state,
        age=state.age + group.num_new,
        earlier=earlier,
    )
    due = (state.age >= state.budget) | ~_finite(state.agents) | ~_finite(state.values)
    state = reborn(group, state, due, generator)
    return WindowResult(state, meta, source.episodes, int(due.sum()))


def act(
    group: Group, params: Params, state: GroupState, num_steps: int, generator: torch.Generator
) -> tuple[Rollout, GroupState, Episodes]:
    """Every agent acts for ``num_steps`` in its copies of the task. Leaves [P, T, E, ...]"""
    env, shape = group.env, (group.num_agents, group.num_envs)
    net = group.window.agent.net
    policy = tree.vmap(
        lambda params, now: with_params(net, params, lambda net: net.step(now, None)[0])
    )
    env_state, now = state.env_state, state.timestep
    steps: list[tuple[Tensor, ...]] = []
    with torch.no_grad():
        noise_shape = (num_steps, *shape, env.spec.num_actions)
        uniform = torch.rand(noise_shape, generator=generator, device=now.reward.device)
        gumbel = -torch.log(-torch.log(uniform.clamp_(min=1e-20)))
        for t in range(num_steps):
            logits = policy(params, tree.map(lambda x: x.unflatten(0, shape), now))
            actions = (logits + gumbel[t]).argmax(-1)
            steps.append((now.observation, actions, now.reward, now.discount, logits))
            env_state, now = env.step(env_state, actions.flatten(), generator)
    observations, actions, rewards, discounts, logits = (
        torch.stack(field) for field in zip(*steps, strict=True)
    )
    running, episodes = _count_episodes(group, state.running_return, rewards, discounts)

    def agents_first(x: Tensor) -> Tensor:
        return x.reshape(num_steps, *shape, *x.shape[2:]).transpose(0, 1)

    rollout = Rollout(
        agents_first(observations),
        actions.transpose(0, 1),
        agents_first(rewards),
        agents_first(discounts),
        logits.transpose(0, 1),
    )
    state = replace(state, env_state=env_state, timestep=now, running_return=running)
    return rollout, state, episodes


def reborn(group: Group, state: GroupState, due: Tensor, generator: torch.Generator) -> GroupState:
    """Agents that are due start again from nothing, on a new draw of the task."""
    index = due.nonzero().flatten()
    if len(index) == 0:
        return state
    agents, values = _newborn(group, len(index), generator)
    drawn = group.env.sample_settings(group.num_agents, generator)
    env_state, timestep = group.env.reset(generator, _for_copies(drawn, group.num_envs))
    copies = due.repeat_interleave(group.num_envs)

    def put(old: Any, new: Any) -> Any:
        return tree.map(lambda x, y: x.index_copy(0, index, y), old, new)

    def choose(old: Any, new: Any) -> Any:
        return tree.map(
            lambda x, y: torch.where(copies.reshape(-1, *(1,) * (x.dim() - 1)), y, x), old, new
        )

    budget = group.lifetimes.draw(group.num_agents, generator).to(group.env.device)
    replay = state.replay
    if replay is not None:
        replay = replace(replay, size=torch.where(due, 0, replay.size))
    return GroupState(
        agents=put(state.agents, agents),
        values=put(state.values, values),
        env_state=choose(state.env_state, env_state),
        timestep=choose(state.timestep, timestep),
        age=torch.where(due, 0, state.age),
        budget=torch.where(due, budget, state.budget),
        running_return=torch.where(copies, 0.0, state.running_return),
        replay=replay,
        earlier=disowned(state.earlier, due),
    )


class Acting:
    """A window's rollouts, made by the agents as the window asks for them."""

    def __init__(self, group: Group, state: GroupState, generator: torch.Generator) -> None:
        self.num_updates = group.num_new
        self.state = state
        zeros = torch.zeros(group.num_agents, device=group.env.device)
        self.episodes = Episodes(zeros, zeros, zeros)
        self._group = group
        self._generator = generator
        self._ahead: list[Rollout] = []
        if group.acts_ahead:
            self._ahead = [
                self._act(state.agents, group.rollout_length) for _ in range(group.num_new)
            ]
            self._ahead.append(self._act_to_judge(state.agents))

    def training(self, update: int, state: AgentState) -> Rollout:
        group = self._group
        fresh = self._ahead[update] if group.acts_ahead else self._act(state, group.rollout_length)
        if self.state.replay is None:
            return fresh
        replay = store(self.state.replay, fresh)
        self.state = replace(self.state, replay=replay)
        old = sample_replay(replay, group.num_replayed, self._generator)
        return tree.map(lambda x, y: torch.cat([x, y], 2), fresh, old)

    def validation(self, state: AgentState) -> Rollout:
        if self._group.acts_ahead:
            return self._ahead[-1]
        return self._act_to_judge(state)

    def _act_to_judge(self, state: AgentState) -> Rollout:
        group = self._group
        parts = [self._act(state, group.valid_length) for _ in range(group.valid_rollouts)]
        return parts[0] if len(parts) == 1 else tree.map(lambda *x: torch.cat(x, 2), *parts)

    def _act(self, state: AgentState, num_steps: int) -> Rollout:
        rollout, self.state, episodes = act(
            self._group, state.params, self.state, num_steps, self._generator
        )
        self.episodes = self.episodes + episodes
        return rollout


def _nothing_earlier(group: Group, state: GroupState) -> tuple[KeptUpdate, ...]:
    num = group.num_updates - group.num_new
    if not num:
        return ()
    batch = group.num_envs + (group.num_replayed if group.replay_capacity else 0)
    shape = (group.num_agents, group.rollout_length, batch)
    args = (group.window.agent, state.agents, state.timestep, shape, group.env.spec.num_actions)
    return nobodys_updates(num, *args)


def _newborn(
    group: Group, num: int, generator: torch.Generator
) -> tuple[AgentState, MetaValueState]:
    window, device = group.window, group.env.device
    agents = [window.agent.init_state(generator, device) for _ in range(num)]
    values = [window.meta_value.init_state(generator, device) for _ in range(num)]
    return tree.stack(agents), tree.stack(values)


def _for_copies(settings: Any, num_envs: int) -> Any:
    """Settings of agents [P, ...] as those of their copies of the task [P * E, ...]."""
    return tree.map(lambda x: x.repeat_interleave(num_envs, 0), settings)


def _finite(state: Any) -> Tensor:
    """Which agents are free of NaN and infinity. [P]"""
    parts: Sequence[Tensor] = [x for x in tree.leaves(state) if x.is_floating_point()]
    return torch.stack([x.isfinite().flatten(1).all(1) for x in parts if x.dim() > 1]).all(0)


def _count_episodes(
    group: Group, running: Tensor, rewards: Tensor, discounts: Tensor
) -> tuple[Tensor, Episodes]:
    """Follow the returns of episodes through a rollout. ``rewards``, ``discounts`` [T, P * E]"""
    goal = group.env.spec.success_return
    returns, count, successes = (torch.zeros_like(running) for _ in range(3))
    for reward, ended in zip(rewards, discounts == 0, strict=True):
        running = running + reward
        returns += running * ended
        count += ended
        if goal is not None:
            successes += ended & (running >= goal)
        running = running * ~ended
    by_agent = (x.unflatten(0, (group.num_agents, -1)).sum(1) for x in (returns, count, successes))
    return running, Episodes(*by_agent)
