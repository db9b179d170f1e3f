"""A policy moved by clipped advantages, as in MPO and Muesli: the target that needs no learning."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from discorl.types import ActionValues, Values

STRENGTH = 2.0
MAX_ADVANTAGE = 1.0


def improved_policy(
    target_logits: Tensor,
    values: Values,
    actions: Tensor,
    strength: float = STRENGTH,
    max_advantage: float = MAX_ADVANTAGE,
) -> Tensor:
    """The target network's policy [T, B, A] with better actions made likelier. [T-1, B, A]

    The advantage of the taken action is that of its return; of the others, that of their value. If
    agents have no values of actions, the others stay as they are.
    """
    logits = target_logits[:-1]
    if isinstance(values, ActionValues):
        advantage = values.normalized_qv_advantage[:-1]
    else:
        advantage = torch.zeros_like(logits)
    taken = nn.functional.one_hot(actions[:-1], advantage.shape[-1]).bool()
    advantage = torch.where(taken, values.normalized_advantage.unsqueeze(-1), advantage)
    return (logits + strength * advantage.clamp(-max_advantage, max_advantage)).detach()
