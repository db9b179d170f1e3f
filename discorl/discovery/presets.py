"""Presets of discovery: functions that return a configuration, all of it overridable."""

from __future__ import annotations

from collections.abc import Callable

from discorl.discovery.config import DiscoverConfig, RuleConfig
from discorl.errors import DiscorlError
from discorl.meta.meta_step import MetaOptimiser
from discorl.meta.meta_value import MetaValueSettings
from discorl.meta.objective import ObjectiveWeights
from discorl.meta.window import WindowSettings
from discorl.nets.net_config import NetConfig
from discorl.suggestions import did_you_mean


def notebook() -> DiscoverConfig:
    """The public notebook: two agents on 5x5 Catch, two updates, Disco103's sizes."""
    return DiscoverConfig(
        tasks=("catch:5x5*2",),
        held_out=("catch:8x8",),
        steps=800,
        learning_rate=5e-4,
        net=NetConfig(torso=(512, 512), action_lstm=256, head_hidden=(256,)),
        window=WindowSettings(
            num_updates=2,
            num_envs=32,
            rollout_length=16,
            valid_length=32,
            acts_ahead=True,
            memory="plain",
        ),
        meta_value=MetaValueSettings((256, 256), 1e-3, discount=0.99, lambda_=0.96, aligned=False),
        meta_optimiser=MetaOptimiser(learning_rate=5e-4, per_agent=False, max_abs_update=0.0),
        eval_every=400,
        eval_updates=100,
        eval_agents=2,
    )


def suite() -> DiscoverConfig:
    """Our own: a small rule on a suite of small tasks, for a laptop.

    Groups are large because an update of 32 agents takes little more than twice as long as one of
    8, whose operations are too small to keep a processor busy.
    """
    return DiscoverConfig(
        tasks=("catch:sampled*32", "grid:sampled*24", "mdp:10x4*32", "chain*24"),
        held_out=("catch:9x7", "mdp:15x5", "cartpole", "umbrella:7"),
        warm_start=None,
        steps=1500,
        lifetimes=(40, 80, 160, 320, 640),
        learning_rate=1e-2,
        net=NetConfig(torso=(64, 64), action_lstm=32, head_hidden=(32,)),
        rule=RuleConfig(
            prediction_size=32,
            hidden=64,
            lifetime_hidden=32,
            num_bins=81,
            max_abs_value=20.0,
            discount=0.99,
            mask_episode_starts=False,
            open_gate=True,
        ),
        window=WindowSettings(
            num_updates=5,
            num_envs=16,
            rollout_length=16,
            valid_length=16,
            memory="plain",
        ),
        meta_value=MetaValueSettings((64, 64), 1e-3, discount=0.99),
        meta_optimiser=MetaOptimiser(learning_rate=1e-3),
        eval_every=100,
        eval_updates=200,
    )


def paper() -> DiscoverConfig:
    """The paper's settings at its scale, for a cluster: two agents on each of 57 Atari games.

    Batches have 96 trajectories, 8 of them fresh; 48 fresh ones judge the updated agents. The
    window slides; by how much is not published, and half its length is our choice.
    """
    return DiscoverConfig(
        tasks=("atari57*2",),
        steps=100_000,
        lifetimes=(20_000_000, 50_000_000, 100_000_000, 200_000_000),
        lifetimes_in="env-steps",
        learning_rate=3e-4,
        net=NetConfig(
            action_lstm=1024,
            head_hidden=(1024,),
            torso_kind="impala",
            channels=(256, 384, 384, 256),
            dense=768,
        ),
        window=WindowSettings(
            num_updates=20,
            stride=10,
            num_envs=8,
            rollout_length=29,
            valid_length=29,
            valid_rollouts=6,
            num_replayed=88,
            replay_capacity=4096,
            memory="recompute",
        ),
        objective=ObjectiveWeights(),
        meta_value=MetaValueSettings((512, 512), 3e-4),
        meta_optimiser=MetaOptimiser(learning_rate=1e-3),
        eval_every=1000,
    )


PRESETS: dict[str, Callable[[], DiscoverConfig]] = {
    "notebook": notebook,
    "suite": suite,
    "paper": paper,
}


def discovery_preset(name: str) -> DiscoverConfig:
    """A preset by name."""
    if name not in PRESETS:
        known = f"use {', '.join(PRESETS)}{did_you_mean(name, PRESETS)}"
        raise DiscorlError(f"no preset is called '{name}': {known}")
    return PRESETS[name]()
