"""Acting: an agent's policy in its environment."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
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
    steps: list[tuple[Tensor, ...]] = []

    def act(net: Any) -> tuple[Any, TimeStep]:
        state, now = env_state, timestep
        shape = (num_steps, env.num_envs, env.spec.num_actions)
        # Gumbel noise makes argmax a sample; drawn for all steps at once.
        uniform = torch.rand(shape, generator=generator, device=now.reward.device)
        gumbel = -torch.log(-torch.log(uniform.clamp_(min=1e-20)))
        for t in range(num_steps):
            logits = net.policy(now.observation)
            actions = (logits + gumbel[t]).argmax(-1)
            steps.append((now.observation, actions, now.reward, now.discount, logits))
            state, now = env.step(state, actions, generator)
        return state, now

    with torch.inference_mode():
        env_state, timestep = functional_call(net, params, (act,), {"method": "bind"})
    # Outside of inference mode, because tensors born in it could not be trained on.
    rollout = Rollout(*(torch.stack(field) for field in zip(*steps, strict=True)))
    return rollout, env_state, timestep


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
