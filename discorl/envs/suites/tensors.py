"""A suite's tasks as environments on tensors."""

from __future__ import annotations

from dataclasses import replace

import torch

from discorl.envs.env_config import EnvConfig
from discorl.envs.gymnasium import GymnasiumEnv
from discorl.envs.suites import Suite


def suite_env(
    suite: Suite,
    task: str,
    num_envs: int,
    device: torch.device | str = "cpu",
    options: EnvConfig | None = None,
    frame_stack: int | None = None,
) -> GymnasiumEnv:
    """Copies of ``task``. Where the suite says how its images lie, nobody has to guess."""
    options = options or EnvConfig()
    envs = suite.make(
        task,
        num_envs,
        options.suite,
        stack=frame_stack if suite.num_frames else None,
        processes=options.workers == "async",
        next_step=options.autoreset == "next-step",
    )
    options = replace(options, image_layout=suite.image_layout or options.image_layout)
    return GymnasiumEnv(envs, device, name=f"'{task}'", options=options, owned=True)
