"""Agents to the hub and back, through its client and a stand-in of its interface."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discorl.cli import main
from discorl.envs.env_config import EnvConfig
from discorl.errors import DiscorlError
from discorl.sharing.agents import publish_agent, pull_agent
from discorl.training.evaluate import evaluate
from discorl.training.train import train
from discorl.training.trained_agent import load_agent
from tests.builders import assert_bit_equal, write_small_rule
from tests.deploy.agents import SMALL
from tests.sharing.stand_in import StandIn


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a rule from a file, and observations that are normalised."""
    folder = tmp_path_factory.mktemp("secret-place")
    rule = write_small_rule(folder / "my-rule.npz")
    scaled = EnvConfig(normalize_observations=True)
    settings = replace(SMALL, task="gym:CartPole-v1", rule=str(rule), env=scaled)
    return train(replace(settings, log="tensorboard", out=folder / "run")).folder


def test_an_agent_arrives_whole(hub: StandIn, run: Path) -> None:
    """And needs nothing of the machine that it comes from, not even its rule."""
    assert publish_agent(run, "me/pole", episodes=3) == f"{hub.url}/me/pole"
    rule = run.parent / "my-rule.npz"
    rule.rename(rule.with_suffix(".away"))
    try:
        folder, note = pull_agent("me/pole")
        assert (folder, note) == (Path("runs/pole"), "")
        pulled = load_agent(folder)
    finally:
        rule.with_suffix(".away").rename(rule)
    agent = load_agent(run)
    assert_bit_equal(dict(pulled.net.state_dict()), dict(agent.net.state_dict()))
    assert_bit_equal(pulled.env_memory, agent.env_memory)
    shown = np.array([0.1, 0.2, -0.1, 0.3], np.float32)
    assert pulled.predict(shown)[0] == agent.predict(shown)[0]
    assert evaluate(pulled, 3).seeds == evaluate(agent, 3).seeds
    assert sorted(p.name for p in Path("runs").iterdir()) == ["pole"], "nothing else is left"


def test_nothing_of_the_machine_is_shared(hub: StandIn, run: Path) -> None:
    publish_agent(run, "me/pole", episodes=0)
    for name, data in hub.files["me/pole"].items():
        assert b"secret-place" not in data, name
    assert json.loads(hub.files["me/pole"]["config.json"])["log"] == ""


def test_the_card(hub: StandIn, run: Path) -> None:
    publish_agent(run, "me/pole", episodes=3, greedy=True)
    card = hub.files["me/pole"]["README.md"].decode()
    score = evaluate(load_agent(run), 3, greedy=True)
    assert f"value: {score.score.value:.2f} +/- " in card
    assert "type: mean_reward" in card and "name: gym:CartPole-v1" in card
    assert f"| mean return | {score.score.value:.4g} |" in card and "| actions | greedy |" in card
    assert "| rule | my-rule |" in card and "| seed | 0 |" in card
    assert "![The curve of the run](curve.png)" in card
    assert "discorl agents pull me/pole" in card


def test_the_commands(hub: StandIn, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = next((run / "checkpoints").iterdir())
    assert main(["agents", "publish", str(checkpoint), "me/pole", "--episodes", "0"]) == 0
    assert capsys.readouterr().out == f"Published: {hub.url}/me/pole\n"
    assert main(["agents", "pull", "me/pole", "--out", "mine"]) == 0
    shown = capsys.readouterr().out
    assert "Agent: mine\n" in shown and shown.count("sha256") == 3
    assert load_agent("mine").rule_name == "my-rule"
    assert main(["agents", "pull", "me/pole", "--out", "mine"]) == 2
    assert "mine is already there" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name, data, expected",
    [
        ("agent.npz", b"\x80\x04a pickle", "is not an agent file"),
        ("env.npz", b"PK", "is not an agent file"),
        ("rule.npz", b"PK", "is not a rule file"),
        ("config.json", b"[" * 10_000, "nested too deeply"),
        ("config.json", b"{}", "not the configuration of a run"),
        ("config.json", b" " * 2**21, "too many: at most 1048576"),
    ],
    ids=["agent", "scale", "rule", "deep", "empty", "large"],
)
def test_damaged_agents_are_refused(
    name: str, data: bytes, expected: str, hub: StandIn, run: Path
) -> None:
    publish_agent(run, "me/pole", episodes=0)
    hub.files["me/pole"][name] = data
    with pytest.raises(DiscorlError, match=expected):
        pull_agent("me/pole")
    assert list(Path("runs").iterdir()) == []


def test_a_strangers_settings_name_no_files_of_mine(hub: StandIn, run: Path) -> None:
    publish_agent(run, "me/pole", episodes=0)
    files = hub.files["me/pole"]
    settings: dict[str, Any] = json.loads(files["config.json"])
    settings["resolved_rule"]["path"] = "/etc/passwd"
    settings |= {"log": "wandb", "task": "gym:their_module:Env-v0"}
    files["config.json"] = json.dumps(settings).encode()
    folder, note = pull_agent("me/pole")
    kept = json.loads((folder / "config.json").read_text())
    assert kept["resolved_rule"]["path"] == str(folder.absolute() / "rule.npz")
    assert kept["log"] == ""
    assert "imports the module 'their_module'" in note
