"""The options of each suite's tasks, apart from frames and processes.

Separate from the suites themselves, which load slowly. The text under a field is its help on the
command line, where the names need no prefix: ``--sticky 0``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from discorl.bounds import check_between
from discorl.errors import DiscorlError

MAX_PIXELS = 4096
"""Height and width of images."""
MAX_MINUTES = 500_000
"""Of an Atari episode: its frames are counted in 32 bits."""


@dataclass(frozen=True)
class AtariSettings:
    """Atari's options, which also work without the prefix: --sticky 0.

    The defaults follow Machado et al. (2018): sticky actions, all 18 actions, no knowledge of
    lives; and DQN's images. DiscoRL's paper specifies the stack of 4 frames but not the rest.
    """

    image_size: int = 84
    """Height and width of the grey images."""
    frame_skip: int = 4
    """Frames to hold each action for; an observation is the maximum of the last two."""
    sticky: float = 0.25
    """Probability that a frame repeats the previous action, so that no fixed sequence of actions
    wins; 0 for the older, deterministic setup."""
    full_actions: bool = True
    """All 18 actions in every game, or only those that do something in this one (6 in Pong)."""
    clip_rewards: bool = False
    """Keep only the sign of each reward. Reported returns are then clipped too; use --reward-clip
    to report the true ones."""
    episodic_life: bool = False
    """End the episode when a life is lost."""
    noops: int = 0
    """Start with a random number of idle frames, up to this many; DQN uses 30."""
    fire_on_reset: bool = False
    """Press fire at the start, in games that have that button."""
    max_minutes: float = 30.0
    """Cut episodes off after this many minutes of play, at 60 frames a second."""
    threads: int = 0
    """Threads to play in; 0 for one per environment, up to the number of cores."""

    def __post_init__(self) -> None:
        at_least(1, MAX_PIXELS, image_size=self.image_size)
        at_least(1, frame_skip=self.frame_skip)
        at_least(0, noops=self.noops, threads=self.threads)
        _check_probability(self.sticky)
        if not 0 < self.max_minutes <= MAX_MINUTES:
            raise DiscorlError(
                f"max_minutes must be above 0 and at most {MAX_MINUTES}, not {self.max_minutes}"
            )


@dataclass(frozen=True)
class MinAtarSettings:
    """MinAtar's options, which also work without the prefix: --sticky 0. The defaults are the
    package's own."""

    sticky: float = 0.1
    """Probability that the previous action is repeated."""
    difficulty_ramping: bool = True
    """Make games harder as they go along."""
    full_actions: bool = True
    """All 6 actions in every game, or only those that do something in this one (3 in breakout)."""

    def __post_init__(self) -> None:
        _check_probability(self.sticky)


@dataclass(frozen=True)
class MiniGridSettings:
    """MiniGrid's options, which also work without the prefix: --full-view."""

    full_view: bool = False
    """Show the whole grid with the agent in it, not just the view ahead of the agent."""
    max_steps: int = 0
    """Cut episodes off after this many steps; 0 for the task's own limit."""

    def __post_init__(self) -> None:
        at_least(0, max_steps=self.max_steps)


@dataclass(frozen=True)
class ProcgenSettings:
    """ProcGen's options, which also work without the prefix: --levels 0. The defaults are those of
    the generalisation benchmark, which the paper follows."""

    levels: int = 500
    """Number of levels to train on; 0 for unlimited, as used for testing."""
    start_level: int = 0
    """The first level."""
    difficulty: Literal["hard", "easy"] = "hard"
    """Difficulty of the levels; easy ones need about an eighth of the steps."""
    threads: int = 0
    """Threads to play in; 0 lets envpool choose."""

    def __post_init__(self) -> None:
        at_least(0, levels=self.levels, start_level=self.start_level, threads=self.threads)
        if self.difficulty not in ("easy", "hard"):
            raise DiscorlError(f"difficulty must be easy or hard, not {self.difficulty}")


@dataclass(frozen=True)
class CrafterSettings:
    """Crafter's options, which also work without the prefix: --area 32. The defaults are the
    package's own."""

    image_size: int = 64
    """Height and width of the images."""
    area: int = 64
    """Height and width of the world, in cells."""
    max_steps: int = 10_000
    """Cut episodes off after this many steps."""

    def __post_init__(self) -> None:
        at_least(1, max_steps=self.max_steps)
        at_least(9, MAX_PIXELS, image_size=self.image_size, area=self.area)


@dataclass(frozen=True)
class NetHackSettings:
    """NetHack's options, which also work without the prefix: --character mon-hum-neu-mal."""

    keys: str = "glyphs,blstats,message"
    """Parts of an observation, separated by commas; any that nle knows."""
    character: str = ""
    """Role, race, alignment and gender, such as mon-hum-neu-mal; '' for the task's own."""
    max_steps: int = 0
    """Cut episodes off after this many steps; 0 for the task's own limit."""

    def __post_init__(self) -> None:
        at_least(0, max_steps=self.max_steps)


@dataclass(frozen=True)
class SokobanSettings:
    """Sokoban's options, which also work without the prefix: --max-steps 200. The defaults are
    those of Racaniere et al. (2017)."""

    max_steps: int = 120
    """Cut episodes off after this many steps."""

    def __post_init__(self) -> None:
        at_least(1, max_steps=self.max_steps)


SuiteSettings: TypeAlias = (
    AtariSettings
    | MinAtarSettings
    | MiniGridSettings
    | ProcgenSettings
    | CrafterSettings
    | NetHackSettings
    | SokobanSettings
)


def at_least(least: int, most: int = 2**31 - 1, **values: int) -> None:
    """Raise unless each value, given by its name, is ``least`` or more, and at most ``most``."""
    for name, value in values.items():
        check_between(least, most, name, value)


def _check_probability(sticky: float) -> None:
    if not 0 <= sticky <= 1:
        raise DiscorlError(f"sticky must be a probability from 0 to 1, not {sticky}")
