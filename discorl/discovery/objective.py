"""The meta-loss: how well the updated agent does, and what keeps the rule in bounds.

Each regulariser is a named function; their weights are ``ObjectiveWeights``.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from discorl.ops.categorical import entropy, kl_divergence, log_prob
from discorl.types import Rollout, Targets


@dataclass(frozen=True)
class ObjectiveWeights:
    """Weight of each regulariser; the defaults are the public notebook's."""

    policy_entropy: float = 1e-2
    prediction_entropy: float = 1e-3
    target_mean: float = 1e-3
    target_kl: float = 1e-2


@dataclass(frozen=True)
class Validation:
    """The updated agent on a fresh rollout that its old policy made."""

    logits: Tensor  # [T, B, A]
    y: Tensor  # [T, B, Y]
    z_a: Tensor  # [T-1, B, Y]


def policy_gradient(validation: Validation, rollout: Rollout, advantage: Tensor) -> Tensor:
    """-A log pi(a): the gradient through it is that of the agent's return."""
    log_pi = log_prob(validation.logits[:-1], rollout.actions[:-1])
    return -(log_pi * advantage.detach()).mean()


def policy_entropy(validation: Validation) -> Tensor:
    """Negative entropy of the policy."""
    return -entropy(validation.logits[:-1]).mean()


def prediction_entropy(validation: Validation) -> Tensor:
    """Negative entropy of y and of z at the taken action."""
    return -entropy(validation.y).mean() - entropy(validation.z_a).mean()


def target_mean(targets: Targets) -> Tensor:
    """Squared mean of each target: logits have no scale of their own, and would drift."""
    assert targets.pi is not None and targets.y is not None and targets.z is not None
    return targets.y.mean().square() + targets.z.mean().square() + targets.pi.mean().square()


def target_kl(targets: Targets) -> Tensor:
    """KL(target network's policy || pi-hat)."""
    assert targets.pi is not None and targets.target_logits is not None
    return kl_divergence(targets.target_logits[:-1].detach(), targets.pi).mean()


def validation_loss(
    validation: Validation, rollout: Rollout, advantage: Tensor, weights: ObjectiveWeights
) -> tuple[Tensor, Tensor]:
    """The part that the updated agent decides: policy gradient and its regularisers."""
    regulariser = weights.policy_entropy * policy_entropy(validation)
    regulariser = regulariser + weights.prediction_entropy * prediction_entropy(validation)
    return policy_gradient(validation, rollout, advantage), regulariser


def target_regulariser(targets: Targets, weights: ObjectiveWeights) -> Tensor:
    """The part that each update adds, by the targets it had."""
    return weights.target_mean * target_mean(targets) + weights.target_kl * target_kl(targets)
