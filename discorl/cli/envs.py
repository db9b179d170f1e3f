"""``discorl envs``."""

from __future__ import annotations


def list_envs() -> None:
    """List the available tasks, and how to install those that are missing."""
    from discorl.envs.registration import registered_tasks
    from discorl.envs.registry import KNOWN
    from discorl.envs.suites import SUITES
    from discorl.printable import printable

    tasks = KNOWN | {name: printable(what) for name, what in registered_tasks().items()}
    width = max(map(len, [*tasks, *(suite.pattern for suite in SUITES)]))
    for name, what in tasks.items():
        print(f"{name:{width}}  {what}")
    for suite in SUITES:
        missing = "" if suite.installed() else f" [not installed: {suite.hint}]"
        print(f"{suite.pattern:{width}}  {suite.description}{missing}")
