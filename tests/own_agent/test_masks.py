"""Action masks with an agent and a loop of one's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from discorl import tree
from discorl.agents.agent import Agent
from discorl.errors import DiscorlError
from discorl.own_agent import DiscoTrainer, DiscoUpdateRule, collect_rollout
from discorl.types import Rollout
from tests.agents.test_action_masks import KEPT, NUM_ACTIONS, experience, fewer, masked, of_small
from tests.builders import RULES, random_rule_params, rng, small_agent

BATCH = 3


class World:
    """Allows three of six actions, and fails if another is taken."""

    mask = np.isin(np.arange(NUM_ACTIONS), KEPT.numpy())

    def masks(self) -> np.ndarray:
        return np.repeat(self.mask[None], BATCH, 0)

    def step(self, actions: np.ndarray) -> tuple[Any, ...]:
        assert self.mask[actions].all(), actions
        shown = np.ones((BATCH, 4), np.float32)
        return shown, np.ones(BATCH), np.zeros(BATCH, bool), self.masks()


def module(name: str, num_actions: int = NUM_ACTIONS) -> Agent:
    return small_agent(RULES[name](), num_actions)


@pytest.mark.parametrize("name", ["disco", "cmpo", "actor-critic", "policy-gradient"])
def test_a_trainer_learns_only_what_is_allowed(name: str) -> None:
    agent, world = module(name), World()
    net: Any = agent.net
    net.load_state_dict(agent.init_state(rng()).params)
    params = random_rule_params(agent.rule)
    trainer = DiscoTrainer(
        net, rule=DiscoUpdateRule(agent.rule, params), replay_capacity=8, batch_size=BATCH
    )
    obs, mask = np.ones((BATCH, 4), np.float32), world.masks()
    for _ in range(3):
        rollout, obs, _ = collect_rollout(
            net, world.step, obs, rollout_len=5, action_mask=mask, generator=trainer.generator
        )
        assert rollout.action_mask is not None and len(rollout.action_mask) == 6
        mask = rollout.action_mask[-1]
        trainer.step(rollout)
    assert trainer.grad_steps > 0
    saved = trainer.state_dict()
    assert saved["replay"]["storage"]["action_mask"].dtype == torch.bool
    trainer.load_state_dict(saved)
    assert len(trainer.replay) == 8


@pytest.mark.parametrize("name", ["disco", "cmpo", "actor-critic", "policy-gradient"])
def test_the_loss_is_that_of_an_agent_without_the_others(name: str) -> None:
    large, small = module(name), module(name, len(KEPT))
    state = large.init_state(rng()).params
    params = random_rule_params(large.rule)
    losses = []
    rollout = single(experience(0))
    for agent, own, view in ((large, state, masked), (small, fewer(small, state), of_small)):
        net: Any = agent.net
        net.load_state_dict(own)
        rule = DiscoUpdateRule(agent.rule, params)
        losses.append(rule.loss(net, view(rollout), rule.init_state(net)).loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def single(rollout: Rollout) -> Rollout:
    """In float32, which rules compute in."""
    return tree.map(lambda x: x.float() if x.is_floating_point() else x, rollout)


def wrong(rollout: Rollout, kind: str) -> Rollout:
    mask = rollout.action_mask
    assert mask is not None
    changes: dict[str, Any] = {
        "shape": {"action_mask": mask[..., :2]},
        "type": {"action_mask": mask.float()},
        "none": {"action_mask": torch.zeros_like(mask)},
        "taken": {"actions": torch.zeros_like(rollout.actions)},
    }
    return replace(rollout, **changes[kind])


@pytest.mark.parametrize(
    "kind, words",
    [
        ("shape", r"expected torch.bool \[T, B, A\] = \[7, 4, 6\]"),
        ("type", "expected torch.bool"),
        ("none", "allows no action, first at t = 0, b = 0"),
        ("taken", "an action that rollout.action_mask forbids, first at t = 0, b = 0"),
    ],
)
def test_masks_that_make_no_sense(kind: str, words: str) -> None:
    agent: Any = module("policy-gradient").net
    rule = DiscoUpdateRule(RULES["policy-gradient"]())
    with pytest.raises(DiscorlError, match=words):
        rule.loss(agent, wrong(masked(single(experience(0))), kind), rule.init_state(agent))


def test_a_loop_that_forgets_its_mask() -> None:
    agent: Any = module("policy-gradient").net
    obs, world = np.ones((BATCH, 4), np.float32), World()
    with pytest.raises(DiscorlError, match="step_fn returned no action mask"):
        collect_rollout(agent, lambda a: world.step(a)[:3], obs, action_mask=world.masks())
    with pytest.raises(DiscorlError, match=r"expected \[B, A\] = \[3, 6\]"):
        collect_rollout(agent, world.step, obs, action_mask=world.masks()[:, :2])
