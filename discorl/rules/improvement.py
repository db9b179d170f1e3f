"""A policy moved by clipped advantages, as in MPO and Muesli: the target that needs no learning."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from discorl.bounds import check_above_0, check_shares, check_weights
from discorl.types import ActionValues, Values


@dataclass(frozen=True)
class Improvement:
    """How far advantages move a policy."""

    strength: float = 2.0
    """How much an advantage of one standard deviation changes a logit of the policy's target."""
    max_advantage: float = 1.0
    """Clip advantages to this many standard deviations."""
    trust: float = 1.0
    """How far the advantage of a taken action is that of its return; the rest is that of its value,
    which has less noise and follows later."""

    def __post_init__(self) -> None:
        check_weights("", self, "strength")
        check_above_0("", self, "max_advantage")
        check_shares("", self, "trust")


STRONG = Improvement(strength=1.0, trust=0.5)
"""What ``cmpo`` does by default, and where rules with a prior start; docs/algorithm.md says why."""


def improved_policy(
    target_logits: Tensor,
    values: Values,
    actions: Tensor,
    how: Improvement,
    factor: Tensor | float = 1.0,
    more_trust: Tensor | None = None,
) -> Tensor:
    """The target network's policy [T, B, A] with better actions made likelier. [T-1, B, A]

    The advantage of the taken action is that of its return, as far as ``how`` trusts it; of the
    others, that of their value. If agents have no values of actions, the others stay as they are.
    ``factor`` multiplies the strength, and ``more_trust`` is added to the trust. Gradients pass
    through both and through the logits.
    """
    logits = target_logits[:-1]
    of_return = values.normalized_advantage.unsqueeze(-1)
    if isinstance(values, ActionValues):
        advantage = values.normalized_qv_advantage[:-1]
        if more_trust is not None:
            of_return = advantage.lerp(of_return, (how.trust + more_trust).clamp(0, 1))
        elif how.trust < 1:
            of_return = advantage.lerp(of_return, how.trust)
    else:
        advantage = torch.zeros_like(logits)
    taken = nn.functional.one_hot(actions[:-1], advantage.shape[-1]).bool()
    advantage = torch.where(taken, of_return, advantage)
    step = how.strength * advantage.clamp(-how.max_advantage, how.max_advantage)
    return logits + factor * step
