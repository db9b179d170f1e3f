"""Starts ``sb3_ppo`` in the interpreter that has Stable-Baselines3."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.venvs import ROOT, python_of

REQUIREMENTS = Path(__file__).parent / "sb3_ppo.txt"


def ppo_command(job: dict[str, Any], python: Path | None = None) -> list[str]:
    """What makes one run; ``python`` is an interpreter that can, if not one of our own making."""
    interpreter = python_of("sb3", REQUIREMENTS, python, True)
    return [str(interpreter), "-m", "benchmarks.peers.sb3_ppo", json.dumps(job)]


def run_ppo(job: dict[str, Any], python: Path | None = None) -> dict[str, Any]:
    """One run, to its end."""
    done = subprocess.run(
        ppo_command(job, python),
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"PPO on {job['task']}: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])
