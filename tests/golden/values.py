"""Our results for files about values, and about the policy gradient's loss."""

from __future__ import annotations

from dataclasses import fields

import torch
from torch import Tensor

from discorl.ops import categorical, moments, squash
from discorl.rules import PolicyGradient
from discorl.rules.values import ValueHead, estimate_action_values, estimate_values
from discorl.types import Predictions, Rollout, RuleState, Targets, Values

from .agents import SETTINGS, in_precision_of, unit_bins
from .files import Arrays, count, group, tensors

Results = dict[str, Tensor]  # by the names and in the layout of the file

REFERENCE_NAMES = {
    "advantage": "adv",
    "normalized_advantage": "normalized_adv",
    "qv_advantage": "qv_adv",
    "normalized_qv_advantage": "normalized_qv_adv",
}
"""What the reference calls otherwise than ``Values``."""


def value_estimation(arrays: Arrays) -> Results:
    """Two estimates by Retrace that share moments, two by V-trace, and the transforms."""
    given = tensors(group(arrays, "in"))
    logits, rollout = given["pi_logits"], rollout_of_values(given)
    fresh = RuleState(moments.init_moments(), moments.init_moments())
    fresh = state = in_precision_of(arrays, fresh)
    head = unit_bins(given["q"].shape[-1])
    found: Results = {}
    for i in range(count(arrays, "retrace")):
        q_value, target_q_value = (head.value(given[name] * 2**i) for name in ("q", "target_q"))
        values, state = estimate_action_values(
            q_value, target_q_value, logits, rollout, state, SETTINGS.returns, lambda x: x
        )
        found |= named(values, f"retrace_{i}")
    for kind in ("categorical", "scalar"):
        if f"v_{kind}" in given:
            output, prefix = given[f"v_{kind}"], f"vtrace_{kind}"
            head = ValueHead(num_bins=None) if kind == "scalar" else unit_bins(output.shape[-1])
            values, _ = estimate_values(
                head.value(output), logits, rollout, fresh, SETTINGS.returns, lambda x: x
            )
            loss = head.loss(output[:-1], values.value[:-1] + values.td)
            found |= named(values, prefix) | {f"{prefix}/loss_from_td": loss}
    if "tx/x" in arrays:
        found |= transforms(torch.from_numpy(arrays["tx/x"]), arrays["tx/two_hot"].shape[-1])
    return found


def rollout_of_values(given: dict[str, Tensor]) -> Rollout:
    """Rewards and ends come a step earlier in these files."""
    is_terminal = given["is_terminal"].to(given["rewards"].dtype)
    rewards = torch.cat([torch.zeros_like(given["rewards"][:1]), given["rewards"]])
    return Rollout(
        observations=rewards,
        actions=given["actions"].long(),
        rewards=rewards,
        discounts=torch.cat([torch.ones_like(is_terminal[:1]), 1 - is_terminal]),
        behaviour_logits=given["mu_logits"],
    )


def named(values: Values, prefix: str) -> Results:
    """Values by the reference's names."""
    found = {field.name: getattr(values, field.name) for field in fields(values)}
    return {f"{prefix}/{REFERENCE_NAMES.get(name, name)}": x for name, x in found.items()}


def transforms(x: Tensor, num_bins: int) -> Results:
    return {
        "tx/signed_log1p": squash.signed_log1p(x),
        "tx/signed_hyperbolic": squash.signed_hyperbolic(x),
        "tx/signed_parabolic": squash.signed_parabolic(x / 40),
        "tx/two_hot": categorical.two_hot(x / 20, num_bins, (num_bins - 1) / 2),
    }


def policy_gradient(arrays: Arrays) -> Results:
    """The loss of each step, for given advantages."""
    given = tensors(group(arrays, "in"))
    zeros = torch.zeros_like(given["logits"][..., 0])
    rollout = Rollout(zeros, given["actions"].long(), zeros, zeros, given["logits"])
    values = Values(
        value=zeros,
        target_value=zeros,
        rho=zeros[1:],
        advantage=given["adv"],
        normalized_advantage=given["normalized_adv"],
        value_target=zeros[1:],
        td=zeros[1:],
    )
    rule = PolicyGradient(entropy_cost=SETTINGS.entropy_cost, normalize_advantage=True)
    loss, _ = rule.loss(Predictions(logits=given["logits"]), Targets(values=values), rollout)
    return {"out/loss_per_step": loss}
