"""What a change of settings does, to cmpo and to the actor-critic, on siblings of held-out tasks.

    python -m benchmarks.rule_trials.variants                # all that is missing, then the table
    python -m benchmarks.rule_trials.variants --only cosine  # beside the preset
    python -m benchmarks.rule_trials.variants --table
    python -m benchmarks.rule_trials.variants --rules runs/x/snapshots/*.npz    # beside cmpo

The agents of a task live side by side in one process. Agents of equal number start alike and see
the same draw of the task, whatever the variant.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.machine import commit
from benchmarks.rule_trials.contestants import ONE_SETTING, actor_critic, setup
from benchmarks.rule_trials.results import RESULTS
from benchmarks.rule_trials.tasks import CHOSEN_ON
from discorl.atomic import write_atomically
from discorl.discovery import presets
from discorl.discovery.trials import trial_by
from discorl.meta.trial import last_fifth, run_trial
from discorl.ops import native
from discorl.rules.store import sha256
from discorl.training.config import TrainConfig
from discorl.training.rule_choice import choose_rule

FOLDER = RESULTS / "cmpo-variants"
TASKS = (*CHOSEN_ON, "cartpole:sampled", "grid:sampled")
NUM_AGENTS = 8
SEED = 200
SETTINGS = replace(presets.suite(), kernels="on")


def own(**changes: Any) -> Callable[[TrainConfig], TrainConfig]:
    """A change of the rule."""
    return lambda config: replace(config, cmpo=replace(config.cmpo, **changes))


def optimiser(**changes: Any) -> Callable[[TrainConfig], TrainConfig]:
    """A change of how steps are made."""
    return lambda config: replace(config, optimiser=replace(config.optimiser, **changes))


def training(**changes: Any) -> Callable[[TrainConfig], TrainConfig]:
    """A change of anything else."""
    return lambda config: replace(config, **changes)


PRESET = "preset"
CMPO: dict[str, Callable[[TrainConfig], TrainConfig]] = {
    PRESET: training(),
    "cosine": optimiser(schedule="cosine"),
    "cosine-2e-2": optimiser(schedule="cosine", learning_rate=2e-2),
    "rate-3e-3": optimiser(learning_rate=3e-3),
    "updates-8": training(updates_per_step=8),
    "updates-16": training(updates_per_step=16),
    "strength-2": own(strength=2.0),
    "strength-0.5": own(strength=0.5),
    "target-0.03": own(target_rate=0.03),
    "q-1": own(q_cost=1.0),
    "replay-512": training(replay_capacity=512),
    "clip-2": own(max_advantage=2.0),
    "estimated-values": training(estimate_values=True),
    "zero-values": lambda config: replace(config, net=replace(config.net, zero_values=True)),
}
ACTOR_CRITIC: dict[str, Callable[[TrainConfig], TrainConfig]] = {
    "actor-critic": training(),
    "actor-critic-updates-8": training(updates_per_step=8),
}
VARIANTS = (*CMPO, *ACTOR_CRITIC)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", default=VARIANTS, choices=VARIANTS)
    parser.add_argument("--rules", nargs="+", metavar="FILE", help="rules instead of variants")
    parser.add_argument("--tasks", nargs="+", default=TASKS, metavar="TASK")
    parser.add_argument("--table", action="store_true", help="run nothing")
    args = parser.parse_args()
    torch.set_num_threads(1)
    native.build()
    names = args.rules or args.only
    if not args.table:
        for task in args.tasks:
            for name in dict.fromkeys([PRESET, *names]):
                if read(name, task) is None:
                    keep(name, task, scores(name, task))
                    print(f"{name} on {task}", flush=True)
    print(table([PRESET, *names], args.tasks))


def scores(name: str, task: str) -> list[float]:
    """Mean returns over the last fifth of the updates, one for each agent."""
    config = variant(name, task)
    choice = choose_rule(config)
    num_updates = config.steps * config.updates_per_step
    trial = trial_by(
        *(SETTINGS, config, choice.rule, torch.device("cpu")),
        num_agents=NUM_AGENTS,
        num_updates=num_updates,
    )
    generator = torch.Generator().manual_seed(SEED)
    curve = run_trial(trial, choice.params, num_updates, generator)
    return [float(x) for x in last_fifth(curve)]


def variant(name: str, task: str) -> TrainConfig:
    if name.endswith(".npz"):
        return setup(task, name)
    if name in CMPO:
        return CMPO[name](setup(task, "cmpo"))
    return ACTOR_CRITIC[name](actor_critic(task, *ONE_SETTING))


def keep(name: str, task: str, returns: list[float]) -> None:
    content = {"variant": name, "task": task, "scores": returns, "commit": commit()}
    path = path_of(name, task)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(content) + "\n").encode())


def read(name: str, task: str) -> np.ndarray | None:
    path = path_of(name, task)
    return np.array(json.loads(path.read_text())["scores"]) if path.is_file() else None


def path_of(name: str, task: str) -> Path:
    """Where scores are kept; a rule's under what it holds, as its file may be written again."""
    folder = sha256(Path(name))[:12] if name.endswith(".npz") else name
    return FOLDER / folder / f"{task.replace(':', '-')}.json"


def table(names: Sequence[str], tasks: Sequence[str]) -> str:
    """Means, and the difference from the preset in its standard errors, agent by agent."""
    lines = ["| variant | " + " | ".join(tasks) + " |", "|---" * (len(tasks) + 1) + "|"]
    for name in dict.fromkeys(names):
        cells = []
        for task in tasks:
            got, base = read(name, task), read(PRESET, task)
            if got is None or base is None:
                cells.append("")
                continue
            difference = got - base
            error = difference.std(ddof=1) / np.sqrt(len(difference))
            by = f" ({difference.mean() / error:+.1f})" if error > 0 else ""
            cells.append(f"{got.mean():.3g}{by}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
