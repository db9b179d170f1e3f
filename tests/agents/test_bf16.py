"""Agents in bf16: they act as they learn, and no meta-gradient meets it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from discorl import tree
from discorl.agents.acting import act, begin
from discorl.agents.agent import Agent, adam_clip, mlp_agent_net
from discorl.agents.update import update_agent
from discorl.envs.tasks.catch import Catch
from discorl.errors import DiscorlError
from discorl.types import AgentState, Rollout
from tests.builders import random_rollout, random_rule_params, rng, small_agent, small_disco
from tests.compiler import needs_compiler


def acted_and_learnt(agent: Agent) -> tuple[Tensor, Tensor, AgentState]:
    """The logits of a rollout as it was made, and as the update saw them; the new state."""
    state, env = agent.init_state(rng()), Catch(2, 8, 8)
    with agent.acting():
        start = begin(agent.net, env, rng(1))
        rollout: Rollout = act(agent.net, state.params, env, start, 9)[0]
    params = random_rule_params(agent.rule)  # pyright: ignore[reportArgumentType]
    state, info = update_agent(agent, params, state, rollout)
    return rollout.behaviour_logits, info.predictions.logits, state


@needs_compiler
@pytest.mark.parametrize("by_kernel", [True, False])
def test_acting_and_learning_are_at_one_precision(by_kernel: bool) -> None:
    rule = small_disco()
    net = mlp_agent_net(Catch(2, 8, 8).spec, rule, (128, 128))
    rounded = Agent(net, rule, adam_clip(0.01), native=by_kernel, bf16=True)
    acted, learnt, state = acted_and_learnt(rounded)
    torch.testing.assert_close(acted, learnt, rtol=0, atol=1e-6)
    exact, _, other = acted_and_learnt(replace(rounded, bf16=False))
    assert float((acted - exact).abs().max()) > 1e-5, "rounding shows"
    pairs = zip(tree.leaves(state.params), tree.leaves(other.params), strict=True)
    assert any(not torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("how", [{"differentiable": True}, {"each": tree.vmap}], ids=" ".join)
def test_discovery_is_refused(how: dict[str, object]) -> None:
    rule = small_disco()
    agent = replace(small_agent(rule), bf16=True)
    args = random_rule_params(rule), agent.init_state(rng()), random_rollout()
    with pytest.raises(DiscorlError, match="bf16 is only for training an agent"):
        update_agent(agent, *args, **how)  # pyright: ignore[reportArgumentType]
