"""Options of suites: from the command line into the environment, the run's folder, and back."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from discorl.cli import main
from discorl.envs import suites
from discorl.envs.registry import make_env
from discorl.envs.suites.suite_settings import AtariSettings, MinAtarSettings, SokobanSettings
from discorl.errors import DiscorlError
from discorl.runs.config_file import from_json
from discorl.training.config import EnvConfig, TrainConfig
from discorl.training.rule_choice import read_config
from discorl.training.train import train
from discorl.training.trained_agent import load_agent
from tests.envs.suites.streams import needs

SMALL: tuple[str, ...] = (
    *("--rule", "actor-critic", "--steps", "2", "--num-envs", "2", "--batch-size", "2"),
    *("--replay-transitions", "60", "--rollout-length", "6", "--progress", "none"),
    *("--device", "cpu", "--net.dense", "8", "--optimiser.warmup-steps", "0"),
)
WITH_SETTINGS = [suite for suite in suites.SUITES if suite.settings]


@pytest.mark.parametrize("suite", WITH_SETTINGS, ids=lambda s: s.prefix)
def test_the_help_has_every_option_of_the_suite(
    suite: suites.Suite, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without its package: nothing is imported before the run begins."""
    with pytest.raises(SystemExit) as stop:
        main(["train", suite.prefix, "--help-all"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert suite.settings is not None
    for field in dataclasses.fields(suite.settings):
        assert f"--env.suite.{field.name.replace('_', '-')}" in shown
    every = {f.name for s in WITH_SETTINGS if s.settings for f in dataclasses.fields(s.settings)}
    for name in every - {f.name for f in dataclasses.fields(suite.settings)}:
        assert f"--env.suite.{name.replace('_', '-')} " not in shown


@pytest.mark.parametrize("suite", WITH_SETTINGS, ids=lambda s: s.prefix)
def test_every_option_has_a_help_text(suite: suites.Suite) -> None:
    """The text under a field is its help; an option without one would teach nothing."""
    import ast
    import inspect

    assert suite.settings is not None
    (body,) = ast.parse(inspect.getsource(suite.settings)).body
    assert isinstance(body, ast.ClassDef)
    for field, text in zip(body.body, body.body[1:]):
        if isinstance(field, ast.AnnAssign):
            assert isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant), field


@pytest.mark.parametrize("suite", WITH_SETTINGS, ids=lambda s: s.prefix)
def test_the_suite_reads_every_option_that_the_command_line_offers(suite: suites.Suite) -> None:
    """Each is named in the suite's own module."""
    assert suite.settings is not None
    module = Path(suites.__file__).with_name(f"{suite.extra or suite.prefix}.py").read_text()
    for field in dataclasses.fields(suite.settings):
        assert f"settings.{field.name}" in module


@pytest.mark.parametrize("name", ["--max-steps", "--suite.max-steps", "--env.suite.max-steps"])
def test_from_the_command_line_into_the_run(name: str, tmp_path: Path) -> None:
    """Sokoban needs no package. Episodes of 3 steps say that the option arrived."""
    folder = tmp_path / "run"
    args = ["train", "sokoban", *SMALL, f"{name}=3", "--log-every", "1"]
    assert main([*args, "--out", str(folder)]) == 0
    assert json.loads((folder / "config.json").read_text())["env"]["suite"] == {"max_steps": 3}
    config, _ = read_config(folder)
    assert config.env.suite == SokobanSettings(max_steps=3)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["length"] == 3


@pytest.mark.minatar
@needs("minatar")
def test_the_agent_is_evaluated_with_its_options(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    args = ["train", "minatar:breakout", *SMALL, "--no-full-actions", "--sticky", "0"]
    assert main([*args, "--no-difficulty-ramping", "--out", str(folder)]) == 0
    saved = json.loads((folder / "config.json").read_text())["env"]["suite"]
    assert saved == {"sticky": 0.0, "difficulty_ramping": False, "full_actions": False}
    agent = load_agent(folder)
    assert agent.config.env.suite == MinAtarSettings(0.0, False, False)
    assert agent.make_env(1).spec.num_actions == 3


@pytest.mark.atari
@needs("ale_py")
def test_atari(tmp_path: Path) -> None:
    settings = AtariSettings(image_size=40, full_actions=False)
    env = make_env("ale:Pong", 2, options=EnvConfig(suite=settings), frame_stack=3)
    assert env.spec.observation_shape == (3, 40, 40)
    assert env.spec.num_actions == 6


def test_a_run_from_python_says_which_options_it_had(tmp_path: Path) -> None:
    config = TrainConfig(
        task="sokoban", rule="actor-critic", steps=1, rollout_length=4, batch_size=2,
        replay_capacity=8, out=tmp_path / "run", progress="none", device="cpu",
    )  # fmt: skip
    folder = train(config).folder
    assert read_config(folder)[0].env.suite == SokobanSettings()


@pytest.mark.parametrize("suite", WITH_SETTINGS, ids=lambda s: s.prefix)
def test_settings_come_back_from_json_as_what_they_were(
    suite: suites.Suite, tmp_path: Path
) -> None:
    assert suite.settings is not None
    config = EnvConfig(suite=suite.settings())
    content = json.loads(json.dumps(dataclasses.asdict(config)))
    assert from_json(EnvConfig, content) == config
    content["suite"]["an_option_of_tomorrow"] = 1
    assert type(from_json(EnvConfig, content).suite) is suite.settings


# --- options that do not fit ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "args, words",
    [
        (("sokoban", "--sticky", "0"), "--sticky is an option of Atari and MinAtar"),
        (("sokoban", "--env.suite.sticky", "0"), "--sticky is an option of Atari and MinAtar"),
        (("catch", "--levels", "0"), "--levels is an option of ProcGen, but the task is 'catch'"),
        (("gym:CartPole-v1", "--no-full-view"), "--full-view is an option of MiniGrid"),
        (("sokoban", "--max-steps", "0"), "--env.suite.max-steps must be at least 1, not 0"),
        (("ale:Pong", "--sticky", "1.5"), "sticky must be a probability from 0 to 1, not 1.5"),
    ],
    ids=str,
)
def test_options_that_do_not_fit_are_one_line(
    args: tuple[str, ...], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *args, *SMALL, "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ") and said.err.count("\n") == 1, said.err
    assert words in said.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "task, words",
    [
        ("sokoban", "the options of Atari, but the task is 'sokoban': use SokobanSettings"),
        ("catch", "the options of Atari, but the task is 'catch': remove env.suite"),
        ("gym:CartPole-v1", "remove env.suite"),
    ],
)
def test_settings_of_another_suite(task: str, words: str) -> None:
    wrong: Any = EnvConfig(suite=AtariSettings())
    with pytest.raises(DiscorlError, match=words):
        make_env(task, 1, options=wrong)
