"""Training on Gymnasium environments, from end to end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from discorl.cli import main
from discorl.errors import EnvFailure
from discorl.runs.checkpoint import CheckpointFolder
from discorl.runs.files import load_params
from discorl.training.config import EnvConfig, NetConfig, TrainConfig
from discorl.training.train import train
from tests.builders import assert_bit_equal, run_cli, write_small_rule
from tests.envs.gym_examples import Corridor, Faulty, Sampler, Spiky

BOX = spaces.Box(-1, 1, (2,), np.float32)


def config(tmp_path: Path, **changes: Any) -> TrainConfig:
    start = TrainConfig(
        task="gym:CartPole-v1",
        rule="actor-critic",
        steps=3,
        log_every=1,
        out=tmp_path / "run",
        progress="none",
        device="cpu",
        num_envs=2,
        rollout_length=8,
        batch_size=4,
        replay_capacity=16,
        net=NetConfig(torso=(16,), action_lstm=8, head_hidden=(8,)),
    )
    return replace(start, **changes)


@pytest.mark.parametrize(
    "task, env",
    [
        ("gym:CartPole-v1", {}),
        ("gym:CartPole-v1", {"autoreset": "next-step", "normalize_observations": True}),
        ("gym:Blackjack-v1", {"truncation": "terminate"}),
        ("gym:FrozenLake-v1", {"workers": "async", "autoreset": "next-step"}),
        ("gym:Pendulum-v1", {"action_bins": 3, "reward_scale": 0.1, "reward_clip": 1.0}),
    ],
    ids=str,
)
def test_a_few_updates(task: str, env: dict[str, Any], tmp_path: Path) -> None:
    rule = write_small_rule(tmp_path / "rule.npz")
    result = train(config(tmp_path, task=task, rule=str(rule), env=EnvConfig(**env)))
    assert len(result.metrics) == 3
    assert np.isfinite(result.metrics[-1]["loss"])
    assert (result.folder / "env.npz").exists() == bool(env.get("normalize_observations"))
    saved = json.loads((result.folder / "config.json").read_text())["env"]
    assert saved | env == saved


SPACES: dict[str, tuple[spaces.Space, spaces.Space]] = {
    "image": (spaces.Box(0, 255, (8, 9, 3), np.uint8), spaces.Discrete(3, start=4)),
    "discrete": (spaces.Discrete(5), spaces.MultiDiscrete([2, 3])),
    "number": (spaces.Box(-1, 1, (), np.float32), spaces.Box(0, 6, (1,), np.int32)),
    "numbers": (
        spaces.Dict({"speed": spaces.Box(-1, 1, (), np.float64), "rest": BOX}),
        spaces.Discrete(2),
    ),
    "binary": (spaces.MultiBinary([2, 2]), spaces.MultiBinary(2)),
    "nested": (
        spaces.Dict(
            {
                "picture": spaces.Box(0, 255, (4, 4), np.uint8),
                "rest": spaces.Tuple((BOX, spaces.Discrete(2))),
            }
        ),
        spaces.Box(-1, 1, (2,), np.float32),
    ),
}


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("rule", ["disco", "actor-critic"])
def test_odd_spaces_from_a_factory(name: str, rule: str, tmp_path: Path) -> None:
    """Every episode is cut off, so that values of final observations are asked for too."""
    if rule == "disco":
        rule = str(write_small_rule(tmp_path / "rule.npz"))
    made = config(tmp_path, task=name, rule=rule, env=EnvConfig(action_bins=2))
    result = train(made, env=lambda: Sampler(*SPACES[name]))
    assert np.isfinite(result.metrics[-1]["loss"])
    assert result.metrics[-1]["return"] == 4, "the true one, of four rewards of 1"
    assert result.metrics[-1]["length"] == 4


def test_a_ready_vector_environment(tmp_path: Path) -> None:
    """Its own number of copies counts."""
    envs = SyncVectorEnv([lambda: Corridor(2)] * 3)
    result = train(config(tmp_path, num_envs=7), env=envs)
    assert result.metrics[-1]["env_steps"] == 3 * 3 * 8
    assert json.loads((result.folder / "config.json").read_text())["num_envs"] == 3
    assert not envs.closed
    envs.close()


def test_sync_and_async_runs_are_equal(tmp_path: Path) -> None:
    for workers in ("sync", "async"):
        train(config(tmp_path, out=tmp_path / workers, env=EnvConfig(workers=workers)))
    assert_bit_equal(*(load_params(tmp_path / w / "agent.npz") for w in ("sync", "async")))


def test_a_time_limit_matters(tmp_path: Path) -> None:
    agents = []
    for truncation in ("bootstrap", "terminate"):
        made = config(tmp_path, out=tmp_path / truncation, env=EnvConfig(truncation=truncation))
        train(made, env=lambda: Corridor(99, limit=3))
        agents.append(load_params(tmp_path / truncation / "agent.npz"))
    assert any(not torch.equal(agents[0][k], agents[1][k]) for k in agents[0])


def test_normalisation_is_saved_with_the_agent(tmp_path: Path) -> None:
    made = config(tmp_path, env=EnvConfig(normalize_observations=True))
    saved = load_params(train(made).folder / "env.npz")
    # Three rollouts of eight steps, and the first observation.
    assert saved["observation.count"].item() == (3 * 8 + 1) * 2
    assert saved["observation.mean"].shape == (4,)


@pytest.mark.parametrize("workers", ["sync", "async"])
@pytest.mark.parametrize("fault", ["raise", "shape", "nan", "die", "exit", "os._exit", "stop"])
def test_a_failure_leaves_what_was_learnt(fault: str, workers: Any, tmp_path: Path) -> None:
    """The copies share a factory, so the first to be stepped is the one that is named."""
    if fault in ("die", "stop") and workers == "sync":
        pytest.skip("in one process it would take the run with it")
    made = config(tmp_path, steps=9, env=EnvConfig(workers=workers), timeout_minutes=0.05)
    with pytest.raises(
        EnvFailure, match=r"environment 0 .*\(what was learnt before that is in "
    ) as e:
        train(made, env=lambda: Faulty(fault, at=20))
    assert "\n" not in str(e.value)
    folder = tmp_path / "run"
    assert load_params(folder / "agent.npz")
    assert CheckpointFolder(folder / "checkpoints").steps() == [2]
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2]
    assert (folder / "curve.png").exists()


@pytest.mark.parametrize("extreme", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("kind", ["sync", "async", "ready", "next-step"])
def test_infinite_observations_are_caught_before_they_are_normalised(
    kind: Any, extreme: float, tmp_path: Path
) -> None:
    """The clip of what is normalised would make a 10 of them."""

    def make(spike: bool = True) -> gymnasium.Env:
        return Spiky({20: extreme} if spike else {}, "observation")

    env, options = make, EnvConfig(normalize_observations=True)
    if kind == "ready":
        env = SyncVectorEnv([lambda: make(spike=False), make])
    elif kind == "next-step":
        options = replace(options, autoreset="next-step")
    else:
        options = replace(options, workers=kind)
    # With next-step resets, the copy with fewer episodes has taken more steps.
    who = {"ready": "1", "next-step": "[01]"}.get(kind, "0")
    with pytest.raises(EnvFailure, match=f"environment {who} sent observations that are NaN or"):
        train(config(tmp_path, steps=9, env=options), env=env)
    moments = load_params(tmp_path / "run" / "env.npz")
    assert all(bool(x.isfinite().all()) for x in moments.values())
    assert load_params(tmp_path / "run" / "agent.npz")


def test_infinite_rewards_are_caught_before_they_are_clipped(tmp_path: Path) -> None:
    env = SyncVectorEnv([lambda: Corridor(), lambda: Spiky({20: float("inf")})])
    made = config(tmp_path, steps=9, env=EnvConfig(reward_clip=1.0))
    with pytest.raises(EnvFailure, match="environment 1 sent rewards that are NaN or infinite"):
        train(made, env=env)


# --- the command line ----------------------------------------------------------------------------

SMALL = (
    *("--rule", "actor-critic", "--steps", "2", "--num-envs", "2", "--batch-size", "2"),
    *("--replay-capacity", "8", "--progress", "none", "--device", "cpu"),
)


def test_settings_of_the_environment_go_with_and_without_their_prefix(tmp_path: Path) -> None:
    done = run_cli(
        *("train", "gym:Pendulum-v1", *SMALL, "--action-bins", "3", "--truncation=terminate"),
        *("--normalize-observations", "--env.reward-scale", "0.5", "--out", tmp_path / "run"),
    )
    assert done.returncode == 0, done.stderr
    env = json.loads((tmp_path / "run" / "config.json").read_text())["env"]
    assert (env["action_bins"], env["truncation"]) == (3, "terminate")
    assert (env["normalize_observations"], env["reward_scale"]) == (True, 0.5)
    params = load_params(tmp_path / "run" / "agent.npz")
    assert params["flat_heads.logits.weight"].shape[0] == 3


@pytest.mark.parametrize(
    "args, words",
    [
        (("gym:CartPoll-v1",), "did you mean CartPole-v1"),
        (("gym:no_such_module:X-v0",), "no module 'no_such_module': run this in its folder"),
        (("gym:minigrid:MiniGrid-Emty-5x5-v0",), "did you mean MiniGrid-Empty-5x5-v0"),
        (("gym:Pendulum-v1", "--action-bins", "1"), "--env.action-bins must be at least 2"),
        (("minatr:breakout",), "no environment is called 'minatr:breakout'"),
        (("minatr:breakout",), "did you mean 'minatar'?"),
        (("dm_en:make",), "or install it\n"),  # dm_env is no prefix of names like this
        (("sokoban:no/such/levels",), "no/such/levels"),
    ],
)
def test_bad_input_is_one_line(args: tuple[str, ...], words: str, tmp_path: Path) -> None:
    done = run_cli("train", *args, *SMALL, "--out", tmp_path / "run")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert words in done.stderr


@pytest.mark.parametrize("workers", ["sync", "async"])
def test_a_failing_environment_is_one_line(workers: str, tmp_path: Path) -> None:
    """Registered by a module of the user's own, as in gym:MODULE:ID."""
    (tmp_path / "broken_envs.py").write_text(
        "import gymnasium\n"
        "from tests.envs.gym_examples import Faulty\n"
        "gymnasium.register('Broken-v0', lambda: Faulty('raise', at=40))\n"
    )
    root = Path(__file__).parents[2]
    done = run_cli(
        *("train", "gym:broken_envs:Broken-v0", *SMALL, "--workers", workers),
        *("--out", tmp_path / "run"),
        env={"PYTHONPATH": f"{tmp_path}:{root}"},
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert "environment 0 failed to step: ZeroDivisionError: the wheels came off" in done.stderr
    assert load_params(tmp_path / "run" / "agent.npz")


UNSUPPORTED: dict[str, tuple[spaces.Space, spaces.Space, str]] = {
    "text": (spaces.Text(5), spaces.Discrete(2), "has Text observations"),
    "inside": (
        spaces.Dict(a=BOX, b=spaces.Sequence(BOX)),
        spaces.Discrete(2),
        "Sequence observations at 'b'",
    ),
    "actions": (BOX, spaces.Dict(a=spaces.Discrete(2)), "wrap it"),
    "many": (BOX, spaces.Box(-1, 1, (9,), np.float32), "action"),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_a_space_that_does_not_fit_is_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    observations, actions, words = UNSUPPORTED[name]
    with registered("Odd-v0", lambda: Sampler(observations, actions)):
        code = main(["train", "gym:Odd-v0", *SMALL, "--out", str(tmp_path / "run")])
    said = capsys.readouterr()
    assert code == 2 and said.out == ""
    assert said.err.startswith("error: ") and said.err.count("\n") == 1
    assert words in said.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "fault, words",
    [
        ("shape", "shape (2,), but its observation space promises (3,): fix the environment"),
        ("nan", "environment 0 sent a reward that is NaN or infinite (nan): fix the environment"),
    ],
)
def test_a_fault_in_mid_run_is_one_line(
    fault: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with registered("Broken-v1", lambda: Faulty(fault, at=40)):
        code = main(["train", "gym:Broken-v1", *SMALL, "--out", str(tmp_path / "run")])
    said = capsys.readouterr().err
    assert code == 2
    assert said.startswith("error: environment 0 ") and said.count("\n") == 1
    assert words in said
    assert f"what was learnt before that is in {tmp_path / 'run'}" in said
    assert load_params(tmp_path / "run" / "agent.npz")


@contextmanager
def registered(env_id: str, make: Callable[..., gymnasium.Env]) -> Iterator[None]:
    """An environment that Gymnasium knows for a while."""
    gymnasium.register(env_id, make)
    try:
        yield
    finally:
        del gymnasium.registry[env_id]
