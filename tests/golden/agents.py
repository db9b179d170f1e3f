"""The agents and rules of golden files: their sizes are those of the arrays."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from discorl import tree
from discorl.agents.agent import Agent
from discorl.nets.agent_net import AgentNet
from discorl.nets.torsos import MLPTorso
from discorl.rules import DiscoRule, UpdateRule
from discorl.rules.format import arrays_to_params
from discorl.rules.store import load_rule
from discorl.rules.values import ReturnSettings, ValueHead
from discorl.types import AgentState, Params, RuleState

from .files import Arrays, group, is_float64


@dataclass(frozen=True)
class Settings:
    """What the files do not say of themselves: what the reference made them with."""

    disco_learning_rate: float = 3e-3
    actor_critic_learning_rate: float = 5e-3
    returns: ReturnSettings = field(default_factory=lambda: ReturnSettings(0.997, 0.95))
    entropy_cost: float = 0.01  # of the policy gradient
    value_learning_rate: float = 1e-3  # of the meta-value function
    value_returns: ReturnSettings = field(default_factory=lambda: ReturnSettings(0.99, 0.96))


SETTINGS = Settings()


def unit_bins(num_bins: int) -> ValueHead:
    """A value with bins one apart: 21 on [-10, 10], 601 on [-300, 300]; a scalar if there is 1."""
    if num_bins == 1:
        return ValueHead(num_bins=None)
    return ValueHead(num_bins=num_bins, max_abs=(num_bins - 1) / 2)


def agent_name(name: str) -> str:
    """Our name of the reference's agent parameter."""
    leaf = {"w": "weight", "b": "bias"}[name[-1]]
    flat = {"torso_head": "logits", "torso_head_1": "second"}
    per_action = {"mlp": "z", "mlp_1": "aux_pi", "mlp_2": "q"}
    module = name[:-2]
    if m := re.fullmatch(r"mlp/~_embedding_pass/torso/~/linear_(\d+)", module):
        return f"torso.mlp.layers.{m.group(1)}.{leaf}"
    if m := re.fullmatch(r"mlp/~_head_pass/(torso_head(?:_1)?)/~/linear_0", module):
        return f"flat_heads.{flat[m.group(1)]}.{leaf}"
    if m := re.fullmatch(r"mlp/(mlp(?:_\d)?)/~/linear_(\d+)", module):
        return f"action_model.heads.{per_action[m.group(1)]}.layers.{m.group(2)}.{leaf}"
    if module == "mlp/linear":
        return f"action_model.root.{leaf}"
    if module == "mlp/action_cond/linear":
        return f"action_model.lstm.gates.{leaf}"
    raise KeyError(f"no agent parameter is called {name}")


def transposed(x: Tensor) -> Tensor:
    """A weight in the other layout: the reference's are [in, out], ours [out, in]."""
    return x.T if x.dim() == 2 else x


def agent_params(arrays: Arrays, second_head: str) -> Params:
    """Agent parameters from the reference's; its second flat head is y or v."""
    params = {}
    for name, array in arrays.items():
        ours = agent_name(name).replace("flat_heads.second", f"flat_heads.{second_head}")
        params[ours] = torch.from_numpy(np.ascontiguousarray(array.T))
    return params


def net_for(params: Params, rule: UpdateRule) -> AgentNet:
    """A network of the size of these parameters."""

    def widths(prefix: str) -> list[int]:
        pattern = re.compile(re.escape(prefix) + r"\.layers\.(\d+)\.bias")
        found = {int(m.group(1)): len(p) for k, p in params.items() if (m := pattern.fullmatch(k))}
        return [found[i] for i in sorted(found)]

    torso = widths("torso.mlp")
    num_actions = len(params["flat_heads.logits.bias"])
    has_model = "action_model.root.bias" in params
    return AgentNet(
        MLPTorso(params["torso.mlp.layers.0.weight"].shape[1], torso),
        torso[-1],
        num_actions,
        rule.heads(num_actions),
        lstm_size=len(params["action_model.root.bias"]) if has_model else 0,
        head_hidden=widths("action_model.heads.z")[:-1],
    )


def initial_state(agent: Agent, params: Params, target_params: Params | None) -> AgentState:
    rule_state = agent.rule.init_state(params)
    if target_params is not None:
        rule_state = RuleState(
            rule_state.advantage_moments,
            rule_state.td_moments,
            rule_state.lifetime_rnn,
            target_params,
        )
    return AgentState(params, agent.optimiser.init(params), rule_state)


def brings_rule(arrays: Arrays) -> bool:
    """Whether a file of a disco agent has its rule; if not, it is Disco103's."""
    return bool(group(arrays, "meta_params"))


def disco_rule(arrays: Arrays) -> tuple[DiscoRule, Params]:
    """The rule of a file, with the value head of its agent."""
    heads = [k for k in arrays if re.fullmatch(r"params_0/mlp/mlp_2/~/linear_\d+/b", k)]
    num_bins = len(arrays[max(heads, key=lambda k: int(k.split("linear_")[1][:-2]))])
    if brings_rule(arrays):
        sizes, rule_params = arrays_to_params(group(arrays, "meta_params"))
    else:
        loaded = load_rule("disco103")
        sizes, rule_params = loaded.rule.sizes, loaded.params
    rule = DiscoRule(sizes=sizes, value_head=unit_bins(num_bins), returns=SETTINGS.returns)
    return rule, in_precision_of(arrays, rule_params)


def in_precision_of(arrays: Arrays, content: tree.Tree) -> tree.Tree:
    """The same with floats as precise as the file's results."""
    if not is_float64(arrays):
        return content

    def widen(x: Tensor) -> Tensor:
        return x.double() if x.is_floating_point() else x

    return tree.map(widen, content)
