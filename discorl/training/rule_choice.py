"""From the rule that a configuration asks for to a rule that can train, and back from a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from discorl.errors import DiscorlError
from discorl.rules.actor_critic import ActorCritic
from discorl.rules.base import UpdateRule
from discorl.rules.built_in import BUILT_IN, CMPO_RULE
from discorl.rules.cmpo import CMPO
from discorl.rules.disco import DiscoRule
from discorl.rules.policy_gradient import PolicyGradient
from discorl.rules.store import (
    DISCO103,
    DISCO103_ENV,
    embedded_rules,
    find_disco103,
    load_rule,
    sha256,
)
from discorl.runs.config_file import not_a_configuration, read_settings
from discorl.training.config import TrainConfig
from discorl.types import Params

Rule = TypeVar("Rule", bound=CMPO | ActorCritic | PolicyGradient | DiscoRule)


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
    if name in BUILT_IN:
        settings = getattr(config, name.replace("-", "_"))
        rule = _with_settings(BUILT_IN[name].rule(**vars(settings)), config)
        return RuleChoice(name, rule, {}, note=note)
    loaded = load_rule(name)
    rule = disco_rule(config, loaded.rule)
    return RuleChoice(loaded.name, rule, loaded.params, loaded.path, note)


def actor_critic(config: TrainConfig) -> ActorCritic:
    """The hand-written actor-critic with the configuration's settings."""
    return _with_settings(ActorCritic(**vars(config.actor_critic)), config)


def disco_rule(config: TrainConfig, rule: DiscoRule) -> DiscoRule:
    """A discovered rule with the configuration's settings."""
    return _with_settings(replace(rule, settings=config.disco), config)


def _with_settings(rule: Rule, config: TrainConfig) -> Rule:
    """The rule with the settings that all rules share."""
    rule = replace(rule, returns=config.returns)
    if config.mask_episode_starts is not None:
        rule = replace(rule, mask_episode_starts=config.mask_episode_starts)
    return rule


def best_at_hand() -> tuple[str, str]:
    """Disco103 if it is on this machine, else cmpo, which no rule that we discovered has beaten."""
    if find_disco103():
        return DISCO103, ""
    note = (
        f"Disco103 is not on this machine, so this run uses {CMPO_RULE}, a hand-written rule. To "
        f"get it, run 'discorl rules fetch', or set {DISCO103_ENV} to the path of disco_103.npz."
    )
    return CMPO_RULE, note


def read_config(folder: Path | str) -> tuple[TrainConfig, dict[str, Any]]:
    """The configuration of a run, with its rule as it can be found now, and its config.json."""
    config, content = read_settings(folder, TrainConfig, "train")
    try:
        rule = content["resolved_rule"]
        by_name = rule["path"] is None or rule["name"] in (DISCO103, *dict(embedded_rules()))
        rule = rule["name"] if by_name else rule["path"]
    except (KeyError, TypeError) as e:
        raise not_a_configuration(Path(folder), DiscorlError(f"resolved_rule: {e!r}")) from None
    if not isinstance(rule, str):
        reason = f"resolved_rule should have the name and path of a rule, not {rule!r:.40}"
        raise not_a_configuration(Path(folder), DiscorlError(reason))
    return replace(config, rule=rule), content


def resolved_rule(choice: RuleChoice) -> dict[str, str | None]:
    """Which rule a run uses, to the last bit."""
    path = choice.path
    return {
        "name": choice.name,
        "path": str(path.absolute()) if path else None,
        "sha256": sha256(path) if path else None,
    }


def check_same_rule(choice: RuleChoice, content: dict[str, Any]) -> None:
    """Raise if the rule file is not the one that the run began with."""
    before = content["resolved_rule"].get("sha256")
    if choice.path and before and sha256(choice.path) != before:
        raise DiscorlError(
            f"{choice.path} has changed since the run began (its sha256 was {before}): "
            "restore that file, or start a new run"
        )
