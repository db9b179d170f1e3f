"""What the meta-gradient costs in each memory mode: peak memory and time against updates.

    python -m benchmarks.memory_modes --preset suite      # K = 1, 2, 5, 10, 20 in every mode
    python -m benchmarks.memory_modes --preset paper --updates 2 5 --modes recompute mixed
    python -m benchmarks.memory_modes -- --tasks minatar:breakout/conv

One agent lives one window of K updates, as in ``discorl discover PRESET`` with the options after
the bare ``--`` on the first task, but for a window that does not slide. Each figure is from a
fresh process with one thread: memory is the peak of the resident set beyond what was resident
before the window, time is the processor time of the window, which other work on the machine does
not count in. The part of each that does not grow with K and the part for each further update are
taken from the two largest K. Writes a table, a plot and the figures to benchmarks/results.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import json
import os
import shlex
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import get_args

import matplotlib
import torch

from benchmarks.machine import commit, machine_facts
from discorl.cli.parse import parse
from discorl.discovery.build import make_group, starting_rule
from discorl.discovery.config import DiscoverConfig, RuleConfig
from discorl.discovery.presets import PRESETS, discovery_preset
from discorl.meta.meta_step import live_window
from discorl.meta.population import init_group
from discorl.meta.window import MemoryMode
from discorl.training.config import NetConfig

matplotlib.use("agg")
from matplotlib import pyplot as plt

UPDATES = (1, 2, 5, 10, 20)
MODES: tuple[str, ...] = get_args(MemoryMode)
MEBIBYTE = 2**20


@dataclass(frozen=True)
class Point:
    """Cost of a window of one agent."""

    mode: str
    num_updates: int
    num_bytes: int
    seconds: float
    num_params: int
    """Of the agent."""


def measure(config: DiscoverConfig) -> dict[str, float]:
    """Peak memory and processor time of one agent's window, in this process."""
    run_window(tiny(config))  # what is loaded and allocated once
    rule, params = starting_rule(config)
    group = make_group(config, config.groups[0], rule, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    state = init_group(group, generator)
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    start = time.process_time()
    live_window(group, params, state, generator)
    seconds = time.process_time() - start
    return {
        "num_bytes": _status("VmHWM") - before,
        "seconds": seconds,
        "num_params": sum(p.numel() for p in state.agents.params.values()),
    }


def run_window(config: DiscoverConfig) -> None:
    """A window, for what it leaves in the process."""
    rule, params = starting_rule(config)
    group = make_group(config, config.groups[0], rule, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    live_window(group, params, init_group(group, generator), generator)


def tiny(config: DiscoverConfig) -> DiscoverConfig:
    """The same in small."""
    window = replace(config.window, num_updates=2, num_envs=2, rollout_length=3, valid_length=3)
    window = replace(window, num_replayed=0, replay_capacity=0)
    rule = RuleConfig(8, 8, 8, 4, 11)
    net = NetConfig((8,), 4, (4,), config.net.torso_kind, channels=(2, 2, 2), dense=8)
    return replace(config, net=net, window=window, rule=rule)


def settings(config: DiscoverConfig, mode: str, num_updates: int) -> DiscoverConfig:
    """One agent on the first task, and another window."""
    window = replace(config.window, num_updates=num_updates, stride=None, memory=mode)
    first = config.groups[0]
    config = replace(config, tasks=(first.task,), net=first.net, window=window)
    return replace(config, held_out=(), lifetimes=())


def measure_apart(preset: str, options: list[str], mode: str, num_updates: int) -> Point:
    """In a process of its own."""
    command = [sys.executable, "-m", "benchmarks.memory_modes", "--preset", preset]
    command += ["--modes", mode, "--updates", str(num_updates), "--here", "--", *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{mode}, {num_updates} updates: {done.stderr[-500:]}")
    return Point(mode, num_updates, **json.loads(done.stdout.splitlines()[-1]))


def per_update(points: list[Point]) -> tuple[float, float, float, float]:
    """Of the two largest K: bytes and seconds that do not grow, bytes and seconds an update."""
    a, b = sorted(points, key=lambda p: p.num_updates)[-2:]
    span = b.num_updates - a.num_updates
    more_bytes, more_seconds = (b.num_bytes - a.num_bytes) / span, (b.seconds - a.seconds) / span
    fixed = b.num_bytes - b.num_updates * more_bytes, b.seconds - b.num_updates * more_seconds
    return *fixed, more_bytes, more_seconds


def table(config: DiscoverConfig, points: list[Point]) -> str:
    """Memory and time of every mode, as Markdown."""
    w, facts = config.window, machine_facts()
    modes = list(dict.fromkeys(p.mode for p in points))
    by_place = {(p.mode, p.num_updates): p for p in points}
    lines = [
        f"# Memory modes, {config.groups[0].task}",
        "",
        f"One agent of {points[0].num_params:,} parameters, {w.num_envs} + {w.num_replayed} "
        f"trajectories of {w.rollout_length} steps, judged by {w.num_envs * w.valid_rollouts} of "
        f"{w.valid_length}, rule with y and z of {config.rule.prediction_size}; "
        f"{facts['processor']}, one thread, discorl {commit()}. Made by",
        "",
        f"    python -m benchmarks.memory_modes {shlex.join(sys.argv[1:])}",
        "",
        "| updates | " + " | ".join(f"{m}, MiB | s" for m in modes) + " |",
        "|---" * (1 + 2 * len(modes)) + "|",
    ]
    for k in sorted({p.num_updates for p in points}):
        row = [by_place.get((mode, k)) for mode in modes]
        cells = [f"{p.num_bytes / MEBIBYTE:.0f} | {p.seconds:.2f}" if p else "| " for p in row]
        lines.append(f"| {k} | " + " | ".join(cells) + " |")
    lines += ["", "| mode | MiB fixed | MiB an update | s an update |", "|---|---|---|---|"]
    for mode in modes:
        own = [p for p in points if p.mode == mode]
        if len(own) > 1:
            fixed, _, more, seconds = per_update(own)
            cells = f"{fixed / MEBIBYTE:.0f} | {more / MEBIBYTE:.1f} | {seconds:.3f}"
            lines.append(f"| {mode} | {cells} |")
    return "\n".join(lines) + "\n"


def plot(points: list[Point], path: Path) -> None:
    """Memory and time against the number of updates."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6))
    for mode in dict.fromkeys(p.mode for p in points):
        own = [p for p in points if p.mode == mode]
        updates = [p.num_updates for p in own]
        axes[0].plot(updates, [p.num_bytes / MEBIBYTE for p in own], "o-", label=mode)
        axes[1].plot(updates, [p.seconds for p in own], "o-", label=mode)
    for axis, label in zip(axes, ("peak memory, MiB", "processor time, s"), strict=True):
        axis.set_xlabel("updates the meta-gradient goes through")
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
        axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _status(field: str) -> int:
    """A size from the kernel's account of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise SystemExit("this benchmark reads /proc/self/status: run it on Linux")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--preset", choices=PRESETS, default="suite")
    parser.add_argument("--updates", type=int, nargs="+", default=UPDATES)
    parser.add_argument("--modes", choices=MODES, nargs="+", default=MODES)
    parser.add_argument("--name", default=None)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    own = list(itertools.takewhile("--".__ne__, sys.argv[1:]))
    args, options = parser.parse_args(own), sys.argv[2 + len(own) :]
    config = parse(
        DiscoverConfig,
        usage="python -m benchmarks.memory_modes --",
        about="What to measure.",
        default=discovery_preset(args.preset),
        args=options,
    )
    if args.here:
        torch.set_num_threads(1)
        print(json.dumps(measure(settings(config, args.modes[0], args.updates[0]))))
        return
    points = []
    for mode in args.modes:
        for num_updates in args.updates:
            points.append(measure_apart(args.preset, options, mode, num_updates))
            print(points[-1], flush=True)
    folder = Path(__file__).parent / "results"
    stem = args.name or time.strftime(f"%Y-%m-%d-memory-modes-{args.preset}")
    text = table(config, points)
    (folder / f"{stem}.md").write_text(text)
    content = {"commit": commit(), "machine": machine_facts(), "points": [*map(asdict, points)]}
    (folder / f"{stem}.json").write_text(json.dumps(content, indent=1) + "\n")
    plot(points, folder / f"{stem}.png")
    print(text)


if __name__ == "__main__":
    main()
