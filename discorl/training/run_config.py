"""The configuration of a training run, back from its folder."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from discorl.errors import DiscorlError
from discorl.rules.store import DISCO103, embedded_rules, sha256
from discorl.runs.config_file import not_a_configuration, read_settings
from discorl.training.config import TrainConfig
from discorl.training.rule_choice import RuleChoice


def read_config(folder: Path | str) -> tuple[TrainConfig, dict[str, Any]]:
    """The configuration of a run, with its rule as it can be found now, and its config.json."""
    config, content = read_settings(folder, TrainConfig, "train")
    try:
        rule = content["resolved_rule"]
        by_name = rule["path"] is None or rule["name"] in (DISCO103, *dict(embedded_rules()))
        rule = rule["name"] if by_name else rule["path"]
    except (KeyError, TypeError) as e:
        raise not_a_configuration(Path(folder), e) from None
    return dataclasses.replace(config, rule=rule), content


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
