"""Acting: an agent's policy in its environments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from discorl import tree
from discorl.agents.network import Network, with_params
from discorl.envs.base import Env
from discorl.errors import EnvFailure
from discorl.ops import native
from discorl.ops.masks import mask_logits
from discorl.rules.base import UpdateRule
from discorl.types import AgentOutput, Memory, Observation, Params, Rollout, TimeStep


@dataclass(frozen=True)
class Acting:
    """An agent in its environments: all that its next step depends on, besides parameters."""

    env_state: Any
    timestep: TimeStep
    rng: torch.Generator
    memory: Memory = None
    """None for a network without memory, and before the first step."""


class Actor(Protocol):
    """Who acts in an environment: one agent in all of its copies, or several that share them."""

    def initial_memory(self, batch: int) -> Memory:
        """The memory before the first step."""
        ...

    def step(self, now: TimeStep, memory: Memory) -> tuple[Tensor, Memory]:
        """Logits [B, A] to act from, and the memory after this time step."""
        ...

    def output_at(self, rows: Tensor, observation: Observation, memory: Memory) -> AgentOutput:
        """Every head for some rows [R] of observations [B, ...]. [R, ...]"""
        ...


@dataclass(frozen=True)
class OneAgent:
    """One agent in all copies."""

    net: Network

    def initial_memory(self, batch: int) -> Memory:
        return self.net.initial_memory(batch)

    def step(self, now: TimeStep, memory: Memory) -> tuple[Tensor, Memory]:
        return self.net.step(now, memory)

    def output_at(self, rows: Tensor, observation: Observation, memory: Memory) -> AgentOutput:
        return self.net.output(tree.index(observation, rows), tree.index(memory, rows))


def begin(net: Network, env: Env, rng: torch.Generator) -> Acting:
    """Before the first step."""
    return Acting(*env.reset(rng), rng, net.initial_memory(env.num_envs))


def take_step(
    actor: Actor | Network, env: Env, at: Acting, choose: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor, Acting]:
    """One step: actions [B], the logits they were drawn from, and what comes next."""
    logits, memory = actor.step(at.timestep, at.memory)
    logits = mask_logits(logits, at.timestep.action_mask)
    actions = choose(logits)
    env_state, timestep = env.step(at.env_state, actions, at.rng)
    return actions, logits, Acting(env_state, timestep, at.rng, memory)


def act(
    net: Network,
    params: Params,
    env: Env,
    start: Acting,
    num_steps: int,
    bootstrap: UpdateRule | None = None,
) -> tuple[Rollout, Acting]:
    """One agent acts for ``num_steps`` from ``start``; see ``collect``."""

    def run(net: Network) -> tuple[Rollout, Acting]:
        with native.constant_weights():
            return collect(OneAgent(net), env, start, num_steps, bootstrap)

    return with_params(net, params, run)


def collect(
    actor: Actor, env: Env, start: Acting, num_steps: int, bootstrap: UpdateRule | None = None
) -> tuple[Rollout, Acting]:
    """A rollout of ``num_steps`` from ``start``; also returns where the next one begins.

    With the agents' rule as ``bootstrap``, the last reward of an episode that was cut off includes
    the discounted value of its final state. Without it, such an episode ends like any other.
    """
    shown = [start.timestep]
    taken: list[tuple[Tensor, Tensor]] = []
    with torch.inference_mode():
        memory = actor.initial_memory(env.num_envs) if start.memory is None else start.memory
        at = replace(start, memory=memory)
        shape = (num_steps, env.num_envs, env.spec.num_actions)
        # Gumbel noise makes argmax a sample; drawn for all steps at once.
        uniform = torch.rand(shape, generator=at.rng, device=at.timestep.reward.device)
        for gumbel in -torch.log(-torch.log(uniform.clamp_(min=1e-20))):
            actions, logits, at = take_step(actor, env, at, lambda x, g=gumbel: (x + g).argmax(-1))
            if bootstrap is not None and at.timestep.truncated is not None:
                now = add_value_of_the_cut_off(at.timestep, actor, bootstrap, at.memory)
                at = replace(at, timestep=now)
            taken.append((actions, logits))
            shown.append(at.timestep)
    # Outside inference mode, because tensors made in it could not be trained on.
    rollout = assemble(shown, taken, tree.map(lambda x: x.unsqueeze(0).clone(), memory))
    return rollout, replace(at, memory=tree.map(torch.clone, at.memory))


def add_value_of_the_cut_off(
    timestep: TimeStep, actor: Actor, rule: UpdateRule, memory: Memory = None
) -> TimeStep:
    """The time step with the discounted value of the final observation in truncated rewards.

    A time limit is not part of the task: without it, the episode would have earned about that much.
    """
    if timestep.truncated is None or timestep.final_observation is None:
        return timestep
    rows = timestep.truncated.nonzero().squeeze(1)
    output = actor.output_at(rows, timestep.final_observation, memory)
    if timestep.final_action_mask is not None:
        allowed = timestep.final_action_mask[rows]
        output = replace(output, logits=mask_logits(output.logits, allowed))
    value = rule.state_value(output)
    if value is None:
        return timestep
    reward = timestep.reward.index_add(0, rows, rule.returns.discount * value)
    raw = timestep.reward if timestep.raw_reward is None else timestep.raw_reward
    return replace(timestep, reward=reward, raw_reward=raw)


def assemble(
    shown: list[TimeStep], taken: list[tuple[Tensor, Tensor]], memory: Memory = None
) -> Rollout:
    """A rollout from T + 1 time steps and the T (actions, logits) between them.

    The last time step shows what a dead step at T-1 resets to; otherwise it belongs to what is
    collected next.
    """
    steps = shown[:-1]
    actions, logits = zip(*taken, strict=True)
    early = [_start_early(now, then) for now, then in zip(steps, shown[1:], strict=True)]
    observations = [observation for observation, _ in early]
    masks = [mask for _, mask in early if mask is not None]
    is_dead = [x.is_dead for x in steps if x.is_dead is not None]
    raw_rewards = None
    if any(x.raw_reward is not None for x in steps):
        raw_rewards = [x.reward if x.raw_reward is None else x.raw_reward for x in steps]
    return Rollout(
        observations=tree.stack(observations),
        actions=torch.stack(actions),
        rewards=torch.stack([x.reward for x in steps]),
        discounts=torch.stack([x.discount for x in steps]),
        behaviour_logits=torch.stack(logits),
        is_dead=torch.stack(is_dead) if is_dead else None,
        raw_rewards=torch.stack(raw_rewards) if raw_rewards else None,
        memory=memory,
        action_mask=torch.stack(masks) if masks else None,
    )


def _start_early(now: TimeStep, then: TimeStep) -> tuple[Any, Tensor | None]:
    """Observation and mask of ``now``, but in dead steps those of the next episode's first step.

    The rule reads the state that follows a terminal action. In environments that reset at once,
    that is the first state of the next episode, so it must be here too.
    """
    dead = now.is_dead
    if dead is None or not bool(dead.any()):
        return now.observation, now.action_mask

    def choose(old: Tensor, new: Tensor) -> Tensor:
        return torch.where(dead.reshape(-1, *(1,) * (old.dim() - 1)), new, old)

    shown, new = (now.observation, now.action_mask), (then.observation, then.action_mask)
    return tree.map(choose, shown, new)


def check_rollout(rollout: Rollout) -> None:
    """Raise if the environment sent NaN or infinity, which would ruin the agent for good."""
    seen = [("observations", x) for x in tree.leaves(rollout.observations)]
    # A clip makes an infinite reward look like a large one.
    for name, x in (*seen, ("rewards", rollout.rewards), ("rewards", rollout.raw_rewards)):
        if x is None or not x.is_floating_point():
            continue
        finite = x.isfinite()
        if not bool(finite.all()):
            per_env = finite.transpose(0, 1).flatten(1).all(1)
            raise EnvFailure(
                f"environment {int((~per_env).nonzero()[0])} sent {name} that are NaN or infinite: "
                "fix the environment, or wrap it to clip or replace them"
            )
