"""Benchmark suites by name. Their packages are extras, imported when a suite is first used."""

from __future__ import annotations

from importlib import import_module

from discorl.envs.suites import suite_settings as of
from discorl.envs.suites.suite import Suite
from discorl.envs.suites.suite_settings import SuiteSettings
from discorl.errors import DiscorlError

SUITES = (
    Suite(
        "ale:GAME",
        "an Atari game, such as ale:Breakout; 57 games and the other ROMs of ale-py",
        title="Atari",
        settings=of.AtariSettings,
        image_layout="channels-first",
        num_frames=4,
        module="atari",
        package="ale_py",
        is_threaded=True,
        autoreset="same-step",
    ),
    Suite(
        "minatar:GAME",
        "a miniature Atari game, such as minatar:breakout",
        title="MinAtar",
        settings=of.MinAtarSettings,
        image_layout="channels-last",
        package="minatar",
    ),
    Suite(
        "minigrid:NAME",
        "a MiniGrid task, such as minigrid:Empty-5x5",
        title="MiniGrid",
        settings=of.MiniGridSettings,
        image_layout="channels-last",
        package="minigrid",
    ),
    Suite(
        "procgen:GAME",
        "a ProcGen game with 500 training levels, such as procgen:coinrun",
        title="ProcGen",
        settings=of.ProcgenSettings,
        image_layout="channels-first",
        num_frames=1,
        package="envpool",
        is_threaded=True,
        autoreset="next-step",
        note=" and, on Debian, apt-get install libqt5gui5 libqt5core5a",
    ),
    Suite(
        "crafter",
        "Crafter: survival in a small open world",
        title="Crafter",
        settings=of.CrafterSettings,
        image_layout="channels-last",
        num_frames=1,
        package="crafter",
    ),
    Suite(
        "nethack:TASK",
        "a NetHack task, such as nethack:score",
        title="NetHack",
        settings=of.NetHackSettings,
        image_layout="channels-first",
        num_frames=1,
        package="nle",
        note=", which requires Gymnasium 1.2.0",
    ),
    Suite(
        "sokoban[:PATH]",
        "Sokoban on generated levels, or on those of a Boxoban file or folder",
        title="Sokoban",
        settings=of.SokobanSettings,
        image_layout="channels-first",
        num_frames=1,
    ),
    Suite(
        "dm_env:MODULE:FUNCTION",
        "the dm_env environment that FUNCTION(seed) of your MODULE makes; DMLab plugs in here",
        title="dm_env",
        package="dm_env",
    ),
)


def find(task: str) -> Suite | None:
    """The suite that ``task`` belongs to; None if it belongs to none."""
    prefix = task.partition(":")[0]
    return next((suite for suite in SUITES if suite.prefix == prefix), None)


WHOLE = {
    "atari57": ("ale", "atari_scores"),
    "minatar5": ("minatar", "minatar"),
    "procgen16": ("procgen", "procgen"),
}
"""Names for all tasks of a suite: the prefix of its tasks, and the module with the list of them."""


def tasks_of(name: str) -> list[str]:
    """The tasks that one name stands for, such as atari57; empty if it is no such name."""
    if name not in WHOLE:
        return []
    prefix, module = WHOLE[name]
    games = import_module(f"discorl.envs.suites.{module}").GAMES
    return [f"{prefix}:{game}" for game in games]


def default_settings(task: str) -> SuiteSettings | None:
    """A task's default settings; None if it belongs to no suite, or its suite has none."""
    suite = find(task)
    return suite.settings() if suite and suite.settings else None


def check_settings(task: str, settings: SuiteSettings | None) -> None:
    """Raise if the settings belong to a different suite from the task's."""
    suite = find(task)
    if settings is None or (suite and suite.settings is type(settings)):
        return
    other = next((s.title for s in SUITES if s.settings is type(settings)), "another suite")
    own = f"use {suite.settings.__name__}" if suite and suite.settings else "remove env.suite"
    raise DiscorlError(f"env.suite has the options of {other}, but the task is '{task}': {own}")
