"""disco-torch's names for what this package calls otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from discorl.errors import DiscorlError
from discorl.rules.disco import DiscoRule
from discorl.types import Rollout

DISCOUNT = 0.997
"""What disco-torch's ``collect_rollout`` has by default. It only tells ends of episodes from the
rest there: the discount that agents learn with is the rule's."""
COSTS = {
    "pi_cost": "pi_cost",
    "y_cost": "y_cost",
    "z_cost": "z_cost",
    "aux_policy_cost": "aux_pi_cost",
    "value_cost": "q_cost",
}
HYPER_PARAMS = ("value_fn_td_lambda", "target_params_coeff", *COSTS)
ROLLOUT_KEYS = ("observations", "actions", "rewards", "discounts")


def one_of(first: Any, second: Any, *names: str) -> Any:
    """What was given by one of two names for the same thing; None if nothing was."""
    if first is not None and second is not None:
        raise DiscorlError(f"{names[0]} and {names[1]} are the same thing: pass one of them")
    return second if first is None else first


def with_hyper_params(rule: Any, given: Mapping[str, float]) -> DiscoRule:
    """The rule with settings that are given by disco-torch's names for them."""
    if unknown := [name for name in given if name not in HYPER_PARAMS]:
        raise DiscorlError(
            f"hyper_params has no '{unknown[0]!s:.60}': use {', '.join(HYPER_PARAMS)}, and "
            "discount= for the discount"
        )
    if not isinstance(rule, DiscoRule):
        raise DiscorlError(
            f"hyper_params are for discovered rules, not for {type(rule).__name__}: set the fields "
            "of the rule itself"
        )
    settings = {COSTS[name]: cost for name, cost in given.items() if name in COSTS}
    if "target_params_coeff" in given:  # the share that stays
        settings["target_rate"] = 1 - given["target_params_coeff"]
    trace = given.get("value_fn_td_lambda", rule.returns.lambda_)
    return replace(
        rule,
        settings=replace(rule.settings, **settings),
        returns=replace(rule.returns, lambda_=trace),
    )


def check_discount(discount: float | None) -> None:
    """Raise if ``collect_rollout`` is to apply a discount, which is not its business."""
    if discount is not None and discount != DISCOUNT:
        raise DiscorlError(
            f"collect_rollout does not apply a discount, the rule does: leave out "
            f"discount={discount!r:.20} here, and write DiscoTrainer(agent, "
            f"discount={discount!r:.20})"
        )


def part_of(rollout: Rollout, key: str) -> Any:
    """A part of a rollout as disco-torch has it: there, the reward at t follows the action at t."""
    if key in ("rewards", "discounts"):
        return getattr(rollout, key)[1:]
    if key in ROLLOUT_KEYS:
        return getattr(rollout, key)
    hint = ""
    if key == "agent_out":
        hint = ": the logits are rollout.behaviour_logits, and other heads are not kept"
    raise DiscorlError(f"a rollout has {', '.join(ROLLOUT_KEYS)}, not '{key!s:.60}'{hint}")


def as_rollout(rollout: Any) -> Any:
    """A rollout from disco-torch's dict of tensors; anything else is left as it is."""
    if not isinstance(rollout, Mapping):
        return rollout
    agent_out = rollout.get("agent_out")
    has_logits = isinstance(agent_out, Mapping) and "logits" in agent_out
    missing = [key for key in ROLLOUT_KEYS if key not in rollout]
    if missing or not has_logits:
        raise DiscorlError(
            "a rollout must be a discorl.Rollout, such as collect_rollout returns; one that is a "
            f"dict needs {missing[0] if missing else 'agent_out, with the logits of its actions'}"
        )
    rewards, discounts = rollout["rewards"], rollout["discounts"]
    # Nothing is known of what came before: it counts as the middle of an episode.
    return Rollout(
        observations=rollout["observations"],
        actions=rollout["actions"],
        rewards=torch.cat([torch.zeros_like(rewards[:1]), rewards]),
        discounts=torch.cat([torch.ones_like(discounts[:1]), (discounts > 0).to(discounts.dtype)]),
        behaviour_logits=rollout["agent_out"]["logits"],
    )
