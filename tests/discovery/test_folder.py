"""The folder of a discovery run: who may write into it, and what it remembers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from discorl.cli import main
from discorl.discovery import discover as module
from discorl.discovery.discover import discover, resume_discovery
from discorl.errors import DiscorlError
from discorl.runs import distributed
from discorl.runs.checkpoint import load, save
from discorl.runs.distributed import Ranks
from discorl.runs.files import held
from tests.meta.population import tiny_config


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


def settings_in(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def die_after(patch: pytest.MonkeyPatch, num_steps: int) -> None:
    """The next run crashes in the middle of a meta-step."""
    honest, count = module.meta_step, iter(range(num_steps))

    def step(*args: Any) -> Any:
        if next(count, None) is None:
            raise MemoryError("the end")
        return honest(*args)

    patch.setattr(module, "meta_step", step)


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


def test_more_steps_are_remembered(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    discover(tiny_config(steps=1, out=folder))
    begun = settings_in(folder)
    with pytest.MonkeyPatch.context() as patch:
        die_after(patch, 1)
        with pytest.raises(MemoryError):
            resume_discovery(folder, steps=3)
    assert settings_in(folder) == begun | {"steps": 3}
    result = resume_discovery(folder)
    assert (result.metrics[-1]["step"], result.interrupted) == (3, False)


def test_fewer_steps_than_done_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    discover(tiny_config(steps=2, out=folder))
    before = contents(folder)
    with pytest.raises(DiscorlError, match="at meta-step 2 already; give --steps"):
        resume_discovery(folder, steps=1)
    assert contents(folder) == before


def test_a_restart_needs_to_know_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else every restart would begin anew, in a folder of its own."""
    restarted = Ranks(0, 1, torch.device("cpu"), restarts=1)
    monkeypatch.setattr(distributed, "start", lambda device: restarted)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DiscorlError, match="give --out when you use --max-restarts"):
        discover(tiny_config())
    assert not (tmp_path / "runs").exists()
    with pytest.MonkeyPatch.context() as patch:
        die_after(patch, 1)
        with pytest.raises(MemoryError):
            discover(tiny_config(steps=2, out=tmp_path / "run"))
    begun = settings_in(tmp_path / "run")
    result = discover(tiny_config(steps=2, out=tmp_path / "run"))
    assert [row["step"] for row in result.metrics] == [1, 2]
    assert settings_in(tmp_path / "run") == begun


def test_the_clock_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    took = discover(tiny_config(steps=1, out=folder)).metrics[-1]["seconds"]
    path = folder / "checkpoints" / "checkpoint-1.dc"
    content = load(path)
    assert content["seconds"] == pytest.approx(took, abs=0.01)
    save(path, content | {"seconds": 1e6})
    assert resume_discovery(folder, steps=2).metrics[-1]["seconds"] > 1e6


def test_checkpoints_from_before_they_had_a_clock(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    discover(tiny_config(steps=1, out=folder))
    path = folder / "checkpoints" / "checkpoint-1.dc"
    save(path, {name: x for name, x in load(path).items() if name != "seconds"})
    result = resume_discovery(folder, steps=2)
    assert [row["step"] for row in result.metrics] == [1, 2]


def test_the_command_line_changes_what_it_is_told_to(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    discover(tiny_config(steps=1, out=folder))
    begun = settings_in(folder)
    assert main(["discover", "--resume", str(folder)]) == 0
    assert settings_in(folder) == begun
    assert main(["discover", "--resume", str(folder), "--steps", "2", "--progress", "lines"]) == 0
    assert settings_in(folder) == begun | {"steps": 2, "progress": "lines"}


def test_settings_that_there_were_once_do_not_keep_a_run_from_resuming(tmp_path: Path) -> None:
    discover(tiny_config(steps=1, out=tmp_path))
    settings = settings_in(tmp_path)
    settings["window"]["offload"] = False
    (tmp_path / "config.json").write_text(json.dumps(settings))
    assert not resume_discovery(tmp_path, steps=2).interrupted
    assert settings_in(tmp_path)["steps"] == 2
