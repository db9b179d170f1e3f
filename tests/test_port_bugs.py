"""The six things that public ports of DiscoRL got wrong, each with a test named after it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from discorl.agents.agent import adam_clip, mlp_agent_net
from discorl.agents.update import loss_mask, masked_mean, update_agent
from discorl.nets.linear import Linear, init_params
from discorl.ops.returns import retrace
from discorl.rules import DiscoRule
from discorl.rules.disco import DiscoSettings
from discorl.training import train as train_module
from discorl.training.config import NetConfig, TrainConfig
from discorl.types import AgentState, EnvSpec, Rollout
from tests.builders import (
    SMALL_SIZES,
    SMALL_VALUE,
    disturbed,
    random_rollout,
    random_rule_params,
    rng,
    small_agent,
    small_disco,
    with_target_params,
)


def test_reversed_target_averaging() -> None:
    """The target network keeps 0.9 of itself and takes 0.1 of the agent from before the update."""
    rule = small_disco()
    agent = small_agent(rule)
    state = agent.init_state(rng())
    state = with_target_params(state, disturbed(state.params, std=1.0))
    new, _ = update_agent(agent, random_rule_params(rule), state, random_rollout())
    old_target, new_target = state.rule.target_params, new.rule.target_params
    assert old_target is not None
    assert new_target is not None
    for name, p in state.params.items():
        torch.testing.assert_close(new_target[name], 0.9 * old_target[name] + 0.1 * p)


def test_clipping_before_adam() -> None:
    """Adam sees the whole gradient; what it makes of it is clipped.

    A first gradient of 100 gives Adam's step 1 either way. After a second one of 0.1,

        mu = 0.9 * 0.1 * 100 + 0.1 * 0.1 = 9.01          debiased: / 0.19
        nu = 0.999 * 0.001 * 1e4 + 0.001 * 0.01 = 9.99001  debiased: / 0.001999

    whereas a gradient clipped to 1 first would have left mu = 0.1 and nu = 0.00100899.
    """
    optimiser = adam_clip(1.0)
    params = {"x": torch.zeros(1)}
    step, state = optimiser.update({"x": torch.tensor([100.0])}, optimiser.init(params), params)
    torch.testing.assert_close(step["x"], torch.tensor([-1.0]))
    step, _ = optimiser.update({"x": torch.tensor([0.1])}, state, params)
    expected = (9.01 / 0.19) / (9.99001 / 0.001999) ** 0.5
    torch.testing.assert_close(step["x"], torch.tensor([-expected]), rtol=1e-5, atol=0)

    # After 200 gradients near 0, a large one makes Adam step 0.1 / sqrt(0.001 / (1 - 0.999^201)),
    # which is 1.35; only a clip behind Adam keeps it at 1.
    state = optimiser.init(params)
    for _ in range(200):
        _, state = optimiser.update({"x": torch.tensor([1e-6])}, state, params)
    step, _ = optimiser.update({"x": torch.tensor([100.0])}, state, params)
    assert step["x"].item() == -1.0


def test_retrace_off_by_one() -> None:
    """g[t] uses trace and q of t+1, not of t+2.

    Backwards, with c = lambda min(1, rho) = (any, 0.5, 0.25), discount 1/2 and V = 10 at the end:

        g[2] = 3 + 0.5 * 10                                = 8
        g[1] = 2 + 0.5 * (4 + 0.25 * (8 - 6))              = 4.25
        g[0] = 1 + 0.5 * (2 + 0.5 * (4.25 - 3))            = 2.3125
    """
    column = [[1.0], [2.0], [3.0]]
    g = retrace(
        q_a=torch.tensor([[5.0], [3.0], [6.0]]),
        values=torch.tensor([[7.0], [2.0], [4.0], [10.0]]),
        rewards=torch.tensor(column),
        discounts=torch.full((3, 1), 0.5),
        rho=torch.tensor([[9.0], [3.0], [0.5]]),
        lambda_=0.5,
    )
    torch.testing.assert_close(g, torch.tensor([[2.3125], [4.25], [8.0]]))


def two_episodes() -> Rollout:
    """Five steps of one trajectory; action 1 ends an episode, so step 2 starts the next."""
    rollout = random_rollout(num_steps=5, batch=1)
    return replace(rollout, discounts=torch.tensor([[1.0], [1.0], [0.0], [1.0], [1.0]]))


def test_wrong_mask() -> None:
    """First-of-episode steps are left out of the loss; terminal ones are not."""
    rollout = two_episodes()
    assert rollout.is_terminal.squeeze(1).tolist() == [False, True, False, False]
    mask = loss_mask(rollout, mask_episode_starts=True)
    assert mask.squeeze(1).tolist() == [1.0, 1.0, 0.0, 1.0]
    per_step = torch.tensor([[1.0], [10.0], [100.0], [4.0]])
    assert masked_mean(per_step, mask).item() == pytest.approx(15 / 3)
    everything = loss_mask(rollout, mask_episode_starts=False)
    assert masked_mean(per_step, everything).item() == pytest.approx(115 / 4)


def test_wrong_mask_in_the_update() -> None:
    """What the agent predicted at a masked step makes no difference, at a terminal step it does."""
    rule = small_disco()
    agent = small_agent(rule)
    rollout = two_episodes()
    rule_params, state = random_rule_params(rule), agent.init_state(rng())
    _, info = update_agent(agent, rule_params, state, rollout)

    def loss_with_target(step: int) -> float:
        assert info.targets.y is not None
        y = info.targets.y.clone()
        y[step] = torch.linspace(-3, 3, y.shape[-1])
        per_step, _ = rule.loss(info.predictions, replace(info.targets, y=y), rollout)
        return masked_mean(per_step, loss_mask(rollout, agent.rule.mask_episode_starts)).item()

    per_step, _ = rule.loss(info.predictions, info.targets, rollout)
    counted = per_step.squeeze(1)[[0, 1, 3]].mean().item()
    assert info.loss.item() == pytest.approx(counted, rel=1e-5)
    assert loss_with_target(2) == pytest.approx(info.loss.item(), rel=1e-6)
    assert loss_with_target(1) != pytest.approx(info.loss.item(), rel=1e-2)


def test_wrong_mask_of_the_auxiliary_policy() -> None:
    """After a terminal action there is no next policy to predict, so nothing to lose."""
    settings = DiscoSettings(0, 0, 0, aux_pi_cost=1.0, q_cost=0)
    rule = DiscoRule(SMALL_SIZES, SMALL_VALUE, settings=settings)
    agent = small_agent(rule)
    rollout = two_episodes()
    state = agent.init_state(rng())
    params = disturbed(state.params)
    state = AgentState(params, state.optimiser, rule.init_state(params))
    _, info = update_agent(agent, random_rule_params(rule), state, rollout)
    losses = rule.loss(info.predictions, info.targets, rollout)[1]["aux_pi"].squeeze(1)
    assert losses[1] == 0
    assert (losses[[0, 2, 3]] > 0).all()


def test_missing_head_init() -> None:
    """Flat heads start near zero: truncated normal of std 0.01, cut at 2 std and not rescaled."""
    net = mlp_agent_net(EnvSpec((4,), 40), DiscoRule(), torso=(300,), lstm_size=4)
    params = init_params(net, rng())
    for head in ("logits", "y"):
        weight = params[f"flat_heads.{head}.weight"]
        assert weight.abs().max() <= 0.02
        assert weight.abs().max() > 0.0195  # the tail reaches to the cut
        # A unit normal cut at 2 has deviation 0.8796; rescaled to 0.01 it would reach beyond 0.02.
        assert weight.std().item() == pytest.approx(0.01 * 0.8796, rel=0.03)
        assert not params[f"flat_heads.{head}.bias"].any()


def test_missing_head_init_elsewhere() -> None:
    """Other layers: the same with std 1 / sqrt(inputs)."""
    weight = init_params(Linear(100, 400), rng())["weight"]
    assert weight.abs().max() <= 0.2
    assert weight.std().item() == pytest.approx(0.1 * 0.8796, rel=0.03)


def test_replay_ratio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catch's reference settings: one update on 64 trajectories for every 2 x 29 acting steps."""
    batches: list[Rollout] = []

    def counted(agent, rule_params, state, rollout, **kwargs):
        batches.append(rollout)
        return update_agent(agent, rule_params, state, rollout, **kwargs)

    monkeypatch.setattr(train_module, "update_agent", counted)
    reference = TrainConfig()
    config = TrainConfig(
        rule="policy-gradient",
        steps=40,
        log_every=1,
        out=tmp_path / "run",
        progress="none",
        net=NetConfig(torso=(8,), action_lstm=4, head_hidden=(4,)),
    )
    rows = train_module.train(config).metrics
    assert [row["env_steps"] for row in rows] == [58 * step for step in range(1, 41)]
    # The replay holds 64 trajectories after 32 rollouts; from then on, each step learns once.
    assert [row["step"] for row in rows if "loss" in row] == list(range(32, 41))
    assert len(batches) == 9
    assert {b.actions.shape for b in batches} == {torch.Size([29, 64])}
    assert (reference.num_envs, reference.rollout_length) == (2, 29)
    assert (reference.batch_size, reference.replay_capacity) == (64, 1024)
    assert (reference.updates_per_step, reference.optimiser.learning_rate) == (1, 0.01)
