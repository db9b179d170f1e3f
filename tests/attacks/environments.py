"""Bad environments end a run with one line that names them, and what was learnt is kept."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from discorl.runs.checkpoint import CheckpointFolder
from discorl.training.config import CheckpointConfig, EnvConfig, NetConfig, TrainConfig
from discorl.training.rule_choice import read_config
from discorl.training.train import resume, train
from tests.attacks import forked
from tests.attacks.attack import Case
from tests.attacks.commands import Said, as_command
from tests.attacks.faults import FAULTS, Fault, make

STEPS = 5
SILENCE_MINUTES = 0.03
TIMEOUT = 60


@dataclass(frozen=True)
class BadEnvironments:
    """Every fault, in this process or in workers."""

    workers: Literal["sync", "async"]

    @property
    def name(self) -> str:
        return f"environment-{self.workers}"

    @property
    def _faults(self) -> list[Fault]:
        return [f for f in FAULTS if self.workers == "async" or not f.only_async]

    @property
    def num_cases(self) -> int | None:
        return len(self._faults)

    def cases(self, seed: int, first: int, count: int, room: Path) -> Iterator[Case]:
        faults = self._faults
        random.Random(f"{self.name} {seed}").shuffle(faults)
        for number in range(first, min(first + count, len(faults))):
            fault, folder = faults[number], room / "attacked"
            shutil.rmtree(folder, ignore_errors=True)
            said = self._case(fault, folder)
            what = f"{self.name}: {fault.name}"
            yield Case(
                number, "failed" if said else "survived", f"{what}: {said}" if said else what
            )

    def _case(self, fault: Fault, folder: Path) -> str | None:
        """What went wrong with what should go wrong, if anything."""
        spoken = folder.with_suffix(".said")
        action = partial(as_command, partial(_train, self.workers, fault, folder))
        ended = forked.run(action, spoken, TIMEOUT)
        if ended.timed_out:
            return f"it hung: {ended.last_words}"
        said = Said(ended.code, ended.out, ended.err)
        if wrong := said.complaint():
            return wrong
        message = said.error
        if not message and not fault.is_tolerable:
            return "nobody noticed"
        if message and "environment" not in message and "'walk'" not in message:
            return f"the message names no environment: {message}"
        if not (folder / "config.json").exists():
            return None if message else "there is no run"
        if fault.name in ("reward-far", "observation-far", "reset-observation-far"):
            return None  # poison, which has tests of its own
        if lost := _unsaved(folder):
            return f"{lost} ({message})"
        ended = forked.run(partial(_resume, folder), spoken, TIMEOUT)
        return f"it did not resume: {ended.last_words}" if ended.code else None


def _train(workers: Any, fault: Fault, folder: Path) -> None:
    config = TrainConfig(
        task="walk",
        rule="actor-critic",
        steps=STEPS,
        log_every=1,
        rollout_length=5,
        num_envs=2,
        batch_size=4,
        replay_capacity=12,
        out=folder,
        progress="lines",
        device="cpu",
        threads=1,
        checkpoint=CheckpointConfig(every_steps=1000, every_minutes=None),
        net=NetConfig(torso=(8,), action_lstm=4, head_hidden=(4,)),
        env=EnvConfig(workers=workers),
    )
    if "timeout_minutes" in {f.name for f in fields(TrainConfig)}:
        config = replace(config, **{"timeout_minutes": SILENCE_MINUTES})
    train(config, env=partial(make, fault))


def _resume(folder: Path) -> None:
    """With an environment that behaves."""
    resume(read_config(folder)[0], env=partial(make, None))
    steps = CheckpointFolder(folder / "checkpoints").steps()
    assert steps[-1] == STEPS, f"it ended at {steps}"


def _unsaved(folder: Path) -> str | None:
    path = folder / "metrics.jsonl"
    rows = [json.loads(line)["step"] for line in path.read_text().splitlines()]
    saved = max(CheckpointFolder(folder / "checkpoints").steps(), default=0)
    if rows != list(range(1, len(rows) + 1)):
        return f"rows of steps {rows}"
    return f"step {rows[-1]} is not saved, only {saved}" if rows and saved < rows[-1] else None
