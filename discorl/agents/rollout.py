"""Acting: an agent's policy in its environment."""

from __future__ import annotations

from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.func import functional_call

from discorl import tree
from discorl.agents.memory import is_recurrent
from discorl.envs.base import Env
from discorl.errors import DiscorlError
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
    core_state: LSTMState | None = _NOT_GIVEN,
) -> tuple[Any, ...]:
    """Act for ``num_steps``, beginning at ``timestep``; returns what comes next, to go on from.

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
    steps: list[tuple[Tensor, ...]] = []

    def act(net: Any) -> tuple[Any, TimeStep, LSTMState | None]:
        state, now, memory = env_state, timestep, first_state
        shape = (num_steps, env.num_envs, env.spec.num_actions)
        # Gumbel noise makes argmax a sample; drawn for all steps at once.
        uniform = torch.rand(shape, generator=generator, device=now.reward.device)
        gumbel = -torch.log(-torch.log(uniform.clamp_(min=1e-20)))
        for t in range(num_steps):
            if recurrent:
                logits, memory = net.act(now.observation, now.discount == 0, memory)
            else:
                logits = net.policy(now.observation)
            actions = (logits + gumbel[t]).argmax(-1)
            steps.append((now.observation, actions, now.reward, now.discount, logits))
            state, now = env.step(state, actions, generator)
        return state, now, memory

    with torch.inference_mode():
        env_state, timestep, last_state = functional_call(net, params, (act,), {"method": "bind"})
    # Outside of inference mode, because tensors born in it could not be trained on.
    rollout = Rollout(
        *(tree.stack(field) for field in zip(*steps, strict=True)),
        core_state=tree.map(lambda x: x.unsqueeze(0).clone(), first_state),
    )
    if not with_memory:
        return rollout, env_state, timestep
    return rollout, env_state, timestep, tree.map(torch.clone, last_state)


def check_rollout(rollout: Rollout) -> None:
    """Raise if the environment sent NaN or infinity, which would poison the agent for good."""
    for name, x in (("observations", rollout.observations), ("rewards", rollout.rewards)):
        finite = x.isfinite()
        if not bool(finite.all()):
            per_env = finite.transpose(0, 1).flatten(1).all(1)
            raise DiscorlError(
                f"environment {int((~per_env).nonzero()[0])} sent {name} that are NaN or infinite; "
                "fix the environment, or wrap it to clip or replace them"
            )
