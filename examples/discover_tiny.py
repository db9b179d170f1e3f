"""Discover a rule, then use it to train an agent on a task that it has never seen.

python examples/discover_tiny.py                 # a few minutes, too short for a good rule
python examples/discover_tiny.py --steps 3000    # the suite preset's length

The same on the command line:
    discorl discover suite --steps 3000 --out runs/my-discovery
    discorl train catch --rule runs/my-discovery/rule.npz
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import discorl


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100, help="meta-steps")
    parser.add_argument("--updates", type=int, default=5, help="per agent and meta-step")
    parser.add_argument("--train-steps", type=int, default=300, help="with the rule found")
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--out", type=Path, default=Path("runs/tiny-discovery"))
    args = parser.parse_args()

    small = discorl.discovery_preset("suite")
    config = replace(
        small,
        tasks=("catch:5x5*4", "mdp:10x4*4"),  # two groups of four agents
        held_out=("catch:6x6",),  # never trained on, only judged by
        steps=args.steps,
        warm_start=args.steps // 2,  # imitation first, then meta-gradients
        window=replace(small.window, num_envs=args.num_envs, num_updates=args.updates),
        eval_every=max(1, args.steps // 2),
        eval_updates=max(2, args.train_steps // 10),
        out=args.out,
        progress="lines",
    )
    found = discorl.discover(config)
    scores = {k: v for k, v in found.metrics[-1].items() if k.startswith("held_out/")}
    print(f"held-out returns after {args.steps} meta-steps: {scores}")

    # The rule is a file like Disco103's, with the same array names, so `--rule` accepts it.
    trained = discorl.train(
        replace(
            discorl.presets.for_task("catch:6x6"),
            rule=str(found.folder / "rule.npz"),
            steps=args.train_steps,
            num_envs=16,
            batch_size=16,
            out=args.out / "catch-6x6",
            progress="lines",
        )
    )
    print(f"return on catch:6x6: {trained.metrics[-1].get('return')}")


if __name__ == "__main__":
    main()
