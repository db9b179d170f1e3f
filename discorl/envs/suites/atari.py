"""Atari games through ale-py's C++ vector environment. The ROMs come with the package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gymnasium.vector import AutoresetMode, VectorEnv

from discorl.envs.suites import reading as opts
from discorl.envs.suites.atari_scores import GAMES
from discorl.envs.suites.packages import choose, is_installed, load
from discorl.envs.suites.suite_settings import AtariSettings

EXTRA = "atari"
PACKAGE = "ale_py"


@dataclass(frozen=True)
class AtariOptions(AtariSettings):
    """The settings, and what a run decides by settings of its own."""

    stack: int = 4
    """Frames in an observation, oldest first."""

    def __post_init__(self) -> None:
        super().__post_init__()
        opts.at_least(1, stack=self.stack)


def installed() -> bool:
    """Whether the package that it needs is there."""
    return is_installed(PACKAGE)


def names() -> list[str]:
    """The 57 games."""
    return list(GAMES)


def make(name: str, num_envs: int, options: Mapping[str, object]) -> VectorEnv:
    """Copies of the game called ``name``; observations are uint8 [stack, height, width]."""
    ale = load(PACKAGE, EXTRA, "Atari")
    chosen = opts.read(AtariOptions, options, "Atari")
    opts.at_least(1, num_envs=num_envs)
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
            num_threads=chosen.threads,
            autoreset_mode=AutoresetMode.SAME_STEP,
            img_height=chosen.image_size,
            img_width=chosen.image_size,
            stack_num=chosen.stack,
            frameskip=chosen.frame_skip,
            repeat_action_probability=chosen.sticky,
            full_action_space=chosen.full_actions,
            reward_clipping=chosen.clip_rewards,
            episodic_life=chosen.episodic_life,
            noop_max=chosen.noops,
            use_fire_reset=chosen.fire_on_reset,
            max_num_frames_per_episode=round(chosen.max_minutes * 3600),
        )
        envs.metadata = {**envs.metadata, "image_layout": "channels-first"}
    finally:
        shared.clear()
        shared.update(before)
    return envs
