"""What a result depends on besides the code."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

from benchmarks.venvs import ROOT


def machine_facts() -> dict[str, str | int]:
    """Processor, memory, system."""
    return {
        "processor": _proc_field("/proc/cpuinfo", "model name") or platform.processor(),
        "instructions": _widest_instructions(),
        "cores": os.cpu_count() or 0,
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def commit() -> str:
    """The version of discorl that is measured; "+" if the tree holds changes."""
    try:
        head = _git("rev-parse", "--short", "HEAD")
        changed = _git("status", "--porcelain", "--", "discorl", "benchmarks/peers")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if changed else "")


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def _proc_field(path: str, name: str) -> str:
    if not Path(path).exists():
        return ""
    for line in Path(path).read_text().splitlines():
        if line.startswith(name):
            return line.partition(":")[2].strip()
    return ""


def _widest_instructions() -> str:
    flags = _proc_field("/proc/cpuinfo", "flags").split()
    return next((x for x in ("avx512f", "avx2", "avx") if x in flags), "unknown")
