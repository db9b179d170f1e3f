"""An agent is found wherever a run keeps one, also while the run goes on."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv

from discorl.envs.env_config import EnvConfig
from discorl.errors import DiscorlError
from discorl.runs.checkpoint import CheckpointConfig, load, save
from discorl.runs.files import load_params, save_params
from discorl.training.evaluate import evaluate
from discorl.training.train import train
from discorl.training.trained_agent import load_agent
from tests.builders import assert_bit_equal
from tests.deploy.agents import SMALL
from tests.envs.gym_examples import Corridor

SCALED = replace(
    SMALL,
    task="gym:CartPole-v1",
    env=EnvConfig(normalize_observations=True),
    checkpoint=CheckpointConfig(every_steps=1, keep=2),
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two checkpoints, and observations that are normalised."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(replace(SCALED, steps=4, out=folder))
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "run")


def params_of(path: Path | str, **changes: Any) -> dict[str, torch.Tensor]:
    return load_agent(path, **changes).net.state_dict()


def saved_at(run: Path, step: int) -> Any:
    return load(run / "checkpoints" / f"checkpoint-{step}.dc")


def test_checkpoints(run: Path) -> None:
    """With the scale of observations of that time, which is part of the agent."""
    third = saved_at(run, 3)
    agent = load_agent(run / "checkpoints" / "checkpoint-3.dc")
    assert_bit_equal(dict(agent.net.state_dict()), third["shared"]["agent"]["params"])
    assert_bit_equal(agent.env_memory, third["processes"][0]["env_memory"])
    assert agent.folder == run
    ((mean, _),) = agent.policy.interface.scales.values()
    np.testing.assert_array_equal(mean, agent.env_memory["observation.mean"])
    latest = load_agent(str(run / "checkpoints"))
    assert latest.file.name == "checkpoint-4.dc" and latest.folder == run
    assert not torch.equal(
        latest.env_memory["observation.mean"], agent.env_memory["observation.mean"]
    )
    assert evaluate(agent, 2, num_envs=2, max_steps=9).score.value > 0


def test_a_run_that_is_going_on(run: Path) -> None:
    """Before its first end it has only checkpoints; resumed, they are newer than agent.npz."""
    (run / "agent.npz").unlink()
    (run / "env.npz").unlink()
    agent = load_agent(run)
    assert agent.file.name == "checkpoint-4.dc"
    assert agent.predict(np.zeros(4, np.float32))[0] in (0, 1)

    save_params(run / "agent.npz", saved_at(run, 3)["shared"]["agent"]["params"])
    save_params(run / "env.npz", saved_at(run, 3)["processes"][0]["env_memory"])
    assert load_agent(run).file.name == "agent.npz", "the run has ended since"
    later = (run / "agent.npz").stat().st_mtime + 5
    os.utime(run / "checkpoints" / "checkpoint-4.dc", (later, later))
    assert load_agent(run).file.name == "checkpoint-4.dc"
    assert load_agent(run / "agent.npz").file.name == "agent.npz", "which was asked for"


def test_a_run_that_has_saved_nothing_yet(run: Path, tmp_path: Path) -> None:
    young = tmp_path / "young"
    young.mkdir()
    shutil.copy(run / "config.json", young)
    with pytest.raises(DiscorlError, match=r"no agent yet.*checkpoint.*wait"):
        load_agent(young)
    shutil.copy(run / "agent.npz", young / "best.npz")
    with pytest.raises(DiscorlError, match=r"no agent yet.*--best"):
        load_agent(young)


def test_the_best_agent(run: Path) -> None:
    with pytest.raises(DiscorlError, match=r"no best\.npz: only runs that are evaluated"):
        load_agent(run, best=True)
    third = saved_at(run, 3)
    save_params(run / "best.npz", third["shared"]["agent"]["params"])
    save_params(run / "best-env.npz", third["processes"][0]["env_memory"])
    for agent in (load_agent(run, best=True), load_agent(run / "best.npz")):
        assert_bit_equal(dict(agent.net.state_dict()), third["shared"]["agent"]["params"])
        assert_bit_equal(agent.env_memory, third["processes"][0]["env_memory"])


def test_replays_are_not_read(run: Path, tmp_path: Path) -> None:
    path = run / "checkpoints" / "checkpoint-4.dc"
    some = load(path, without=("replay", "optimiser"))
    every = load(path)
    assert every["processes"][0].pop("replay")
    assert every["shared"]["agent"].pop("optimiser")
    del every["shared"]["updates"], some["shared"]["updates"]
    assert_bit_equal(some["shared"]["agent"], every["shared"]["agent"])
    assert some["processes"][0].keys() == every["processes"][0].keys()
    path.write_bytes(path.read_bytes()[:-40] + bytes(40))
    with pytest.raises(DiscorlError, match="its checksum does not match"):
        load(path, without=("replay",))


def test_files_without_an_agent_are_refused(run: Path) -> None:
    other = run / "checkpoints" / "checkpoint-9.dc"
    save(other, {"kind": "discorl discover", "shared": {}})
    with pytest.raises(DiscorlError, match="holds no agent"):
        load_agent(other)
    save(other, {"kind": "discorl train", "shared": {"agent": {"params": [1]}}, "processes": [{}]})
    with pytest.raises(DiscorlError, match="holds no agent"):
        load_agent(other)
    with pytest.raises(DiscorlError, match="no such file"):
        load_agent(run / "checkpoints" / "checkpoint-77.dc")
    with pytest.raises(DiscorlError, match="no agent at"):
        load_agent(run / "nothing.npz")
    with pytest.raises(DiscorlError, match="is not a run"):
        load_agent(run.parent)


# --- environments from Python --------------------------------------------------------------------


class Named(Corridor):
    """An environment that no name leads to."""


@pytest.fixture(scope="module")
def from_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(replace(SMALL, task="my-corridor", out=folder), env=Named)
    return folder


def as_earlier_versions_wrote_it(folder: Path, to: Path) -> Path:
    """The run without the note that its environment came from Python."""
    shutil.copytree(folder, to)
    content = json.loads((to / "config.json").read_text())
    del content["python_env"]
    (to / "config.json").write_text(json.dumps(content))
    return to


def test_an_environment_from_python_is_given_again(from_python: Path, tmp_path: Path) -> None:
    with pytest.raises(DiscorlError, match=r"was given from Python.*pass env= to load_agent"):
        load_agent(from_python)
    with pytest.raises(DiscorlError, match="pass that again as env="):
        load_agent(as_earlier_versions_wrote_it(from_python, tmp_path / "old"))
    agent = load_agent(from_python, env=Named)
    expected, _ = agent.predict(np.ones(3, np.float32))
    assert evaluate(agent, 2, num_envs=2, max_steps=9).seeds[0].lengths
    ready = load_agent(from_python, env=Named())
    vector = load_agent(from_python, env=SyncVectorEnv([Named, Named]))
    for other in (ready, vector):
        assert other.predict(np.ones(3, np.float32))[0] == expected


def test_a_ready_environment_stays_as_it_is(from_python: Path) -> None:
    class Closing(Named):
        closed = False

        def close(self) -> None:
            self.closed = True

    env = Closing()
    env.reset()
    env.step(1)
    agent = load_agent(from_python, env=env)
    agent.predict(env._show())
    assert not env.closed and env._time == 1
    with pytest.raises(DiscorlError, match="pass a function that makes one"):
        evaluate(agent, 1)


def test_another_environment_under_a_known_name(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(replace(SMALL, task="gym:CartPole-v1", out=folder), env=Named)
    with pytest.raises(DiscorlError, match=r"was given from Python.*pass env= to load_agent"):
        load_agent(folder)
    with pytest.raises(DiscorlError, match=r"size mismatch.*pass that again as env="):
        load_agent(as_earlier_versions_wrote_it(folder, tmp_path / "old"))
    assert load_agent(folder, env=Named).predict(np.zeros(3))[0] in (0, 1)
    with pytest.raises(DiscorlError, match=r"fit this environment, with .*\[4\] and 2 actions"):
        load_agent(folder, env=lambda: gymnasium.make("CartPole-v1"))


def test_an_agent_is_shown_in_a_line(from_python: Path) -> None:
    shown = repr(load_agent(from_python, env=Named))
    assert shown == (
        f"<an agent for my-corridor, trained with policy-gradient: {from_python / 'agent.npz'}>"
    )
    assert load_params(from_python / "agent.npz")
