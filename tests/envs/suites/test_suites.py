from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from discorl.cli import main
from discorl.envs import suites
from discorl.envs.registry import make_env
from discorl.envs.suites import packages
from discorl.envs.suites import suite as suite_module
from discorl.envs.suites.packages import choose
from discorl.errors import DiscorlError
from tests.envs.suites.streams import needs


@pytest.mark.parametrize(
    "task, prefix",
    [
        ("ale:Breakout", "ale"),
        ("minatar:breakout", "minatar"),
        ("minigrid:Empty-5x5", "minigrid"),
        ("procgen:coinrun", "procgen"),
        ("crafter", "crafter"),
        ("nethack:score", "nethack"),
        ("sokoban", "sokoban"),
        ("sokoban:a:b.txt", "sokoban"),
        ("dm_env:my_module:make", "dm_env"),
    ],
)
def test_find(task: str, prefix: str) -> None:
    suite = suites.find(task)
    assert suite is not None and suite.prefix == prefix


@pytest.mark.parametrize("task", ["catch", "gym:CartPole-v1", "alebreakout", ""])
def test_find_knows_only_suites(task: str) -> None:
    assert suites.find(task) is None


@pytest.mark.parametrize("suite", suites.SUITES, ids=lambda s: s.prefix)
def test_the_table_agrees_with_the_modules(
    suite: suites.Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without their packages, which are imported when a task is made."""
    monkeypatch.setattr(packages, "find_spec", lambda name: name)
    module = suite.load()
    assert hasattr(module, "make") == suite.is_threaded
    assert hasattr(module, "factory") != suite.is_threaded


def test_the_extras_exist() -> None:
    from importlib.metadata import metadata

    extras = metadata("discorl").get_all("Provides-Extra") or []
    if "dev" not in extras or "envs" not in extras:
        pytest.skip("discorl was installed before the extras were declared: make install")
    named = {suite.extra.replace("_", "-") for suite in suites.SUITES if suite.extra}
    assert named <= {extra.replace("_", "-") for extra in extras}  # pip takes both as one


@pytest.mark.parametrize("suite", [s for s in suites.SUITES if s.extra], ids=lambda s: s.prefix)
def test_a_missing_package(suite: suites.Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "find_spec", lambda name: None)
    with pytest.raises(DiscorlError, match=rf"pip install 'discorl\[{suite.extra}\]'") as e:
        suite.make(suite.prefix + ":x", 1)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("suite", [s for s in suites.SUITES if s.package], ids=lambda s: s.prefix)
def test_training_without_the_package_is_one_line(
    suite: suites.Suite,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(packages, "find_spec", lambda name: None)
    task = suite.prefix if suite.pattern == suite.prefix else f"{suite.prefix}:x"
    args = ["train", task, "--rule", "actor-critic", "--out", str(tmp_path / "run")]
    assert main(args) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1
    assert f"pip install 'discorl[{suite.extra}]'" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "task, words",
    [
        pytest.param("ale:Breakot", "did you mean Breakout", marks=needs("ale_py")),
        pytest.param("minatar:breakot", "did you mean breakout", marks=needs("minatar")),
        pytest.param("minigrid:Emty-5x5", "did you mean Empty-5x5", marks=needs("minigrid")),
        pytest.param("crafter:x", "write just crafter", marks=needs("crafter")),
        pytest.param("procgen:coin", "did you mean coinrun", marks=needs("envpool")),
        pytest.param("nethack:scor", "did you mean score", marks=needs("nle")),
        pytest.param("dm_env:json", "write dm_env:MODULE:FUNCTION", marks=needs("dm_env")),
    ],
)
def test_a_task_that_does_not_exist_is_one_line(
    task: str, words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["train", task, "--rule", "actor-critic", "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1
    assert words in said


def test_envs_says_how_to_install_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(suite_module, "is_installed", lambda package: package != "ale_py")
    assert main(["envs"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert {suite.pattern for suite in suites.SUITES} <= rows.keys()
    assert "not installed: pip install 'discorl[atari]'" in rows["ale:GAME"]
    assert "not installed" not in rows["nethack:TASK"]
    assert "not installed" not in rows["sokoban[:PATH]"]


def test_nothing_is_imported_early() -> None:
    heavy = sorted({suite.package for suite in suites.SUITES if suite.package} | {"gymnasium"})
    code = (
        f"import sys, discorl.envs.registry as r; print([m for m in {heavy} if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_unknown_environment_names_the_suites() -> None:
    with pytest.raises(DiscorlError, match=r"ale, .*sokoban"):
        make_env("atari:Pong", 1)


def test_choose() -> None:
    known = ["SpaceInvaders", "Pong"]
    for name in ("SpaceInvaders", "space_invaders", "space-invaders", "spaceinvaders"):
        assert choose(name, known, "game") == "SpaceInvaders"
    with pytest.raises(DiscorlError, match="no game is called 'Pog': did you mean Pong"):
        choose("Pog", known, "game")
    with pytest.raises(DiscorlError, match="use one of SpaceInvaders, Pong"):
        choose("", known, "game")


def test_a_suite_as_tensors() -> None:
    """Sokoban needs no package."""
    env = make_env("sokoban", 3)
    generator = torch.Generator().manual_seed(0)
    state, first = env.reset(generator)
    assert env.spec.num_actions == 4
    assert first.observation.shape == (3, 4, 10, 10)
    _, then = env.step(state, torch.zeros(3, dtype=torch.long), generator)
    assert np.allclose(then.reward, -0.1)


@pytest.mark.parametrize(
    "task, shape",
    [
        pytest.param("ale:Pong", (4, 84, 84), marks=needs("ale_py")),
        pytest.param("minatar:seaquest", (10, 10, 10), marks=needs("minatar")),
        pytest.param("minigrid:Empty-5x5", (21, 7, 7), marks=needs("minigrid")),
        pytest.param("procgen:coinrun", (3, 64, 64), marks=needs("envpool")),
    ],
)
def test_images_lie_channels_first(task: str, shape: tuple[int, ...]) -> None:
    env = make_env(task, 2)
    _, first = env.reset(torch.Generator().manual_seed(0))
    assert env.spec.observation_shape == shape
    assert first.observation.shape == (2, *shape)
    assert first.observation.dtype == torch.uint8


@needs("nle")
def test_nethack_as_tensors() -> None:
    env = make_env("nethack:score", 2)
    _, first = env.reset(torch.Generator().manual_seed(0))
    assert {key: tuple(value.shape) for key, value in first.observation.items()} == {
        "glyphs": (2, 21, 79),
        "blstats": (2, 27),
        "message": (2, 256),
    }
