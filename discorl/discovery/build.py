"""From the settings of a discovery run to the population that it steps."""

from __future__ import annotations

from dataclasses import replace

import torch

from discorl import tree
from discorl.agents.agent import Agent, adam_clip, agent_net
from discorl.discovery.config import DiscoverConfig, GroupConfig
from discorl.envs import suites
from discorl.envs.base import TensorEnv
from discorl.envs.registry import make_tensor_env
from discorl.errors import DiscorlError
from discorl.meta.meta_value import make_meta_value
from discorl.meta.population import Group, Lifetimes
from discorl.meta.window import Window
from discorl.nets.meta_net import MetaNetSizes
from discorl.rules.base import UpdateRule
from discorl.rules.disco import DiscoRule
from discorl.rules.store import load_rule
from discorl.rules.values import ValueHead
from discorl.types import Params


def starting_rule(config: DiscoverConfig) -> tuple[DiscoRule, Params]:
    """The rule that discovery starts from: random weights, or those of a rule file."""
    if config.init == "random":
        rule, params = _random_rule(config)
    else:
        loaded = load_rule(config.init)
        rule, params = loaded.rule, loaded.params
    returns = replace(rule.returns, discount=config.rule.discount, lambda_=config.rule.lambda_)
    masks = config.rule.mask_episode_starts
    return replace(rule, returns=returns, mask_episode_starts=masks), params


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
    )
    rule = DiscoRule(sizes, ValueHead(c.num_bins, c.max_abs_value))
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
    agent = Agent(net, rule, adam_clip(config.learning_rate, config.max_abs_update))
    meta_value = make_meta_value(config.meta_value, env.spec)
    window = Window(agent, meta_value, config.objective, each=tree.vmap)
    lifetimes = Lifetimes(config.lifetimes)
    return Group(group.task, window, env, group.num_agents, config.window, lifetimes)


def tensor_env(task: str, num_envs: int, device: torch.device) -> TensorEnv:
    """Copies of a task that lives on tensors; raises for any other."""
    if task.startswith("gym:") or suites.find(task):  # not even made, as that imports something
        raise DiscorlError(
            f"'{task}' does not run on tensors, which discovery needs; see 'discorl envs'"
        )
    return make_tensor_env(task, num_envs, device)
