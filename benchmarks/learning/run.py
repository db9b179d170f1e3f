"""Runs, one after the other. Each leaves a small JSON file, and is not repeated if it is there."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.learning.tasks import EVERY, PPO, WINDOW, LearningTask
from benchmarks.machine import commit
from benchmarks.peers.run_ppo import run_ppo
from benchmarks.venvs import ROOT
from discorl.atomic import write_atomically

RUNS = Path(__file__).parent.parent / "results" / "learning" / "runs"


def path_of(task: LearningTask, algorithm: str, seed: int, folder: Path = RUNS) -> Path:
    """Where a run's result is kept."""
    return folder / f"{task.name}-{algorithm}-{seed}.json"


def run_once(
    task: LearningTask, algorithm: str, seed: int, python: Path | None, minutes: float | None
) -> dict[str, Any]:
    """Train once, and return what there is to keep."""
    about = {"task": task.name, "algorithm": algorithm, "seed": seed, "commit": commit()}
    if algorithm == PPO:
        return about | _ppo(task, seed, python, minutes)
    return about | _ours(task, algorithm, seed, minutes)


def save(result: dict[str, Any], path: Path) -> None:
    """A line for each field, so that a curve is one line."""
    lines = ",\n".join(f'  "{key}": {json.dumps(value)}' for key, value in result.items())
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, f"{{\n{lines}\n}}\n".encode())


def train_arguments(task: LearningTask, rule: str, seed: int) -> list[str]:
    """Arguments of ``discorl``; without the folder, which matters to nobody else."""
    given = ["--rule", rule, "--steps", str(task.steps), "--seed", str(seed)]
    return ["train", task.task, *given, *task.options(rule)]


def _ours(task: LearningTask, rule: str, seed: int, minutes: float | None) -> dict[str, Any]:
    arguments = train_arguments(task, rule, seed)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        quiet = ["--progress", "none", "--log-every", str(EVERY), "--checkpoint.every-minutes"]
        start = time.monotonic()
        _discorl([*arguments, "--out", str(run), *quiet, "None"], minutes)
        seconds = time.monotonic() - start
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        result: dict[str, Any] = {
            "command": " ".join(["discorl", *arguments]),
            "seconds": round(seconds, 1),
            "episodes": rows[-1]["episodes"],
            "curve": [[r["env_steps"], round(r["return"], 4)] for r in rows if "return" in r],
        }
        if task.evaluate:
            scores = Path(folder) / "scores.json"
            _discorl(
                ["evaluate", str(run), "--episodes", str(task.evaluate), "--json", str(scores)],
                None,
            )
            result["evaluation"] = json.loads(scores.read_text())["score"]["value"]
    return result


def _discorl(arguments: list[str], minutes: float | None) -> None:
    """Run ``discorl``; after ``minutes`` it is asked to stop, and keeps what it has."""
    process = subprocess.Popen(
        [sys.executable, "-m", "discorl", *arguments],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        said = process.communicate(timeout=minutes * 60 if minutes else None)[1]
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        process.communicate()
        return
    if process.returncode:
        raise RuntimeError(f"discorl {' '.join(arguments)}: {said.strip()[-2000:]}")


def _ppo(
    task: LearningTask, seed: int, python: Path | None, minutes: float | None
) -> dict[str, Any]:
    assert task.ppo is not None
    job = {
        "task": task.task,
        "env_steps": task.env_steps,
        "seed": seed,
        "every": EVERY * task.per_step,
        "window": WINDOW * task.per_step,
        "settings": dict(task.ppo),
    }
    if minutes:
        job["max_seconds"] = minutes * 60
    return {"settings": job["settings"], **run_ppo(job, python)}
