"""Environments by name."""

from __future__ import annotations

import re

import torch

from discorl.envs.base import Env
from discorl.envs.catch import Catch
from discorl.envs.options import EnvConfig
from discorl.errors import DiscorlError

KNOWN = {
    "catch": "Catch on an 8x8 board",
    "catch:ROWSxCOLUMNS": "Catch on a board of that size",
    "gym:ID": "a Gymnasium environment, such as gym:CartPole-v1",
    "gym:MODULE:ID": "the same, from a package that registers it when it is imported",
}


def make_env(
    name: str,
    num_envs: int,
    device: torch.device | str = "cpu",
    options: EnvConfig | None = None,
) -> Env:
    """Copies of the environment called ``name``."""
    if name == "catch":
        return Catch(num_envs, device=device)
    if match := re.fullmatch(r"catch:(\d+)x(\d+)", name):
        rows, columns = (int(n) for n in match.groups())
        return Catch(num_envs, rows, columns, device)
    if name.startswith("gym:"):
        from discorl.envs.gymnasium import gymnasium_env  # imported late: Gymnasium loads slowly

        return gymnasium_env(name.removeprefix("gym:"), num_envs, device, options)
    raise DiscorlError(f"no environment is called '{name}': use {', '.join(KNOWN)}")
