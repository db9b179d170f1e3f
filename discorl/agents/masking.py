"""Networks know nothing of action masks: what they say of a rollout is masked here."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from discorl.ops.masks import mask_logits
from discorl.types import DiscoPredictions, Predictions, Rollout, Unroll

U = TypeVar("U", bound=Unroll)
P = TypeVar("P", bound=Predictions)


def masked_unroll(unroll: U, rollout: Rollout) -> U:
    """The unroll of a policy that takes only actions which are allowed."""
    if rollout.action_mask is None:
        return unroll
    return replace(unroll, predictions=masked_predictions(unroll.predictions, rollout))


def masked_predictions(predictions: P, rollout: Rollout) -> P:
    """The same for predictions alone; aux_pi is about the policy one step ahead."""
    mask = rollout.action_mask
    if mask is None:
        return predictions
    masked = replace(predictions, logits=mask_logits(predictions.logits, mask))
    if isinstance(masked, DiscoPredictions) and masked.aux_pi_a is not None:
        masked = replace(masked, aux_pi_a=mask_logits(masked.aux_pi_a, mask[1:]))
    return masked
