"""Environments by name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

import torch

from discorl.envs import suites
from discorl.envs.base import Env, TensorEnv
from discorl.envs.env_config import BY_NAME, EnvConfig, check_unchanged
from discorl.envs.named_code import NAME, NoModule, import_named
from discorl.envs.registration import PREFIXES, find_registered, registered_tasks
from discorl.envs.tensor_tasks import TASKS
from discorl.errors import DiscorlError
from discorl.suggestions import did_you_mean

KNOWN = {entry.name: entry.description for entry in TASKS} | {
    "grid:NAME:MOVES": "one of these grid worlds with 4, 5 (the default) or 9 moves",
    "NAME@SEED": "another random version of any task above, such as bandit:5@7",
    "gym:ID": "a Gymnasium environment, such as gym:CartPole-v1",
    "gym:MODULE:ID": "the same, from a module that registers it on import",
    "MODULE:FUNCTION": "what a function of yours makes, a gymnasium.Env",
    "task:MODULE:NAME": "a task that your module registers with discorl.register_task",
}
"""Names and descriptions, as ``discorl envs`` lists them."""


def is_function(name: str) -> bool:
    """Whether the name is MODULE:FUNCTION, of the user's code."""
    prefix = name.partition(":")[0]
    ours = prefix in PREFIXES or suites.find(name) or find_registered(name.partition("@")[0])
    return not ours and NAME.fullmatch(name) is not None


def family(name: str) -> str:
    """What a task has its preset by: what stands before the colon; gym for the user's functions."""
    return "gym" if is_function(name) else name.partition(":")[0]


def make_env(
    name: str,
    num_envs: int,
    device: torch.device | str = "cpu",
    options: EnvConfig | None = None,
    frame_stack: int | None = None,
    num_agents: int = 1,
) -> Env:
    """Copies of the environment called ``name``, for one agent or for several that share them.

    Suites of games stack their last ``frame_stack`` frames; None for each suite's default.
    """
    suites.check_settings(name, options.suite if options else None)
    if family(name) == "gym":
        # Imported late: Gymnasium loads slowly.
        from discorl.envs.gymnasium import function_env, gymnasium_env

        make = function_env if is_function(name) else gymnasium_env
        own_name = name.removeprefix("gym:")
        try:
            return make(own_name, num_envs, device, options, num_agents=num_agents)
        except NoModule as e:
            names = [*KNOWN, *(suite.pattern for suite in suites.SUITES)]
            alike = [known for known in names if known.count(":") == name.count(":")]
            meant = "" if e.meant else did_you_mean(name.partition(":")[0], _beginnings(alike))
            prefixes = ", ".join(suite.prefix for suite in suites.SUITES)
            raise DiscorlError(
                f"no environment is called '{name}' (suites are {prefixes}), and {e}{meant}"
            ) from None
    if suite := suites.find(name):
        from discorl.envs.gymnasium import GymnasiumEnv

        options = options or EnvConfig()
        check_unchanged(options, f"'{name}'", (*BY_NAME, "exact_resume"))
        envs = suite.make(
            name,
            num_envs,
            options.suite,
            stack=frame_stack if suite.num_frames else None,
            processes=options.workers == "async",
            next_step=options.autoreset == "next-step",
        )
        # No need to guess the layout of images if the suite states it.
        options = replace(options, image_layout=suite.image_layout or options.image_layout)
        return GymnasiumEnv(
            envs, device, name=f"'{name}'", options=options, owned=True, num_agents=num_agents
        )
    env = make_tensor_env(name, num_envs, device)
    check_unchanged(options, f"'{name}'")
    return env


def is_tensor_task(name: str) -> bool:
    """Whether the environment called ``name`` would live on tensors, if there is one."""
    return family(name) != "gym" and suites.find(name) is None


def imported_module(name: str) -> str | None:
    """The module that the name of an environment says to import; None if it says nothing."""
    if is_function(name):
        return name.partition(":")[0]
    prefix, _, rest = name.partition(":")
    if prefix == "task":
        return rest.partition(":")[0] or None
    return (rest.rpartition(":")[0] or None) if prefix in ("gym", "dm_env") else None


def make_tensor_env(name: str, num_envs: int, device: torch.device | str = "cpu") -> TensorEnv:
    """Copies of a tensor-native task. ``name@SEED`` is another draw of what the task draws."""
    if name.startswith("task:"):
        if module := imported_module(name):
            import_named(module, f"'{name}'")
        name = name.removeprefix("task:").partition(":")[2]
    body, at, seed = name.partition("@")
    is_seed = re.fullmatch(r"\d{1,18}", seed, re.ASCII)
    where = {"device": torch.device(device), "task_seed": int(seed) if is_seed else 0}
    for entry in (*TASKS, find_registered(body)) if is_seed or not at else ():
        if entry and (found := entry.read(body)) is not None:
            numbers, ending = found
            return entry.make(num_envs, *numbers, **ending, **where)
    raise DiscorlError(f"no environment is called '{name}': use {_names_like(body)}")


def _names_like(name: str) -> str:
    """The names that begin like ``name``, or every beginning, and what may have been meant."""
    names = [*KNOWN, *registered_tasks(), *(suite.pattern for suite in suites.SUITES)]
    prefix = name.partition(":")[0]
    if alike := [known for known in names if re.match(rf"{re.escape(prefix)}(:|,|$)", known)]:
        return ", ".join(alike)
    heads = _beginnings(names)
    meant = _without_prefix(name) or did_you_mean(prefix, heads)
    known = f"{', '.join(heads)}; run 'discorl envs' to see all forms"
    return f"{known}, or write task:MODULE:NAME if a module of yours registers it{meant}"


def _beginnings(names: Iterable[str]) -> list[str]:
    """What names begin with, up to what is told apart behind it."""
    heads = dict.fromkeys(re.split(r"[\[:,]", name)[0] for name in names)
    return [head for head in heads if head.islower()]  # capitals stand for something else


def _without_prefix(name: str) -> str:
    """What may have been meant by a name that lacks its prefix: ``Pong``, ``CartPole-v1``."""
    import gymnasium  # imported late: it loads slowly

    of_suites = [task for whole in suites.WHOLE for task in suites.tasks_of(whole)]
    full = {task.partition(":")[2]: task for task in reversed(of_suites)}
    full |= {env_id: f"gym:{env_id}" for env_id in gymnasium.registry}
    meant = did_you_mean(name, full)
    for short, whole in full.items():
        meant = meant.replace(f"'{short}'", f"'{whole}'")
    return meant
