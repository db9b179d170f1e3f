"""From the settings of a discovery run to the population that it steps."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from discorl import tree
from discorl.agents.agent import Agent, adam_clip, agent_net
from discorl.discovery.config import DiscoverConfig, GroupConfig
from discorl.envs.base import TensorEnv
from discorl.envs.registry import make_env
from discorl.errors import DiscorlError
from discorl.meta.meta_step import MetaOptimiser
from discorl.meta.meta_value import MetaValue, ValueNet
from discorl.meta.population import Group, Lifetimes
from discorl.meta.window import Window
from discorl.nets.meta_net import MetaNetSizes
from discorl.nets.torsos import MLPTorso
from discorl.rules.base import UpdateRule
from discorl.rules.disco import DiscoRule
from discorl.rules.store import load_rule
from discorl.rules.values import ReturnSettings, ValueHead
from discorl.types import EnvSpec, Params


def starting_rule(config: DiscoverConfig) -> tuple[DiscoRule, Params]:
    """The rule that discovery starts from: random weights, or those of a rule file."""
    returns = ReturnSettings(config.rule.discount, config.rule.lambda_)
    masks = config.rule.mask_episode_starts
    if config.init != "random":
        loaded = load_rule(config.init)
        return replace(loaded.rule, returns=returns, mask_episode_starts=masks), loaded.params
    c = config.rule
    sizes = MetaNetSizes(
        prediction=c.prediction_size,
        hidden=c.hidden,
        embedding=(c.embedding_width, 1),
        action_channels=(c.embedding_width, 2),
        policy_channels=(c.embedding_width,),
        lifetime_hidden=c.lifetime_hidden,
        lifetime_embedding=(c.embedding_width,),
        lifetime_prediction_embedding=(c.embedding_width, 1),
        lifetime_action_channels=(c.embedding_width, 2),
    )
    rule = DiscoRule(
        sizes, ValueHead(c.num_bins, c.max_abs_value), returns, mask_episode_starts=masks
    )
    params = rule.init_params(torch.Generator().manual_seed(config.seed))
    if c.open_gate:
        params["lifetime_gate.weight"] = 0.1 * params["lifetime_gate.weight"]
        params["lifetime_gate.bias"] = torch.ones_like(params["lifetime_gate.bias"])
    return rule, params


def make_group(
    config: DiscoverConfig, group: GroupConfig, rule: UpdateRule, device: torch.device
) -> Group:
    """A group of the population, or agents for a trial of the rule."""
    env = tensor_env(group.task, group.num_agents * config.window.num_envs, device)
    net = agent_net(env.spec, rule, replace(group.net, torso_kind="mlp"))
    agent = Agent(
        net,
        rule,
        adam_clip(config.learning_rate, config.max_abs_update),
        config.rule.mask_episode_starts,
    )
    window = Window(agent, _meta_value(config, env.spec), config.objective, each=tree.vmap)
    lifetimes = Lifetimes(config.lifetimes)
    return Group(group.task, window, env, group.num_agents, config.window, lifetimes)


def meta_optimiser(config: DiscoverConfig) -> MetaOptimiser:
    """How the rule moves."""
    c = config.meta_optimiser
    limit = c.max_abs_update or math.inf
    return MetaOptimiser(c.learning_rate, limit, c.per_agent, c.max_norm)


def tensor_env(task: str, num_envs: int, device: torch.device) -> TensorEnv:
    """Copies of a task that lives on tensors; raises for any other."""
    env = make_env(task, num_envs, device)
    if not hasattr(env, "sample_settings"):
        raise DiscorlError(
            f"'{task}' is not a task on tensors, which discovery needs; see 'discorl envs'"
        )
    tensor: TensorEnv = env  # type: ignore[assignment]
    return tensor


def _meta_value(config: DiscoverConfig, spec: EnvSpec) -> MetaValue:
    c = config.meta_value
    num_inputs = 1
    for n in spec.observation_shape:
        num_inputs *= n
    return MetaValue(
        ValueNet(MLPTorso(num_inputs, c.torso), c.torso[-1]),
        adam_clip(c.learning_rate),
        ReturnSettings(c.discount, c.lambda_),
        c.aligned,
    )
