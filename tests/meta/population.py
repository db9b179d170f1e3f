"""Small populations for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from discorl.discovery.build import make_group, starting_rule
from discorl.discovery.config import DiscoverConfig, RuleConfig
from discorl.meta.meta_value import MetaValueSettings
from discorl.meta.population import Group
from discorl.meta.window import WindowSettings
from discorl.training.config import NetConfig
from discorl.types import Params


def tiny_config(**changes: Any) -> DiscoverConfig:
    """Seconds, not hours."""
    window = WindowSettings(
        num_updates=2, num_envs=3, rollout_length=5, valid_length=6, memory="plain"
    )
    config = DiscoverConfig(
        tasks=("catch:4x4*2", "bandit:3*3"),
        steps=4,
        net=NetConfig(torso=(8,), action_lstm=4, head_hidden=(5,)),
        rule=RuleConfig(
            prediction_size=6,
            hidden=7,
            lifetime_hidden=5,
            embedding_width=4,
            num_bins=11,
            max_abs_value=10.0,
            mask_episode_starts=False,
        ),
        window=window,
        meta_value=MetaValueSettings(torso=(6,)),
        log_every=1,
        eval_every=1000,
        snapshot_every=2,
        checkpoint_every=1,
        device="cpu",
        progress="none",
    )
    window_changes = {k: changes.pop(k) for k in list(changes) if hasattr(window, k)}
    return replace(config, window=replace(window, **window_changes), **changes)


def tiny_groups(config: DiscoverConfig) -> tuple[list[Group], Params]:
    """Its groups, and the rule that they start with."""
    rule, params = starting_rule(config)
    return [make_group(config, g, rule, torch.device("cpu")) for g in config.groups], params
