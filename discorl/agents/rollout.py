"""Acting: an agent's policy in its environment."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from discorl.envs.base import Env
from discorl.errors import DiscorlError
from discorl.types import Params, Rollout, TimeStep


def collect_rollout(
    net: nn.Module,
    params: Params,
    env: Env,
    env_state: Any,
    timestep: TimeStep,
    num_steps: int,
    generator: torch.Generator,
) -> tuple[Rollout, Any, TimeStep]:
    """Act for ``num_steps``, beginning at ``timestep``; returns what comes next, to go on from."""
    spec, device = env.spec, timestep.reward.device
    shape = (num_steps, env.num_envs)
    # Ordinary tensors, written to below: tensors born in inference mode could not be trained on.
    rollout = Rollout(
        observations=torch.empty(*shape, *spec.observation_shape, device=device),
        actions=torch.empty(shape, dtype=torch.long, device=device),
        rewards=torch.empty(shape, device=device),
        discounts=torch.empty(shape, device=device),
        behaviour_logits=torch.empty(*shape, spec.num_actions, device=device),
    )
    with torch.inference_mode():
        # Gumbel noise makes argmax a sample; drawn for all steps at once.
        uniform = torch.rand(*shape, spec.num_actions, generator=generator, device=device)
        gumbel = -torch.log(-torch.log(uniform.clamp(min=1e-20)))
        for t in range(num_steps):
            logits = functional_call(
                net, params, (timestep.observation,), {"method": "policy"}, tie_weights=False
            )
            actions = (logits + gumbel[t]).argmax(-1)
            rollout.observations[t] = timestep.observation
            rollout.actions[t] = actions
            rollout.rewards[t] = timestep.reward
            rollout.discounts[t] = timestep.discount
            rollout.behaviour_logits[t] = logits
            env_state, timestep = env.step(env_state, actions, generator)
    return rollout, env_state, timestep


def check_rollout(rollout: Rollout) -> None:
    """Raise if the environment sent NaN or infinity, which would poison the agent for good."""
    for name in ("observations", "rewards"):
        finite = getattr(rollout, name).isfinite().flatten(2 if name == "observations" else 1)
        if not bool(finite.all()):
            bad = (~rollout.observations.isfinite().flatten(2).all(-1)).any(0)
            if name == "rewards":
                bad = (~rollout.rewards.isfinite()).any(0)
            index = int(bad.nonzero()[0])
            raise DiscorlError(
                f"environment {index} sent {name} that are NaN or infinite; fix the environment, "
                "or wrap it to clip or replace them"
            )
