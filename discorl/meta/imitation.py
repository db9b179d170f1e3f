"""A warm start: the rule first learns to say what a hand-written one would.

From random weights the meta-gradient says next to nothing at first: agents that do not learn tell
little about how they should. A rule that can already improve a policy is where it begins to tell.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from discorl import tree
from discorl.agents.burn_in import without_burn_in
from discorl.agents.update import update_agent
from discorl.meta.meta_value import MetaValueState
from discorl.meta.objective import target_mean
from discorl.meta.unroll import MetaGradient, RolloutSource, Window
from discorl.ops.categorical import kl_divergence
from discorl.ops.step_means import live_mean
from discorl.types import AgentState, Params, Rollout, Targets

STRENGTH = 2.0
MAX_ADVANTAGE = 1.0


def improved_policy(targets: Targets, rollout: Rollout) -> Tensor:
    """The target network's policy, moved by clipped advantages as in MPO and Muesli. [T-1, B, A]

    The advantage of the taken action is that of its return; of the others, that of their value.
    """
    values = targets.values
    assert targets.target_logits is not None and values.normalized_qv_advantage is not None
    advantage = values.normalized_qv_advantage[:-1]
    taken = nn.functional.one_hot(rollout.actions[:-1], advantage.shape[-1]).bool()
    advantage = torch.where(taken, values.normalized_advantage.unsqueeze(-1), advantage)
    step = STRENGTH * advantage.clamp(-MAX_ADVANTAGE, MAX_ADVANTAGE)
    return (targets.target_logits[:-1] + step).detach()


def imitation_loss(targets: Targets, rollout: Rollout) -> Tensor:
    """How far pi-hat is from the improved policy; the means of targets are kept near 0."""
    assert targets.pi is not None
    distance = kl_divergence(improved_policy(targets, rollout), targets.pi)
    return live_mean(distance, rollout.is_dead) + 1e-3 * target_mean(targets, rollout.is_dead)


def imitation_gradient(
    window: Window,
    rule_params: Params,
    state: AgentState,
    value_state: MetaValueState,
    source: RolloutSource,
) -> MetaGradient:
    """As ``meta_gradient``, for the imitation: agents are updated by the rule as it is."""
    params = {k: p.detach().requires_grad_() for k, p in rule_params.items()}
    gradient = {k: torch.zeros_like(p) for k, p in params.items()}
    losses, update_losses = [], []
    values = None
    for update in range(source.num_updates):
        rollout = source.training(update, state)
        state, info = update_agent(
            window.agent,
            params,
            state,
            rollout,
            differentiable=True,
            across=window.across,
            each=window.each,
        )
        learnt_from = window.each(lambda x: without_burn_in(x, window.agent.burn_in))(rollout)
        loss = window.each(imitation_loss)(info.targets, learnt_from)
        grads = torch.autograd.grad(loss.sum(), list(params.values()), materialize_grads=True)
        for name, grad in zip(params, grads, strict=True):
            gradient[name] = gradient[name] + grad / source.num_updates
        state = tree.detach(state)
        value_state = window.update_value(value_state, rollout, info.predictions)
        losses.append(loss.detach())
        update_losses.append(info.loss)
        values = tree.detach(info.targets.values)
    assert values is not None
    mean_loss = torch.stack(losses).mean(0)
    return MetaGradient(
        loss=mean_loss,
        policy_loss=mean_loss,
        regulariser=torch.zeros_like(mean_loss),
        gradient=gradient,
        state=state,
        value_state=value_state,
        values=values,
        update_loss=torch.stack(update_losses).mean(0),
    )
