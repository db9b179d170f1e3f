"""Gymnasium environments that go on in the middle of an episode."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from discorl.discovery.config import DiscoverConfig
from discorl.envs.env_config import EnvConfig
from discorl.envs.gymnasium import as_env
from discorl.envs.registry import make_env
from discorl.errors import DiscorlError, EnvFailure
from discorl.runs.checkpoint import CheckpointConfig
from discorl.runs.files import load_params
from discorl.training.rule_choice import read_config
from discorl.training.train import resume, train
from tests.builders import assert_bit_equal
from tests.envs.gym_examples import Corridor
from tests.training.test_train_gymnasium import config

EXACT = EnvConfig(exact_resume=True)


class Wandering(gymnasium.Env):
    """A random walk whose state is hidden: only its seed and the actions get back to it."""

    observation_space = spaces.Dict(
        {"near": spaces.Box(-9, 9, (2,), np.float32), "time": spaces.Discrete(30)}
    )
    action_space = spaces.Discrete(3)
    drift = 0.0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        super().reset(seed=seed)
        self._place, self._time = self.np_random.normal(size=5), 0
        return self._show(), {}

    def step(self, action: Any) -> Any:
        self._place += 0.1 * (int(action) - 1) + 0.1 * self.np_random.normal(size=5) + self.drift
        self._time += 1
        ended = bool(self.np_random.random() < 0.05)
        return self._show(), float(self._place.sum()), ended, self._time == 23, {}

    def _show(self) -> Any:
        near = self._place[:2].clip(-9, 9).astype(np.float32)
        return {"near": near, "time": np.int64(self._time)}


class Drifting(Wandering):
    """Every copy that is made is another environment."""

    made = 0

    def __init__(self) -> None:
        Drifting.made += 1
        self.drift = 1e-3 * Drifting.made


def metrics_of(result: Any) -> list[dict[str, Any]]:
    return [
        {k: v for k, v in row.items() if "seconds" not in k and "_second" not in k}
        for row in result.metrics
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"workers": "async"},
        {"normalize_observations": True, "normalize_rewards": True},
        {"truncation": "terminate"},
    ],
    ids=str,
)
def test_a_resumed_run_is_the_run_that_was_never_stopped(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    settings = config(tmp_path, task="mine", steps=7, env=replace(EXACT, **changes))
    whole = train(replace(settings, out=tmp_path / "whole"), env=Wandering)
    train(replace(settings, steps=3), env=Wandering)
    part = resume(replace(read_config(tmp_path / "run")[0], steps=5), env=Wandering)
    part = resume(replace(read_config(part.folder)[0], steps=7), env=Wandering)
    for name in ("agent.npz", "env.npz") if "normalize_rewards" in changes else ("agent.npz",):
        assert_bit_equal(load_params(whole.folder / name), load_params(part.folder / name))
    assert metrics_of(whole) == metrics_of(part)
    plain = train(
        replace(settings, out=tmp_path / "plain", steps=3, env=EnvConfig()), env=Wandering
    )
    plain = resume(replace(read_config(plain.folder)[0], steps=7), env=Wandering)
    assert metrics_of(plain) != metrics_of(whole)


def test_a_real_environment_and_a_recurrent_agent(tmp_path: Path) -> None:
    settings = config(tmp_path, task="gym:CartPole-v1", steps=5, env=EXACT)
    settings = replace(settings, net=replace(settings.net, core_lstm=8))
    whole = train(replace(settings, out=tmp_path / "whole"))
    train(replace(settings, steps=2))
    part = resume(replace(read_config(tmp_path / "run")[0], steps=5))
    assert_bit_equal(*(load_params(run.folder / "agent.npz") for run in (whole, part)))


def test_an_environment_that_differs_starts_over_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = config(tmp_path, task="mine", steps=3, env=EXACT, progress="lines")
    train(settings, env=Drifting)
    result = resume(replace(read_config(tmp_path / "run")[0], steps=5), env=Drifting)
    said = " ".join(capsys.readouterr().out.split())
    assert "The episodes were played again, but environment 0" in said
    assert "the environments start new episodes; the rest is exact" in said
    assert result.metrics[-1]["step"] == 5


def test_nothing_is_said_if_all_goes_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = config(tmp_path, task="mine", steps=3, env=EXACT, progress="lines")
    train(settings, env=Wandering)
    resume(replace(read_config(tmp_path / "run")[0], steps=4), env=Wandering)
    assert "new episodes" not in capsys.readouterr().out


class FailsOnce(Wandering):
    """Breaks in the middle of a rollout, the first time."""

    left = 30

    def step(self, action: Any) -> Any:
        FailsOnce.left -= 1
        if not FailsOnce.left:
            raise ZeroDivisionError
        return super().step(action)


def test_after_a_failure_in_mid_rollout_new_episodes_begin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The environments are ahead of the rest of the state then."""
    settings = config(tmp_path, task="mine", steps=4, env=EXACT, progress="lines")
    with pytest.raises(EnvFailure):
        train(settings, env=FailsOnce)
    resume(read_config(tmp_path / "run")[0], env=FailsOnce)
    assert "start new episodes" in capsys.readouterr().out


