"""Exported policies take only actions that are allowed, as the agent itself does."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from discorl.cli import main
from discorl.deploy import export
from discorl.training.trained_agent import LoadedAgent, load_agent
from tests.deploy.agents import RECURRENT, trained
from tests.envs.test_gymnasium_masks import NUM_ACTIONS, Masked

STEPS = 20


def agent_for(way: str, folder: Path, **settings: Any) -> LoadedAgent:
    return trained(folder, partial(Masked, way), task="masked", **settings)


def play(way: str, choose: Any) -> list[int]:
    """An episode in an environment that fails at the first action that is not allowed."""
    env, taken = Masked(way, limit=STEPS), []
    shown, _ = env.reset()
    for _ in range(STEPS):
        taken.append(int(choose(shown, env.mask())))
        shown, *_ = env.step(taken[-1])
    return taken


def with_torch(file: Path, way: str) -> list[int]:
    policy = torch.export.load(file).module()

    def choose(shown: Any, mask: np.ndarray) -> Any:
        if way == "observation":
            seen = {key: torch.from_numpy(x)[None] for key, x in sorted(shown.items())}
            return policy(seen)[0][0]
        seen = torch.from_numpy(shown)[None]
        return policy(seen, action_mask=torch.from_numpy(mask)[None])[0][0]

    return play(way, choose)


def with_onnx(file: Path, way: str) -> list[int]:
    import onnxruntime

    session = onnxruntime.InferenceSession(file)

    def choose(shown: Any, mask: np.ndarray) -> Any:
        given = {"observation": shown, "action_mask": mask}
        if way == "observation":
            given = {f"observation/{key}": x for key, x in shown.items()}
        action: Any = session.run(None, {key: x[None] for key, x in given.items()})[0]
        return action[0]

    return play(way, choose)


@pytest.mark.parametrize("way", ["info", "method", "observation"])
def test_only_what_is_allowed(way: str, tmp_path: Path) -> None:
    agent = agent_for(way, tmp_path / "run")
    expected = play(way, lambda shown, mask: agent.predict(shown, action_mask=mask)[0])
    assert len(set(expected)) > 2, "it says nothing if all are alike"
    assert with_torch(agent.export(tmp_path / "policy.pt2"), way) == expected
    assert with_onnx(agent.export(tmp_path / "policy.onnx"), way) == expected


@pytest.mark.parametrize("name", ["policy.pt2", "policy.onnx"])
@pytest.mark.parametrize("way", ["info", "observation"])
def test_with_a_memory(way: str, name: str, tmp_path: Path) -> None:
    """The export itself compares the file with the agent."""
    agent_for(way, tmp_path / "run", net=RECURRENT).export(tmp_path / name)


def about(file: Path) -> dict[str, Any]:
    extra: dict[str, Any] = {export.ABOUT: ""}
    torch.export.load(file, extra_files=extra)
    return json.loads(extra[export.ABOUT])


def test_the_file_says_where_its_mask_belongs(tmp_path: Path) -> None:
    agent = agent_for("info", tmp_path / "info")
    assert about(agent.export(tmp_path / "a.pt2"))["action_mask"] == "action_mask"
    agent = agent_for("observation", tmp_path / "observation")
    said = about(agent.export(tmp_path / "b.pt2"))
    assert said["action_mask"] == "observation/action_mask"
    assert said["observations"] == [
        {"name": "observation/action_mask", "shape": [NUM_ACTIONS], "dtype": "int8"},
        {"name": "observation/seen", "shape": [2], "dtype": "float32"},
    ]


@pytest.mark.parametrize("way", ["info", "observation"])
def test_masks_can_be_left_out(way: str, tmp_path: Path) -> None:
    agent = agent_for(way, tmp_path / "run")
    said = about(agent.export(tmp_path / "policy.pt2", masks=False))
    assert said["action_mask"] is None
    assert [one["shape"] for one in said["observations"]] == [[2]]


def test_a_ready_environment_is_not_reset_to_find_out(tmp_path: Path) -> None:
    class Busy(Masked):
        def reset(self, **kwargs: Any) -> Any:
            raise AssertionError("it is in use")

    agent_for("method", tmp_path / "run")
    for way, expected in (("method", "action_mask"), ("info", None)):
        agent = load_agent(tmp_path / "run", env=Busy(way))
        assert about(agent.export(tmp_path / "policy.pt2"))["action_mask"] == expected
    agent = load_agent(tmp_path / "run", env=Busy("info"))
    said = about(agent.export(tmp_path / "policy.pt2", masks=True))
    assert said["action_mask"] == "action_mask"


def test_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(tmp_path / "run", task="catch:4x3")
    run, out = str(tmp_path / "run"), tmp_path / "policy.pt2"
    for options, expected in (((), None), (("--masks", "True"), "action_mask")):
        assert main(["export", run, "--out", str(out), *options]) == 0, capsys.readouterr().err
        assert about(out)["action_mask"] == expected
