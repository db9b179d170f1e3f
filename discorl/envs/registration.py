"""Tasks on tensors that users and packages add to those of this one."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from discorl.envs import suites
from discorl.envs.base import TensorEnv, is_env
from discorl.envs.failures import one_line
from discorl.envs.tensor_tasks import TASKS, Entry, read_name
from discorl.errors import DiscorlError

GROUP = "discorl.tasks"
"""The group of entry points by which a package adds tasks."""
FORM = re.compile(r"[a-z][a-z0-9_-]*(:[A-Za-z0-9_-]+)*", re.ASCII)
"""How the name of a task can be written."""
PREFIXES = {"gym", "task", *(re.split("[:,]", entry.name)[0] for entry in TASKS)}
"""What stands before the colon in names of our own, besides those of suites."""

_registered: dict[str, Entry] = {}


def register_task(name: str, make: Callable[..., TensorEnv], description: str = "") -> None:
    """Add a task on tensors, for ``train``, ``discover`` and their commands.

        discorl.register_task("lights-out:SIZE", LightsOut, "switch off all lights of a board")
        discorl.train(discorl.TrainConfig(task="lights-out:5"))

    Capitals in ``name`` stand for numbers. ``make(num_envs, *numbers, device=, task_seed=)``
    returns an environment of that many copies (see ``discorl.envs.base.TensorEnv``). The first
    line of its docstring is the ``description``, if you give none. Registering a name again
    replaces what it stood for.

    On the command line, ``discorl train task:MODULE:NAME`` imports the module that calls this. A
    package can name its tasks as entry points instead, and needs no call:

        [project.entry-points."discorl.tasks"]
        "lights-out:SIZE" = "my_package.lights_out:LightsOut"
    """
    _registered[_checked(name)] = _entry(name, make, description)


def _checked(name: str) -> str:
    if not isinstance(name, str) or not FORM.fullmatch(name):
        raise DiscorlError(
            f"{name!r:.60} cannot be the name of a task: use small letters, digits and dashes, and "
            "capitals for numbers, as in lights-out:SIZE"
        )
    if name.partition(":")[0] in PREFIXES or suites.find(name):
        raise DiscorlError(f"discorl has a task called '{name}' of its own: choose another name")
    return name


def _entry(name: str, make: Callable[..., Any], description: str = "") -> Entry:
    if not callable(make):
        raise DiscorlError(f"the task '{name}' needs a function that makes it, not {make!r:.60}")

    def made(num_envs: int, *numbers: int, **where: Any) -> TensorEnv:
        env = make(num_envs, *numbers, **where)
        if not is_env(env) or env.num_envs != num_envs:
            raise DiscorlError(
                f"the function of the task '{name}' made {env!r:.60}, not an environment of "
                f"{num_envs} copies: see discorl.envs.base.TensorEnv"
            )
        return env  # pyright: ignore[reportReturnType] - discovery checks what it needs besides

    lines = (description or make.__doc__ or "").strip().splitlines()
    return Entry(name, lines[0] if lines else "", made)


@cache
def _from_packages() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def find_registered(name: str) -> Entry | None:
    """The added task that ``name`` is written like; None if there is none."""
    for entry in _registered.values():
        if entry.read(name) is not None:
            return entry
    for point in _from_packages().values():
        if FORM.fullmatch(point.name) and read_name(point.name, name) is not None:
            return _load(point)
    return None


def registered_tasks() -> dict[str, str]:
    """The names of all added tasks, with their descriptions."""
    found = {}
    for name, point in _from_packages().items():
        try:
            found[name] = _load(point).description
        except DiscorlError as e:
            found[name] = f"[{e}]"
    return found | {name: entry.description for name, entry in _registered.items()}


def _load(point: EntryPoint) -> Entry:
    try:
        return _entry(_checked(point.name), point.load())
    except DiscorlError:
        raise
    except Exception as e:
        package = point.dist.name if point.dist else point.value
        raise DiscorlError(
            f"the package {package} adds the task '{point.name}', but it cannot be imported: "
            f"{one_line(e)}"
        ) from e
