"""Tasks that users and packages add."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import discorl
from discorl.cli import main
from discorl.discovery.build import make_group, starting_rule
from discorl.envs import registration
from discorl.envs.registry import family, is_function, is_tensor_task, make_env
from discorl.envs.tasks.bandit import Bandit
from discorl.envs.tasks.catch import Catch
from discorl.errors import DiscorlError
from tests.meta.population import tiny_config
from tests.training.test_train_gymnasium import config

DIST = """\
Metadata-Version: 2.1
Name: their-tasks
Version: 1.0
"""
ENTRIES = """\
[discorl.tasks]
their-catch:ROWSxCOLUMNS = their_tasks:TheirCatch
their-broken = their_broken_tasks:make
their(odd = their_tasks:TheirCatch
"""
MODULE = '''
from discorl.envs.tasks.catch import Catch


class TheirCatch(Catch):
    """Catch as they play it.

    With more to say.
    """
'''


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    registration._from_packages.cache_clear()
    before = dict(registration._registered)
    yield
    registration._registered.clear()
    registration._registered.update(before)
    registration._from_packages.cache_clear()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package that adds tasks."""
    info = tmp_path / "their_tasks-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(DIST)
    (info / "entry_points.txt").write_text(ENTRIES)
    (tmp_path / "their_tasks.py").write_text(MODULE)
    (tmp_path / "their_broken_tasks.py").write_text("import nothing_of_the_kind\n")
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("their_tasks", "their_broken_tasks"):
        monkeypatch.delitem(sys.modules, module, raising=False)


def test_a_task_by_its_new_name() -> None:
    discorl.register_task("small-catch:ROWSxCOLUMNS", Catch, "a small board")
    env = make_env("small-catch:4x3@7", 5)
    assert isinstance(env, Catch)
    assert (env.num_envs, env.spec.observation_shape, env.task_seed) == (5, (4, 3), 7)
    assert is_tensor_task("small-catch:4x3") and not is_function("small-catch:4x3")
    discorl.register_task("small-catch:ROWSxCOLUMNS", Bandit, "replaced")
    assert isinstance(make_env("small-catch:4x3", 5), Bandit)
    with pytest.raises(DiscorlError, match="use small-catch:ROWSxCOLUMNS"):
        make_env("small-catch:4", 1)


def test_training_on_it(tmp_path: Path) -> None:
    discorl.register_task("arms", lambda num_envs, **where: Bandit(num_envs, 3, **where))
    result = discorl.train(config(tmp_path, task="arms"))
    agent = discorl.load_agent(result.folder)
    assert agent.make_env(2).spec.num_actions == 3


def test_discovery_on_it() -> None:
    discorl.register_task("arms", lambda num_envs, **where: Bandit(num_envs, 3, **where))
    settings = tiny_config(tasks=("arms",))
    rule, _ = starting_rule(settings)
    group = make_group(settings, settings.groups[0], rule, device="cpu")  # pyright: ignore
    assert isinstance(group.env, Bandit)


@pytest.mark.parametrize(
    "name, words",
    [
        ("catch:TIMES", "has a task called 'catch:TIMES' of its own"),
        ("gym:x", "of its own"),
        ("ale:x", "of its own"),
        ("task:x", "of its own"),
        ("Upper", "cannot be the name of a task"),
        ("with space", "cannot be the name of a task"),
        ("a@b", "cannot be the name of a task"),
    ],
)
def test_names_that_cannot_be(name: str, words: str) -> None:
    with pytest.raises(DiscorlError, match=words):
        discorl.register_task(name, Catch)


def test_what_it_makes_is_checked() -> None:
    discorl.register_task("nothing", lambda num_envs, **where: None)  # pyright: ignore
    with pytest.raises(DiscorlError, match="made None, not an environment of 2 copies"):
        make_env("nothing", 2)
    discorl.register_task("too-many", lambda num_envs, **where: Bandit(3, 3, **where))
    with pytest.raises(DiscorlError, match="not an environment of 2 copies"):
        make_env("too-many", 2)
    with pytest.raises(DiscorlError, match="needs a function"):
        discorl.register_task("three", 3)  # pyright: ignore


@pytest.mark.usefixtures("package")
def test_packages_add_tasks_by_entry_points(capsys: pytest.CaptureFixture[str]) -> None:
    env = make_env("their-catch:5x4", 2)
    assert type(env).__name__ == "TheirCatch" and env.spec.observation_shape == (5, 4)
    with pytest.raises(DiscorlError, match=r"package their-tasks adds.*nothing_of_the_kind"):
        make_env("their-broken", 2)
    assert main(["envs"]) == 0
    listed = capsys.readouterr().out
    assert "Catch as they play it." in listed and "With more to say" not in listed
    assert "[the package their-tasks adds the task 'their-broken'" in listed
    assert "['their(odd' cannot be the name of a task" in listed


def test_a_module_that_registers_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_tasks.py").write_text(
        "import discorl\n"
        "from discorl.envs.tasks.catch import Catch\n"
        "discorl.register_task('my-catch:ROWSxCOLUMNS', Catch)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    env = make_env("task:my_tasks:my-catch:4x3", 2)
    assert env.spec.observation_shape == (4, 3)
    assert is_tensor_task("task:my_tasks:my-catch:4x3")
    with pytest.raises(DiscorlError, match="no environment is called 'my-dog'"):
        make_env("task:my_tasks:my-dog", 2)
    with pytest.raises(DiscorlError, match="there is no module 'nowhere'"):
        make_env("task:nowhere:my-dog", 2)
    with pytest.raises(DiscorlError, match="write task:MODULE:NAME"):
        make_env("my-dog", 2)


def test_functions_of_the_users_get_gymnasiums_preset() -> None:
    assert family("my_module:make") == family("gym:CartPole-v1") == "gym"
    assert family("catch:10x5") == "catch"
    assert family("minatar:breakout") == "minatar"
    of_function = discorl.presets.for_run("my_module:make", "actor-critic")
    of_gym = discorl.presets.for_run("gym:CartPole-v1", "actor-critic")
    assert (of_function.num_envs, of_function.steps) == (of_gym.num_envs, of_gym.steps)
