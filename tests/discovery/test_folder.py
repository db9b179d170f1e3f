"""The folder of a discovery run: who may write into it, and what it remembers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from discorl.cli import main
from discorl.discovery import discover as module
from discorl.discovery.discover import discover, resume_discovery
from discorl.errors import DiscorlError
from discorl.runs import distributed
from discorl.runs.checkpoint import CheckpointFolder, load, save
from discorl.runs.distributed import Ranks
from discorl.runs.files import held
from discorl.runs.metrics import TIMING_FIELDS, read_rows
from tests.meta.population import tiny_config
from tests.runs.test_logs import scalars


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
        *({"held_out": ("gym:NoSuchTask-v0",)}, {"init": "gone.npz"}),
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
    with pytest.raises(DiscorlError, match="already at meta-step 2: set --steps"):
        resume_discovery(folder, steps=1)
    assert contents(folder) == before


def test_a_restart_needs_to_know_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else every restart would begin anew, in a folder of its own."""
    restarted = Ranks(0, 1, torch.device("cpu"), restarts=1)
    monkeypatch.setattr(distributed, "start", lambda *_: restarted)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DiscorlError, match="set --out when you use --max-restarts"):
        discover(tiny_config())
    assert not (tmp_path / "runs").exists()
    with pytest.MonkeyPatch.context() as patch:
        die_after(patch, 1)
        with pytest.raises(MemoryError):
            discover(tiny_config(steps=2, out=tmp_path / "run"))
    begun = settings_in(tmp_path / "run")
    with pytest.raises(DiscorlError, match="already holds a run"):  # that another torchrun began
        discover(tiny_config(steps=2, out=tmp_path / "run"))
    distributed.mark_as_begun(tmp_path / "run", replace(restarted, size=2))
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


def test_the_last_row_of_a_short_run_is_not_in_a_longer_one(tmp_path: Path) -> None:
    """The row out of turn is for the reader alone: no later row knows of it."""
    config = tiny_config(log_every=2, checkpoint_every=1)
    discover(replace(config, steps=4, out=tmp_path / "whole"))
    discover(replace(config, steps=3, out=tmp_path / "half"))
    assert [row["step"] for row in read_rows(tmp_path / "half" / "metrics.jsonl")] == [2, 3]
    resume_discovery(tmp_path / "half", steps=4)
    whole, half = (read_rows(tmp_path / name / "metrics.jsonl") for name in ("whole", "half"))
    assert [timeless(row) for row in half] == [timeless(row) for row in whole]


def timeless(row: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in row.items() if k not in TIMING_FIELDS}


def test_checkpoints_by_the_minute(tmp_path: Path) -> None:
    config = tiny_config(steps=3, checkpoint_every=10, keep_checkpoints=9)
    discover(replace(config, checkpoint_minutes=1e-9, out=tmp_path / "often"))
    assert CheckpointFolder(tmp_path / "often" / "checkpoints").steps() == [1, 2, 3]
    discover(replace(config, checkpoint_minutes=None, out=tmp_path / "seldom"))
    assert CheckpointFolder(tmp_path / "seldom" / "checkpoints").steps() == [3]
    with pytest.raises(DiscorlError, match="checkpoint_minutes"):
        replace(config, checkpoint_minutes=0.0)


def test_another_torch_is_worth_a_warning(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    discover(tiny_config(steps=1, out=folder))
    path = folder / "config.json"
    path.write_text(path.read_text().replace(torch.__version__, "1.0"))
    with pytest.warns(UserWarning, match="began with torch 1.0"):
        resume_discovery(folder, steps=2)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorboard")
def test_metrics_go_to_tensorboard_too(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    folder = tmp_path / "run"
    discover(tiny_config(steps=2, out=folder, log="tensorboard"))
    assert main(["discover", "--resume", str(folder), "--steps", "3", "--log", "tensorboard"]) == 0
    shown = scalars(folder)
    assert [step for step, _ in shown["gradient_norm"]] == [1, 2, 3]
    with pytest.raises(DiscorlError, match="no log called 'tensorbored'"):
        tiny_config(log="tensorbored")


def test_folders_may_be_given_as_text(tmp_path: Path) -> None:
    path: Any = str(tmp_path / "run")
    discover(tiny_config(steps=1, out=path))
    assert resume_discovery(path, steps=2).folder == tmp_path / "run"


def test_a_training_run_is_sent_to_its_own_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those from before config.json named the kind of a run, too."""
    for content in ('{"task": "catch", "kind": "train"}', '{"task": "catch", "tasks": 3}'):
        (tmp_path / "config.json").write_text(content)
        assert main(["discover", "--resume", str(tmp_path)]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert f"resume it with 'discorl train --resume {tmp_path}'" in err


def test_settings_that_there_were_once_do_not_keep_a_run_from_resuming(tmp_path: Path) -> None:
    discover(tiny_config(steps=1, out=tmp_path))
    settings = settings_in(tmp_path)
    settings["window"]["offload"] = False
    (tmp_path / "config.json").write_text(json.dumps(settings))
    assert not resume_discovery(tmp_path, steps=2).interrupted
    assert settings_in(tmp_path)["steps"] == 2
