"""Draws many golden files, each with the reference's results in float32 and in float64.

    DISCO_RL_PATH=SOURCE_TREE DISCORL_DISCO103=FILE python tests/golden/reference/sample.py FOLDER

``FOLDER/NAME-SEED.npz`` is a golden file, ``FOLDER/float64/NAME-SEED.npz`` has the same results in
float64. How far the two are apart is the reference's own rounding, from which
``tests/golden/measure_noise.py`` makes the limits of a replay. ``FOLDER/jittered/`` has the
meta-gradients of the files in ``tests/golden``, for inputs that are off in the last digit. About an
hour, most of which is compilation: files of one name have one size.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from make import (
    GOLDEN,
    OTHER_RULE,
    SMALL_103,
    Experience,
    actor_critic,
    disco,
    meta_gradient,
    policy_gradient,
    read,
    value_estimation,
    write,
)
from reference import AgentSizes, Arrays, inputs_of, results, use_floats

# What experience is like takes turns with the seed.
KINDS_OF_EXPERIENCE = list(
    itertools.product(
        ("mixed", "sparse", "zero", "large"), ("some", "all but the first", "first and last")
    )
)


def experience(seed: int, num_steps: int, batch_size: int) -> Experience:
    rewards, ends = KINDS_OF_EXPERIENCE[seed % len(KINDS_OF_EXPERIENCE)]
    return Experience(num_steps, batch_size, rewards, ends)


TALL = AgentSizes(
    num_actions=5, observation=(5,), torso=(20, 12, 8), lstm=11, head_hidden=(7, 6), num_bins=31
)

SAMPLE: dict[str, tuple[int, Callable[[int], Arrays]]] = {
    "policy_gradient": (12, lambda seed: policy_gradient(seed, 9, 3, 5)),
    "values": (24, lambda seed: value_estimation(seed, experience(seed, 8, 3), 4)),
    "values_601_bins": (12, lambda seed: value_estimation(seed, experience(seed, 5, 1), 3, 601)),
    "actor_critic": (
        36,
        lambda seed: actor_critic(seed, 3, experience(seed, 8, 3), AgentSizes(num_actions=3)),
    ),
    "actor_critic_1_trajectory": (
        24,
        lambda seed: actor_critic(
            seed,
            5,
            experience(seed, 6, 1),
            AgentSizes(num_actions=7, observation=(5,), torso=(16,)),
        ),
    ),
    "disco": (
        36,
        lambda seed: disco(seed, 3, experience(seed, 8, 3), AgentSizes(num_actions=3)),
    ),
    "disco_other_rule": (
        24,
        lambda seed: disco(seed, 2, experience(seed, 5, 2), TALL, OTHER_RULE),
    ),
    "disco103": (
        24,
        lambda seed: disco(seed, 3, experience(seed, 6, 2), SMALL_103, None),
    ),
    "meta_gradient": (
        36,
        lambda seed: meta_gradient(
            seed, 3, experience(seed, 8, 3), experience(seed, 10, 3), AgentSizes(num_actions=3)
        ),
    ),
    "meta_gradient_other_rule": (
        24,
        lambda seed: meta_gradient(
            seed, 1, experience(seed, 5, 4), experience(seed, 9, 2), TALL, OTHER_RULE
        ),
    ),
    "meta_gradient_disco103": (
        24,
        lambda seed: meta_gradient(
            seed, 2, experience(seed, 8, 3), experience(seed, 10, 3), SMALL_103, None
        ),
    ),
}


NUM_JITTERS, JITTER = 6, 2.0**-23  # about a unit in the last place of float32


def jittered(arrays: Arrays, seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    return {
        k: (v * (1 + JITTER * rng.normal(size=v.shape))).astype(v.dtype)
        if v.dtype.kind == "f"
        else v
        for k, v in arrays.items()
    }


def jitter_golden_files(out: Path) -> None:
    use_floats(32)
    out.mkdir(parents=True, exist_ok=True)
    for path in (*GOLDEN.glob("meta_*.npz"), *(GOLDEN / "other_sizes").glob("meta_*.npz")):
        for seed in range(NUM_JITTERS):
            made = results(jittered(inputs_of(read(path)), seed))
            kept = {k: array for k, array in made.items() if k.startswith("meta_grads")}
            write(out / f"{path.stem}-{seed}.npz", kept)


def main() -> None:
    folder, *names = sys.argv[1:]
    out = Path(folder)
    (out / "float64").mkdir(parents=True, exist_ok=True)
    for name in names or SAMPLE:
        num_seeds, draw = SAMPLE[name]
        for seed in range(num_seeds):
            use_floats(32)
            inputs = draw(seed)
            rounded = results(inputs)
            use_floats(64)
            exact = results(inputs)
            file = f"{name}-{seed}.npz"
            write(out / "float64" / file, exact)
            write(out / file, inputs | rounded)
    jitter_golden_files(out / "jittered")


if __name__ == "__main__":
    main()
