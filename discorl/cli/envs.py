"""``discorl envs``."""

from __future__ import annotations


def list_envs() -> None:
    """List the available tasks, and how to install those that are missing."""
    from discorl.envs.registry import KNOWN
    from discorl.envs.suites import SUITES

    width = max(map(len, [*KNOWN, *(suite.pattern for suite in SUITES)]))
    for name, what in KNOWN.items():
        print(f"{name:{width}}  {what}")
    for suite in SUITES:
        missing = "" if suite.installed() else f" [not installed: {suite.hint}]"
        print(f"{suite.pattern:{width}}  {suite.description}{missing}")
