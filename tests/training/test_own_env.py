"""Environments of the user's own, without a package: by command and from Python."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import discorl
from discorl.cli import main
from discorl.envs.env_config import EnvConfig
from discorl.envs.registry import make_env
from discorl.errors import DiscorlError, EnvFailure
from discorl.training.evaluate import evaluate
from discorl.training.rule_choice import read_config
from discorl.training.train import resume, train
from discorl.training.video import record_episode
from tests.builders import run_python
from tests.envs.gym_examples import Corridor
from tests.training.own_envs import Long
from tests.training.test_train_gymnasium import config

OWN = Path(__file__).with_name("own_envs.py")
FAILING_LINE = 1 + OWN.read_text().splitlines().index(
    '        raise ZeroDivisionError("the wheels came off")  # the line that errors name'
)
SMALL = [
    *("--rule", "actor-critic", "--steps", "2", "--progress", "none", "--device", "cpu"),
    *("--num-envs", "2", "--rollout-length", "8", "--batch-size", "2", "--net.torso", "8"),
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with a module in it that is not on the path."""
    register = "gymnasium.register('Long-v0', entry_point=Long)\n"
    (tmp_path / "my_envs.py").write_text(OWN.read_text() + register)
    monkeypatch.delitem(gymnasium.registry, "Long-v0", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_envs", raising=False)
    return tmp_path


def discorl_command(*args: str, cwd: Path) -> Any:
    """``discorl``, the command: Python then looks for modules in its folder, not in ours."""
    scripts = cwd / "bin"
    scripts.mkdir(exist_ok=True)
    script = scripts / "discorl"
    script.write_text("import sys\nfrom discorl.cli import main\nsys.exit(main())\n")
    root = str(Path(__file__).parents[2])
    return run_python(script, *args, cwd=cwd, env={"PYTHONPATH": root})


def test_the_command_finds_modules_in_the_current_folder(here: Path) -> None:
    kwargs = ("--env.kwargs", '{"length": 3}')
    done = discorl_command("train", "gym:my_envs:Long-v0", *SMALL, *kwargs, "--out", "a", cwd=here)
    assert done.returncode == 0, done.stderr
    done = discorl_command("evaluate", "a", "--episodes", "2", cwd=here)
    assert done.returncode == 0, done.stderr
    assert "mean return" in done.stdout


def test_but_not_those_of_a_run_that_it_is_in(here: Path) -> None:
    """Neither a function of the task nor a wrapper is imported from the run's folder."""
    train(config(here, task="gym:CartPole-v1"))
    run = here / "run"
    shutil.move(here / "my_envs.py", run)
    content = json.loads((run / "config.json").read_text())
    for changes in (
        {"task": "my_envs:make"},
        {"env": content["env"] | {"wrappers": ["my_envs:timed"]}},
    ):
        (run / "config.json").write_text(json.dumps(content | changes))
        done = discorl_command("evaluate", ".", cwd=run)
        assert done.returncode == 2
        assert "nothing is imported from a run's own folder" in done.stderr


@pytest.fixture
def on_path(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(here)
    return here


def test_functions_classes_and_their_arguments(on_path: Path) -> None:
    del on_path
    for task in ("my_envs:make", "my_envs:Long", "gym:my_envs:Long-v0"):
        for workers in ("sync", "async"):
            options = EnvConfig(kwargs={"length": 3}, workers=workers)
            env: Any = make_env(task, 2, options=options)
            copies = env._envs.get_attr("_length")
            assert copies == (3, 3), (task, workers)
            env.close()
    with pytest.raises(DiscorlError, match="'my_envs' does not register it"):
        make_env("gym:my_envs:Short-v0", 2)


def test_gymnasiums_own_take_arguments(tmp_path: Path) -> None:
    env: Any = make_env("gym:FrozenLake-v1", 1, options=EnvConfig(kwargs={"map_name": "8x8"}))
    assert env.spec.observation_shape == (64,)
    with pytest.raises(DiscorlError, match="unexpected keyword argument 'map'"):
        make_env("gym:FrozenLake-v1", 1, options=EnvConfig(kwargs={"map": "8x8"}))
    settings = config(tmp_path, task="gym:FrozenLake-v1", env=EnvConfig(kwargs={"map_name": "8x8"}))
    folder = train(settings).folder
    assert discorl.load_agent(folder).make_env(1).spec.observation_shape == (64,)
    assert read_config(folder)[0].env.kwargs == {"map_name": "8x8"}


def test_wrappers_are_applied_in_order(on_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrappers = ("my_envs:timed", "gymnasium.wrappers:FlattenObservation")
    command = ["train", "my_envs:make", *SMALL, "--out", str(on_path / "run"), "--wrappers"]
    assert main([*command, *wrappers]) == 0
    assert discorl.load_agent(on_path / "run").make_env(1).spec.observation_shape == (4,)
    assert main(["evaluate", str(on_path / "run"), "--episodes", "2"]) == 0
    command[-2] = str(on_path / "other")
    assert main([*command, "builtins:str"]) == 2
    assert "the wrapper str returned '<Long" in capsys.readouterr().err
    assert main([*command, "timed"]) == 2
    assert "a wrapper is written MODULE:FUNCTION, not 'timed'" in capsys.readouterr().err
    assert main([*command[:-1], "--kwargs", "length: 3"]) == 2
    assert "should be named values in JSON" in capsys.readouterr().err


@pytest.mark.parametrize("workers", ["sync", "async"])
def test_a_failure_names_the_line_of_the_users_code(
    workers: str, on_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And with --debug there is the traceback, that of a worker process included."""
    args = ["train", "my_envs:make", *SMALL, "--workers", workers, "--kwargs", '{"fails_at": 12}']
    assert main([*args, "--out", str(on_path / "a")]) == 2
    said = capsys.readouterr().err
    words = f"ZeroDivisionError: the wheels came off (my_envs.py:{FAILING_LINE}, in _fail)"
    assert said.startswith("error: ") and said.count("\n") == 1
    assert words in said
    assert main([*args, "--out", str(on_path / "b"), "--debug"]) == 2
    said = capsys.readouterr().err
    assert f'my_envs.py", line {FAILING_LINE}, in _fail' in said
    assert said.splitlines()[-1].startswith("error: ") and words in said


def test_so_does_one_that_cannot_be_made(on_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (on_path / "bad_envs.py").write_text("def make():\n    return 1 / 0\n")
    args = [*SMALL, "--out", str(on_path / "a")]
    assert main(["train", "bad_envs:make", *args]) == 2
    assert "division by zero (bad_envs.py:2, in make)" in capsys.readouterr().err
    assert not (on_path / "a").exists()
    assert main(["train", "bad_envs:mak", *args]) == 2
    assert "the module bad_envs has no function 'mak'" in capsys.readouterr().err
    assert main(["train", "bad_env:make", *args]) == 2
    said = capsys.readouterr().err
    assert "no environment is called 'bad_env:make'" in said and "no module 'bad_env'" in said


@pytest.mark.parametrize("task", ["mine", "gym:CartPole-v1"])
def test_an_environment_from_python_is_given_again(
    task: str, on_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = config(on_path, task=task)
    folder = train(settings, env=Long).folder
    words = "was trained on an environment that was given from Python"

    with pytest.raises(DiscorlError, match=words):
        discorl.load_agent(folder)
    agent = discorl.load_agent(folder, env=Long)
    assert evaluate(agent, 4, num_envs=2).mean_length > 1
    assert record_episode(agent, max_steps=3)[0]
    vector = gymnasium.vector.SyncVectorEnv([Long] * 3, autoreset_mode="SameStep")
    assert evaluate(discorl.load_agent(folder, env=vector), 4).mean_length > 1

    more = replace(read_config(folder)[0], steps=4)
    with pytest.raises(DiscorlError, match=words):
        resume(more)
    assert resume(more, env=Long).metrics[-1]["step"] == 4
    with pytest.raises(DiscorlError, match=words):
        discorl.load_agent(folder)  # a resumed run remembers

    run = str(folder)
    assert main(["evaluate", run]) == main(["train", "--resume", run, "--steps", "5"]) == 2
    assert capsys.readouterr().err.count("--task MODULE:FUNCTION") == 2
    by_name = ["--task", "my_envs:make"]
    assert main(["evaluate", run, *by_name, "--episodes", "2"]) == 0
    assert main(["train", "--resume", run, "--steps", "5", *by_name, "--progress", "none"]) == 0
    assert read_config(folder)[0].task == task


def test_another_environment_for_the_agent_of_a_run(on_path: Path) -> None:
    """Its own arguments and wrappers are not those of the run's."""
    settings = config(on_path, task="my_envs:make", env=EnvConfig(kwargs={"length": 3}))
    folder = train(settings).folder
    agent = discorl.load_agent(folder, env="my_envs:Long")
    env: Any = agent.make_env(1)
    assert env._envs.get_attr("_length") == (5,)
    with pytest.raises(DiscorlError, match="does not fit this environment"):
        discorl.load_agent(folder, env="gym:CartPole-v1")
    with pytest.raises(DiscorlError, match=r"--kwargs does nothing for .*which you made yourself"):
        train(replace(settings, out=on_path / "other"), env=Corridor)


def test_a_run_from_elsewhere_calls_no_other_functions(on_path: Path) -> None:
    folder = train(config(on_path, task="my_envs:make")).folder
    content = json.loads((folder / "config.json").read_text())
    touched = on_path / "touched"
    evil = {
        "task": "subprocess:run",
        "env": content["env"] | {"kwargs": {"args": ["touch", str(touched)]}},
    }
    (folder / "config.json").write_text(json.dumps(content | evil))
    with pytest.raises(DiscorlError, match="does not say that it makes environments"):
        discorl.load_agent(folder)
    with pytest.raises(DiscorlError, match="does not say that it makes environments"):
        resume(replace(read_config(folder)[0], steps=9))
    assert not touched.exists()


def test_films_of_ones_own_environment(on_path: Path) -> None:
    settings = config(on_path, task="my_envs:make", env=EnvConfig(wrappers=("my_envs:timed",)))
    frames, _ = record_episode(discorl.load_agent(train(settings).folder), max_steps=4)
    assert len(frames) == 4


def test_a_missing_box2d_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "Box2D", None)
    for module in [m for m in sys.modules if m.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(
        DiscorlError, match=r"^'LunarLander-v3' .*: pip install 'discorl\[box2d\]'$"
    ):
        make_env("gym:LunarLander-v3", 1)


def test_an_env_that_breaks_in_python_says_where(tmp_path: Path) -> None:
    with pytest.raises(EnvFailure, match=rf"own_envs.py:{FAILING_LINE}, in _fail\)") as caught:
        train(config(tmp_path, task="mine"), env=lambda: Long(fails_at=4))
    assert isinstance(caught.value.__cause__, EnvFailure)


def test_a_run_on_an_environment_from_python_goes_on_by_name(on_path: Path) -> None:
    """With evaluations, and as a file."""
    import my_envs  # pyright: ignore[reportMissingImports]

    settings = config(on_path, steps=2, eval_every=1, eval_episodes=2, out=on_path / "run")
    folder = train(settings, env=my_envs.make).folder
    command = ["train", "--resume", str(folder), "--task", "my_envs:make", "--progress", "none"]
    assert main([*command, "--steps", "3"]) == 0
    assert main(["export", str(folder), "--best", "--task", "my_envs:make"]) == 0
    assert (folder / "policy.pt2").is_file()
