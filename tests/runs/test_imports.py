"""Runs from elsewhere bring no code along."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch

from discorl.discovery.build import make_group, starting_rule
from discorl.envs.registry import imported_module
from discorl.errors import DiscorlError
from discorl.runs.imports import importing_for
from discorl.training.trained_agent import load_agent
from tests.builders import run_cli, run_python
from tests.foreign import make_foreign, posix
from tests.meta.population import tiny_config

RUN = Path(__file__).parents[1] / "compatibility" / "v0_1" / "cartpole"
EVIL = """
import pathlib
pathlib.Path(__file__).with_suffix(".was-imported").touch()
raise ImportError
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose environment is in a module that lies in its folder, as may be others."""
    folder = tmp_path / "run"
    shutil.copytree(RUN, folder)
    config = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps(config | {"task": "gym:evil:Env-v0"}))
    for module in ("evil", "torch", "numpy", "tyro", "wandb", "ale_py"):
        (folder / f"{module}.py").write_text(EVIL)
    return folder


def imported(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.rglob("*.was-imported"))


@pytest.mark.parametrize(
    "command",
    [
        ("evaluate", "."),
        ("evaluate", ".", "--video", "film.gif"),
        ("evaluate", "../run/checkpoints/.."),
        ("train", "--resume", "."),
        ("train", "--resume=.", "--log", "wandb", "--steps", "9"),
        ("compare", "."),
    ],
    ids=" ".join,
)
def test_commands_import_nothing_from_the_run(run: Path, command: tuple[str, ...]) -> None:
    done = run_cli(*command, cwd=run)
    assert imported(run) == []
    if command[0] != "compare":
        assert done.returncode == 2
        assert "nothing is imported from a run's own folder" in done.stderr, done.stderr


def test_nor_from_a_folder_in_it(run: Path) -> None:
    shutil.copy(run / "evil.py", run / "checkpoints")
    assert run_cli("evaluate", "..", cwd=run / "checkpoints").returncode == 2
    assert imported(run) == []


def test_nor_does_load_agent(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run)
    monkeypatch.syspath_prepend("")
    before = sys.path[:]
    with pytest.raises(DiscorlError, match="put it elsewhere, and that folder on PYTHONPATH"):
        load_agent(".")
    assert imported(run) == []
    assert sys.path == before


def test_modules_in_the_current_folder_are_found_otherwise(run: Path) -> None:
    shutil.copy(run / "evil.py", run.parent)
    run_cli("evaluate", "run", cwd=run.parent)
    assert imported(run.parent) == ["evil"]


def test_the_current_folder_comes_last(tmp_path: Path) -> None:
    for module in ("torch", "json", "rich"):
        (tmp_path / f"{module}.py").write_text(EVIL)
    done = run_cli("train", "gym:evil:Env-v0", cwd=tmp_path)
    assert "there is no module 'evil'" in done.stderr
    assert imported(tmp_path) == []


def test_python_can_be_told_to_leave_it_out(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text(EVIL)
    run_python("-P", "-m", "discorl", "train", "gym:evil:Env-v0", cwd=tmp_path)
    assert imported(tmp_path) == []


@posix
@pytest.mark.parametrize("task", ["gym:somewhere:Env-v0", "dm_env:some.where:make"])
def test_of_another_user_it_says_what_it_would_import(
    run: Path, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.loads((run / "config.json").read_bytes())
    (run / "config.json").write_text(json.dumps(config | {"task": task}))
    make_foreign(run / "config.json", monkeypatch)
    module = imported_module(task)
    with pytest.raises(DiscorlError, match=rf"another user wrote .*'{module}'.*use a copy"):
        load_agent(run)


@posix
def test_of_another_user_what_imports_nothing_is_fine(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(RUN / "config.json", run)
    make_foreign(run / "config.json", monkeypatch)
    assert load_agent(run).config.task == "gym:CartPole-v1"


@pytest.mark.parametrize("task", ["gym:evil:Env-v0", "dm_env:evil:make"])
def test_a_discovery_from_elsewhere_imports_nothing_either(
    run: Path, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(tasks=(task,))
    rule, _ = starting_rule(config)
    monkeypatch.chdir(run)
    monkeypatch.syspath_prepend(run)
    where = (config, config.groups[0], rule, torch.device("cpu"), None)
    with pytest.raises(DiscorlError, match="own folder"):
        make_group(*where, resumed=run)
    make_foreign(run / "config.json", monkeypatch)
    with pytest.raises(DiscorlError, match="another user wrote"):
        make_group(*where, resumed=run)
    assert imported(run) == []


def test_what_an_import_adds_to_the_path_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["first", "", str(tmp_path), "last"])
    with importing_for(tmp_path, "catch"):
        assert sys.path == ["first", "last"]
        sys.path.append("added")
    assert sys.path == ["first", "", str(tmp_path), "last", "added"]
    with importing_for(tmp_path / "other", "catch"):
        assert "" in sys.path


@pytest.mark.parametrize(
    ("task", "module"),
    [
        ("catch", None),
        ("catch:10x5", None),
        ("gym:CartPole-v1", None),
        ("gym:ALE/Pong-v5", None),
        ("ale:Pong", None),
        ("gym:evil:Env-v0", "evil"),
        ("dm_env:a.b:make", "a.b"),
    ],
)
def test_what_a_task_imports(task: str, module: str | None) -> None:
    assert imported_module(task) == module
