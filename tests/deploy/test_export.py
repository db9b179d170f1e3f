"""Exported policies act like the agent, where this package cannot even be imported."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from discorl.cli import main
from discorl.deploy import export
from discorl.errors import DiscorlError
from discorl.training.trained_agent import LoadedAgent
from tests.builders import run_python
from tests.deploy.agents import KINDS, evaluation, trained
from tests.deploy.test_predict import NESTED
from tests.envs.gym_examples import Sampler

USE = Path(__file__).parent / "use_policy.py"


def check_elsewhere(tmp_path: Path, kinds: list[str]) -> None:
    """The files of some agents, used by a process that knows nothing of this package."""
    expected = {}
    for kind in kinds:
        agent = trained(tmp_path / kind, **KINDS[kind])
        shown = evaluation(agent, num_envs=2, steps=25)
        if kind == "atari":  # the newest of the frames that its own C++ stacks
            shown.observations = [x[:, -1] for x in shown.observations]
        parts = [x if isinstance(x, tuple) else (x,) for x in shown.observations[:-1]]
        np.savez(tmp_path / kind / "seen.npz", *map(np.stack, zip(*parts)), shown.starts[:-1])
        for name in ("policy.pt2", "policy.onnx"):
            assert agent.export(tmp_path / kind / name) == tmp_path / kind / name
        expected[kind] = np.stack(shown.actions)
    done = run_python(USE, *(tmp_path / kind for kind in kinds), cwd=tmp_path)
    assert done.stdout == "without discorl\n", done.stderr
    for kind, actions in expected.items():
        with np.load(tmp_path / kind / "acted.npz") as acted:
            for made in (acted["pt2"], acted["onnx"]):
                np.testing.assert_array_equal(made, actions, kind)
                assert made.dtype == actions.dtype


def test_elsewhere(tmp_path: Path) -> None:
    """Bins and normalisation; frames and a memory."""
    check_elsewhere(tmp_path, ["bins", "sokoban"])


@pytest.mark.slow
def test_every_kind_elsewhere(tmp_path: Path) -> None:
    check_elsewhere(tmp_path, [kind for kind in KINDS if kind not in ("tensors", "next-step")])


@pytest.mark.parametrize("name", ["policy.pt2", "policy.onnx"])
def test_nested_observations(name: str, tmp_path: Path) -> None:
    """The export itself compares the file with the agent."""
    actions = spaces.MultiDiscrete([2, 3])
    agent = trained(tmp_path / "run", lambda: Sampler(NESTED, actions), task="mine")
    agent.export(tmp_path / name)


def test_nethacks_kind_of_observations(tmp_path: Path) -> None:
    space = spaces.Dict(
        {
            "glyphs": spaces.Box(0, 5975, (21, 79), np.int16),
            "blstats": spaces.Box(0, 20, (27,), np.int64),
            "message": spaces.Box(0, 255, (16,), np.uint8),
        }
    )
    agent = trained(tmp_path / "run", lambda: Sampler(space), task="mine")
    agent.export(tmp_path / "policy.pt2")
    agent.export(tmp_path / "policy.onnx")


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> LoadedAgent:
    return trained(tmp_path_factory.mktemp("runs") / "run", task="catch:4x3", rule="disco-mini")


def test_only_what_acts_is_in_the_file(agent: LoadedAgent, tmp_path: Path) -> None:
    policy = torch.export.load(agent.export(tmp_path / "policy.pt2"))
    assert {name.split(".")[2] for name in policy.state_dict if ".net." in name} == {
        "torso",
        "flat_heads",
    }
    assert agent.net.action_model is not None, "the agent itself stays whole"


def test_the_file_says_what_it_is(agent: LoadedAgent, tmp_path: Path) -> None:
    extra: dict[str, Any] = {export.ABOUT: ""}
    torch.export.load(agent.export(tmp_path / "policy.pt2"), extra_files=extra)
    about = json.loads(extra[export.ABOUT])
    assert about["task"] == "catch:4x3" and about["rule"] == "disco-mini"
    assert about["observations"] == [{"name": "observation", "shape": [4, 3], "dtype": "float32"}]
    assert about["memory"] == [] and about["outputs"] == ["action", "logits"]
    assert about["actions"] == "Discrete(3)"


def test_a_file_that_would_act_differently_is_not_written(
    agent: LoadedAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_it_is = export._to_pt2

    def other(exported: Any, about: Any) -> Any:
        data, run = as_it_is(exported, about)
        return data, lambda *inputs: (lambda action, logits: (action + 1, logits))(*run(*inputs))

    monkeypatch.setattr(export, "_to_pt2", other)
    with pytest.raises(DiscorlError, match="would not act as the agent does"):
        agent.export(tmp_path / "policy.pt2")
    assert list(tmp_path.iterdir()) == []


def test_where_nothing_can_be_written(
    agent: LoadedAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DiscorlError, match=r"must end in \.pt2 or \.onnx"):
        agent.export(tmp_path / "policy.pt")
    with pytest.raises(DiscorlError, match="there is no folder"):
        agent.export(tmp_path / "no" / "policy.pt2")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(DiscorlError, match=r"pip install 'discorl\[onnx\]'"):
        agent.export(tmp_path / "policy.onnx")


def test_the_command(
    agent: LoadedAgent, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(agent.folder)]) == 0
    assert capsys.readouterr().out == f"Policy: {agent.folder / 'policy.pt2'}\n"
    assert (agent.folder / "policy.pt2").stat().st_size > 1000
    out = tmp_path / "mine.onnx"
    assert main(["export", str(agent.folder / "agent.npz"), "--out", str(out)]) == 0
    assert out.exists()
    assert main(["export", str(agent.folder), "--format", "pt2", "--out", str(out)]) == 2
    assert "needs a name that ends in .pt2" in capsys.readouterr().err
