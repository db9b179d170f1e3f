"""Benchmark suites by name. Their packages are extras, imported when a suite is first used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from discorl.envs.suites.packages import is_installed
from discorl.envs.suites.suite_settings import (
    AtariSettings,
    CrafterSettings,
    MinAtarSettings,
    MiniGridSettings,
    NetHackSettings,
    ProcgenSettings,
    SokobanSettings,
    SuiteSettings,
)
from discorl.errors import DiscorlError

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv


@dataclass(frozen=True)
class Suite:
    """A family of tasks called ``PREFIX`` or ``PREFIX:NAME``."""

    prefix: str
    pattern: str
    """How its tasks are called, for people."""
    description: str
    module: str
    """The module here with ``make``, ``names``, ``installed`` and ``EXTRA``."""
    title: str = ""
    """How people call it."""
    settings: type[SuiteSettings] | None = None
    """What can be chosen of its tasks; None if there is nothing."""
    extra: str = ""
    """What ``pip install 'discorl[EXTRA]'`` needs; '' if nothing."""
    package: str = ""
    """What the extra lets one import."""
    note: str = ""
    """What pip alone does not do."""
    stacks_frames: bool = False
    """Its ``make`` has the option ``stack``."""
    is_threaded: bool = False
    """Its copies play in threads of C++, and need no processes."""
    autoreset: str = ""
    """How those reset themselves; '' where both ways are possible."""

    @property
    def hint(self) -> str:
        """How to install it; '' if nothing need be."""
        return f"pip install 'discorl[{self.extra}]'" + self.note if self.extra else ""

    def installed(self) -> bool:
        """Whether the package that it needs is there."""
        return not self.package or is_installed(self.package)

    def load(self) -> Any:
        """The suite's module."""
        return import_module(f"discorl.envs.suites.{self.module}")

    def make(
        self,
        task: str,
        num_envs: int,
        options: Mapping[str, object] | None = None,
        *,
        processes: bool = False,
        next_step: bool = False,
    ) -> VectorEnv:
        """Copies of ``task``, prefix included; with ``processes``, each in one if that helps.

        With ``next_step`` a step is spent on resetting; some suites always do that.
        """
        given = dict(options or {})
        if next_step and self.autoreset == "same-step":
            raise DiscorlError(
                f"{self.title} resets in the step that ends an episode: leave --autoreset away"
            )
        if next_step and not self.autoreset:
            given.setdefault("next_step", True)
        if processes and not self.is_threaded:
            given.setdefault("processes", True)
        return self.load().make(task.partition(":")[2], num_envs, given)


SUITES = (
    Suite(
        "ale",
        "ale:GAME",
        "an Atari game, such as ale:Breakout; 57 games and the other ROMs of ale-py",
        module="atari",
        title="Atari",
        settings=AtariSettings,
        stacks_frames=True,
        extra="atari",
        package="ale_py",
        is_threaded=True,
        autoreset="same-step",
    ),
    Suite(
        "minatar",
        "minatar:GAME",
        "a miniature Atari game, such as minatar:breakout",
        module="minatar",
        title="MinAtar",
        settings=MinAtarSettings,
        extra="minatar",
        package="minatar",
    ),
    Suite(
        "minigrid",
        "minigrid:NAME",
        "a MiniGrid task, such as minigrid:Empty-5x5",
        module="minigrid",
        title="MiniGrid",
        settings=MiniGridSettings,
        extra="minigrid",
        package="minigrid",
    ),
    Suite(
        "procgen",
        "procgen:GAME",
        "a ProcGen game with 500 training levels, such as procgen:coinrun",
        module="procgen",
        title="ProcGen",
        settings=ProcgenSettings,
        stacks_frames=True,
        extra="procgen",
        package="envpool",
        is_threaded=True,
        autoreset="next-step",
        note=" and, on Debian, apt-get install libqt5gui5 libqt5core5a",
    ),
    Suite(
        "crafter",
        "crafter",
        "Crafter: survival in a small open world",
        module="crafter",
        title="Crafter",
        settings=CrafterSettings,
        stacks_frames=True,
        extra="crafter",
        package="crafter",
    ),
    Suite(
        "nethack",
        "nethack:TASK",
        "a NetHack task, such as nethack:score",
        module="nethack",
        title="NetHack",
        settings=NetHackSettings,
        stacks_frames=True,
        extra="nethack",
        package="nle",
        note=", which wants Gymnasium 1.2.0",
    ),
    Suite(
        "sokoban",
        "sokoban[:PATH]",
        "Sokoban on generated levels, or on those of a Boxoban file or folder",
        module="sokoban",
        title="Sokoban",
        settings=SokobanSettings,
        stacks_frames=True,
    ),
    Suite(
        "dm_env",
        "dm_env:MODULE:FUNCTION",
        "the dm_env environment that FUNCTION(seed) of your MODULE makes; DMLab plugs in here",
        module="dm_env",
        title="dm_env",
        extra="dm_env",
        package="dm_env",
    ),
)


def find(task: str) -> Suite | None:
    """The suite that ``task`` belongs to; None if it is no suite's."""
    prefix = task.partition(":")[0]
    return next((suite for suite in SUITES if suite.prefix == prefix), None)


def default_settings(task: str) -> SuiteSettings | None:
    """The settings that a task begins with; None if it is no suite's, or its suite has none."""
    suite = find(task)
    return suite.settings() if suite and suite.settings else None


def check_settings(task: str, settings: SuiteSettings | None) -> None:
    """Raise if the settings are those of another suite than the task's."""
    suite = find(task)
    if settings is None or (suite and suite.settings is type(settings)):
        return
    other = next((s.title for s in SUITES if s.settings is type(settings)), "another suite")
    own = f"use {suite.settings.__name__}" if suite and suite.settings else "leave env.suite away"
    raise DiscorlError(f"env.suite has the options of {other}, but the task is '{task}': {own}")
