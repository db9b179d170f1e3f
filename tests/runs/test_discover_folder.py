"""The folder of a discovery run: who may write into it, and what it remembers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from discorl.errors import DiscorlError
from discorl.runs.discover import discover, resume_discovery
from discorl.runs.files import held
from tests.discovery.population import tiny_config


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


@pytest.mark.parametrize(
    "changes",
    [
        *({"tasks": ("bandit:3*3", "catsh*2")}, {"held_out": ("catsh",)}),
        *({"held_out": ("gym:CartPole-v1",)}, {"init": "gone.npz"}),
    ],
    ids=str,
)
def test_a_mistake_leaves_the_folder_free(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(DiscorlError):
        discover(tiny_config(out=tmp_path / "run", **changes))
    assert not (tmp_path / "run").exists()
    discover(tiny_config(steps=1, out=tmp_path / "run"))


def test_two_processes_do_not_discover_into_one_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    discover(tiny_config(steps=1, out=folder))
    before = contents(folder)
    with held(folder), pytest.raises(DiscorlError, match="another process"):
        resume_discovery(folder, steps=2)
    assert contents(folder) == before
    assert resume_discovery(folder, steps=2).metrics[-1]["step"] == 2
