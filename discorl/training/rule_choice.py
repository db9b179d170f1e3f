"""From the rule that a configuration asks for to a rule that can train."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from discorl.rules.actor_critic import ActorCritic
from discorl.rules.base import UpdateRule
from discorl.rules.disco import LossWeights
from discorl.rules.policy_gradient import PolicyGradient
from discorl.rules.store import DISCO103, DISCO103_ENV, embedded_rules, find_disco103, load_rule
from discorl.rules.values import ReturnSettings, ValueHead
from discorl.training.config import TrainConfig
from discorl.types import Params

ACTOR_CRITIC = "actor-critic"
POLICY_GRADIENT = "policy-gradient"


@dataclass(frozen=True)
class RuleChoice:
    """A rule, its parameters, and what the user should know of the choice."""

    name: str
    rule: UpdateRule
    params: Params
    path: Path | None = None
    note: str = ""


def choose_rule(config: TrainConfig) -> RuleChoice:
    """The rule named by ``config.rule`` with the configuration's settings."""
    name, note = config.rule, ""
    if name == "auto":
        name, note = best_at_hand()
    returns = ReturnSettings(config.returns.discount, config.returns.lambda_)
    if name == ACTOR_CRITIC:
        return RuleChoice(name, _actor_critic(config, returns), {}, note=note)
    if name == POLICY_GRADIENT:
        c = config.policy_gradient
        rule = PolicyGradient(
            returns, entropy_cost=c.entropy_cost, normalize_advantage=c.normalize_advantage
        )
        return RuleChoice(name, rule, {}, note=note)

    loaded = load_rule(name)
    c = config.disco
    weights = LossWeights(c.pi_cost, c.y_cost, c.z_cost, c.aux_pi_cost, c.q_cost)
    rule = replace(loaded.rule, returns=returns, weights=weights, target_rate=c.target_rate)
    return RuleChoice(loaded.name, rule, loaded.params, loaded.path, note)


def _actor_critic(config: TrainConfig, returns: ReturnSettings) -> ActorCritic:
    c = config.actor_critic
    return ActorCritic(
        value_head=ValueHead(c.num_bins, c.max_abs_value),
        returns=returns,
        policy_cost=c.policy_cost,
        value_cost=c.value_cost,
        entropy_cost=c.entropy_cost,
        normalize_advantage=c.normalize_advantage,
        normalize_td=c.normalize_td,
    )


def best_at_hand() -> tuple[str, str]:
    """Disco103 if it is on this machine, else a rule of our own, else the actor-critic."""
    if find_disco103():
        return DISCO103, ""
    embedded = [name for name, _ in embedded_rules()]
    name = embedded[0] if embedded else ACTOR_CRITIC
    note = (
        f"Disco103 is not on this machine, so this run uses {name}. To get it, run "
        f"'discorl rules fetch', or set {DISCO103_ENV} to the path of disco_103.npz."
    )
    return name, note
