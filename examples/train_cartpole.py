"""Train on a Gymnasium environment from Python; the run folder is that of `discorl train`.

python examples/train_cartpole.py                            # the best rule on this machine
python examples/train_cartpole.py --rule actor-critic --seed 1
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import gymnasium

import discorl


def make_env() -> gymnasium.Env:
    """Your environment goes here, wrappers and all. It is called once for each copy."""
    return gymnasium.make("CartPole-v1")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rule", default="auto", help="name or file of a rule")
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder of the run")
    args = parser.parse_args()

    # A preset holds the defaults for a task and a rule, the same as on the command line. It is a
    # frozen dataclass; replace() changes some of its fields. The task names the run.
    config = replace(
        discorl.presets.for_run("gym:CartPole-v1", args.rule),
        steps=args.steps,
        num_envs=args.num_envs,
        seed=args.seed,
        out=args.out,
    )
    # Here the name of the task would be enough: discorl.train(config).
    result = discorl.train(config, env=make_env)
    print(f"last logged return: {result.metrics[-1].get('return')}")
    # A run does not save an environment that was given from Python, so say which one it was.
    print(f"next: discorl evaluate {result.folder} --task gym:CartPole-v1")


if __name__ == "__main__":
    main()
