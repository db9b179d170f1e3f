"""Acting: an agent's policy in its environment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.func import functional_call

from discorl import tree
from discorl.agents.memory import is_recurrent
from discorl.envs.base import Env
from discorl.errors import DiscorlError, EnvFailure
from discorl.rules.base import UpdateRule
from discorl.types import LSTMState, Params, Rollout, TimeStep

_NOT_GIVEN: Any = object()


@overload
def collect_rollout(
    net: nn.Module,
    params: Params,
    env: Env,
    env_state: Any,
    timestep: TimeStep,
    num_steps: int,
    generator: torch.Generator,
    *,
    bootstrap: UpdateRule | None = None,
) -> tuple[Rollout, Any, TimeStep]: ...


@overload
def collect_rollout(
    net: nn.Module,
    params: Params,
    env: Env,
    env_state: Any,
    timestep: TimeStep,
    num_steps: int,
    generator: torch.Generator,
    *,
    bootstrap: UpdateRule | None = None,
    core_state: LSTMState | None,
) -> tuple[Rollout, Any, TimeStep, LSTMState | None]: ...


def collect_rollout(
    net: nn.Module,
    params: Params,
    env: Env,
    env_state: Any,
    timestep: TimeStep,
    num_steps: int,
    generator: torch.Generator,
    *,
    bootstrap: UpdateRule | None = None,
    core_state: LSTMState | None = _NOT_GIVEN,
) -> tuple[Any, ...]:
    """Act for ``num_steps``, beginning at ``timestep``; returns what comes next, to go on from.

    With the agent's rule as ``bootstrap``, the last reward of an episode that was cut off includes
    the discounted value of the state it was cut off in. Without, it ends like any other.

    A recurrent network goes on from ``core_state``, None at first, and its state is returned as
    the fourth value. Networks without a core take and return None, or leave it away.
    """
    recurrent = is_recurrent(net)
    with_memory = core_state is not _NOT_GIVEN
    if recurrent and not with_memory:
        raise DiscorlError(
            "the network has a core: pass core_state=None to collect_rollout at first, and then "
            "the state that it returns"
        )
    first_state = core_state if recurrent else None
    if recurrent and first_state is None:
        first_state = functional_call(net, params, (env.num_envs,), {"method": "zero_state"})
    shown = [timestep]
    taken: list[tuple[Tensor, Tensor]] = []

    def act(net: Any) -> tuple[Any, LSTMState | None]:
        state, now, memory = env_state, timestep, first_state
        shape = (num_steps, env.num_envs, env.spec.num_actions)
        # Gumbel noise makes argmax a sample; drawn for all steps at once.
        uniform = torch.rand(shape, generator=generator, device=now.reward.device)
        gumbel = -torch.log(-torch.log(uniform.clamp_(min=1e-20)))
        for t in range(num_steps):
            if recurrent:
                logits, memory = net.act(now.observation, now.discount == 0, memory)
                memory = forget_dead(memory, now.is_dead)
            else:
                logits = net.policy(now.observation)
            actions = (logits + gumbel[t]).argmax(-1)
            taken.append((actions, logits))
            state, now = env.step(state, actions, generator)
            if bootstrap is not None and now.truncated is not None:
                now = add_value_of_the_cut_off(now, net, bootstrap, memory)
            shown.append(now)
        return state, memory

    with torch.inference_mode():
        env_state, last_state = functional_call(net, params, (act,), {"method": "bind"})
    # Outside of inference mode, because tensors born in it could not be trained on.
    rollout = assemble(shown, taken)
    if not with_memory:
        return rollout, env_state, shown[-1]
    rollout = replace(rollout, core_state=tree.map(lambda x: x.unsqueeze(0).clone(), first_state))
    return rollout, env_state, shown[-1], tree.map(torch.clone, last_state)


def forget_dead(memory: LSTMState | None, is_dead: Tensor | None) -> LSTMState | None:
    """Nothing is remembered of a step that only resets: what it sees comes again."""
    if is_dead is None:
        return memory
    return tree.map(lambda x: x * ~is_dead.unsqueeze(-1), memory)


def add_value_of_the_cut_off(
    timestep: TimeStep, net: Any, rule: UpdateRule, memory: LSTMState | None = None
) -> TimeStep:
    """The time step with the discounted value of the final observation in truncated rewards.

    A time limit is no part of the task: the episode would have gone on to earn about that value.
    """
    if timestep.truncated is None or timestep.final_observation is None:
        return timestep
    rows = timestep.truncated.nonzero().squeeze(1)
    final = tree.index(timestep.final_observation, rows)
    output = net.output(final) if memory is None else net.output(final, tree.index(memory, rows))
    value = rule.state_value(output)
    if value is None:
        return timestep
    reward = timestep.reward.index_add(0, rows, rule.returns.discount * value)
    raw = timestep.reward if timestep.raw_reward is None else timestep.raw_reward
    return replace(timestep, reward=reward, raw_reward=raw)


def assemble(shown: list[TimeStep], taken: list[tuple[Tensor, Tensor]]) -> Rollout:
    """A rollout from T + 1 time steps and the T (actions, logits) between them.

    The last time step shows what a dead step at T-1 resets to; otherwise it belongs to what is
    collected next.
    """
    steps = shown[:-1]
    actions, logits = zip(*taken, strict=True)
    observations = [_start_early(now, then) for now, then in zip(steps, shown[1:], strict=True)]
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
    )


def _start_early(now: TimeStep, then: TimeStep) -> Any:
    """The observation of ``now``, but in dead steps the first of the next episode already.

    The rule reads the state that follows a terminal action. Where environments reset at once that
    is the first of the next episode, so it must be that here too.
    """
    dead = now.is_dead
    if dead is None or not bool(dead.any()):
        return now.observation

    def choose(old: Tensor, new: Tensor) -> Tensor:
        return torch.where(dead.reshape(-1, *(1,) * (old.dim() - 1)), new, old)

    return tree.map(choose, now.observation, then.observation)


def check_rollout(rollout: Rollout) -> None:
    """Raise if the environment sent NaN or infinity, which would poison the agent for good."""
    seen = [("observations", x) for x in tree.leaves(rollout.observations)]
    for name, x in (*seen, ("rewards", rollout.rewards)):
        if not x.is_floating_point():
            continue
        finite = x.isfinite()
        if not bool(finite.all()):
            per_env = finite.transpose(0, 1).flatten(1).all(1)
            raise EnvFailure(
                f"environment {int((~per_env).nonzero()[0])} sent {name} that are NaN or infinite; "
                "fix the environment, or wrap it to clip or replace them"
            )
