"""Golden files notice mistakes: each is made on purpose, and a replay has to fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from discorl import optim, tree
from discorl.agents import update
from discorl.meta import objective, window
from discorl.ops import categorical, moments, returns
from discorl.rules import disco
from discorl.types import Rollout, RuleState
from tests.builders import GOLDEN
from tests.golden.replay import replay

VALUES = GOLDEN / "value_estimation.npz"
ACTOR_CRITIC = GOLDEN / "actor_critic_learner.npz"
DISCO = GOLDEN / "disco_small_learner.npz"
META_GRADIENT = GOLDEN / "meta_gradient_small.npz"
ACTOR_CRITIC_FLOAT64 = GOLDEN / "float64" / "actor_critic.npz"
DISCO_FLOAT64 = GOLDEN / "float64" / "disco.npz"

TARGET_RATE = 0.1

Plant = Callable[[pytest.MonkeyPatch], None]


def retrace_off_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step is cut by the importance weight of the one before."""
    right = returns.retrace

    def wrong(q_a: Tensor, v: Tensor, r: Tensor, d: Tensor, rho: Tensor, lambda_: float) -> Tensor:
        return right(q_a, v, r, d, rho.roll(1, 0), lambda_)

    monkeypatch.setattr(returns, "retrace", wrong)


def other_lambda(by: float) -> Plant:
    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("retrace", "vtrace"):
            right = getattr(returns, name)
            monkeypatch.setattr(returns, name, lambda *args, f=right: f(*args[:-1], args[-1] + by))

    return plant


def clip_before_adam(monkeypatch: pytest.MonkeyPatch) -> None:
    right = optim.chain
    monkeypatch.setattr(optim, "chain", lambda adam, clip, *rest: right(clip, adam, *rest))


def other_adam_decay(monkeypatch: pytest.MonkeyPatch) -> None:
    right = optim.scale_by_adam
    monkeypatch.setattr(optim, "scale_by_adam", lambda: right(b2=0.9985))


def target_network_moved_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Targets are made with the target network from after its own update."""
    right = update.unroll_and_targets

    def wrong(agent: Any, rule_params: Any, state: Any, *rest: Any) -> Any:
        moved = tree.lerp(state.rule.target_params, state.params, TARGET_RATE)
        return right(agent, rule_params, replace_target(state, moved), *rest)

    monkeypatch.setattr(update, "unroll_and_targets", wrong)


def target_network_follows_the_new_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes its share of the agent from after the update."""
    right = update.update_agent

    def wrong(agent: Any, rule_params: Any, state: Any, rollout: Any, **options: Any) -> Any:
        new, info = right(agent, rule_params, state, rollout, **options)
        moved = tree.lerp(state.rule.target_params, new.params, TARGET_RATE)
        return replace_target(new, moved), info

    monkeypatch.setattr("tests.golden.learner.update_agent", wrong)


def replace_target(state: Any, target_params: Any) -> Any:
    return replace(state, rule=replace(state.rule, target_params=target_params))


def mask_off_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends of episodes are left out of the loss, and not starts."""

    def wrong(rollout: Rollout, mask_episode_starts: bool) -> Tensor:
        return (rollout.discounts[1:] > 0).to(rollout.rewards.dtype)

    monkeypatch.setattr(update, "loss_mask", wrong)


def divergence_the_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    right = disco.kl_loss
    monkeypatch.setattr(disco, "kl_loss", lambda target, logits: right(logits, target.detach()))


def moments_that_forget_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    right = moments.update_moments
    monkeypatch.setattr(
        moments, "update_moments", lambda kept, x, decay, *rest: right(kept, x, decay - 1e-3, *rest)
    )


def lifetime_state_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    right = disco.DiscoRule.targets

    def wrong(self: Any, rule_params: Any, state: RuleState, *rest: Any) -> Any:
        targets, new = right(self, rule_params, state, *rest)
        return targets, replace(new, lifetime_rnn=state.lifetime_rnn)

    monkeypatch.setattr(disco.DiscoRule, "targets", wrong)


def no_gradient_through_earlier_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The meta-gradient of the last update alone."""
    right = update.update_agent

    def wrong(agent: Any, rule_params: Any, state: Any, rollout: Any, **options: Any) -> Any:
        return right(agent, rule_params, tree.detach(state), rollout, **options)

    monkeypatch.setattr(window, "update_agent", wrong)


def one_part_of_the_objective_by_a_hundredth(monkeypatch: pytest.MonkeyPatch) -> None:
    right = objective.kl_divergence
    monkeypatch.setattr(objective, "kl_divergence", lambda p, q: 1.01 * right(p, q))


def two_hot_without_its_lean(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred-thousandth of a weight on the wrong bin."""
    right = categorical.two_hot_position

    def wrong(x: Tensor, num_bins: int, max_abs: float) -> tuple[Tensor, Tensor]:
        lower, _ = right(x, num_bins, max_abs)
        width = 2 * max_abs / (num_bins - 1)
        return lower, (x.clamp(-max_abs, max_abs) + max_abs) / width - lower

    monkeypatch.setattr("discorl.ops.losses.two_hot_position", wrong)


PLANTED: list[tuple[Plant, Path]] = [
    (retrace_off_by_one, VALUES),
    (retrace_off_by_one, DISCO),
    (other_lambda(1e-3), VALUES),
    (other_lambda(1e-3), ACTOR_CRITIC),
    (other_lambda(1e-3), DISCO),
    (clip_before_adam, ACTOR_CRITIC),
    (clip_before_adam, DISCO),
    (target_network_moved_first, DISCO),
    (target_network_follows_the_new_parameters, DISCO),
    (mask_off_by_one, ACTOR_CRITIC),
    (mask_off_by_one, DISCO),
    (divergence_the_other_way, DISCO),
    (moments_that_forget_faster, VALUES),
    (lifetime_state_not_kept, DISCO),
    (clip_before_adam, META_GRADIENT),
    (no_gradient_through_earlier_updates, META_GRADIENT),
    (one_part_of_the_objective_by_a_hundredth, META_GRADIENT),
    # Too small for float32: three steps change the parameters by less than rounding may.
    (other_adam_decay, ACTOR_CRITIC_FLOAT64),
    (two_hot_without_its_lean, DISCO_FLOAT64),
    (other_lambda(1e-7), DISCO_FLOAT64),
]


@pytest.mark.parametrize(
    "plant, path", PLANTED, ids=lambda x: x.stem if isinstance(x, Path) else x.__qualname__
)
def test_is_noticed(plant: Plant, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert replay(path).failures


@pytest.mark.parametrize("path", sorted({path for _, path in PLANTED}), ids=lambda p: p.stem)
def test_is_silent_without_a_mistake(path: Path) -> None:
    assert torch.is_grad_enabled()
    assert not replay(path).failures
