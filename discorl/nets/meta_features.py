"""What the meta-network is shown of an agent's experience, in the order of its weight rows.

S = T-1 transitions. Policies, values and advantages enter as constants; the embeddings of y and z
do not, the meta-gradient flows through them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from discorl.ops.categorical import select_action
from discorl.ops.masks import max_over_actions, mean_over_actions
from discorl.ops.squash import signed_log1p
from discorl.types import ActionValues, Rollout


@dataclass(frozen=True)
class Experience:
    """The constant inputs, the same for the trajectory network and the lifetime LSTM."""

    pi: Tensor  # [T, B, A], the online policy
    actions: Tensor  # [S, B]
    is_terminal: Tensor  # [S, B]
    step: Tensor  # [S, B, 9], the first nine features of each step; 5 without values
    action_policies: Tensor  # [S, B, A, 3]
    action_values: Tensor  # [S, B, A, 4], which action was taken comes last; 1 without values
    is_dead: Tensor | None = None  # [T, B], see ``Rollout``
    action_mask: Tensor | None = None  # [T, B, A], see ``Rollout``

    @property
    def mask_now(self) -> Tensor | None:
        """The allowed actions of each transition. [S, B, A]"""
        return None if self.action_mask is None else self.action_mask[:-1]


@dataclass(frozen=True)
class Embeddings:
    """Embeddings of the predictions of the online and of the target network."""

    y: Tensor  # [T, B, E]
    target_y: Tensor  # [T, B, E]
    z: Tensor  # [T, B, A, E]
    target_z: Tensor  # [T, B, A, E]


def num_constants(sees_values: bool) -> tuple[int, int]:
    """How many constant inputs there are for each step, and for each action."""
    return (9, 7) if sees_values else (5, 4)


def experience(
    logits: Tensor, target_logits: Tensor, rollout: Rollout, values: ActionValues | None
) -> Experience:
    """The constant inputs. Logits of the online and the target network: [T, B, A]

    ``values`` is None for a rule that sees none.
    """
    pi = torch.softmax(logits.detach(), -1)
    mu = torch.softmax(rollout.behaviour_logits[:-1], -1)
    target_pi = torch.softmax(target_logits[:-1].detach(), -1)
    actions, is_terminal = rollout.actions[:-1], rollout.is_terminal

    step = torch.stack(
        [
            select_action(pi[:-1], actions),
            select_action(mu, actions),
            signed_log1p(rollout.rewards[1:]),
            1 - is_terminal.to(pi.dtype),
            *_step_values(values),
            select_action(target_pi, actions),
        ],
        -1,
    )
    action_policies = torch.stack([pi[:-1], mu, target_pi], -1)
    action_values = torch.stack(
        [
            *_action_values(values),
            nn.functional.one_hot(actions, pi.shape[-1]).to(pi.dtype),
        ],
        -1,
    )
    return Experience(
        pi,
        actions,
        is_terminal,
        step,
        action_policies,
        action_values,
        rollout.is_dead,
        rollout.action_mask,
    )


def _step_values(values: ActionValues | None) -> list[Tensor]:
    if values is None:
        return []
    state_value = signed_log1p(values.value.detach())
    return [
        *_now_and_next(state_value),
        signed_log1p(values.advantage.detach()),
        values.normalized_advantage.detach(),
    ]


def _action_values(values: ActionValues | None) -> list[Tensor]:
    if values is None:
        return []
    return [
        signed_log1p(values.target_q_value[:-1].detach()),
        signed_log1p(values.qv_advantage[:-1].detach()),
        values.normalized_qv_advantage[:-1].detach(),
    ]


def action_features(seen: Experience, embeddings: Embeddings | None) -> Tensor:
    """Inputs for each action. [S, B, A, 7 + 2E]"""
    of_z = [] if embeddings is None else [embeddings.z[:-1], embeddings.target_z[:-1]]
    return torch.cat([seen.action_policies, *of_z, seen.action_values], -1)


def step_features(
    seen: Experience, embeddings: Embeddings | None, action_embedding: Tensor
) -> Tensor:
    """Inputs for each step. ``action_embedding`` [S, B, A, C] -> [S, B, 9 + 14E + 2C]"""
    return torch.cat(
        [
            seen.step,
            *_of_predictions(seen, embeddings),
            mean_over_actions(action_embedding, seen.mask_now),
            select_action(action_embedding, seen.actions),
        ],
        -1,
    )


def _of_predictions(seen: Experience, embeddings: Embeddings | None) -> list[Tensor]:
    if embeddings is None:
        return []
    return [
        *_now_and_next(embeddings.y),
        *_now_and_next(embeddings.target_y),
        *_over_actions(embeddings.z, seen),
        *_over_actions(embeddings.target_z, seen),
    ]


def _over_actions(z: Tensor, seen: Experience) -> list[Tensor]:
    """The taken action's entry, then average under the online policy and maximum, now and next."""
    average = (z * seen.pi.unsqueeze(-1)).sum(2)
    maximum = max_over_actions(z, seen.action_mask)
    return [
        select_action(z[:-1], seen.actions),
        *_now_and_next(average),
        *_now_and_next(maximum),
    ]


def _now_and_next(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[:-1], x[1:]
