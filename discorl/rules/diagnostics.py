"""What rules say of an update, besides its losses."""

from __future__ import annotations

from torch import Tensor

from discorl.ops.step_means import live_mean_of_actions
from discorl.types import Rollout

OF_ACTIONS = ("logits", "pi_hat", "q_value")
"""What has a number for each action, of which only the allowed ones count."""


def shown_means(named: dict[str, Tensor], rollout: Rollout) -> dict[str, Tensor]:
    """The mean of each, without dead steps and actions that are not allowed."""
    dead, mask = rollout.is_dead, rollout.action_mask
    return {
        name: live_mean_of_actions(x, dead, mask if name in OF_ACTIONS else None)
        for name, x in named.items()
    }
