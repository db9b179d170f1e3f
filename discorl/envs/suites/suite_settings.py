"""What can be chosen of each suite's tasks, apart from frames and processes.

Separate from the suites themselves, which load slowly. The text under a field is its help on the
command line, where the names stand alone: ``--sticky 0``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from discorl.errors import DiscorlError

MAX_MINUTES = 500_000
"""Of an Atari episode: its frames are counted in 32 bits."""


@dataclass(frozen=True)
class AtariSettings:
    """Atari's options, which also work alone: --sticky 0.

    The defaults follow Machado et al. (2018): sticky actions, all 18 actions, no knowledge of
    lives; and DQN's images. DiscoRL's paper names the stack of 4 frames and leaves the rest open.
    """

    image_size: int = 84
    """Height and width of the grey images."""
    frame_skip: int = 4
    """Frames that an action is held; an observation is the maximum of the last two."""
    sticky: float = 0.25
    """Probability that a frame repeats the action of the one before, so that no fixed sequence of
    actions wins; 0 for the older, deterministic games."""
    full_actions: bool = True
    """All 18 actions in every game, or only those that do something in this one (6 in Pong)."""
    clip_rewards: bool = False
    """Only the sign of a reward. Returns are then reported clipped too; --reward-clip reports true
    ones."""
    episodic_life: bool = False
    """A lost life ends an episode."""
    noops: int = 0
    """At most so many idle frames at the start, drawn at random; DQN has 30."""
    fire_on_reset: bool = False
    """Press fire at the start, where the game has that button."""
    max_minutes: float = 30.0
    """Episodes are cut off after so much play, at 60 frames a second."""
    threads: int = 0
    """Threads that play; 0 for one per environment, up to the number of cores."""

    def __post_init__(self) -> None:
        at_least(1, image_size=self.image_size, frame_skip=self.frame_skip)
        at_least(0, noops=self.noops, threads=self.threads)
        _check_probability(self.sticky)
        if not 0 < self.max_minutes <= MAX_MINUTES:
            raise DiscorlError(
                f"max_minutes must be above 0 and at most {MAX_MINUTES}, not {self.max_minutes}"
            )


@dataclass(frozen=True)
class MinAtarSettings:
    """MinAtar's options, which also work alone: --sticky 0. The defaults are the package's own."""

    sticky: float = 0.1
    """Probability that the action before is taken again."""
    difficulty_ramping: bool = True
    """Games become harder as one plays on."""
    full_actions: bool = True
    """All 6 actions in every game, or only those that do something in this one (3 in breakout)."""

    def __post_init__(self) -> None:
        _check_probability(self.sticky)


@dataclass(frozen=True)
class MiniGridSettings:
    """MiniGrid's options, which also work alone: --full-view."""

    full_view: bool = False
    """Show the whole grid with the agent in it, not the window before the agent."""
    max_steps: int = 0
    """Cut episodes off after so many steps; 0 for the task's own limit."""

    def __post_init__(self) -> None:
        at_least(0, max_steps=self.max_steps)


@dataclass(frozen=True)
class ProcgenSettings:
    """ProcGen's options, which also work alone: --levels 0. The defaults are those of the
    benchmark for generalisation, which the paper follows."""

    levels: int = 500
    """Levels to train on; 0 for endlessly many, as when testing."""
    start_level: int = 0
    """The first of them."""
    difficulty: Literal["hard", "easy"] = "hard"
    """Of the levels; easy ones need about an eighth of the steps."""
    threads: int = 0
    """Threads that play; 0 for envpool's own choice."""

    def __post_init__(self) -> None:
        at_least(0, levels=self.levels, start_level=self.start_level, threads=self.threads)
        if self.difficulty not in ("easy", "hard"):
            raise DiscorlError(f"difficulty is easy or hard, not {self.difficulty}")


@dataclass(frozen=True)
class CrafterSettings:
    """Crafter's options, which also work alone: --area 32. The defaults are the package's own."""

    image_size: int = 64
    """Height and width of the images."""
    area: int = 64
    """Height and width of the world, in cells."""
    max_steps: int = 10_000
    """Episodes are cut off after so many steps."""

    def __post_init__(self) -> None:
        at_least(1, max_steps=self.max_steps)
        at_least(9, image_size=self.image_size, area=self.area)


@dataclass(frozen=True)
class NetHackSettings:
    """NetHack's options, which also work alone: --character mon-hum-neu-mal."""

    keys: str = "glyphs,blstats,message"
    """Parts of an observation, of those that nle knows, with commas between them."""
    character: str = ""
    """Role, race, alignment and gender, such as mon-hum-neu-mal; '' for the task's own."""
    max_steps: int = 0
    """Cut episodes off after so many steps; 0 for the task's own limit."""

    def __post_init__(self) -> None:
        at_least(0, max_steps=self.max_steps)


@dataclass(frozen=True)
class SokobanSettings:
    """Sokoban's options, which also work alone: --max-steps 200. The defaults are those of
    Racaniere et al. (2017)."""

    max_steps: int = 120
    """Episodes are cut off after so many steps."""

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


def at_least(least: int, **values: int) -> None:
    """Raise unless each value, given by its name, is ``least`` or more."""
    for name, value in values.items():
        if value < least:
            raise DiscorlError(f"{name} must be at least {least}, not {value}")


def _check_probability(sticky: float) -> None:
    if not 0 <= sticky <= 1:
        raise DiscorlError(f"sticky is a probability, not {sticky}")
