"""Trials of a rule on held-out tasks, at the settings that ``discorl train`` would have there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from discorl import tree
from discorl.discovery.build import has_convolutions, make_environment
from discorl.discovery.config import DiscoverConfig, GroupConfig
from discorl.envs.base import is_tensor_env
from discorl.errors import DiscorlError
from discorl.meta.meta_value import make_meta_value
from discorl.meta.population import Group
from discorl.meta.trial import Trial
from discorl.meta.window import Window, WindowSettings
from discorl.nets.net_config import NetConfig
from discorl.rules.base import UpdateRule
from discorl.rules.built_in import ACTOR_CRITIC
from discorl.rules.disco import DiscoRule
from discorl.training import presets
from discorl.training.build import make_agent
from discorl.training.config import TrainConfig
from discorl.training.rule_choice import actor_critic, disco_rule


def rule_settings(entry: str, rule: DiscoRule) -> TrainConfig:
    """What ``discorl train TASK`` would use for the rule, with the network that an entry names."""
    return _with_net(presets.for_disco_rule(presets.for_task(task_of(entry)), rule), entry)


def baseline_settings(entry: str) -> TrainConfig:
    """The same for the hand-written actor-critic."""
    return _with_net(presets.for_rule(presets.for_task(task_of(entry)), ACTOR_CRITIC), entry)


def task_of(entry: str) -> str:
    """The task of an entry of ``--held-out``."""
    return GroupConfig.parse(entry, NetConfig()).task


def _with_net(settings: TrainConfig, entry: str) -> TrainConfig:
    return replace(settings, net=GroupConfig.parse(entry, settings.net).net)


def make_trial(
    config: DiscoverConfig,
    settings: TrainConfig,
    rule: DiscoRule | None,
    device: torch.device,
    env: Any = None,
    resumed: Path | None = None,
    num_agents: int | None = None,
    num_updates: int | None = None,
) -> Trial:
    """``--eval-agents`` agents that train with ``settings``; without a rule, the baseline's."""
    learns_by: UpdateRule = actor_critic(settings) if rule is None else disco_rule(settings, rule)
    return trial_by(config, settings, learns_by, device, env, resumed, num_agents, num_updates)


def trial_by(
    config: DiscoverConfig,
    settings: TrainConfig,
    learns_by: UpdateRule,
    device: torch.device,
    env: Any = None,
    resumed: Path | None = None,
    num_agents: int | None = None,
    num_updates: int | None = None,
) -> Trial:
    """Agents that train with ``settings`` by any rule, which is taken as it is.

    ``env`` and ``resumed`` are as for ``make_group``. A ready ``env`` decides how many copies each
    agent has, as it does in training. They make up to ``--eval-updates`` updates.
    """
    task, num_agents = settings.task, num_agents or config.eval_agents
    num_envs = num_agents * settings.num_envs
    made = make_environment(
        *(config, task, num_agents, num_envs, device, env, resumed, settings.frame_stack)
    )
    if made.num_envs % num_agents:
        raise DiscorlError(
            f"'{task}' has {made.num_envs} copies, which {num_agents} agents cannot share: set "
            "--eval-agents to a number that divides them"
        )
    settings = replace(settings, num_envs=made.num_envs // num_agents)
    agent = make_agent(settings, made.spec, learns_by)
    net = cast("nn.Module", agent.net)
    meta_value = make_meta_value(config.meta_value, made.spec, settings.net)
    each = tree.one_by_one if has_convolutions(net) else tree.vmap
    group = Group(
        task,
        Window(agent, meta_value, config.objective, each=each),
        made,
        num_agents,
        _window(settings),
        num_stacked=1 if is_tensor_env(made) else settings.frame_stack,
        bootstraps=config.env.truncation == "bootstrap",
        kernels=config.kernels == "on",
    )
    trial = Trial(
        *(group, settings.batch_size, settings.num_fresh, settings.updates_per_step),
        estimates_values=settings.estimate_values,
    )
    # What is never written needs no room.
    most = trial.num_rollouts(num_updates or config.eval_updates) * settings.num_envs
    capacity = min(settings.replay_trajectories, most)
    room = replace(group.settings, replay_capacity=capacity)
    return replace(trial, group=replace(group, settings=room))


def _window(settings: TrainConfig) -> WindowSettings:
    return WindowSettings(
        num_envs=settings.num_envs,
        rollout_length=settings.rollout_length,
        valid_length=settings.rollout_length,
        burn_in=settings.burn_in,
        replay_capacity=settings.replay_trajectories,
    )
