"""Run folders written by hand: the curves are known, and nothing has to be trained."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

NASTY = "</script><script>document.title='broken'</script><b>&{{style}}\u2028"
"""A name that tries to break out of where it is put."""


def write_run(
    folder: Path,
    rows: Iterable[dict[str, Any]],
    task: str = "catch",
    rule: str = "disco103",
    seed: int = 0,
    **settings: Any,
) -> Path:
    """A folder as ``discorl train`` leaves it, as far as a comparison reads it."""
    folder.mkdir(parents=True)
    config = {"task": task, "rule": rule, "seed": seed, "out": str(folder), **settings}
    (folder / "config.json").write_text(json.dumps(config))
    lines = [json.dumps(row) + "\n" for row in rows]
    (folder / "metrics.jsonl").write_text("".join(lines))
    return folder


def line(env_steps: int, value: float, metric: str = "return", seconds: float | None = None):
    """One row of metrics."""
    seconds = env_steps / 100 if seconds is None else seconds
    return {"step": env_steps, "env_steps": env_steps, "seconds": seconds, metric: value}


def constant(value: float, metric: str = "return", steps: Iterable[int] = (10, 20, 30, 100)):
    """Rows of a run that scores the same from start to end."""
    return [line(n, value, metric) for n in steps]


def rising(
    height: float, middle: float, metric: str = "return", pace: float = 1.0, noise: float = 0.02
) -> list[dict[str, Any]]:
    """Rows of a run that learns: an S-shaped curve to 100,000 steps with a ripple on it."""
    rows = []
    for n in range(1, 101):
        share = height / (1 + math.exp(-(n - middle) / 7))
        ripple = noise * height * math.sin(n * (1.7 + middle / 50))
        value = share + ripple
        if metric == "success":
            value = min(1.0, max(0.0, value))
        rows.append(line(1000 * n, value, metric, seconds=n * pace))
    return rows


def write_example(root: Path) -> Path:
    """Three rules on three tasks, one with a single seed: what the report must cope with."""
    middles = {"disco103": 35, "actor-critic": 60, "policy-gradient": 75}
    paces = {"disco103": 4.0, "actor-critic": 1.5, "policy-gradient": 0.9}
    tasks = (("catch", 0.99, "success"), ("gym:CartPole-v1", 480.0, "return"))
    for task, height, metric in tasks:
        for rule, middle in middles.items():
            for seed in range(5):
                late = middle + (seed * 7919 % 13) - 6
                final = height * (1 - 0.03 * seed) if rule == "policy-gradient" else height
                rows = rising(final, late, metric, paces[rule] * (1 + seed / 40))
                name = f"{task.replace(':', '-')}-{rule}-{seed}"
                write_run(root / name, rows, task, rule, seed)
    rows = rising(-80.0, 50, pace=2.0)
    write_run(root / "acrobot", rows, "gym:Acrobot-v1", "disco103", 0)
    return root
