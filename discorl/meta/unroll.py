"""The gradient of the meta-loss through K updates of agents, in several memory modes.

``plain`` keeps the graph of all updates. The others run them without one, keep the state before
each, and go back one update at a time: the memory of one update, for the time of about one more
pass. ``recompute`` rebuilds the graph of the update, ``mixed`` only that of its parts; see
``backward.py``. All modes give the same gradient.

With ``Window.each = tree.vmap`` everything has a leading axis of agents, the rule's parameters and
their gradient too: one gradient for each agent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from discorl import tree
from discorl.agents.burn_in import warm_up
from discorl.agents.network import with_params
from discorl.agents.update import update_agent
from discorl.errors import DiscorlError
from discorl.meta.backward import check_mixed, mixed, recompute, state_with_grad, vjp
from discorl.meta.meta_value import MetaValueState
from discorl.meta.objective import Validation, validation_loss
from discorl.meta.sliding_window import KeptUpdate, KeptUpdates, only_own
from discorl.meta.window import GivenRollouts, RolloutSource, Window
from discorl.types import AgentState, Params, Rollout, Values

__all__ = [
    "GivenRollouts",
    "MemoryMode",
    "MetaGradient",
    "RolloutSource",
    "Window",
    "meta_gradient",
]

MemoryMode = Literal["plain", "recompute", "mixed"]


@dataclass(frozen=True)
class MetaGradient:
    """What one window of updates says of the rule."""

    loss: Tensor
    policy_loss: Tensor
    regulariser: Tensor
    gradient: Params
    state: AgentState
    value_state: MetaValueState
    values: Values
    update_loss: Tensor  # the agents' own loss, mean over the new updates
    kept: tuple[KeptUpdate, ...] = ()  # the newest updates, as many as were given as ``earlier``


def meta_gradient(
    window: Window,
    rule_params: Params,
    state: AgentState,
    value_state: MetaValueState,
    source: RolloutSource,
    mode: MemoryMode = "recompute",
    offload: bool = False,
    earlier: Sequence[KeptUpdate] = (),
) -> MetaGradient:
    """Update the agents ``source.num_updates`` times, judge them, differentiate the rule.

    With ``offload`` the kept states wait in the memory of the CPU; mode ``plain`` keeps none. The
    gradient also goes back through ``earlier`` updates, those that led to ``state``, each at the
    rule that made it, as far as they are the agents' own: so a window slides.
    """
    args = (window, rule_params, state, value_state, source)
    if mode != "plain":
        return _one_at_a_time(*args, mode, offload, earlier)
    if earlier:
        raise DiscorlError(
            "memory mode 'plain' keeps no states to go back to: use 'recompute' or 'mixed' for a "
            "window that slides"
        )
    return _plain(*args)


def _plain(
    window: Window,
    rule_params: Params,
    state: AgentState,
    value_state: MetaValueState,
    source: RolloutSource,
) -> MetaGradient:
    params = {k: p.detach().requires_grad_() for k, p in rule_params.items()}
    regularisers, update_losses = [], []
    for update in range(source.num_updates):
        rollout = source.training(update, tree.detach(state))
        state, info = update_agent(
            window.agent,
            params,
            state,
            rollout,
            differentiable=True,
            across=window.across,
            each=window.each,
        )
        value_state = window.update_value(value_state, rollout, info.predictions)
        regularisers.append(window.regulariser(info.targets, rollout))
        update_losses.append(info.loss)
    policy_loss, regulariser, values = _judge(window, state, value_state, source)
    regulariser = regulariser + torch.stack(regularisers).mean(0)
    loss = policy_loss + regulariser
    gradient = torch.autograd.grad(loss.sum(), list(params.values()), materialize_grads=True)
    return MetaGradient(
        loss=loss.detach(),
        policy_loss=policy_loss.detach(),
        regulariser=regulariser.detach(),
        gradient=dict(zip(params, gradient, strict=True)),
        state=tree.detach(state),
        value_state=value_state,
        values=values,
        update_loss=torch.stack(update_losses).mean(0),
    )


def _one_at_a_time(
    window: Window,
    rule_params: Params,
    state: AgentState,
    value_state: MetaValueState,
    source: RolloutSource,
    mode: MemoryMode,
    offload: bool,
    earlier: Sequence[KeptUpdate],
) -> MetaGradient:
    if mode == "mixed":
        check_mixed(window)
    back = mixed if mode == "mixed" else recompute
    kept = KeptUpdates(offload, next(iter(state.params.values())).device, earlier)
    regularisers, update_losses = [], []
    for update in range(source.num_updates):
        rollout = source.training(update, state)
        kept.add(KeptUpdate(rule_params, state, rollout))
        state, info = update_agent(
            window.agent, rule_params, state, rollout, across=window.across, each=window.each
        )
        value_state = window.update_value(value_state, rollout, info.predictions)
        regularisers.append(window.regulariser(info.targets, rollout))
        update_losses.append(info.loss)
        del info  # nothing but what is kept lives on

    leaf = state_with_grad(state)
    policy_loss, regulariser, values = _judge(window, leaf, value_state, source)
    # Of the state, only the parameters are judged; all of it may carry gradients further back.
    cotangents = vjp([((policy_loss + regulariser).sum(), None)], leaf)

    newest = kept.newest(len(earlier))
    gradient = {k: torch.zeros_like(p) for k, p in rule_params.items()}
    weight = 1 / kept.num_own(policy_loss.detach())
    while kept:
        update = kept.pop()
        if update.own is not None and not update.own.any():
            break  # nor are those before it
        of_rule, cotangents = back(window, update, cotangents, weight)
        if update.own is not None:
            of_rule, cotangents = only_own(update.own, (of_rule, cotangents))
        gradient = {k: g + of_rule[k] for k, g in gradient.items()}

    regulariser = regulariser.detach() + torch.stack(regularisers).mean(0)
    return MetaGradient(
        loss=policy_loss.detach() + regulariser,
        policy_loss=policy_loss.detach(),
        regulariser=regulariser,
        gradient=gradient,
        state=state,
        value_state=value_state,
        values=values,
        update_loss=torch.stack(update_losses).mean(0),
        kept=newest,
    )


def _judge(
    window: Window, state: AgentState, value_state: MetaValueState, source: RolloutSource
) -> tuple[Tensor, Tensor, Values]:
    """The updated agents on the validation rollout: policy loss, regulariser, values."""
    rollout = source.validation(tree.detach(state))

    def judge_one(
        params: Params, value_state: MetaValueState, rollout: Rollout
    ) -> tuple[Tensor, Tensor, Values]:
        rollout = warm_up(window.agent.net, params, rollout, window.agent.burn_in)
        heads = with_params(window.agent.net, params, lambda net: net.validate(rollout))
        validation = Validation(*heads)
        logits = validation.logits.detach()
        values, _ = window.meta_value.estimate(value_state, rollout, logits, window.across)
        advantage = values.normalized_advantage
        policy_loss, regulariser = validation_loss(validation, rollout, advantage, window.weights)
        return policy_loss, regulariser, values

    return window.each(judge_one)(state.params, value_state, rollout)