def test_the_environments_own_part() -> None:
    options = EnvConfig(exact_resume=True)
    first: Any = as_env(Wandering, 2, options=options)
    actions = torch.randint(3, (40, 2), generator=torch.Generator().manual_seed(0))
    state, _ = first.reset(torch.Generator().manual_seed(1))
    for now in actions:
        state, _ = first.step(state, now, torch.Generator())
    recording = first.recording()
    assert sum(r["episode"] for r in recording) > 0, "it is in a later episode"
    second: Any = as_env(Wandering, 2, options=options)
    second.reset(torch.Generator().manual_seed(7))
    assert second.replay(recording) == ""
    for now in actions[:10]:
        state, ours = first.step(state, now, torch.Generator())
        _, theirs = second.step(None, now, torch.Generator())
        assert torch.equal(ours.observation["near"], theirs.observation["near"])
        assert torch.equal(ours.reward, theirs.reward)
    assert second.replay([r | {"shown": "0"} for r in recording]).endswith("showed something else")
    assert "KeyError" in second.replay([{}, {}])
    assert second.replay(recording[:1]) == "there are 2 environments, not 1"
    short = {"first_seed": 1, "episode": 0, "actions": np.ones(30, int), "shown": ""}
    assert "ended its episode at step" in second.replay([short, short])


def test_where_it_cannot_be() -> None:
    with pytest.raises(DiscorlError, match="exact_resume needs --autoreset same-step"):
        EnvConfig(exact_resume=True, autoreset="next-step")
    vector = SyncVectorEnv([Corridor], autoreset_mode="SameStep")
    with pytest.raises(DiscorlError, match="--exact-resume does nothing for"):
        as_env(vector, 1, options=EXACT)
    with pytest.raises(DiscorlError, match="--exact-resume does nothing for 'sokoban'"):
        make_env("sokoban", 1, options=EXACT)
    with pytest.raises(DiscorlError, match="only for 'discorl train'"):
        DiscoverConfig(env=EXACT)


def test_checkpoints_of_other_runs_have_no_recording(tmp_path: Path) -> None:
    settings = config(tmp_path, task="mine", steps=2, checkpoint=CheckpointConfig())
    assert "recording" not in _snapshot(replace(settings, out=tmp_path / "a"))
    assert "recording" in _snapshot(replace(settings, env=EXACT, out=tmp_path / "b"))


def _snapshot(settings: Any) -> dict[str, Any]:
    from discorl.runs import distributed
    from discorl.training.train import Training

    with distributed.joined("cpu", 1.0) as ranks:
        program = Training(settings, ranks, Wandering)
        program.begin()
        saved = program.snapshot()
        assert saved is not None
        return saved["processes"][0]
