"""Training for a few updates on every suite, with the real packages.

Each test is marked by the extra that it needs (``pytest -m procgen``) and skipped where that is
missing. CI installs Atari, MinAtar, MiniGrid, Crafter and dm_env.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from discorl.envs import suites
from discorl.envs.base import close_env
from discorl.envs.suites.suite_settings import CrafterSettings
from discorl.runs.distributed import Ranks
from discorl.runs.files import load_params
from discorl.training import presets
from discorl.training.config import EnvConfig, TrainConfig
from discorl.training.evaluate import evaluate
from discorl.training.train import Training, train
from discorl.training.trained_agent import load_agent
from discorl.types import Params
from tests.builders import assert_bit_equal, write_small_rule
from tests.envs.suites.streams import needs

STEPS = 4
CATCH = "dm_env:tests.envs.suites.dm_catch:make"
DEEP_SEA = "dm_env:tests.envs.suites.dm_catch:make_bsuite"


def case(
    task: str, name: str = "", rule: str = "disco", *, also: str | None = None, **net: Any
) -> Any:
    """A task with a rule and a network, marked by its suite's extra."""
    suite = suites.find(task)
    assert suite is not None
    marks = [getattr(pytest.mark, suite.extra or suite.prefix)]
    marks += [needs(package) for package in (suite.package, also) if package]
    return pytest.param(task, rule, net, marks=marks, id=f"{suite.prefix}-{name or 'preset'}")


SMALL_NET = {"torso": (16,), "dense": 16, "action_lstm": 8, "head_hidden": (8,)}

CASES = [
    case("ale:Pong"),  # the Nature network
    case("ale:Breakout", "impala-lstm", torso_kind="impala", core_lstm=8),
    case("ale:Freeway", "actor-critic", "actor-critic", core_lstm=8),
    case("minatar:breakout"),
    case("minatar:seaquest", "lstm", core_lstm=8),
    case("minigrid:Empty-5x5"),
    case("minigrid:DoorKey-5x5", "lstm", "actor-critic", core_lstm=8),
    case("crafter"),  # the IMPALA network
    case("crafter", "nature-lstm", torso_kind="nature", core_lstm=8),
    case("procgen:coinrun"),
    case("procgen:starpilot", "lstm", "actor-critic", core_lstm=8),
    case("nethack:score"),  # recurrent by itself
    case("nethack:gold", "no-core", "actor-critic", core_lstm=0),
    case("sokoban"),
    case("sokoban", "lstm", "actor-critic", core_lstm=8),
    case(CATCH),
    case(CATCH, "lstm", core_lstm=8),
    case(DEEP_SEA, "bsuite", also="bsuite"),
]


def tiny(tmp_path: Path, task: str, net: dict[str, Any], rule: str) -> TrainConfig:
    """The task's own preset, with little of everything."""
    preset = presets.for_task(task)
    if task == "crafter":  # large worlds take seconds to make
        preset = replace(preset, env=EnvConfig(suite=CrafterSettings(area=20)))
    return replace(
        preset,
        rule=rule,
        steps=STEPS,
        num_envs=2,
        rollout_length=6,
        batch_size=3,
        replay_transitions=60,
        replay_share=0.5,
        updates_per_step=1,
        log_every=1,
        out=tmp_path / "run",
        progress="none",
        device="cpu",
        net=replace(preset.net, **(SMALL_NET | net)),
        optimiser=replace(preset.optimiser, warmup_steps=0),
    )


@pytest.mark.parametrize("task, rule, net", CASES)
def test_a_few_updates(task: str, rule: str, net: dict[str, Any], tmp_path: Path) -> None:
    """Every part of the network moves, the run's folder says all, and the agent plays again."""
    if rule == "disco":
        rule = str(write_small_rule(tmp_path / "rule.npz"))
    config = tiny(tmp_path, task, net, rule)
    result = train(config)
    assert len(result.metrics) == STEPS
    assert result.metrics[-1]["env_steps"] == STEPS * 2 * 6
    losses = [row["loss"] for row in result.metrics if row.get("loss") is not None]
    assert len(losses) >= STEPS - 1 and np.isfinite(losses).all()

    saved = json.loads((result.folder / "config.json").read_text())
    assert saved["frame_stack"] == presets.for_task(task).frame_stack
    suite = suites.find(task)
    assert suite is not None
    assert (saved["env"]["suite"] is None) == (suite.settings is None)

    trained = load_params(result.folder / "agent.npz")
    assert any("core" in name for name in trained) == bool(config.net.core_lstm)
    newborn = born(config)
    assert newborn.keys() == trained.keys()
    parts = {name.split(".")[0] for name in trained}
    moved = {k.split(".")[0] for k, x in trained.items() if not torch.equal(x, newborn[k])}
    assert moved == parts

    played = evaluate(load_agent(result.folder), 1, num_envs=1, max_steps=3)
    assert played.seeds[0].lengths[0] <= 3


def born(config: TrainConfig) -> Params:
    """The parameters that a run begins with."""
    training = Training(config, Ranks(0, 1, torch.device("cpu")))
    training.begin()
    close_env(training.env)
    return training.state.agent.params


@pytest.mark.nethack
@needs("nle")
def test_nethack_with_the_frames_of_the_paper(tmp_path: Path) -> None:
    """A Dict of stacks, each frame of which the replay keeps once."""
    assert presets.for_task("nethack:score", "paper").frame_stack == 4
    config = tiny(tmp_path, "nethack:score", {"core_lstm": 0}, "actor-critic")
    result = train(replace(config, frame_stack=4))
    assert np.isfinite(result.metrics[-1]["loss"])
    params = load_params(result.folder / "agent.npz")
    assert params["torso.stats.layers.0.weight"].shape[1] == 4 * 27


@pytest.mark.sokoban
def test_processes_of_their_own(tmp_path: Path) -> None:
    """The same games, wherever they are played."""
    agents = []
    for workers in ("sync", "async"):
        config = tiny(tmp_path, "sokoban", {}, "actor-critic")
        env = replace(config.env, workers=workers)
        folder = train(replace(config, env=env, out=tmp_path / workers)).folder
        agents.append(load_params(folder / "agent.npz"))
    assert_bit_equal(*agents)
