"""A learning curve of the JAX reference on Catch with Disco103: ``python -m ... SEED STEPS``.

Prints the catch rate over the last 50 steps, every 10 steps, as JSON lines.
"""

from __future__ import annotations

import collections
import json
import sys

from benchmarks.peers.jax_reference import Training

EVERY, WINDOW = 10, 50


def main(seed: int, num_steps: int) -> None:
    training = Training(seed)
    counts: collections.deque = collections.deque(maxlen=WINDOW)
    for step in range(1, num_steps + 1):
        new = training.step()
        counts.append(((new.rewards > 0).sum(), (new.discounts == 0).sum()))
        if step % EVERY == 0:
            caught, ended = map(sum, zip(*counts, strict=True))
            print(json.dumps({"step": step, "success": float(caught / ended)}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
