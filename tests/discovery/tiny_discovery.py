"""A small discovery as a program: ``python -m tests.discovery.tiny_discovery FOLDER STEPS``.

Goes on where an earlier call stopped. Where DISCORL_TEST_DIE_ONCE names a file, the last process
removes it and dies after its third meta-step. DISCORL_TEST_HELD_OUT has tasks to judge rules by.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from discorl.discovery import discover as module
from tests.meta.population import tiny_config


def die_once(marker: Path) -> None:
    """Let this process be killed in the middle of a run, once."""
    honest, steps = module.meta_step, []

    def step(*args: Any) -> Any:
        steps.append(1)
        if len(steps) == 4 and os.environ.get("RANK") == "1" and marker.exists():
            marker.unlink()
            os._exit(1)
        return honest(*args)

    module.meta_step = step


def main() -> None:
    torch.set_num_threads(1)
    folder, steps = Path(sys.argv[1]), int(sys.argv[2])
    if marker := os.environ.get("DISCORL_TEST_DIE_ONCE"):
        die_once(Path(marker))
    if (folder / "config.json").exists() and "RANK" not in os.environ:
        module.resume_discovery(folder, steps=steps)
        return
    config = tiny_config(steps=steps, lifetimes=(6, 10), replay_capacity=6, num_replayed=2)
    if held_out := os.environ.get("DISCORL_TEST_HELD_OUT"):
        config = replace(config, held_out=tuple(held_out.split()), eval_every=3)
        config = replace(config, eval_updates=3, eval_agents=2, eval_average=2)
    module.discover(replace(config, out=folder))


if __name__ == "__main__":
    main()
