"""Train on a Gymnasium environment from Python, with `discorl train`'s run folder and checkpoints.

python examples/train_cartpole.py                            # the best rule on this machine
python examples/train_cartpole.py --rule actor-critic --seed 1
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import gymnasium

from discorl.training import presets
from discorl.training.train import train


def make_env() -> gymnasium.Env:
    """Your environment goes here, wrappers and all. Each copy is one call of this function."""
    return gymnasium.make("CartPole-v1")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rule", default="auto", help="a rule's name or file")
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder of the run")
    args = parser.parse_args()

    # A preset is a frozen dataclass with the defaults of a task and a rule, as the command line has
    # them; replace() changes some of them.
    # The task is a name for the run, and what `discorl evaluate` makes the environment from.
    config = replace(
        presets.for_run("gym:CartPole-v1", args.rule),
        steps=args.steps,
        num_envs=args.num_envs,
        seed=args.seed,
        out=args.out,
    )
    # Without env= the task's name alone would do: train(config).
    result = train(config, env=make_env)
    print(f"last logged return: {result.metrics[-1].get('return')}")
    print(f"go on with: discorl evaluate {result.folder}")


if __name__ == "__main__":
    main()
