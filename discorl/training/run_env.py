"""The environment of a run, once more: by the name that it was trained on, or from Python."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from discorl.envs.base import Env, close_env
from discorl.envs.registry import is_tensor_task
from discorl.errors import DiscorlError
from discorl.training.build import make_copies
from discorl.training.config import TrainConfig

FROM_PYTHON = "If it was trained on an environment from Python, pass that again as env="


def make_run_env(
    folder: Path, config: TrainConfig, num_envs: int, device: torch.device, env: Any = None
) -> Env:
    """Copies of a run's environment, with the settings of the run; ``env`` as for ``train``."""
    config = replace(config, env=replace(config.env, exact_resume=False))  # nothing is resumed
    return make_copies(num_envs, config, device, env, folder)


@contextmanager
def sample_env(
    folder: Path, config: TrainConfig, device: torch.device, env: Any = None
) -> Iterator[Env]:
    """One copy of a run's environment, to see what it shows and takes; it is never stepped.

    ``env`` may also be a single ready environment, which stays as it is.
    """
    source = env
    if env is not None:
        import gymnasium

        from discorl.envs.gymnasium.interface import SpacesOnly

        source = (lambda: SpacesOnly(env)) if isinstance(env, gymnasium.Env) else env
    try:
        made = make_run_env(folder, config, 1, device, source)
    except DiscorlError as e:
        if env is None and is_tensor_task(config.task):
            raise type(e)(f"{e}. {FROM_PYTHON}") from None
        raise
    try:
        yield made
    finally:
        if made is not env:
            close_env(made)
