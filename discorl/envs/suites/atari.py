"""Atari games through ale-py's C++ vector environment. The ROMs come with the package."""

from __future__ import annotations

from importlib import import_module

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv

from discorl.envs.gymnasium.interface import FrameStack
from discorl.envs.suites.atari_scores import GAMES
from discorl.envs.suites.packages import choose
from discorl.envs.suites.suite_settings import AtariSettings


def make(name: str, num_envs: int, settings: AtariSettings, stack: int) -> VectorEnv:
    """Copies of the game called ``name``; observations are uint8 [stack, height, width]."""
    ale = import_module("ale_py")
    rom = choose(name, [*GAMES, *ale.roms.get_all_rom_ids()], "Atari game")
    rom = choose(rom, ale.roms.get_all_rom_ids(), "Atari ROM")
    ale.ALEInterface.setLoggerMode(ale.LoggerMode.Error)  # it would greet for each environment
    # ale-py 0.12 writes its autoreset mode into the dict that all classes of vectors share.
    shared = VectorEnv.metadata
    before = dict(shared)
    try:
        envs = ale.AtariVectorEnv(
            rom,
            num_envs,
            num_threads=settings.threads,
            autoreset_mode=AutoresetMode.SAME_STEP,
            img_height=settings.image_size,
            img_width=settings.image_size,
            stack_num=stack,
            frameskip=settings.frame_skip,
            repeat_action_probability=settings.sticky,
            full_action_space=settings.full_actions,
            reward_clipping=settings.clip_rewards,
            episodic_life=settings.episodic_life,
            noop_max=settings.noops,
            use_fire_reset=settings.fire_on_reset,
            max_num_frames_per_episode=round(settings.max_minutes * 3600),
        )
        envs.metadata = dict(envs.metadata)
        size = (settings.image_size, settings.image_size)
        envs.frame_stack = FrameStack(Box(0, 255, size, np.uint8), stack)
    finally:
        shared.clear()
        shared.update(before)
    return envs
