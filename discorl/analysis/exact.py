"""Exact values of policies on tasks whose states can be listed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from discorl import tree
from discorl.agents.network import Network, with_params
from discorl.analysis.lives import Age, Life
from discorl.envs.tasks.catch import Catch
from discorl.envs.tasks.chain import Chain
from discorl.envs.tasks.deep_sea import DeepSea
from discorl.envs.tasks.grid import Grid
from discorl.envs.tasks.mdp import MDP
from discorl.envs.tasks.task import Task, in_order
from discorl.types import Rollout, TimeStep

Policy = Callable[[Tensor], Tensor]
"""Probabilities of actions. Observations [N, ...] -> [N, A]"""
NUM_BEGINNINGS = 512
"""Episodes begun to find all states in which one can."""
MAX_STATES = 50_000
TOLERANCE = 1e-10


def exact_values(life: Life, age: Age) -> Tensor | None:
    """The value of each state that the agent came through, if it goes on as it plays. [S, B]

    None where states cannot be listed: with chance that has no table, or where the agent remembers
    what it does not see.
    """
    env, net = life.env, life.agent.net
    if net.initial_memory(1) is not None:
        return None

    @torch.no_grad()
    def policy(observations: Tensor) -> Tensor:
        return with_params(net, age.state.params, lambda net: _probabilities(net, observations))

    gamma = life.agent.rule.returns.discount
    if isinstance(env, MDP):
        table = mdp_values(env, age.env_state.settings, policy, gamma)
        return _at_times(table, age)
    if isinstance(env, Grid) and env.task.tabular:
        table = grid_values(env, age.env_state.settings, policy, gamma)
        return _at_times(table, age)
    if isinstance(env, Catch | DeepSea) or (
        isinstance(env, Chain) and env.num_bits == 0 and env.noise == 0
    ):
        return _looked_up(env, age, policy, gamma)
    return None


def _probabilities(net: Network, observations: Tensor) -> Tensor:
    zeros = torch.zeros(len(observations))
    logits, _ = net.step(TimeStep(observations, zeros, zeros + 1), None)
    return torch.softmax(logits.double(), -1)


def _at_times(table: Tensor, age: Age) -> Tensor:
    """Values [H, S] of one-hot states at the time of each step since its episode began. [S, B]"""
    rollout: Rollout = age.played
    time = age.env_state.time.clone()
    times = [time]
    for discount in rollout.discounts[1:-1]:
        time = torch.where(discount == 0, 0, time + 1)
        times.append(time)
    return table[torch.stack(times), rollout.observations[:-1].argmax(-1)]


def mdp_values(env: MDP, settings: Any, policy: Policy, discount: float) -> Tensor:
    """Of each state at each time, from the last time back. [H, S]"""
    s = tree.index(settings, 0)
    up_to = s.cumulative.double()
    up_to[..., -1] = 1
    chances = up_to.diff(dim=-1, prepend=torch.zeros_like(up_to[..., :1]))  # [S, A, S]
    pi = policy(torch.eye(env.num_states))
    goes_on = discount * (1 - s.terminate.double())
    after, table = torch.zeros(env.num_states, dtype=torch.double), []
    for _ in range(int(s.horizon)):
        after = (pi * (s.rewards + goes_on * chances @ after)).sum(-1)
        table.append(after)
    return torch.stack(table[::-1])


def grid_values(env: Grid, settings: Any, policy: Policy, discount: float) -> Tensor:
    """Of each state of a tabular grid world at each time, from the last time back. [H, I]

    The index of a state is the agent's cell, then a bit for each object that can be missing.
    """
    s = tree.index(settings, 0)
    num_indices = env.spec.observation_shape[0]
    index = torch.arange(num_indices)
    num_bits = env.num_layouts.bit_length() - 1
    cell, there = index // env.num_layouts, index % env.num_layouts
    present = torch.where(env.bits > 0, (there[:, None] & env.bits) > 0, s.exists)  # [I, K]
    pi = policy(torch.eye(num_indices))
    order = None if s.actions is None else s.actions[None]
    moves = [in_order(order, torch.tensor([a])) for a in range(env.num_actions)]
    rewards, survival, arrivals = [], [], []
    for move in moves:
        to = env.targets[move[0], cell]
        to = torch.where(s.walls[to], cell, to)
        hit = present & (s.homes[:-1] == to[:, None])
        rewards.append((hit * s.reward.double()).sum(1))
        survival.append(torch.where(hit, 1 - s.terminate.double(), 1.0).prod(1))
        arrivals.append(to * env.num_layouts + there - (hit * env.bits).sum(1))
    reward, goes_on, arrival = (torch.stack(x, 1) for x in (rewards, survival, arrivals))
    back = [float(s.respawn[env.bits == 2**bit]) for bit in range(num_bits)]
    after, table = torch.zeros(num_indices, dtype=torch.double), []
    for _ in range(int(s.horizon)):
        for bit, chance in enumerate(back):  # what is missing may come back before it is seen
            rows = after.reshape(-1, 2, 2**bit)
            missing, seen = rows.unbind(1)
            after = torch.stack([missing + chance * (seen - missing), seen], 1).flatten()
        after = (pi * (reward + discount * goes_on * after[arrival])).sum(-1)
        table.append(after)
    return torch.stack(table[::-1])


def _looked_up(env: Task, age: Age, policy: Policy, discount: float) -> Tensor | None:
    """Values of a task without chance but where episodes begin, whose states all look different.

    All states are found by taking every action in every state.
    """
    if (found := _states(env)) is None:
        return None
    observations, following, rewards = found
    pi, value = policy(observations), torch.zeros(len(observations), dtype=torch.double)
    change = 1.0
    while change > TOLERANCE:
        ahead = torch.where(following >= 0, value[following], 0.0)
        new = (pi * (rewards + discount * ahead)).sum(-1)
        change, value = float((new - value).abs().max()), new
    index = {key: i for i, key in enumerate(_keys(observations))}
    seen = age.played.observations[:-1]
    places = [index[key] for key in _keys(seen.flatten(0, 1))]
    return value[torch.tensor(places)].reshape(seen.shape[:2])


def _states(env: Task) -> tuple[Tensor, Tensor, Tensor] | None:
    """Observations of all states [N, ...], and where each action leads and what it pays. [N, A]

    An action that ends the episode leads to -1. None if there are too many states.
    """
    generator = torch.Generator().manual_seed(0)
    many = replace(env, num_envs=NUM_BEGINNINGS)
    state, shown = many.reset(generator)
    num_actions = env.spec.num_actions
    index: dict[bytes, int] = {}
    seen, following, rewards = [], [], []

    def new_ones(state: Any, observations: Tensor) -> tuple[Any, Tensor]:
        rows = []
        for i, key in enumerate(_keys(observations)):
            if key not in index:
                index[key] = len(index)
                rows.append(i)
        kept = torch.tensor(rows, dtype=torch.long)
        return tree.map(lambda x: x[kept], state), observations[kept]

    state, observations = new_ones(state, shown.observation)
    while len(observations):
        if len(index) > MAX_STATES:
            return None
        seen.append(observations)
        count = len(observations) * num_actions
        each = tree.map(lambda x: x.repeat_interleave(num_actions, 0), state)
        actions = torch.arange(num_actions).repeat(len(observations))
        state, shown = replace(env, num_envs=count).step(each, actions, generator)
        goes_on = shown.discount > 0
        rewards.append(shown.reward.double().reshape(-1, num_actions))
        onward = tree.map(lambda x, on=goes_on: x[on], state)
        reached = shown.observation[goes_on]
        state, observations = new_ones(onward, reached)
        to = torch.full((count,), -1)
        to[goes_on] = torch.tensor([index[key] for key in _keys(reached)], dtype=torch.long)
        following.append(to.reshape(-1, num_actions))
    return torch.cat(seen), torch.cat(following), torch.cat(rewards)


def _keys(observations: Tensor) -> list[bytes]:
    rows = observations.flatten(1).to(torch.uint8).numpy()  # of zeros and ones
    return [row.tobytes() for row in rows]
