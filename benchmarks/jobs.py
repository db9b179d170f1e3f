"""What is measured, and what must come of it. A new measurement is a new line in ``JOBS``."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.worker import (
    ENV_BATCH,
    ENV_STEPS,
    NUM_ENVS,
    RUN_STEPS,
    SUITE_CATCH,
    SUITE_UPDATES,
    T,
)


@dataclass(frozen=True)
class TimedJob:
    """Work that workers are asked to time."""

    name: str
    title: str
    work: str
    options: dict[str, int | str] = field(default_factory=dict)
    repeats: int = 3
    """Timings in a row each time a worker is asked."""
    units: int = 0
    """Things done in one run; if given, the table shows things per second."""
    earlier_units: int = 0
    """The same for trees that do not say how many they do, if they did fewer."""
    unit: str = "M/s"
    """Of the things per second: millions, or what a single one of them is called."""


def _acting(name: str, title: str, task: str, num_envs: int) -> TimedJob:
    options: dict[str, int | str] = {"task": task, "num_envs": num_envs}
    units = num_envs * T
    return TimedJob(name, f"acting, {title}", "act", options, 10, units, unit="steps/s")


def _run(name: str, title: str, task: str) -> TimedJob:
    title = f"a run on {title}, environment steps"
    return TimedJob(name, title, "run", {"task": task}, 3, RUN_STEPS, unit="steps/s")


JOBS = (
    TimedJob("train_step", "training step, 3 actions", "train", repeats=10),
    TimedJob("learn_3", "learner step alone, 3 actions", "learn", {"num_actions": 3}, repeats=6),
    TimedJob("learn_18", "learner step, 18 actions", "learn", {"num_actions": 18}, repeats=3),
    TimedJob("learn_pixels", "learner step, 84x84x4 pixels, Nature network", "learn_pixels"),
    TimedJob(
        "learn_impala",
        "learner step, 84x84x4 pixels, IMPALA network",
        "learn_pixels",
        {"is_impala": 1},
        repeats=1,
    ),
    TimedJob("meta_step", "meta-gradient step of the public notebook", "meta_step", repeats=1),
    TimedJob(
        "discover_suite",
        "meta-gradient step of the preset suite",
        "discover_suite",
        repeats=1,
        units=SUITE_UPDATES,
        earlier_units=(8 + 6 + 8 + 6) * 5,
        unit="agent-updates/s",
    ),
    TimedJob(
        "discover_catch",
        "meta-gradient step of the suite's agents on Catch",
        "discover_catch",
        repeats=1,
        units=SUITE_CATCH.agents * SUITE_CATCH.updates,
        unit="agent-updates/s",
    ),
    TimedJob(
        "env_steps", "environment steps", "env_steps", repeats=10, units=ENV_BATCH * ENV_STEPS
    ),
    _acting("act_catch", f"Catch, {NUM_ENVS} environments", "catch", NUM_ENVS),
    _acting("act_minatar", "MinAtar Breakout, 64 environments", "minatar:breakout", 64),
    _acting("act_pong", "Atari Pong, 16 environments", "ale:Pong", 16),
    _run("run_catch", "Catch", "catch"),
    _run("run_cartpole", "CartPole", "gym:CartPole-v1"),
    _run("run_minatar", "MinAtar Breakout", "minatar:breakout"),
    _run("run_pong", "Atari Pong", "ale:Pong"),
    TimedJob("replay_sample", "sample 64 trajectories from replay", "replay_sample", repeats=10),
    TimedJob("matmul", "matrix products of the training step", "matmul"),
    TimedJob("matmul_kernel", "the same, by our kernel", "matmul", {"by_kernel": 1}),
    TimedJob("discover_matmul", "matrix products of the suite's step", "discover_matmul"),
    TimedJob(
        "catch_matmul", "matrix products of its agents on Catch", "discover_matmul", {"catch": 1}
    ),
    TimedJob("matmul_square", "a 2048 x 2048 product", "matmul_square"),
)
OWN_PRODUCTS = {
    "train_step": "matmul",
    "discover_suite": "discover_matmul",
    "discover_catch": "catch_matmul",
}
"""The job that does only the matrix products of another."""
PRODUCTS_OF = {products: job for job, products in OWN_PRODUCTS.items()} | {
    "matmul_kernel": "train_step",
    "matmul_square": "train_step",
}
"""Jobs that measure the machine, not an implementation, and are shown apart: of each of their
speeds, the other job's is shown as a share."""

MEMORY = "memory"
MEMORY_JOBS = tuple(job for job in JOBS if job.name in ("train_step", "meta_step", "learn_pixels"))
"""Peak memory is that of each of these, in a process that does nothing else."""

NAMES = (*(job.name for job in JOBS), MEMORY)

MIN_SPEEDUP = {
    ("train_step", "discorl", "jax"): 1.75,
    ("train_step", "bf16", "jax"): 2.6,
    ("train_step", "discorl", "disco-torch"): 3.3,
    ("learn_18", "discorl", "jax"): 2.0,
    ("learn_18", "bf16", "jax"): 4.5,
    ("meta_step", "discorl", "jax"): 1.3,
    ("discover_catch", "discorl", "jax"): 1.5,
    ("discover_catch", "discorl", "jax-in-turn"): 1.5,
    ("learn_pixels", "discorl", "other discorl"): 1.5,
}
"""How many times as fast as a peer each way of ours must be. The other tree is that of b80eca5."""

MIN_MATMUL_SHARE = 0.75
MAX_REPLAY_OVERHEAD = 1.1
