"""Runs that are killed while they write a file, and what is left when they go on."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from discorl.discovery.discover import resume_discovery
from discorl.training.rule_choice import read_config
from discorl.training.train import resume
from tests.builders import run_python
from tests.training.test_resume import FILES

DYING = """
import os, sys
from pathlib import Path
from discorl.training.train import train
from discorl.discovery.discover import discover
from tests.meta.population import tiny_config
from tests.training.test_resume import config

kind, out, name = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
honest = os.replace

def replace(source, target):
    if Path(target).name == name:
        os.kill(os.getpid(), 9)
    honest(source, target)

os.replace = replace
train(config(out)) if kind == "train" else discover(tiny_config(out=out, eval_every=4))
"""


def temporary(folder: Path) -> list[str]:
    return [p.name for p in folder.rglob(".*")]


@pytest.mark.parametrize(
    "kind, name",
    [
        ("train", "checkpoint-10.dc"),
        ("train", "agent.npz"),
        ("discover", "rule-2.npz"),
        ("discover", "checkpoint-3.dc"),
    ],
)
def test_nothing_is_left_of_what_was_being_written(kind: str, name: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = run_python("-c", DYING, kind, folder, name)
    assert done.returncode == -signal.SIGKILL, done.stderr
    (left,) = temporary(folder)
    assert left.startswith(f".{name}.")
    result = resume(read_config(folder)[0]) if kind == "train" else resume_discovery(folder)
    assert not result.interrupted
    assert temporary(folder) == []
    if kind == "train":
        assert {p.name for p in folder.iterdir()} == FILES
