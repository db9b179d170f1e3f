"""The warm start: a rule that learns to say what a hand-written one would."""

from __future__ import annotations

import torch

from discorl.meta.estimators.imitation import MAX_ADVANTAGE, STRENGTH, improved_policy
from discorl.meta.meta_step import MetaOptimiser, init_discovery, live_window, meta_step
from discorl.meta.population import init_group
from discorl.types import ActionValues, DiscoTargets, Rollout
from tests.builders import assert_bit_equal, rng
from tests.meta.population import tiny_config, tiny_groups


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
    rollout = Rollout(zeros, torch.tensor([[1], [0]]), zeros, zeros + 1, logits)
    targets = DiscoTargets(values, logits[:1], logits[:1], logits[:1], zeros[:1], logits)
    improved = improved_policy(targets, rollout)
    step = STRENGTH * torch.tensor([0.5, 0.25, -MAX_ADVANTAGE])
    torch.testing.assert_close(improved, (logits[0] + step)[None])


def test_imitation_comes_closer_and_agents_live_on() -> None:
    groups, params = tiny_groups(tiny_config())
    optimiser = MetaOptimiser(learning_rate=1e-2, per_agent=False)
    generators = [rng(1), rng(2)]
    discovery = init_discovery(groups, params, optimiser, generators)
    losses = []
    for _ in range(60):
        discovery, info = meta_step(groups, discovery, optimiser, generators, imitate=True)
        losses.append(sum(float(r.loss.mean()) for r in info.results))
    assert sum(losses[-5:]) < 0.6 * sum(losses[:5])
    assert discovery.groups[0].age.tolist() == [120, 120]


def test_agents_are_updated_as_in_a_window_of_the_meta_gradient() -> None:
    [group, _], params = tiny_groups(tiny_config(lifetimes=()))
    state = init_group(group, rng())
    imitated = live_window(group, params, state, rng(5), imitate=True)
    plain = live_window(group, params, state, rng(5))
    assert_bit_equal(imitated.state.agents.params, plain.state.agents.params)
