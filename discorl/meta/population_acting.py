"""A group acts: the source of its rollouts. State goes in, rollouts and the new state come out."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from discorl import tree
from discorl.agents.network import with_params
from discorl.meta.population import Group, GroupState
from discorl.meta.population_replay import sample_replay, store
from discorl.types import AgentState, Params, Rollout


@tree.register
@dataclass(frozen=True)
class Episodes:
    """Sums over the episodes that ended, for each agent. [P]"""

    returns: Tensor
    count: Tensor
    successes: Tensor


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
        zeros = torch.zeros(self.group.num_agents, device=self.group.env.device)
        acting = GroupActing(state, Episodes(zeros, zeros, zeros))
        if not self.group.settings.acts_ahead:
            return acting
        length = self.group.settings.rollout_length
        training, acting = self._act(acting, state.agents, length, self.num_updates)
        validation, acting = self._act_to_judge(acting, state.agents)
        return replace(acting, ahead=(*training, validation))

    def collect(self, world: GroupActing, agents: AgentState) -> tuple[Rollout, GroupActing]:
        """A fresh rollout, joined by replayed trajectories."""
        settings = self.group.settings
        rollouts, acting = world.ahead, world
        if not rollouts:
            rollouts, acting = self._act(world, agents, settings.rollout_length)
        fresh, *ahead = rollouts
        acting = replace(acting, ahead=tuple(ahead))
        if acting.state.replay is None:
            return fresh, acting
        replay = store(acting.state.replay, fresh)
        old = sample_replay(replay, settings.num_replayed, self.generator)
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


def act_in_group(
    group: Group, params: Params, state: GroupState, num_steps: int, generator: torch.Generator
) -> tuple[Rollout, GroupState, Episodes]:
    """Every agent acts for ``num_steps`` in its copies of the task. Leaves [P, T, E, ...]"""
    env, shape = group.env, (group.num_agents, group.settings.num_envs)
    net = group.window.agent.net
    policy = tree.vmap(
        lambda params, now: with_params(net, params, lambda net: net.step(now, None)[0])
    )
    env_state, now = state.env_state, state.timestep
    steps: list[Rollout] = []
    with torch.no_grad():
        noise_shape = (num_steps, *shape, env.spec.num_actions)
        uniform = torch.rand(noise_shape, generator=generator, device=now.reward.device)
        gumbel = -torch.log(-torch.log(uniform.clamp_(min=1e-20)))
        for t in range(num_steps):
            seen = tree.map(lambda x: x.unflatten(0, shape), now)
            logits = policy(params, seen)
            actions = (logits + gumbel[t]).argmax(-1)
            steps.append(Rollout(seen.observation, actions, seen.reward, seen.discount, logits))
            env_state, now = env.step(env_state, actions.flatten(), generator)
    rollout = tree.stack(steps)  # leaves [T, P, E, ...]
    running, episodes = _count_episodes(group, state.running_return, rollout)
    rollout = tree.map(lambda x: x.transpose(0, 1), rollout)
    state = replace(state, env_state=env_state, timestep=now, running_return=running)
    return rollout, state, episodes


def _joined(rollouts: list[Rollout]) -> Rollout:
    """The trajectories of several rollouts in one. Leaves [P, T, E, ...]"""
    return rollouts[0] if len(rollouts) == 1 else tree.map(lambda *x: torch.cat(x, 2), *rollouts)


def _count_episodes(group: Group, running: Tensor, rollout: Rollout) -> tuple[Tensor, Episodes]:
    """Follow the returns of episodes, ``running`` [P * E], through a rollout [T, P, E]."""
    goal = group.env.spec.success_return
    running = running.unflatten(0, (group.num_agents, -1))
    returns, count, successes = (torch.zeros_like(running) for _ in range(3))
    for reward, ended in zip(rollout.rewards, rollout.ended, strict=True):
        running = running + reward
        returns += running * ended
        count += ended
        if goal is not None:
            successes += ended & (running >= goal)
        running = running * ~ended
    return running.flatten(), Episodes(returns.sum(1), count.sum(1), successes.sum(1))
