"""From the rule that a configuration asks for to a rule that can train."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from discorl.rules.actor_critic import ActorCritic
from discorl.rules.base import UpdateRule
from discorl.rules.disco import DiscoRule
from discorl.rules.policy_gradient import PolicyGradient
from discorl.rules.store import DISCO103, DISCO103_ENV, embedded_rules, find_disco103, load_rule
from discorl.training.config import TrainConfig
from discorl.types import Params

ACTOR_CRITIC = "actor-critic"
POLICY_GRADIENT = "policy-gradient"


@dataclass(frozen=True)
class RuleChoice:
    """A rule, its parameters, and what the user should know about the choice."""

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
    rule: ActorCritic | PolicyGradient | DiscoRule
    params, path = {}, None
    if name == ACTOR_CRITIC:
        rule = ActorCritic(**vars(config.actor_critic))
    elif name == POLICY_GRADIENT:
        rule = PolicyGradient(**vars(config.policy_gradient))
    else:
        loaded = load_rule(name)
        name, params, path = loaded.name, loaded.params, loaded.path
        rule = replace(loaded.rule, settings=config.disco)
    rule = replace(rule, returns=config.returns)
    if config.mask_episode_starts is not None:
        rule = replace(rule, mask_episode_starts=config.mask_episode_starts)
    return RuleChoice(name, rule, params, path, note)


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
