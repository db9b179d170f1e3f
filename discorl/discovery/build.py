"""From the settings of a discovery run to the population that it steps."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from discorl import tree
from discorl.agents.action_limit import check_num_actions
from discorl.agents.agent import Agent, adam_clip, agent_net
from discorl.discovery.config import DiscoverConfig, GroupConfig
from discorl.envs import suites
from discorl.envs.base import Env, set_timeout
from discorl.envs.registry import is_tensor_task, make_env
from discorl.errors import DiscorlError
from discorl.meta.meta_value import make_meta_value
from discorl.meta.population import Group, Lifetimes
from discorl.meta.window import Window
from discorl.nets.meta_net import MetaNetSizes
from discorl.ops import native
from discorl.optim import chain, scale_by_own_rate
from discorl.rules.base import UpdateRule
from discorl.rules.disco import DiscoRule
from discorl.rules.improvement import STRONG
from discorl.rules.store import load_rule
from discorl.rules.values import ValueHead
from discorl.runs.imports import importing_for
from discorl.types import Params


def starting_rule(config: DiscoverConfig) -> tuple[DiscoRule, Params]:
    """The rule that discovery starts from: random weights, or those of a rule file."""
    if config.init == "random":
        rule, params = _random_rule(config)
    else:
        loaded = load_rule(config.init)
        rule, params = loaded.rule, loaded.params
        _check_parts(config, rule)
    returns = replace(rule.returns, discount=config.rule.discount, lambda_=config.rule.lambda_)
    masks = config.rule.mask_episode_starts
    return replace(rule, returns=returns, mask_episode_starts=masks), params


def _check_parts(config: DiscoverConfig, rule: DiscoRule) -> None:
    """Raise if the run should do without a part that the rule file has."""
    for name in ("predictions", "value", "auxiliary", "lifetime"):
        if not getattr(config.rule, name) and name not in rule.missing:
            raise DiscorlError(
                f"--rule.no-{name}: the rule {config.init} has that part and cannot do without it: "
                "remove the option, or start from --init random"
            )
    if config.rule.prior and rule.prior is None:
        raise DiscorlError(
            f"--rule.prior: the rule {config.init} has no prior: remove the option, or start from "
            "--init random"
        )


def _random_rule(config: DiscoverConfig) -> tuple[DiscoRule, Params]:
    c, width = config.rule, config.rule.embedding_width
    sizes = MetaNetSizes(
        prediction=c.prediction_size,
        hidden=c.hidden,
        embedding=(width, 1),
        action_channels=(width, 2),
        policy_channels=(width,),
        lifetime_hidden=c.lifetime_hidden,
        lifetime_embedding=(width,),
        lifetime_prediction_embedding=(width, 1),
        lifetime_action_channels=(width, 2),
    ).limited_to(predictions=c.predictions, lifetime=c.lifetime)
    value_head = ValueHead(c.num_bins, c.max_abs_value) if c.value else None
    prior = STRONG if c.prior else None
    rule = DiscoRule(sizes, value_head, auxiliary=c.auxiliary, prior=prior)
    params = rule.init_params(torch.Generator().manual_seed(config.seed))
    if c.open_gate and c.lifetime:
        params["lifetime_gate.weight"] = 0.1 * params["lifetime_gate.weight"]
        params["lifetime_gate.bias"] = torch.ones_like(params["lifetime_gate.bias"])
    return rule, params


def make_group(
    config: DiscoverConfig,
    group: GroupConfig,
    rule: UpdateRule,
    device: torch.device,
    env: Any = None,
    resumed: Path | None = None,
) -> Group:
    """A group of the population.

    ``env`` is the user's own; ``resumed`` is the folder of a run whose config.json named the task.
    """
    num_envs = group.num_agents * config.window.num_envs
    env = make_environment(config, group.task, group.num_agents, num_envs, device, env, resumed)
    if env.num_envs != num_envs:
        raise DiscorlError(
            f"'{group.task}' has {env.num_envs} copies, but {group.num_agents} agents with "
            f"{config.window.num_envs} each need {num_envs}"
        )
    window = config.window
    check_num_actions(
        rule, env.spec.num_actions, window.rollout_length, window.num_envs + window.num_replayed
    )
    net = agent_net(env.spec, rule, group.net)
    burn_in = 0 if net.initial_memory(1) is None else config.window.burn_in
    optimiser = adam_clip(config.learning_rate, config.max_abs_update)
    if config.learning_rate_spread > 1:
        optimiser = chain(optimiser, scale_by_own_rate())
    # A rule of its own, with a network of its own: groups that live side by side share nothing.
    agent = Agent(net, copy.deepcopy(rule), optimiser, burn_in)
    meta_value = make_meta_value(config.meta_value, env.spec, group.net)
    each = tree.one_by_one if has_convolutions(net) else tree.vmap
    if kernels := config.kernels == "on":
        native.build()
    suite = suites.find(group.task)
    return Group(
        group.task,
        Window(agent, meta_value, config.objective, each=each),
        env,
        group.num_agents,
        config.window,
        Lifetimes(config.budgets),
        num_stacked=suite.num_frames or 1 if suite else 1,
        bootstraps=config.env.truncation == "bootstrap",
        rate_spread=config.learning_rate_spread,
        kernels=kernels,
    )


def make_environment(
    config: DiscoverConfig,
    task: str,
    num_agents: int,
    num_envs: int,
    device: torch.device,
    env: Any = None,
    resumed: Path | None = None,
    frame_stack: int | None = None,
) -> Env:
    """The copies of a task that some agents share; a ready ``env`` has as many as it has."""
    options = config.env
    with importing_for(resumed, task, options.wrappers) if resumed else nullcontext():
        if env is None and is_tensor_task(task):
            made = make_env(task, num_envs, device)  # which takes no options
        elif env is None:
            made = make_env(task, num_envs, device, options, frame_stack, num_agents)
        else:
            from discorl.envs.gymnasium import as_env  # imported late: Gymnasium loads slowly

            made = as_env(env, num_envs, device, options, f"'{task}'", num_agents=num_agents)
    set_timeout(made, config.timeout_minutes)
    return made


def has_convolutions(net: nn.Module) -> bool:
    """Whether any layer convolves: with an axis of agents, such layers are slow."""
    return any(isinstance(module, nn.Conv2d) for module in net.modules())
