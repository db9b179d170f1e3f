"""Benchmark suites by name. Their packages are extras, imported when a suite is first used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from discorl.envs.suites.packages import is_installed

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
    ) -> VectorEnv:
        """Copies of ``task``, prefix included; with ``processes``, each in one if that helps."""
        given = dict(options or {})
        if processes and not self.is_threaded:
            given.setdefault("processes", True)
        return self.load().make(task.partition(":")[2], num_envs, given)


SUITES = (
    Suite(
        "ale",
        "ale:GAME",
        "an Atari game, such as ale:Breakout; 57 games and the other ROMs of ale-py",
        module="atari",
        stacks_frames=True,
        extra="atari",
        package="ale_py",
        is_threaded=True,
    ),
    Suite(
        "minatar",
        "minatar:GAME",
        "a miniature Atari game, such as minatar:breakout",
        module="minatar",
        extra="minatar",
        package="minatar",
    ),
    Suite(
        "minigrid",
        "minigrid:NAME",
        "a MiniGrid task, such as minigrid:Empty-5x5",
        module="minigrid",
        extra="minigrid",
        package="minigrid",
    ),
    Suite(
        "procgen",
        "procgen:GAME",
        "a ProcGen game with 500 training levels, such as procgen:coinrun",
        module="procgen",
        stacks_frames=True,
        extra="procgen",
        package="envpool",
        is_threaded=True,
        note=" and, on Debian, apt-get install libqt5gui5 libqt5core5a",
    ),
    Suite(
        "crafter",
        "crafter",
        "Crafter: survival in a small open world",
        module="crafter",
        stacks_frames=True,
        extra="crafter",
        package="crafter",
    ),
    Suite(
        "nethack",
        "nethack:TASK",
        "a NetHack task, such as nethack:score",
        module="nethack",
        extra="nethack",
        package="nle",
        note=", which wants Gymnasium 1.2.0",
    ),
    Suite(
        "sokoban",
        "sokoban[:PATH]",
        "Sokoban on generated levels, or on those of a Boxoban file or folder",
        module="sokoban",
        stacks_frames=True,
    ),
)


def find(task: str) -> Suite | None:
    """The suite that ``task`` belongs to; None if it is no suite's."""
    prefix = task.partition(":")[0]
    return next((suite for suite in SUITES if suite.prefix == prefix), None)
