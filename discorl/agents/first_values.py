"""Values that begin where the first rollouts suggest, and not at whatever a new network says.

Where every step costs, values have a long way to go: with a discount of 0.99 and a reward of -1
they end at -100. Until they get there, every action looks worse than expected, and what an agent
could learn about its actions drowns in that.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from discorl.agents.agent import Agent
from discorl.ops.moments import MeanFn, alone
from discorl.ops.step_means import live_mean
from discorl.rules.values import ValueHead
from discorl.types import AgentState, Params, Rollout

LONGEST = 10_000


def mean_value(rollout: Rollout, discount: float, across: MeanFn = alone) -> Tensor:
    """What a state is worth if all states are alike: rewards and ends as in the rollout. []

    Without a discount, episodes that never seem to end count as ``LONGEST`` steps.
    """
    goes_on = (~rollout.is_terminal).to(rollout.rewards.dtype)
    reward, goes_on = (
        across(live_mean(x, rollout.is_dead)) for x in (rollout.rewards[1:], goes_on)
    )
    return reward / (1 - discount * goes_on).clamp(min=1 / LONGEST)


def begin_values_at(value: Tensor, agent: Agent, state: AgentState) -> AgentState:
    """The newborn agent, and its target network, with this value for every state and action. []

    Of many agents side by side, each has its own value [P]. Agents without values stay as they are.
    """
    head: ValueHead | None = getattr(agent.rule, "value_head", None)
    layer: str | None = getattr(agent.net, "value_layer", None)
    if head is None or layer is None:
        return state
    bias = head.output_of(value.detach())

    def begin(params: Params) -> Params:
        new = {
            f"{layer}.weight": torch.zeros_like(params[f"{layer}.weight"]),
            f"{layer}.bias": bias,
        }
        return params | new

    rule, target = state.rule, state.rule.target_params
    if target is not None:
        rule = replace(rule, target_params=begin(target))
    return replace(state, params=begin(state.params), rule=rule)
