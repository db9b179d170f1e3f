"""The one function: an agent's update is a pure function of (rule parameters, state, rollout)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from discorl import tree
from discorl.agents.agent import Agent
from discorl.agents.burn_in import warm_up, without_burn_in
from discorl.agents.masking import masked_unroll
from discorl.agents.network import with_params
from discorl.errors import DiscorlError
from discorl.ops import native
from discorl.ops.moments import MeanFn, alone
from discorl.ops.step_means import live_mean
from discorl.optim import global_norm
from discorl.types import (
    AgentState,
    Params,
    Predictions,
    Rollout,
    RuleState,
    Targets,
    Unroll,
    UpdateInfo,
)

T = TypeVar("T")

Each = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Turns a function of one agent into one of many: ``tree.vmap``, or ``one_agent`` for no change."""


def one_agent(fn: Callable[..., Any]) -> Callable[..., Any]:
    """There is only one agent."""
    return fn


@torch.enable_grad()  # even where the caller has switched gradients off
def update_agent(
    agent: Agent,
    rule_params: Params,
    state: AgentState,
    rollout: Rollout,
    *,
    differentiable: bool = False,
    across: MeanFn = alone,
    each: Each = one_agent,
) -> tuple[AgentState, UpdateInfo]:
    """Train the agent once on a rollout.

    With ``differentiable`` the new state is a differentiable function of ``rule_params`` and of the
    old state; the numbers are the same either way. ``across`` averages over processes that share
    the batch. With ``each = tree.vmap`` many agents of one structure are trained side by side:
    every tensor has a leading axis of agents, the rule's parameters too.
    """
    # The predictions are a function of an alias of the parameters, and the loss a function of an
    # alias of the predictions. The targets depend on the predictions themselves, so the gradient
    # below holds them constant although the meta-gradient can follow them: one forward pass
    # serves rule and loss.
    params = _alias(state.params, differentiable)
    is_plain = not differentiable and each is one_agent
    if agent.bf16 and not is_plain:
        raise DiscorlError(
            "bf16 is only for training an agent: discovery needs float32, because a meta-gradient "
            "through rounded products is too far off"
        )
    with native.kernels(agent.native and is_plain, agent.bf16):
        unroll, targets, rule_state = unroll_and_targets(
            agent, rule_params, state, params, rollout, differentiable, across, each
        )
        loss, losses, output_grads = loss_and_output_grads(
            agent, unroll.predictions, targets, rollout, differentiable, across, each
        )
    # A head whose parameters are all frozen has no graph.
    outputs = zip(tree.leaves(unroll.predictions), output_grads, strict=True)
    heads, head_grads = zip(*((x, g) for x, g in outputs if x.requires_grad), strict=True)
    with native.gradient_in(_rows_that_count(agent, rollout) if is_plain else None):
        gradients = torch.autograd.grad(
            heads,
            list(params.values()),
            head_grads,
            create_graph=differentiable,
            materialize_grads=True,
        )
    grads = {name: across(g) for name, g in zip(params, gradients, strict=True)}

    updates, optimiser = each(agent.optimiser.update)(grads, state.optimiser, state.params)
    new_params = {name: p + updates[name] for name, p in state.params.items()}
    gradient = tree.detach(grads)
    info = UpdateInfo(
        loss=across(loss.detach()),
        losses={name: across(x) for name, x in losses.items()},
        gradient=gradient,
        gradient_norm=global_norm(gradient, loss.dim()),
        update_norm=global_norm(tree.detach(updates), loss.dim()),
        predictions=unroll.predictions if differentiable else tree.detach(unroll.predictions),
        targets=targets,
    )
    return AgentState(new_params, optimiser, rule_state), info


