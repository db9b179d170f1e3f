"""Off-policy returns. Time runs along the first axis; see ``TimeStep`` for what belongs to when.

For S = T-1 transitions: ``rewards``, ``discounts`` and ``rho`` [S, B]; state values [S+1, B].
"""

from __future__ import annotations

import torch
from torch import Tensor


def retrace(
    q_a: Tensor, values: Tensor, rewards: Tensor, discounts: Tensor, rho: Tensor, lambda_: float
) -> Tensor:
    """Retrace(lambda) targets for the action values of the taken actions. [S, B]

    g[t] = r[t] + d[t] (V[t+1] + c[t+1] (g[t+1] - q_a[t+1])), with c = lambda min(1, rho);
    the last one bootstraps from V alone. ``q_a`` [S, B] are those of the taken actions.
    """
    trace = lambda_ * rho.clamp(max=1)
    correction = torch.cat([trace[1:] * q_a[1:], torch.zeros_like(q_a[:1])])
    fixed = rewards + discounts * (values[1:] - correction)
    carry = discounts[:-1] * trace[1:]
    return _backward_sum(fixed, carry)


def vtrace(
    values: Tensor, rewards: Tensor, discounts: Tensor, rho: Tensor, lambda_: float
) -> tuple[Tensor, Tensor]:
    """V-trace value targets and policy-gradient advantages, both [S, B].

    td[t] = rho'[t] (r[t] + d[t] V[t+1] - V[t]) and e[t] = td[t] + d[t] lambda rho'[t] e[t+1] with
    rho' = min(1, rho); the target is V + e. The advantage is that of the one-step estimate that
    bootstraps from the lambda-mixture of target and value at t+1.
    """
    clipped = rho.clamp(max=1)
    td = clipped * (rewards + discounts * values[1:] - values[:-1])
    errors = _backward_sum(td, (discounts * lambda_ * clipped)[:-1])
    targets = values[:-1] + errors
    mixed = lambda_ * targets[1:] + (1 - lambda_) * values[1:-1]
    bootstrap = torch.cat([mixed, values[-1:]])
    advantages = clipped * (rewards + discounts * bootstrap - values[:-1])
    return targets, advantages


def _backward_sum(fixed: Tensor, carry: Tensor) -> Tensor:
    """s[t] = fixed[t] + carry[t] s[t+1], from the end; ``carry`` is one shorter than ``fixed``."""
    total = fixed[-1]
    sums = [total]
    for fixed_t, carry_t in zip(fixed[:-1].unbind()[::-1], carry.unbind()[::-1], strict=True):
        total = torch.addcmul(fixed_t, carry_t, total)
        sums.append(total)
    return torch.stack(sums[::-1])
