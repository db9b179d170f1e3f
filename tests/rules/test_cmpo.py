"""The clipped-advantage rule: worked by hand, and beside the discovered rule it resembles."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from discorl.agents.agent import Agent
from discorl.agents.update import update_agent
from discorl.errors import DiscorlError
from discorl.rules import CMPO, DiscoRule
from discorl.rules.disco import DiscoSettings
from discorl.rules.improvement import Improvement, improved_policy
from discorl.types import ActionValues, AgentState, DiscoTargets, Rollout, RuleState
from tests.builders import (
    SMALL_VALUE,
    disturbed,
    double,
    random_rollout,
    random_rule_params,
    rng,
    small_agent,
    small_disco,
)

close = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)
HOW = Improvement(strength=1.5, max_advantage=0.7)


def test_improved_policy_by_hand() -> None:
    """One step, three actions, action 1 taken; the second time step is there to bootstrap from."""
    zeros = torch.zeros(2, 1)
    values = ActionValues(
        value=zeros,
        target_value=zeros,
        rho=zeros[:1],
        advantage=zeros[:1],
        normalized_advantage=torch.tensor([[0.25]]),
        value_target=zeros[:1],
        td=zeros[:1],
        q_value=zeros,
        target_q_value=zeros,
        q_target=zeros[:1],
        q_td=zeros[:1],
        normalized_q_td=zeros[:1],
        qv_advantage=zeros,
        normalized_qv_advantage=torch.tensor([[[0.5, 9.0, -3.0]], [[7.0, 7.0, 7.0]]]),
    )
    logits = torch.tensor([[[1.0, 2.0, 3.0]], [[0.0, 0.0, 0.0]]])
    taken = torch.tensor([[1], [0]])
    improved = improved_policy(logits, values, taken, Improvement(2.0, 1.0))
    torch.testing.assert_close(improved, torch.tensor([[[2.0, 2.5, 1.0]]]))
    half = Improvement(2.0, 10.0, trust=0.5)  # (0.25 + 9) / 2 for the taken action
    improved = improved_policy(logits, values, taken, half)
    torch.testing.assert_close(improved, torch.tensor([[[2.0, 11.25, -3.0]]]))


class Replaced(DiscoRule):
    """A discovered rule whose pi-hat is the improved policy, whatever its network says."""

    def targets(self, *args: Any, **kwargs: Any) -> tuple[DiscoTargets, RuleState]:
        targets, state = super().targets(*args, **kwargs)
        rollout: Rollout = args[5]
        pi = improved_policy(targets.target_logits, targets.values, rollout.actions, HOW)
        return replace(targets, pi=pi), state


def living(agent: Agent, shared: AgentState | None = None) -> AgentState:
    """An agent whose target network differs; with the parameters that it shares with another."""
    params = double(disturbed(agent.init_state(rng()).params, 0.3))
    targets = disturbed(params, 0.2, 5)
    if shared is not None:
        assert shared.rule.target_params is not None
        params = {k: shared.params[k] for k in params}
        targets = {k: shared.rule.target_params[k] for k in params}
    return AgentState(params, agent.optimiser.init(params), double(agent.rule.init_state(targets)))


def test_agents_learn_as_from_a_discovered_rule_that_says_the_same() -> None:
    """Its y and z cost nothing, so the parameters that both agents have go the same way."""
    free = DiscoSettings(y_cost=0.0, z_cost=0.0)
    disco = Replaced(small_disco().sizes, SMALL_VALUE, settings=free, mask_episode_starts=False)
    rule = CMPO(**vars(HOW), num_bins=11, max_abs_value=5.0)
    full, agent = small_agent(disco), small_agent(rule)
    full_params = double(random_rule_params(disco))
    full_state = living(full)
    state = living(agent, full_state)
    for step in range(3):
        rollout = double(random_rollout(seed=step))
        full_state, full_info = update_agent(full, full_params, full_state, rollout)
        state, info = update_agent(agent, {}, state, rollout)
        close(info.targets.pi, full_info.targets.pi)
        close(info.losses["q"], full_info.losses["q"])
        for name, p in state.params.items():
            close(p, full_state.params[name], msg=name)
    assert len(full_state.params) > len(state.params)


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"strength": -1.0}, "strength must be"),
        ({"max_advantage": 0.0}, "max_advantage must be"),
        ({"trust": 1.5}, "trust must be"),
        ({"num_bins": 1}, "at least 2 bins"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(DiscorlError, match=said):
        CMPO(**settings)
