"""The conversation between the benchmark and its workers: JSON lines on stdin and stdout.

A worker announces what it can do, then times one piece of work at a time when asked. Several
workers are alive together and asked in turn, so that all of them see the same noise of the
machine. Peers import this file in virtual environments of their own: standard library only.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

# The work, alike for everyone: Catch with Disco103 as in the reference's evaluation notebook.
T, B, NUM_ENVS, CAPACITY, LEARNING_RATE = 29, 64, 2, 1024, 1e-2
ROWS, COLUMNS = 8, 8
ENV_BATCH, ENV_STEPS = 1024, 100
RUN_STEPS = 1000
"""Environment steps that the time of a run in the middle of its life is given for."""


@dataclass(frozen=True)
class Pixels:
    """Sizes of a learner step on images: an Atari agent of laptop size."""

    shape: tuple[int, int, int] = (4, 84, 84)
    batch: int = 16
    actions: int = 6
    dense: int = 256
    hidden: int = 64
    """Of the action LSTM, and of the heads."""
    learning_rate: float = 5e-4


PIXELS = Pixels()


@dataclass(frozen=True)
class CatchDiscovery:
    """Sizes of a step of discovery on Catch, from random weights; the defaults are Disco103's."""

    agents: int
    updates: int
    envs: int
    steps: int
    judged_steps: int
    board: int
    learning_rate: float
    torso: tuple[int, ...]
    hidden: int
    """Of the agents' action LSTM, and of their heads."""
    value_torso: tuple[int, ...]
    value_lambda: float
    rule_learning_rate: float
    prediction: int = 600
    rule_hidden: int = 256
    rule_lifetime_hidden: int = 128
    bins: int = 601
    max_abs_value: float = 300.0
    discount: float = 0.997


NOTEBOOK = CatchDiscovery(
    agents=2,
    updates=2,
    envs=32,
    steps=16,
    judged_steps=32,
    board=5,
    learning_rate=5e-4,
    torso=(512, 512),
    hidden=256,
    value_torso=(256, 256),
    value_lambda=0.96,
    rule_learning_rate=5e-4,
)
"""The reference's other notebook, and our preset of that name."""

SUITE_CATCH = CatchDiscovery(
    agents=32,
    updates=5,
    envs=16,
    steps=16,
    judged_steps=16,
    board=8,
    learning_rate=1e-2,
    torso=(64, 64),
    hidden=32,
    value_torso=(64, 64),
    value_lambda=0.95,
    rule_learning_rate=1e-3,
    prediction=32,
    rule_hidden=64,
    rule_lifetime_hidden=32,
    bins=81,
    max_abs_value=20.0,
    discount=0.99,
)
"""The agents that our preset ``suite`` has on Catch."""

SUITE_UPDATES = (32 + 24 + 32 + 24) * 5
"""Updates that the agents of the preset suite make in a step of discovery."""

NUM_WARM_UPS = 3


@dataclass
class Job:
    """Work made ready. ``run`` does it once and returns only when it is finished."""

    run: Callable[[], object]
    figures: dict[str, float] = field(default_factory=dict)
    """What there is to say about it besides its time, e.g. bytes."""


def serve(work: dict[str, Callable[..., Job]], facts: dict[str, object]) -> None:
    """Answer requests until stdin closes.

    Work is made ready, compiled and warmed up once, when first asked for. Before each series of
    timings it runs once untimed, since the other workers have had the caches meanwhile.
    """
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    sys.stdout = sys.stderr  # whatever libraries print must not mix with the replies
    ready: dict[str, Job] = {}
    rest_bytes: dict[str, int] = {}

    def answer(name: str, options: dict[str, int | str], repeats: int) -> dict[str, object]:
        key = json.dumps([name, options])
        if key not in ready:
            ready[key] = work[name](**options)
            rest_bytes[key] = resident_memory()
            for _ in range(NUM_WARM_UPS):
                ready[key].run()
        job, seconds, processor_seconds = ready[key], [], []
        if repeats:
            job.run()
        for _ in range(repeats):
            start, processor_start = time.perf_counter(), time.process_time()
            job.run()
            seconds.append(time.perf_counter() - start)
            processor_seconds.append(time.process_time() - processor_start)
        return {
            "seconds": seconds,
            "processor_seconds": processor_seconds,
            "figures": job.figures,
            "rest_bytes": rest_bytes[key],
            "peak_bytes": peak_memory(),
        }

    def reply(content: dict[str, object]) -> None:
        replies.write(json.dumps(content) + "\n")
        replies.flush()

    reply({"work": list(work), "facts": facts, "start_bytes": peak_memory()})
    for line in sys.stdin:
        try:
            reply(answer(**json.loads(line)))
        except Exception as e:
            reply({"error": f"{type(e).__name__}: {e}"})


def peak_memory() -> int:
    """Largest resident size of this process so far, in bytes."""
    # Not ru_maxrss where it can be helped: a process starts with that of its parent.
    own = _status("VmHWM")
    return own or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def resident_memory() -> int:
    """Resident size of this process now, in bytes; 0 where the system does not tell."""
    return _status("VmRSS")


def _status(field_name: str) -> int:
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    for line in status.read_text().splitlines():
        if line.startswith(field_name):
            return int(line.split()[1]) * 1024
    return 0
