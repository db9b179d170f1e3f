"""Environments from a Gymnasium id, a factory, or a ready vector environment."""

from __future__ import annotations

import difflib
import importlib
from functools import partial

import gymnasium
import torch
from gymnasium.vector import AutoresetMode, VectorEnv

from discorl.envs.base import Env, check_copies, is_env
from discorl.envs.env_config import MAKING, EnvConfig, check_unchanged
from discorl.envs.gymnasium.actions import action_map
from discorl.envs.gymnasium.env import GymnasiumEnv
from discorl.envs.gymnasium.exits import PASS, call_without_exit
from discorl.envs.gymnasium.spaces import observation_leaves
from discorl.envs.gymnasium.vector import Factory, make_vector, one_line
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
    probe = _make(env_id)
    # Before any copy is made, so that a space that does not fit is reported at once.
    observation_leaves(probe.observation_space, f"'{env_id}'", options.image_layout)
    action_map(probe.action_space, f"'{env_id}'", options.action_bins)
    probe.close()
    # From the specification and not the id: a worker process may not have imported its module.
    factory = partial(gymnasium.make, probe.spec or env_id, disable_env_checker=True)
    return _copies(factory, num_envs, device, options, f"'{env_id}'", num_agents)


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
    envs = make_vector([factory] * num_envs, options.workers, AUTORESET[options.autoreset])
    return GymnasiumEnv(envs, device, name=name, options=options, owned=True, num_agents=num_agents)


def _make(env_id: str) -> gymnasium.Env:
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
        return call_without_exit(gymnasium.make, env_id, disable_env_checker=True)
    except gymnasium.error.DependencyNotInstalled as e:
        text = one_line(e).removeprefix("DependencyNotInstalled: ")
        raise DiscorlError(f"'{env_id}' needs a package that is not installed: {text}") from None
    except ModuleNotFoundError as e:
        missing = e.name or getattr(e.__cause__, "name", None) or env_id.split(":")[0]
        raise DiscorlError(
            f"'{env_id}' needs the package '{missing}', which is not installed: install it with "
            "pip, or correct the name"
        ) from None
    except gymnasium.error.UnregisteredEnv:
        raise DiscorlError(_unknown(env_id)) from None
    except PASS:
        raise
    except BaseException as e:
        raise DiscorlError(f"Gymnasium cannot make '{env_id}': {one_line(e)}") from None


def _unknown(env_id: str) -> str:
    by_lower = {known.lower(): known for known in gymnasium.registry}
    close = difflib.get_close_matches(env_id.lower(), by_lower, n=3, cutoff=0.6)
    advice = (
        f"did you mean {' or '.join(by_lower[c] for c in close)}?"
        if close
        else "if a package registers it, write gym:MODULE:ID"
    )
    return f"Gymnasium has no environment '{env_id}'; {advice}"
