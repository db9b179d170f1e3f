"""The JAX reference in mid-run: ``python -m benchmarks.peers.jax_states SEED FOLDER STEP...``.

Trains on Catch with Disco103. At each of the steps it writes FOLDER/STEP.npz: all that the learner
knows before the step (``before/...``), the batch (``batch/...``), and what it knows after it.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import sys
from pathlib import Path

import jax
import numpy as np

from benchmarks.peers.jax_reference import Training


def flat(state, prefix: str) -> dict[str, np.ndarray]:
    """A learner's state as named arrays."""
    adam, memory = state.opt_state[0], state.meta_state
    parts = {
        "params": state.params,
        "mu": adam.mu,
        "nu": adam.nu,
        "target_params": memory["target_params"],
    }
    arrays = {
        f"{name}/{module}/{leaf}": x
        for name, tree in parts.items()
        for module, leaves in tree.items()
        for leaf, x in leaves.items()
    }
    rnn = memory["rnn_state"]["lstm"]["meta_rnn_state"]
    arrays |= {"count": adam.count, "rnn/hidden": rnn.hidden, "rnn/cell": rnn.cell}
    for name in ("adv_ema_state", "td_ema_state"):
        arrays |= {f"{name}/{part}": x for part, x in vars(memory[name]).items()}
    return {f"{prefix}/{name}": np.asarray(x) for name, x in jax.device_get(arrays).items()}


class WatchedTraining(Training):
    """Training whose learner can be looked at around a step."""

    def watched_step(self) -> dict[str, np.ndarray]:
        """One training step, as arrays."""
        learner = self._learner
        seen: dict[str, np.ndarray] = {}

        def learn(rollout) -> None:
            fields = ("observations", "actions", "rewards", "discounts", "logits")
            seen.update({f"batch/{name}": np.asarray(getattr(rollout, name)) for name in fields})
            seen.update(flat(learner.state, "before"))
            type(learner).step(learner, rollout)
            seen.update(flat(learner.state, "after"))

        learner.step = learn
        self.step()
        del learner.step
        return seen


def main(seed: int, folder: Path, steps: list[int]) -> None:
    training = WatchedTraining(seed)
    for step in range(1, max(steps) + 1):
        if step in steps:
            np.savez(folder / f"{step}.npz", allow_pickle=False, **training.watched_step())
            print(step, flush=True)
        else:
            training.step()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), [int(s) for s in sys.argv[3:]])
