"""The one function: an agent's update is a pure function of (rule parameters, state, rollout)."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor
from torch.func import functional_call

from discorl import tree
from discorl.agents.agent import Agent
from discorl.agents.memory import memory_args, warm_up
from discorl.ops.moments import MeanFn
from discorl.optim import global_norm
from discorl.types import (
    AgentState,
    Params,
    Predictions,
    Rollout,
    Targets,
    Unroll,
    UpdateInfo,
)

T = TypeVar("T")


@torch.enable_grad()  # even where the caller has switched gradients off
def update_agent(
    agent: Agent,
    rule_params: Params,
    state: AgentState,
    rollout: Rollout,
    *,
    differentiable: bool = False,
    across: MeanFn = lambda x: x,
) -> tuple[AgentState, UpdateInfo]:
    """Train the agent once on a rollout.

    With ``differentiable`` the new state is a differentiable function of ``rule_params`` and of the
    old state; the numbers are the same either way. ``across`` averages over processes that share
    the batch.
    """
    # The predictions are a function of an alias of the parameters, and the loss a function of an
    # alias of the predictions. The targets depend on the predictions themselves, so the gradient
    # below holds them constant although the meta-gradient can follow them: one forward pass
    # serves rule and loss.
    whole, rollout = rollout, warm_up(agent.net, state.params, rollout, agent.burn_in)
    params = _alias(state.params, differentiable)
    reader = agent.rule.reader(rule_params)
    unroll: Unroll = functional_call(
        agent.net,
        params,
        (rollout.observations, rollout.actions, reader),
        {
            "method": "unroll",
            "differentiable": differentiable,
            **memory_args(agent.net, rollout),
        },
    )
    seen = unroll if differentiable else tree.detach(unroll)
    with torch.set_grad_enabled(differentiable):
        target = None
        if state.rule.target_params is not None:
            own = warm_up(agent.net, state.rule.target_params, whole, agent.burn_in)
            target = functional_call(
                agent.net,
                state.rule.target_params,
                (own.observations, reader),
                {"method": "read_all", **memory_args(agent.net, own)},
            )
        targets, rule_state = agent.rule.targets(
            rule_params, state.rule, state.params, seen, target, rollout, across
        )
    loss, losses, output_grads = _loss_and_output_grads(
        agent, unroll.predictions, targets, rollout, differentiable
    )
    outputs = tree.leaves(unroll.predictions)
    gradients = torch.autograd.grad(
        outputs,
        list(params.values()),
        output_grads,
        create_graph=differentiable,
        materialize_grads=True,
    )
    grads = {name: across(g) for name, g in zip(params, gradients, strict=True)}

    updates, optimiser = agent.optimiser.update(grads, state.optimiser, state.params)
    new_params = {name: p + updates[name] for name, p in state.params.items()}
    info = UpdateInfo(
        loss=loss.detach(),
        losses=losses,
        gradient_norm=global_norm(tree.detach(grads)),
        update_norm=global_norm(tree.detach(updates)),
        predictions=seen.predictions,
        targets=targets,
    )
    return AgentState(new_params, optimiser, rule_state), info


def _alias(tensors: T, differentiable: bool) -> T:
    """Nodes that stand for ``tensors`` and that a gradient can be taken with respect to."""

    def node(x: Tensor) -> Tensor:
        follow = differentiable and x.requires_grad
        return x.view_as(x) if follow else x.detach().requires_grad_()

    return tree.map(node, tensors)


def _loss_and_output_grads(
    agent: Agent,
    predictions: Predictions,
    targets: Targets,
    rollout: Rollout,
    differentiable: bool,
) -> tuple[Tensor, dict[str, Tensor], list[Tensor]]:
    """The mean loss, its parts, and its gradient with respect to each prediction."""
    predictions = _alias(predictions, differentiable)
    per_step, parts = agent.rule.loss(predictions, targets, rollout)
    loss = masked_mean(per_step, loss_mask(rollout, agent.mask_episode_starts))
    output_grads = torch.autograd.grad(
        loss,
        tree.leaves(predictions),
        create_graph=differentiable,
        materialize_grads=True,
    )
    return loss, {name: x.detach().mean() for name, x in parts.items()}, list(output_grads)


def loss_mask(rollout: Rollout, mask_episode_starts: bool) -> Tensor:
    """Which of the T-1 steps count. Terminal steps always do; they teach most."""
    if mask_episode_starts:
        return (rollout.discounts[:-1] > 0).to(rollout.rewards.dtype)
    return torch.ones_like(rollout.rewards[:-1])


def masked_mean(per_step: Tensor, mask: Tensor) -> Tensor:
    """Mean over the steps that count."""
    return (per_step * mask).sum() / (mask.sum() + 1e-8)
