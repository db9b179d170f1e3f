"""Too many actions are refused with the reason, instead of an update that seems to hang."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from discorl.agents.action_limit import MAX_CHOICES, MAX_READ, check_num_actions
from discorl.errors import DiscorlError
from discorl.training.config import NetConfig, TrainConfig
from discorl.training.train import train
from tests.builders import RULES


@pytest.mark.parametrize("name", ["disco", "cmpo"])
def test_rules_that_read_each_action(name: str) -> None:
    rule = RULES[name]()
    check_num_actions(rule, MAX_READ, 29, 64)
    with pytest.raises(DiscorlError, match=r"5000 actions, but the limit is 1024: .* 9\.3 GB"):
        check_num_actions(rule, 5000, 29, 64)


def test_rules_that_only_have_a_policy_take_more() -> None:
    rule = RULES["actor-critic"]()
    check_num_actions(rule, 5000, 29, 64)
    with pytest.raises(DiscorlError, match=r"fewer actions$"):
        check_num_actions(rule, MAX_CHOICES + 1, 29, 64)


class Huge(gymnasium.Env):
    """Thousands of actions that do nothing."""

    observation_space = spaces.Box(0.0, 1.0, (2,))
    action_space = spaces.Discrete(5000)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 0.0, False, False, {}


def settings(out: Path, rule: str) -> TrainConfig:
    net = NetConfig(torso=(4,), action_lstm=4, head_hidden=(4,))
    sizes: dict[str, Any] = {"num_envs": 2, "batch_size": 2, "rollout_length": 3, "steps": 2}
    return TrainConfig(task="huge", rule=rule, out=out, net=net, progress="none", **sizes)


def test_a_run_on_a_huge_space_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(DiscorlError, match="use --rule actor-critic"):
        train(settings(tmp_path / "run", "disco-mini"), env=Huge)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_rule_without_per_action_predictions_trains_on_it(tmp_path: Path) -> None:
    done = train(settings(tmp_path / "run", "actor-critic"), env=Huge)
    assert done.metrics[-1]["step"] == 2
