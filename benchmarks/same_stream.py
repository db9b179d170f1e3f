"""Is a late run late because of our learner? One of our runs with the reference's learner in it.

    python -m benchmarks.same_stream                # seed 1, 25 minutes
    python -m benchmarks.same_stream --seed 4

Our actor, Catch, replay and random numbers are those of ``discorl train catch --rule disco103``
with that seed, and so are the initial parameters; the updates are the JAX reference's. Adds the
curve to benchmarks/results/same-stream.json, and makes a table of it beside that of our own run
(``benchmarks.catch_curves``).
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections import deque
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.catch_curves import RESULTS, SHOWN, Curve, curves_of, step_to
from benchmarks.peers.pipe import Arrays, receive, send
from benchmarks.venvs import ROOT
from benchmarks.workers import jax_python, use_rule
from discorl.atomic import write_atomically
from discorl.own_agent import collect_rollout
from discorl.runs import distributed
from discorl.training import presets
from discorl.training.train import Training
from discorl.types import Params, Rollout
from tests.golden.agents import agent_name

EVERY, WINDOW = 10, 50
OURS = RESULTS / "catch-disco103-reference-settings.json"


class ReferenceLearner:
    """The reference's learner in a process of its own."""

    def __init__(self, python: Path) -> None:
        command = [str(python), "-m", "benchmarks.peers.jax_learner"]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._names = {name: agent_name(name).replace("second", "y") for name in self._read()}

    def begin(self, params: Params) -> None:
        """Begin with parameters of ours."""
        self._write({name: params[ours].numpy().T for name, ours in self._names.items()})

    def learn(self, batch: Rollout) -> Params:
        """Parameters after learning from a batch."""
        self._write(
            {
                "observations": batch.observations.numpy().astype(np.float32)[..., None],
                "actions": batch.actions.numpy().astype(np.int32),
                "rewards": batch.rewards.numpy(),
                "discounts": batch.discounts.numpy(),
                "logits": batch.behaviour_logits.numpy(),
            }
        )
        after = self._read()
        return {
            ours: torch.from_numpy(np.ascontiguousarray(after[name].T))
            for name, ours in self._names.items()
        }

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()

    def _write(self, arrays: Arrays) -> None:
        assert self._process.stdin
        send(self._process.stdin, arrays)

    def _read(self) -> Arrays:
        assert self._process.stdout
        arrays = receive(self._process.stdout)
        if arrays is None:
            raise SystemExit(f"the reference's learner ended with {self._process.wait()}")
        return arrays


def run(seed: int, num_steps: int, learner: ReferenceLearner) -> Curve:
    """Our training loop, but for the updates."""
    config = replace(presets.for_run("catch", "disco103"), seed=seed, progress="none")
    run = Training(config, distributed.start("cpu"))
    run.begin()
    config, state = run.config, run.state
    params, env_state, timestep = state.agent.params, state.env_state, state.timestep
    learner.begin(params)
    counts: deque[tuple[float, float]] = deque(maxlen=WINDOW)
    curve: Curve = {}
    for step in range(1, num_steps + 1):
        rollout, env_state, timestep = collect_rollout(
            run.agent.net,
            params,
            run.env,
            env_state,
            timestep,
            config.rollout_length,
            state.act_rng,
        )
        state.replay.add(rollout)
        if len(state.replay) >= config.batch_size:
            batch = state.replay.sample(config.batch_size, state.sample_rng)
            params = learner.learn(batch)
        caught, ended = (rollout.rewards > 0).sum(), (rollout.discounts == 0).sum()
        counts.append((float(caught), float(ended)))
        if step % EVERY == 0:
            caught, ended = map(sum, zip(*counts, strict=True))
            curve[step] = caught / ended
            print(json.dumps({"step": step, "success": round(curve[step], 3)}), flush=True)
    return curve


def table(curves: dict[int, Curve], ours: dict[int, Curve]) -> str:
    """Markdown: each seed with both learners."""
    commands = ", ".join(f"`python -m benchmarks.same_stream --seed {seed}`" for seed in curves)
    lines = [
        f"Made by {commands}.",
        "",
        "Catch rate over the last 50 training steps. Both lines of a seed have the same initial "
        "parameters, boards, replay and random numbers, all of them ours.",
        "",
        f"| seed | learner | {' | '.join(map(str, SHOWN))} | step to 95 % |",
        f"|{'---|' * (len(SHOWN) + 3)}",
    ]
    for seed, curve in curves.items():
        for name, of in (("ours", ours.get(seed)), ("the reference's", curve)):
            if of is not None:
                cells = " | ".join(f"{of[s]:.3f}" if s in of else "" for s in SHOWN)
                lines.append(f"| {seed} | {name} | {cells} | {step_to(of, 0.95)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=max(SHOWN))
    parser.add_argument("--jax-python", type=Path, help="instead of the one in .bench/jax")
    args = parser.parse_args()
    use_rule()
    python = jax_python(parser, args.jax_python)
    learner = ReferenceLearner(python)
    try:
        curve = run(args.seed, args.steps, learner)
    finally:
        learner.close()
    file = RESULTS / "same-stream.json"
    curves = curves_of(json.loads(file.read_text())) if file.is_file() else {}
    curves = dict(sorted((curves | {args.seed: curve}).items()))
    write_atomically(file, f"{json.dumps(curves)}\n".encode())
    text = table(curves, curves_of(json.loads(OURS.read_text())["ours"]))
    file.with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
