"""Environments by name."""

from __future__ import annotations

import re

import torch

from discorl.envs import suites
from discorl.envs.base import Env
from discorl.envs.catch import Catch
from discorl.errors import DiscorlError

KNOWN = {
    "catch": "Catch on an 8x8 board",
    "catch:ROWSxCOLUMNS": "Catch on a board of that size",
    "gym:ID": "a Gymnasium environment with Discrete actions, such as gym:CartPole-v1",
}


def make_env(name: str, num_envs: int, device: torch.device | str = "cpu") -> Env:
    """Copies of the environment called ``name``."""
    if name == "catch":
        return Catch(num_envs, device=device)
    if match := re.fullmatch(r"catch:(\d+)x(\d+)", name):
        rows, columns = (int(n) for n in match.groups())
        return Catch(num_envs, rows, columns, device)
    if name.startswith("gym:"):
        from discorl.envs.gymnasium import GymnasiumEnv  # imported late: Gymnasium loads slowly

        return GymnasiumEnv(name.removeprefix("gym:"), num_envs, device)
    if suite := suites.find(name):
        from discorl.envs.gymnasium import GymnasiumEnv

        return GymnasiumEnv(suite.make(name, num_envs), device=device, name=name)  # type: ignore
    known = [*KNOWN, *(suite.pattern for suite in suites.SUITES)]
    raise DiscorlError(f"no environment is called '{name}': use {', '.join(known)}")