def unroll_and_targets(
    agent: Agent,
    rule_params: Params,
    state: AgentState,
    params: Params,
    rollout: Rollout,
    differentiable: bool,
    across: MeanFn,
    each: Each,
) -> tuple[Unroll, Targets, RuleState]:
    """The network with ``params`` over the rollout, and what the rule wants it to become."""

    def unroll_one(params: Params, rule_params: Params, rollout: Rollout) -> Unroll:
        rollout = warm_up(agent.net, params, rollout, agent.burn_in)
        reader = agent.rule.reader(rule_params)
        unroll = with_params(
            agent.net,
            params,
            lambda net: net.unroll(rollout, reader, differentiable=differentiable),
        )
        return masked_unroll(unroll, rollout)

    def targets_one(
        rule_params: Params, state: AgentState, unroll: Unroll, rollout: Rollout
    ) -> tuple[Targets, RuleState]:
        target, target_params = None, state.rule.target_params
        if target_params is not None:
            reader = agent.rule.reader(rule_params)
            assert reader is not None, "a rule with a target network reads it"
            own = warm_up(agent.net, target_params, rollout, agent.burn_in)
            target = with_params(agent.net, target_params, lambda net: net.read(own, reader))
            target = masked_unroll(target, own)
        rollout = without_burn_in(rollout, agent.burn_in)
        return agent.rule.targets(
            rule_params, state.rule, state.params, unroll, target, rollout, across
        )

    unroll: Unroll = each(unroll_one)(params, rule_params, rollout)
    seen = unroll if differentiable else tree.detach(unroll)
    with torch.set_grad_enabled(differentiable):
        targets, rule_state = each(targets_one)(rule_params, state, seen, rollout)
    return unroll, targets, rule_state


def _alias(tensors: T, differentiable: bool) -> T:
    """Nodes that stand for ``tensors`` and that a gradient can be taken with respect to."""

    def node(x: Tensor) -> Tensor:
        follow = differentiable and x.requires_grad
        return x.view_as(x) if follow else x.detach().requires_grad_()

    return tree.map(node, tensors)


def loss_and_output_grads(
    agent: Agent,
    predictions: Predictions,
    targets: Targets,
    rollout: Rollout,
    differentiable: bool,
    across: MeanFn,
    each: Each,
) -> tuple[Tensor, dict[str, Tensor], list[Tensor]]:
    """This process's share of the mean loss, its parts, its gradient for each prediction."""

    def loss_one(
        predictions: Predictions, targets: Targets, rollout: Rollout
    ) -> tuple[Tensor, dict[str, Tensor]]:
        rollout = without_burn_in(rollout, agent.burn_in)
        per_step, parts = agent.rule.loss(predictions, targets, rollout)
        mask = loss_mask(rollout, agent.rule.mask_episode_starts)
        loss = masked_mean(per_step, mask, across)
        means = {name: live_mean(x.detach(), rollout.is_dead) for name, x in parts.items()}
        return loss, means

    predictions = _alias(predictions, differentiable)
    loss, parts = each(loss_one)(predictions, targets, rollout)
    output_grads = torch.autograd.grad(
        loss.sum(),
        tree.leaves(predictions),
        create_graph=differentiable,
        materialize_grads=True,
    )
    return loss, parts, list(output_grads)


def _rows_that_count(agent: Agent, rollout: Rollout) -> Tensor | None:
    """Steps [T-1, B] whose predictions the loss depends on; None if it may be any."""
    stepwise = getattr(agent.rule, "is_stepwise", False)
    if not (agent.native and stepwise and getattr(agent.net, "has_independent_rows", False)):
        return None
    rollout = without_burn_in(rollout, agent.burn_in)
    return loss_mask(rollout, agent.rule.mask_episode_starts) > 0


def loss_mask(rollout: Rollout, mask_episode_starts: bool) -> Tensor:
    """Which of T-1 steps count. Terminal steps always do: they teach most. Dead steps never do."""
    if mask_episode_starts:  # which are dead or follow a dead step, if there are such steps
        return (rollout.discounts[:-1] > 0).to(rollout.rewards.dtype)
    if rollout.is_dead is not None:
        return (~rollout.is_dead[:-1]).to(rollout.rewards.dtype)
    return torch.ones_like(rollout.rewards[:-1])


def masked_mean(per_step: Tensor, mask: Tensor, across: MeanFn = alone) -> Tensor:
    """Mean over the steps that count.

    With several processes it is a share: the mean of the shares is the mean over all steps that
    count anywhere, because each is divided by what counts in a process on average.
    """
    return (per_step * mask).sum() / (across(mask.sum()) + 1e-8)
