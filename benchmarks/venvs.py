"""Virtual environments of the peers, made under ``.bench/`` and never committed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
BENCH = ROOT / ".bench"


class AbsentError(Exception):
    """A peer cannot be had here, and why."""


def python_of(name: str, requirements: Path, given: Path | None, install: bool) -> Path:
    """An interpreter that has a peer's requirements: ``given``, or one of our own making."""
    if given is not None:
        if not given.is_file():
            raise AbsentError(f"there is no interpreter at {given}")
        return given.absolute()  # not resolved: the link is what makes it a virtual environment
    folder = BENCH / name
    python, stamp = folder / "bin" / "python", folder / "installed.txt"
    if stamp.is_file() and stamp.read_text() == requirements.read_text():
        return python
    if not install:
        raise AbsentError(f"not installed in {folder.relative_to(ROOT)}, and --skip-install given")
    print(f"installing {name} into {folder.relative_to(ROOT)}, which can take minutes", flush=True)
    _run(name, sys.executable, "-m", "venv", "--clear", str(folder))
    constraints = ROOT / "constraints.txt"
    pip = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    _run(name, *pip, "-c", str(constraints), "-r", str(requirements))
    stamp.write_text(requirements.read_text())
    return python


def _run(name: str, *command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise AbsentError(f"{name} could not be installed: {lines[-1]}")
