"""The meta-loss: how well the updated agent does, and what keeps the rule in bounds.

Each regulariser is a named function; their weights are ``ObjectiveWeights``. All means leave dead
steps out, see ``Rollout``.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from discorl.bounds import check_numbers
from discorl.ops.categorical import entropy, kl_divergence, log_prob
from discorl.ops.step_means import live_mean, live_mean_of_actions
from discorl.types import DiscoTargets, Rollout


@dataclass(frozen=True)
class ObjectiveWeights:
    """Weight of each regulariser; the defaults are the public notebook's."""

    policy_entropy: float = 1e-2
    """Weight of the policy's negative entropy, which keeps the policy from collapsing."""
    prediction_entropy: float = 1e-3
    """Weight of the negative entropy of y and z, which keeps them spread out."""
    target_mean: float = 1e-3
    """Weight of each target's squared mean, which keeps the targets from drifting."""
    target_kl: float = 1e-2
    """Weight of the divergence between the target network's policy and the policy target."""

    def __post_init__(self) -> None:
        check_numbers("objective: ", self, *self.__dataclass_fields__)


@dataclass(frozen=True)
class Validation:
    """The updated agent on a fresh rollout that its old policy made."""

    logits: Tensor  # [T, B, A]
    y: Tensor | None  # [T, B, Y]; None if the rule has no y and z
    z_a: Tensor | None  # [T-1, B, Y]


def policy_gradient(validation: Validation, rollout: Rollout, advantage: Tensor) -> Tensor:
    """-A log pi(a): the gradient through it is that of the agent's return."""
    log_pi = log_prob(validation.logits[:-1], rollout.actions[:-1])
    return -live_mean(log_pi * advantage.detach(), rollout.is_dead)


def policy_entropy(validation: Validation, is_dead: Tensor | None = None) -> Tensor:
    """Negative entropy of the policy."""
    return -live_mean(entropy(validation.logits[:-1]), is_dead)


def prediction_entropy(validation: Validation, is_dead: Tensor | None = None) -> Tensor:
    """Negative entropy of y and of z at the taken action."""
    assert validation.y is not None and validation.z_a is not None
    return -live_mean(entropy(validation.y), is_dead) - live_mean(entropy(validation.z_a), is_dead)


def target_mean(
    targets: DiscoTargets, is_dead: Tensor | None = None, action_mask: Tensor | None = None
) -> Tensor:
    """Squared mean of each target: logits have no scale of their own, and would drift."""
    means = [live_mean(x, is_dead) for x in (targets.y, targets.z) if x is not None]
    means.append(live_mean_of_actions(targets.pi, is_dead, action_mask))
    first, *others = (mean.square() for mean in means)
    return sum(others, first)


def target_kl(targets: DiscoTargets, is_dead: Tensor | None = None) -> Tensor:
    """KL(target network's policy || pi-hat)."""
    distance = kl_divergence(targets.target_logits[:-1].detach(), targets.pi)
    return live_mean(distance, is_dead)


def validation_loss(
    validation: Validation, rollout: Rollout, advantage: Tensor, weights: ObjectiveWeights
) -> tuple[Tensor, Tensor]:
    """The part that the updated agent decides: policy gradient and its regularisers."""
    dead = rollout.is_dead
    regulariser = weights.policy_entropy * policy_entropy(validation, dead)
    if validation.y is not None:
        spread = prediction_entropy(validation, dead)
        regulariser = regulariser + weights.prediction_entropy * spread
    return policy_gradient(validation, rollout, advantage), regulariser


def target_regulariser(
    targets: DiscoTargets,
    weights: ObjectiveWeights,
    is_dead: Tensor | None = None,
    action_mask: Tensor | None = None,
) -> Tensor:
    """The part that each update adds, by the targets it had."""
    mean, distance = target_mean(targets, is_dead, action_mask), target_kl(targets, is_dead)
    return weights.target_mean * mean + weights.target_kl * distance
