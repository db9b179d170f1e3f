"""Training from end to end."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch

from discorl.comparison.compare import compare
from discorl.envs.tasks.catch import Catch, CatchState
from discorl.errors import DiscorlError
from discorl.runs.files import load_params
from discorl.training import train as train_module
from discorl.training.config import NetConfig, OptimiserConfig, TrainConfig
from discorl.training.rule_choice import choose_rule, read_config
from discorl.training.train import resume, train
from discorl.training.trained_agent import load_agent
from discorl.types import TimeStep
from tests.builders import assert_bit_equal, write_small_rule

THREADS = torch.get_num_threads()
SMALL_NET = NetConfig(torso=(32,), action_lstm=8, head_hidden=(8,))


def config(tmp_path: Path, **changes) -> TrainConfig:
    start = TrainConfig(
        task="catch:4x3",
        rule="policy-gradient",
        steps=4,
        log_every=1,
        out=tmp_path / "run",
        progress="none",
        device="cpu",
        batch_size=4,
        replay_capacity=16,
        net=SMALL_NET,
    )
    return replace(start, **changes)


@pytest.mark.parametrize("rule", ["policy-gradient", "actor-critic", "cmpo"])
def test_baselines_learn_an_easy_catch(rule: str, tmp_path: Path) -> None:
    """Chance is 1 in 3. cmpo waits for its values, so it gets the two updates a step it is for."""
    result = train(
        config(
            tmp_path,
            rule=rule,
            steps=150,
            log_every=25,
            num_envs=8,
            batch_size=16,
            replay_capacity=64,
            updates_per_step=2 if rule == "cmpo" else 1,
            optimiser=OptimiserConfig(learning_rate=1e-2),
            actor_critic=replace(TrainConfig().actor_critic, entropy_cost=0.02),
        )
    )
    assert result.metrics[0]["success"] < 0.75
    assert result.metrics[-1]["success"] > 0.9


@pytest.mark.slow
@pytest.mark.disco103
def test_disco103_learns_catch(tmp_path: Path) -> None:
    """At least 98 % of the balls over the last 100 steps.

    The sharp rise comes anywhere between step 450 and 1000, by chance; this leaves it time.
    """
    result = train(TrainConfig(rule="disco103", steps=1300, out=tmp_path / "run", progress="none"))
    last = [row["success"] for row in result.metrics if row["step"] in (1250, 1300)]
    assert len(last) == 2, "rows are means over the 50 steps before them"
    assert sum(last) / 2 >= 0.98


def test_equal_seeds_give_equal_runs_whatever_the_global_state(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 2)):
        torch.manual_seed(seed)
        train(config(tmp_path, out=tmp_path / name))
    assert_bit_equal(*(load_params(tmp_path / name / "agent.npz") for name in "ab"))


def test_a_broken_environment_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Catch.step

    def broken(self: Catch, state: CatchState, actions, generator):
        state, timestep = step(self, state, actions, generator)
        observation = timestep.observation.clone()
        observation[1] = float("nan")
        return state, TimeStep(observation, timestep.reward, timestep.discount)

    monkeypatch.setattr(Catch, "step", broken)
    with pytest.raises(DiscorlError, match="environment 1 sent observations"):
        train(config(tmp_path))


def test_ctrl_c_before_the_first_update_keeps_the_newborn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(train_module, "check_rollout", interrupt)
    result = train(config(tmp_path))
    assert result.interrupted
    assert result.metrics == []
    assert load_params(result.folder / "agent.npz")


def test_folders_may_be_given_as_text(tmp_path: Path) -> None:
    path = str(tmp_path / "run")
    assert train(config(tmp_path, out=path)).folder == tmp_path / "run"
    assert load_agent(path).folder == tmp_path / "run"
    assert read_config(path)[0].out == tmp_path / "run"
    assert len(compare([path]).tasks) == 1


def test_an_environment_that_fails_to_reset_leaves_nothing(tmp_path: Path) -> None:
    class Broken(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (2,))
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, **options: Any) -> Any:
            raise ZeroDivisionError("the wheels came off")

    with pytest.raises(DiscorlError, match=r"failed to reset.*the wheels came off"):
        train(config(tmp_path), env=Broken)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_log_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(DiscorlError, match=r"discorl\[wandb\]"):
        train(config(tmp_path, log="wandb"))
    assert list(tmp_path.iterdir()) == []


# --- from the configuration to the rule ----------------------------------------------------------


def test_settings_reach_the_rule(tmp_path: Path) -> None:
    path = write_small_rule(tmp_path / "rule.npz")
    start = TrainConfig(rule=str(path))
    chosen = choose_rule(
        replace(
            start,
            returns=replace(start.returns, discount=0.5, lambda_=0.25),
            disco=replace(start.disco, q_cost=7.0, target_rate=0.75),
        )
    )
    rule = chosen.rule
    assert rule.returns.discount == 0.5  # pyright: ignore[reportAttributeAccessIssue]
    assert rule.returns.lambda_ == 0.25  # pyright: ignore[reportAttributeAccessIssue]
    assert rule.settings.q_cost == 7.0  # pyright: ignore[reportAttributeAccessIssue]
    assert rule.settings.target_rate == 0.75  # pyright: ignore[reportAttributeAccessIssue]
    assert rule.value_head.num_bins == 11  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 0},
        {"num_envs": 0},
        {"batch_size": 0},
        {"rollout_length": 1},
        {"log_every": 0},
        {"updates_per_step": 0},
        {"replay_capacity": 3},
        {"num_envs": 17},
        {"seed": 2**62},
    ],
    ids=str,
)
def test_impossible_settings_are_refused(changes: dict, tmp_path: Path) -> None:
    with pytest.raises(DiscorlError, match=next(iter(changes))):
        config(tmp_path, **changes)


def test_impossible_networks_and_optimisers_are_refused() -> None:
    for make in (
        lambda: NetConfig(torso=()),
        lambda: NetConfig(torso=(4, 0)),
        lambda: NetConfig(action_lstm=0),
        lambda: OptimiserConfig(learning_rate=0),
        lambda: OptimiserConfig(learning_rate=float("nan")),
        lambda: OptimiserConfig(max_abs_update=float("inf")),
    ):
        with pytest.raises(DiscorlError, match=r"net|optimiser"):
            make()


@pytest.mark.parametrize(
    "rule", ["disco-mini", "actor-critic", pytest.param("disco103", marks=pytest.mark.disco103)]
)
def test_agents_do_not_depend_on_the_number_of_threads(rule: str, tmp_path: Path) -> None:
    """At full size, where products and sums are shared between threads."""
    full = TrainConfig(
        rule=rule, steps=2, num_envs=32, batch_size=32, device="cpu", progress="none"
    )
    runs = []
    for threads in (1, 2):
        out = tmp_path / str(threads)
        train(replace(full, threads=threads, out=out))
        assert torch.get_num_threads() == THREADS
        runs.append(load_params(out / "agent.npz"))
    torch.testing.assert_close(runs[0], runs[1])


def test_a_budget_of_environment_steps_counts_all_copies(tmp_path: Path) -> None:
    """Also those of a vector environment, which has as many as it has."""
    settings = config(tmp_path, env_steps=1e3, rollout_length=10)
    assert settings.steps == 50
    env = gymnasium.make_vec("CartPole-v1", 4)
    result = train(settings, env=env)
    assert (result.metrics[-1]["step"], result.metrics[-1]["env_steps"]) == (25, 1000)
    again, _ = read_config(result.folder)
    assert (again.steps, again.env_steps) == (25, None), "what is resumed goes by steps"
    longer = resume(replace(again, env_steps=1100), env=gymnasium.make_vec("CartPole-v1", 4))
    assert longer.metrics[-1]["env_steps"] == 1120
