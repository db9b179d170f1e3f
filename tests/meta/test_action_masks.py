"""Action masks in discovery: windows of updates in every memory mode, and whole populations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from discorl import tree
from discorl.agents.agent import Agent, adam_clip
from discorl.discovery.discover import discover, resume_discovery
from discorl.meta.meta_step import live_window
from discorl.meta.meta_value import MetaValue, ValueNet
from discorl.meta.objective import ObjectiveWeights
from discorl.meta.population import init_group
from discorl.meta.window import MemoryMode, Window
from discorl.nets.torsos import MLPTorso
from discorl.types import AgentState
from tests.agents.test_action_masks import experience, make, masked, of_small, twins
from tests.builders import double, rng
from tests.golden.meta_gradient import through
from tests.meta.population import tiny_config, tiny_groups

MODES = get_args(MemoryMode)
TASK = "tests.envs.test_gymnasium_masks:Masked*2"
"""It fails when an action is taken that is not allowed."""


def window_of(agent: Agent) -> tuple[Window, Any]:
    meta_value = MetaValue(ValueNet(MLPTorso(4, (5,)), 5), adam_clip(1e-3))
    weights = ObjectiveWeights(policy_entropy=0.1, target_mean=0.1, target_kl=0.1)
    return Window(agent, meta_value, weights), double(meta_value.init_state(rng(4)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["disco", "prior"])
def test_meta_gradients_are_those_of_agents_without_masked_actions(
    name: str, mode: MemoryMode
) -> None:
    rule, rule_params = make(name)
    large, state, small, small_state = twins(rule)

    def found(agent: Agent, state: AgentState, view: Any) -> Any:
        window, values = window_of(agent)
        training = [view(experience(seed)) for seed in range(3)]
        return through(window, (rule_params, state, values, training, view(experience(9))), mode)

    ours, theirs = found(large, state, masked), found(small, small_state, of_small)
    torch.testing.assert_close(ours.loss, theirs.loss, rtol=1e-9, atol=1e-12)
    largest = max(float(g.abs().max()) for g in theirs.gradient.values())
    assert largest > 0
    for key, want in theirs.gradient.items():
        torch.testing.assert_close(ours.gradient[key], want, rtol=1e-6, atol=1e-9 * largest)


@pytest.mark.parametrize("mode", MODES)
def test_agents_side_by_side_have_masks_of_their_own(mode: MemoryMode) -> None:
    rule, rule_params = make("disco")
    agent, state, _, _ = twins(rule)
    window, values = window_of(agent)
    plain = experience(1)
    everything = torch.ones_like(plain.behaviour_logits, dtype=torch.bool)
    other = replace(plain, action_mask=everything)
    each = [
        (rule_params, state, values, [rollout] * 2, rollout)
        for rollout in (masked(experience(0)), other)
    ]
    both = tree.map(lambda *xs: torch.stack(xs), *each)
    together = through(replace(window, each=tree.vmap), both, mode)
    for i, args in enumerate(each):
        alone = through(window, args, mode)
        got = tree.index((together.gradient, together.life.agents, together.loss), i)
        want = (alone.gradient, alone.life.agents, alone.loss)
        for a, b in zip(tree.leaves(got), tree.leaves(want), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("mode", MODES)
def test_a_population_takes_only_allowed_actions(mode: MemoryMode) -> None:
    """Also in replay, and as agents die and are born."""
    config = tiny_config(tasks=(TASK,), memory=mode, replay_capacity=6, num_replayed=2)
    [group], params = tiny_groups(replace(config, lifetimes=(2, 4)))
    state, num_born = init_group(group, rng()), 0
    for seed in range(3):
        result = live_window(group, params, state, rng(seed))
        assert tree.is_finite(result.gradient)
        state, num_born = result.state, num_born + result.num_born
    assert num_born > 0
    assert state.replay is not None
    mask = state.replay.storage.action_mask
    assert mask is not None and mask.sum(-1).unique().tolist() == [2]


def test_a_discovery_with_masks_resumes(tmp_path: Path) -> None:
    config = tiny_config(tasks=(TASK, "catch:4x4*2"), out=tmp_path / "run", held_out=(TASK[:-2],))
    config = replace(config, eval_every=2, eval_updates=2, eval_agents=1)
    discover(config)
    resumed = resume_discovery(tmp_path / "run", steps=6)
    assert [row["step"] for row in resumed.metrics] == [1, 2, 3, 4, 5, 6]
    assert any(f"held_out/{TASK[:-2]}" in row for row in resumed.metrics)
