"""``discorl envs``."""

from __future__ import annotations

import tyro


def envs_command(args: list[str]) -> int:
    """List the tasks; returns the exit code."""
    from discorl.envs.registry import KNOWN
    from discorl.envs.suites import SUITES

    tyro.cli(_list_envs, prog="discorl envs", args=args)
    width = max(map(len, [*KNOWN, *(suite.pattern for suite in SUITES)]))
    for name, what in KNOWN.items():
        print(f"{name:{width}}  {what}")
    for suite in SUITES:
        missing = "" if suite.installed() else f" [not installed: {suite.hint}]"
        print(f"{suite.pattern:{width}}  {suite.description}{missing}")
    return 0


def _list_envs() -> None:
    """List the tasks there are, and how to install those that are missing."""
