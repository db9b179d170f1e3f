"""One run, in pieces if need be: a run of ours that was stopped goes on where it stood."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.learning.tasks import EVERY, PPO, WINDOW, LearningTask
from benchmarks.machine import commit
from benchmarks.peers.run_ppo import ppo_command
from benchmarks.venvs import BENCH, ROOT
from discorl.atomic import write_atomically

RUNS = Path(__file__).parent.parent / "results" / "learning" / "runs"
UNDER_WAY = BENCH / "learning"
CHECKPOINT_MINUTES = "5"
STOPPED = (-signal.SIGTERM, -signal.SIGKILL, 130)
"""How a process ends that was asked to stop, or made to."""
Start = Callable[[list[str]], "subprocess.Popen[str]"]


class StoppedError(Exception):
    """The run was asked to stop, and can go on later."""


@dataclass(frozen=True)
class Job:
    """A run that the tables want."""

    task: LearningTask
    algorithm: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.task.name}-{self.algorithm}-{self.seed}"

    def result(self, folder: Path = RUNS) -> Path:
        """Where what it gave is kept. If it is there, the job is done."""
        return folder / f"{self.name}.json"

    @property
    def scratch(self) -> Path:
        """Where it is under way."""
        return UNDER_WAY / self.name


def train_arguments(job: Job) -> list[str]:
    """Arguments of ``discorl``; without the folder, which matters to nobody else."""
    given = ["--rule", job.algorithm, "--env-steps", str(job.task.env_steps)]
    options = job.task.options.get(job.algorithm, "").split()
    return ["train", job.task.task, *given, "--seed", str(job.seed), *options]


def run_job(job: Job, start: Start, python: Path | None) -> None:
    """Train to the end and keep what is worth keeping; or raise ``StoppedError``."""
    job.scratch.mkdir(parents=True, exist_ok=True)
    about = {"task": job.task.name, "algorithm": job.algorithm, "seed": job.seed}
    gave = _ppo(job, start, python) if job.algorithm == PPO else _ours(job, start)
    save(about | {"commit": commit()} | gave, job.result())
    shutil.rmtree(job.scratch, ignore_errors=True)


def save(result: dict[str, Any], path: Path) -> None:
    """A line for each field, so that a curve is one line."""
    lines = ",\n".join(f'  "{key}": {json.dumps(value)}' for key, value in result.items())
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, f"{{\n{lines}\n}}\n".encode())


def _ours(job: Job, start: Start) -> dict[str, Any]:
    folder = job.scratch / "run"
    arguments = train_arguments(job)
    quiet = ["--progress", "none"]
    if any((folder / "checkpoints").glob("*")):
        command = ["train", "--resume", str(folder), *quiet]
    else:  # nothing to go on from
        shutil.rmtree(folder, ignore_errors=True)
        kept = ["--log-every", str(EVERY), "--checkpoint.every-minutes", CHECKPOINT_MINUTES]
        command = [*arguments, "--out", str(folder), *quiet, *kept]
    _wait(start(_discorl(*command)), job)
    if not (folder / "curve.png").exists():
        raise StoppedError
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    result: dict[str, Any] = {
        "command": " ".join(["discorl", *arguments]),
        "seconds": round(rows[-1]["seconds"], 1),
        "episodes": rows[-1]["episodes"],
        "curve": [[r["env_steps"], round(r["return"], 4)] for r in rows if "return" in r],
    }
    if job.task.evaluate:
        scores = job.scratch / "scores.json"
        episodes = ["--episodes", str(job.task.evaluate), "--json", str(scores)]
        _wait(start(_discorl("evaluate", str(folder), *episodes)), job)
        result["evaluation"] = json.loads(scores.read_text())["score"]["value"]
    return result


def _ppo(job: Job, start: Start, python: Path | None) -> dict[str, Any]:
    """Stable-Baselines3 cannot go on in the middle: a run that was stopped starts over."""
    task = job.task
    settings = {
        "task": task.task,
        "env_steps": task.env_steps,
        "seed": job.seed,
        "every": EVERY * task.per_step,
        "window": WINDOW * task.per_step,
        "settings": dict(task.ppo),
    }
    said = _wait(start(ppo_command(settings, python)), job)
    return {"settings": settings["settings"], **json.loads(said.splitlines()[-1])}


def _discorl(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "discorl", *arguments]


def _wait(process: subprocess.Popen[str], job: Job) -> str:
    """What it printed; raises if it failed, or was stopped from outside."""
    out, error = process.communicate()
    if process.returncode in STOPPED:
        raise StoppedError
    if process.returncode:
        raise RuntimeError(f"{job.name}: {error.strip()[-2000:]}")
    return out


def started(command: list[str]) -> subprocess.Popen[str]:
    """On one thread, and out of reach of a Ctrl-C, which is the queue's."""
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
