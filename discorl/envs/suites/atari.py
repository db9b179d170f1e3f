"""Atari games through ale-py's C++ vector environment. The ROMs come with the package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gymnasium.vector import AutoresetMode, VectorEnv

from discorl.envs.suites import options as opts
from discorl.envs.suites.atari_scores import GAMES
from discorl.envs.suites.packages import choose, is_installed, load
from discorl.errors import DiscorlError

EXTRA = "atari"
PACKAGE = "ale_py"


@dataclass(frozen=True)
class AtariOptions:
    """The defaults follow Machado et al. (2018): sticky actions, all 18 actions, no knowledge of
    lives; and DQN's images. DiscoRL's paper names the stack of 4 frames and leaves the rest open.
    """

    image_size: int = 84
    """Height and width of the grey images."""
    stack: int = 4
    """Frames in an observation, oldest first."""
    frame_skip: int = 4
    """Frames that an action is held; an observation is the maximum of the last two."""
    sticky: float = 0.25
    """Probability that a frame repeats the action of the one before."""
    full_actions: bool = True
    """All 18 actions in every game, or only those that do something in this one."""
    clip_rewards: bool = False
    """Only the sign of a reward."""
    episodic_life: bool = False
    """A lost life ends an episode."""
    noops: int = 0
    """At most so many idle frames at the start, drawn at random."""
    fire_on_reset: bool = False
    """Press fire at the start, where the game has that button."""
    max_minutes: float = 30.0
    """Episodes are cut off after so much play, at 60 frames a second."""
    threads: int = 0
    """Threads that play; 0 for one per environment, up to the number of cores."""

    def __post_init__(self) -> None:
        opts.at_least(1, image_size=self.image_size, stack=self.stack, frame_skip=self.frame_skip)
        opts.at_least(0, noops=self.noops, threads=self.threads)
        if not 0 <= self.sticky <= 1:
            raise DiscorlError(f"sticky is a probability, not {self.sticky}")
        if self.max_minutes <= 0:
            raise DiscorlError(f"max_minutes must be above 0, not {self.max_minutes}")


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
