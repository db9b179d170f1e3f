"""Memory mode ``mixed``: the graphs of parts of one update, by forward-mode derivatives.

The update is made again without a graph, then taken apart. With g(params, targets) the gradient of
the agent's loss and v what the optimiser passes back for it, the second derivatives that are needed
are those of the scalar <g, v>. They are symmetric, so one forward-mode derivative of g in the
direction v gives all of them, and no graph of a backward pass is ever kept.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from discorl import tree
from discorl.agents.burn_in import warm_up
from discorl.agents.masking import masked_predictions
from discorl.agents.network import with_params
from discorl.agents.update import loss_and_output_grads, unroll_and_targets
from discorl.errors import DiscorlError
from discorl.meta.estimators.base import MetaGradient
from discorl.meta.estimators.derivatives import state_with_grad, vjp, with_grad
from discorl.meta.estimators.one_at_a_time import one_at_a_time
from discorl.meta.life import Earlier, KeptUpdate, Life, Source, W
from discorl.meta.window import Window
from discorl.ops.moments import alone
from discorl.types import AgentState, Params, Predictions, Rollout, Targets

T = TypeVar("T")


def mixed(
    window: Window, rule_params: Params, life: Life[W], source: Source[W], earlier: Earlier = ()
) -> MetaGradient[W]:
    """Go back through parts of updates, one at a time."""
    if not hasattr(window.agent.net, "predict"):
        raise DiscorlError(
            "memory mode 'mixed' needs a network with a 'predict' method, as AgentNet has: use "
            "'recompute'"
        )
    return one_at_a_time(backward, window, rule_params, life, source, earlier)


def backward(
    window: Window, kept: KeptUpdate, cotangents: AgentState, weight: Tensor
) -> tuple[Params, AgentState]:
    """Go back through the optimiser, then the agent's gradient, then the rule, one at a time."""
    agent, state = window.agent, kept.state
    _, info = window.update(kept.rule_params, state, kept.rollout)
    known, gradient = info.targets, with_grad(info.gradient)
    del info

    leaf = state_with_grad(state)
    updates, optimiser = window.each(agent.optimiser.update)(gradient, leaf.optimiser, leaf.params)
    params = {name: p + updates[name] for name, p in leaf.params.items()}
    direction, of_state = vjp(
        [(params, cotangents.params), (optimiser, cotangents.optimiser)], (gradient, leaf)
    )
    del updates, optimiser, params, gradient  # and with them their graph

    of_params, of_targets = second_derivatives(window, state.params, known, kept.rollout, direction)
    del known, direction
    summed = {name: x + of_params[name] for name, x in of_state.params.items()}
    of_state = replace(of_state, params=summed)

    rule_params, leaf = with_grad(kept.rule_params), state_with_grad(state)
    _, targets, rule_state = unroll_and_targets(
        agent, rule_params, leaf, leaf.params, kept.rollout, True, alone, window.each
    )
    regulariser = window.regulariser(targets, window.learnt_from(kept.rollout))
    pairs = [(targets, of_targets), (rule_state, cotangents.rule)]
    pairs += [((regulariser * weight).sum(), None)]
    of_rule, of_same_state = vjp(pairs, (rule_params, leaf))
    return of_rule, tree.map(torch.add, of_state, of_same_state)


def second_derivatives(
    window: Window, params: Params, targets: Targets, rollout: Rollout, direction: Params
) -> tuple[Params, Targets]:
    """The gradient of <g, direction>, where g is the agent's gradient: for parameters and targets.

    The network is differentiated forwards along ``direction`` while it runs and while its gradient
    is taken. The loss needs no forward mode of its own: its second derivatives, those of a few
    outputs, are taken by two backward passes.
    """
    agent = window.agent

    def predict_one(params: Params, rollout: Rollout) -> Predictions:
        rollout = warm_up(agent.net, params, rollout, agent.burn_in)
        predictions = with_params(agent.net, params, lambda net: net.predict(rollout))
        return masked_predictions(predictions, rollout)

    _load_forward_mode()
    leaf = with_grad(params)
    with forward_ad.dual_level():
        dual = {k: forward_ad.make_dual(p, direction[k]) for k, p in leaf.items()}
        predictions = window.each(predict_one)(dual, rollout)
        outputs = tree.leaves(predictions)
        tangents = [_tangent(x) for x in outputs]
        slopes, of_slopes, of_targets = _loss_derivatives(
            window, _primal(predictions), targets, rollout, tangents
        )
        both = [forward_ad.make_dual(c, d) for c, d in zip(slopes, of_slopes, strict=True)]
        gradients = torch.autograd.grad(outputs, list(leaf.values()), both, materialize_grads=True)
        of_params = {k: _tangent(g) for k, g in zip(leaf, gradients, strict=True)}
    return of_params, of_targets


def _loss_derivatives(
    window: Window,
    predictions: Predictions,
    targets: Targets,
    rollout: Rollout,
    tangents: Sequence[Tensor],
) -> tuple[list[Tensor], list[Tensor], Targets]:
    """The loss's gradient for each prediction, and that gradient's product with ``tangents``
    differentiated again: for the predictions and for the targets."""
    predictions, targets = with_grad(predictions), with_grad(targets)
    _, _, slopes = loss_and_output_grads(
        window.agent, predictions, targets, rollout, True, alone, window.each
    )
    along = torch.stack([(c * x).sum() for c, x in zip(slopes, tangents, strict=True)]).sum()
    of_predictions, of_targets = vjp([(along, None)], (predictions, targets))
    return [c.detach() for c in slopes], tree.leaves(of_predictions), of_targets


@cache
def _load_forward_mode() -> None:
    """Let torch load its forward mode once, without the warning about its own deprecated code."""
    with warnings.catch_warnings(), forward_ad.dual_level():
        warnings.simplefilter("ignore", DeprecationWarning)
        forward_ad.make_dual(torch.zeros(1), torch.zeros(1))


def _primal(tensors: T) -> T:
    """Dual tensors without their tangents, and without graph."""
    return tree.map(lambda x: forward_ad.unpack_dual(x).primal.detach(), tensors)


def _tangent(x: Tensor) -> Tensor:
    """The forward derivative, without graph; 0 where nothing moves."""
    tangent = forward_ad.unpack_dual(x).tangent
    return torch.zeros_like(x) if tangent is None else tangent.detach()
