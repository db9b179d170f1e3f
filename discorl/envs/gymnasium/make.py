"""Environments from a Gymnasium id, a factory, or a ready vector environment."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium
import torch
from gymnasium.vector import AutoresetMode, VectorEnv

from discorl.envs.base import Env, check_copies, is_env
from discorl.envs.env_config import BY_NAME, MAKING, EnvConfig, check_unchanged
from discorl.envs.failures import one_line
from discorl.envs.gymnasium.actions import action_map
from discorl.envs.gymnasium.env import GymnasiumEnv
from discorl.envs.gymnasium.exits import PASS, call_without_exit
from discorl.envs.gymnasium.spaces import observation_leaves
from discorl.envs.gymnasium.vector import Factory, make_guarded, make_vector
from discorl.envs.named_code import NoModule, load_function
from discorl.errors import DiscorlError

AUTORESET = {"same-step": AutoresetMode.SAME_STEP, "next-step": AutoresetMode.NEXT_STEP}


MODULES = {"ALE/": "ale_py", "MiniGrid-": "minigrid", "BabyAI-": "minigrid"}
"""What registers environments, by how their ids begin; imported when such an id is asked for."""


def gymnasium_env(
    env_id: str,
    num_envs: int,
    device: torch.device | str = "cpu",
    options: EnvConfig | None = None,
    num_agents: int = 1,
) -> GymnasiumEnv:
    """Copies of a registered environment; ``module:ID`` imports the module that registers it."""
    options = options or EnvConfig()
    probe = _make(env_id, options.kwargs)
    # From the specification and not the id: a worker process may not have imported its module.
    factory = partial(gymnasium.make, probe.spec or env_id, disable_env_checker=True)
    return _named_copies(probe, factory, num_envs, device, options, env_id, num_agents)


def function_env(
    name: str,
    num_envs: int,
    device: torch.device | str = "cpu",
    options: EnvConfig | None = None,
    num_agents: int = 1,
) -> GymnasiumEnv:
    """Copies of what a function makes, or a class is, that is written MODULE:FUNCTION."""
    options = options or EnvConfig()
    factory = partial(load_function(name), **options.kwargs)
    probe = call_without_exit(make_guarded, factory, f"'{name}'")
    return _named_copies(probe, factory, num_envs, device, options, name, num_agents)


def _named_copies(
    made: gymnasium.Env,
    factory: Factory,
    num_envs: int,
    device: torch.device | str,
    options: EnvConfig,
    name: str,
    num_agents: int,
) -> GymnasiumEnv:
    """Copies of what was ``made``, which is wrapped, checked and closed before any of them is."""
    name = f"'{name}'"
    wrappers = [load_function(wrapper) for wrapper in options.wrappers]
    probe = call_without_exit(make_guarded, partial(wrapped, lambda: made, wrappers), name)
    observation_leaves(probe.observation_space, name, options.image_layout)
    action_map(probe.action_space, name, options.action_bins)
    probe.close()
    factory = partial(wrapped, factory, wrappers) if wrappers else factory
    return _copies(factory, num_envs, device, options, name, num_agents)


def make_drawn(name: str, options: EnvConfig) -> gymnasium.Env:
    """One copy, wrapped, of a task that Gymnasium or a function makes; it draws, if it can."""
    make, kwargs = load_function(name) if not name.startswith("gym:") else None, options.kwargs
    drawn = kwargs | {"render_mode": "rgb_array"}
    if make is None:
        factory = partial(gymnasium.make, name.removeprefix("gym:"), **drawn)
    else:
        factory = partial(make, **drawn if _takes_render_mode(make) else kwargs)
    return wrapped(factory, [load_function(wrapper) for wrapper in options.wrappers])


def _takes_render_mode(make: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):  # of something without a signature
        return False
    return any(p.name == "render_mode" or p.kind is p.VAR_KEYWORD for p in parameters)


def wrapped(factory: Factory, wrappers: Sequence[Callable[[Any], Any]]) -> gymnasium.Env:
    """An environment inside its wrappers, the first of them innermost."""
    env = factory()
    for wrap in wrappers:
        env = wrap(env)
        if not isinstance(env, gymnasium.Env):
            name = getattr(wrap, "__name__", wrap)
            raise DiscorlError(f"the wrapper {name} returned {env!r:.60}, not a gymnasium.Env")
    return env


def as_env(
    source: Env | VectorEnv | Factory,
    num_envs: int,
    device: torch.device | str = "cpu",
    options: EnvConfig | None = None,
    name: str = "the environment",
    num_agents: int = 1,
) -> Env:
    """An environment from what a user has: a factory, a vector environment, or one of our own."""
    options = options or EnvConfig()
    check_unchanged(options, f"{name}, which you made yourself", BY_NAME)
    if isinstance(source, VectorEnv):
        check_unchanged(options, f"{name}, which is already a vector environment", MAKING)
        return GymnasiumEnv(source, device, name=name, options=options, num_agents=num_agents)
    if isinstance(source, gymnasium.Env):
        raise DiscorlError(
            "training needs several copies of an environment: pass a function that makes one, "
            "such as env=lambda: MyEnv(), or a gymnasium.vector.VectorEnv"
        )
    if is_env(source):
        check_unchanged(options, f"{name}, which is a discorl environment")
        return source
    if callable(source):
        return _copies(source, num_envs, device, options, name, num_agents)
    raise DiscorlError(
        f"env is a {type(source).__name__}; pass a function that makes a gymnasium.Env, a "
        "gymnasium.vector.VectorEnv, or a discorl environment"
    )


def _copies(
    factory: Factory,
    num_envs: int,
    device: torch.device | str,
    options: EnvConfig,
    name: str,
    num_agents: int,
) -> GymnasiumEnv:
    check_copies(num_envs)
    envs = make_vector(
        [factory] * num_envs,
        options.workers,
        AUTORESET[options.autoreset],
        recorded=options.exact_resume,
    )
    return GymnasiumEnv(envs, device, name=name, options=options, owned=True, num_agents=num_agents)


def _make(env_id: str, kwargs: dict[str, Any]) -> gymnasium.Env:
    """One environment; a package that is known to register it is imported first."""
    module = next((m for prefix, m in MODULES.items() if env_id.startswith(prefix)), None)
    if module:
        try:
            importlib.import_module(module)
        except ImportError:
            install = f"pip install {module.replace('_', '-')}"
            raise DiscorlError(
                f"'{env_id}' is in a package that is not installed: {install}"
            ) from None
    try:
        return call_without_exit(gymnasium.make, env_id, disable_env_checker=True, **kwargs)
    except gymnasium.error.DependencyNotInstalled as e:
        raise DiscorlError(f"'{env_id}' needs a package that is not installed: {_cure(e)}") from e
    except ModuleNotFoundError as e:
        missing = e.name or getattr(e.__cause__, "name", None) or env_id.split(":")[0]
        if f"{env_id.rpartition(':')[0]}.".startswith(f"{missing}."):  # what registers it
            raise DiscorlError(f"'{env_id}' cannot be made: {NoModule(missing)}") from None
        raise DiscorlError(
            f"'{env_id}' needs the package '{missing}', which is not installed: install it with "
            "pip, or correct the name"
        ) from None
    except gymnasium.error.UnregisteredEnv:
        raise DiscorlError(_unknown(env_id)) from None
    except PASS:
        raise
    except BaseException as e:
        raise DiscorlError(f"Gymnasium cannot make '{env_id}': {one_line(e)}") from e


def _cure(error: gymnasium.error.DependencyNotInstalled) -> str:
    """How to install what is missing: by our own extra where there is one."""
    said = one_line(error).removeprefix("DependencyNotInstalled: ")
    return "pip install 'discorl[box2d]'" if "box2d" in said.lower() else said


def _unknown(env_id: str) -> str:
    module, _, own_id = env_id.rpartition(":")
    by_lower = {known.lower(): known for known in gymnasium.registry}
    close = difflib.get_close_matches(own_id.lower(), by_lower, n=3, cutoff=0.6)
    advice = "if a module registers it, write gym:MODULE:ID"
    if module:
        meant = f"; did you mean {' or '.join(by_lower[c] for c in close)}?" if close else ""
        advice = f"the module '{module}' does not register it{meant}"
    elif close:
        advice = f"did you mean {' or '.join(by_lower[c] for c in close)}?"
    return f"Gymnasium has no environment '{env_id}'; {advice}"
