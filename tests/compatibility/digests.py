"""Short runs whose every bit is recorded, so that a change of the code that should not change what
is computed can be seen not to.

    python -m tests.compatibility.digests [NAME ...]

records all runs anew in digests.json, or those that are named. Do that only for a change that is
meant to change numbers, and say so in its message.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.compatibility.record import (
    assert_recorded,
    fingerprint,
    run_command,
    run_record,
    write_record,
)

RECORDS = Path(__file__).parent / "digests.json"

COMMON = "--device cpu --progress none"
TRAIN = (
    f"{COMMON} --num-envs 4 --rollout-length 8 --batch-size 4 --replay-capacity 16 "
    "--updates-per-step 2 --net.torso 16 --net.action-lstm 8 --net.head-hidden 8 "
    "--checkpoint.every-minutes None"
)
LEARN = "--steps 12 --log-every 4"
SUITE = (
    "--rule policy-gradient --steps 3 --log-every 1 --num-envs 2 --rollout-length 4 "
    "--batch-size 2 --replay-transitions 0 --replay-capacity 4"
)
IMAGES = "--net.torso-kind conv --net.channels 2 2 --net.dense 6"
DISCOVER = (
    f"{COMMON} --log-every 1 --steps 3 --eval-agents 2 --eval-updates 2 "
    "--rule.prediction-size 5 --rule.hidden 6 --rule.lifetime-hidden 4 --rule.embedding-width 4 "
    "--rule.num-bins 9 --rule.max-abs-value 5 --net.torso 6 --net.action-lstm 4 "
    "--net.head-hidden 4 --meta-value.torso 6 --window.num-envs 3 --window.rollout-length 5 "
    "--window.valid-length 6"
)
NOTEBOOK = "discover notebook --tasks catch:4x4*2 --held-out"
POPULATION = (
    "discover suite --tasks catch:4x3*2 chain:5 bandit:3*2/5 --held-out catch:5x4 --eval-every 2 "
    "--warm-start 1 --lifetimes 6 10 --window.num-updates 3 --window.num-replayed 2 "
    "--window.replay-capacity 6"
)

TASKS = (
    "catch:sampled",
    *("grid:dense", "grid:sparse", "grid:random-small", "grid:sampled", "grid:sampled-tabular"),
    *("grid:random-very-dense:9", "chain", "chain:6:noisy-bits", "deep-sea", "memory", "umbrella"),
    *("bandit:3x2@7", "cartpole:sampled", "balance", "mdp"),
)
"""Tasks on tensors, each with other random numbers behind it."""


@dataclass(frozen=True)
class Case:
    """A command line, without the settings that make it small."""

    command: str
    mark: str = ""
    """The marker of tests that need what not every machine has."""
    needs: str = ""
    """The module without which there is no such task."""


CASES = {
    # Every rule, and the settings of the loop around it.
    **{
        rule: Case(f"train catch --rule {rule} {LEARN}")
        for rule in ("disco-mini", "actor-critic", "policy-gradient")
    },
    "disco103": Case(f"train catch --rule disco103 {LEARN}", mark="disco103"),
    "recurrent": Case(f"train memory:4 --rule disco-mini {LEARN} --net.core-lstm 6 --burn-in 2"),
    "recurrent-actor-critic": Case(
        f"train memory:4 --rule actor-critic {LEARN} --net.core-lstm 6 --actor-critic.num-bins 21"
    ),
    "scalar-value": Case(
        f"train cartpole --rule actor-critic {LEARN} --actor-critic.num-bins None "
        "--actor-critic.normalize-advantage --actor-critic.normalize-td --truncation terminate"
    ),
    "schedule": Case(
        f"train catch --rule disco-mini {LEARN} --optimiser.schedule cosine "
        "--optimiser.warmup-steps 64 --optimiser.weight-decay 0.01 --replay-share 1 --seed 5 "
        "--mask-episode-starts False --net.zero-values"
    ),
    "convolutions": Case(
        "train catch --rule disco-mini --steps 6 --log-every 2 --net.torso-kind conv "
        "--net.channels 3 4 --net.dense 12"
    ),
    # Gymnasium, and the suites that come as extras.
    "gym": Case(f"train gym:CartPole-v1 --rule actor-critic {LEARN} --normalize-observations"),
    "gym-bins": Case(
        "train gym:MountainCarContinuous-v0 --rule actor-critic --steps 6 --log-every 2 "
        "--action-bins 3 --reward-scale 0.5 --reward-clip 1 --autoreset next-step"
    ),
    "gym-encoders": Case(
        "train gym:Blackjack-v1 --rule policy-gradient --steps 6 --log-every 2 --net.dense 12 "
        "--mask-episode-starts False"
    ),
    "atari": Case(
        f"train ale:Pong {SUITE} --optimiser.warmup-steps 0 --net.torso-kind impala "
        "--net.channels 2 2 --net.dense 6 --image-size 42 --net.core-lstm 4",
        mark="atari",
        needs="ale_py",
    ),
    "minatar": Case(f"train minatar:breakout {SUITE} {IMAGES}", mark="minatar", needs="minatar"),
    "minigrid": Case(
        f"train minigrid:Empty-5x5 {SUITE} {IMAGES}", mark="minigrid", needs="minigrid"
    ),
    "crafter": Case(f"train crafter {SUITE} {IMAGES}", mark="crafter", needs="crafter"),
    "sokoban": Case(f"train sokoban {SUITE} {IMAGES}", mark="sokoban"),
    # Every kind of task on tensors.
    **{
        f"task {task}": Case(f"train {task} --rule policy-gradient --steps 4 --log-every 2")
        for task in TASKS
    },
    # Discovery: every way to keep a window's graph, and the rest of its settings.
    "discover plain": Case(NOTEBOOK),
    "discover recompute": Case(f"{NOTEBOOK} --window.memory recompute"),
    "discover mixed": Case(f"{NOTEBOOK} --window.memory mixed"),
    "discover sliding": Case(
        f"{NOTEBOOK} --window.num-updates 3 --window.stride 1 --window.memory recompute"
    ),
    "discover sliding mixed": Case(
        f"{NOTEBOOK} --window.num-updates 3 --window.stride 2 --window.memory mixed"
    ),
    "discover population": Case(POPULATION),
    "discover population sliding": Case(
        f"{POPULATION} --window.memory recompute --window.stride 2 --window.valid-rollouts 2"
    ),
    "discover from a rule": Case(
        "discover suite --tasks catch:4x4 --held-out --init disco-mini --steps 2 "
        "--window.num-updates 2"
    ),
}


def arguments(name: str) -> list[str]:
    """The whole command line of a case."""
    kind, what, *rest = CASES[name].command.split()
    small = {"train": TRAIN, "discover": DISCOVER}[kind].split()
    return [kind, what, *small, *rest, "--out", "run"]


def run(name: str) -> dict[str, Any]:
    """Run a case below the working directory and record what it left."""
    run_command(*arguments(name))
    return run_record(Path("run"))


def check(name: str) -> None:
    """Raise unless a case gives what was recorded, to the bit on the same kind of machine."""
    content = json.loads(RECORDS.read_text(encoding="utf-8"))[name]
    assert " ".join(arguments(name)) == content["command"], "another command was recorded"
    assert_recorded(run(name), content["left"], content["machine"])


def record(names: list[str]) -> None:
    """Run the cases twice, and write down what they leave if that is the same."""
    content = json.loads(RECORDS.read_text(encoding="utf-8")) if RECORDS.exists() else {}
    for name in names or CASES:
        left = []
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            for _ in range(2):
                left.append(run(name))
                shutil.rmtree("run")
        assert json.dumps(left[0]) == json.dumps(left[1]), f"{name} is not the same twice"
        case = {"command": " ".join(arguments(name)), "machine": fingerprint()}
        content[name] = {**case, "left": left[0]}
    write_record(RECORDS, {name: content[name] for name in CASES if name in content})


if __name__ == "__main__":
    record(sys.argv[1:])
