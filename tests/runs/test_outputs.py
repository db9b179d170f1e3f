"""What a run leaves as it goes: rows that are safe, gaps that are told, and no row in memory."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from discorl.discovery.discover import discover, resume_discovery
from discorl.runs.curves import plot_curve
from discorl.runs.metrics import read_rows
from discorl.training.config import CheckpointConfig
from discorl.training.rule_choice import read_config
from discorl.training.train import resume, train
from tests.builders import run_python
from tests.meta.population import tiny_config
from tests.training.test_resume import config, crash
from tests.training.test_train_gymnasium import config as gymnasium_config

# --- before each checkpoint ----------------------------------------------------------------------

OFTEN = CheckpointConfig(every_steps=1, every_minutes=None)
KINDS: dict[str, Callable[[Path], Any]] = {
    "tensors": lambda out: train(config(out, steps=6, log_every=1, checkpoint=OFTEN)),
    "gymnasium": lambda out: train(gymnasium_config(out.parent, checkpoint=OFTEN)),
    "discovery": lambda out: discover(tiny_config(out=out, steps=3)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_no_checkpoint_is_saved_before_its_rows_are_on_disk(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run" / "metrics.jsonl"
    on_disk: list[bytes] = [b""]
    checked: list[str] = []
    honest_sync, honest_replace = os.fsync, os.replace

    def fsync(handle: int) -> None:
        honest_sync(handle)
        if path.exists() and os.path.samestat(os.fstat(handle), path.stat()):
            on_disk.append(path.read_bytes())

    def replace_(source: str, target: Path) -> None:
        if target.suffix == ".dc":
            assert on_disk[-1] == path.read_bytes(), f"{target.name} before the rows it follows"
            assert on_disk[-1].count(b"\n") == len(checked) + 1
            checked.append(target.name)
        honest_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace_)
    KINDS[kind](tmp_path / "run")
    assert checked[:3] == ["checkpoint-1.dc", "checkpoint-2.dc", "checkpoint-3.dc"]


def test_the_last_row_is_on_disk_when_the_run_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in no checkpoint: more steps may follow."""
    path = tmp_path / "run" / "metrics.jsonl"
    on_disk: list[bytes] = []
    honest = os.fsync

    def fsync(handle: int) -> None:
        honest(handle)
        if path.exists() and os.path.samestat(os.fstat(handle), path.stat()):
            on_disk.append(path.read_bytes())

    monkeypatch.setattr(os, "fsync", fsync)
    train(config(tmp_path / "run", steps=6))
    assert on_disk[-1] == path.read_bytes()
    assert json.loads(on_disk[-1].splitlines()[-1])["step"] == 6


# --- gaps ----------------------------------------------------------------------------------------


def lose(folder: Path, *steps: int) -> None:
    """Cut rows out of metrics.jsonl, as a file system may after a power cut."""
    path = folder / "metrics.jsonl"
    kept = [
        line for line in path.read_text().splitlines(True) if json.loads(line)["step"] not in steps
    ]
    path.write_text("".join(kept))


def gaps(folder: Path) -> dict[int, list[int]]:
    return {row["step"]: row["gap"] for row in read_rows(folder / "metrics.jsonl") if "gap" in row}


def test_lost_rows_are_said_and_marked(tmp_path: Path) -> None:
    """Of the rows at 4, 8, 12, 16, 20 and 23, with a checkpoint at 20."""
    crash(config(tmp_path / "run", steps=40), 23)
    lose(tmp_path / "run", 8, 12, 20)
    settings, _ = read_config(tmp_path / "run")
    with pytest.warns(UserWarning, match=r"has no rows for steps 8 to 12 and step 20: "):
        result = resume(settings)
    assert gaps(result.folder) == {16: [8, 12], 24: [20, 20]}
    assert [row["step"] for row in result.metrics] == [4, 16, 24, 28, 32, 36, 40]
    resume(replace(settings, steps=44))  # it was said, and a warning would be an error here
    assert gaps(result.folder) == {16: [8, 12], 24: [20, 20]}


def test_lost_rows_of_a_discovery_are_said_and_marked(tmp_path: Path) -> None:
    settings = tiny_config(out=tmp_path / "run", log_every=2, eval_every=3, steps=6)
    discover(settings)
    assert [row["step"] for row in read_rows(tmp_path / "run" / "metrics.jsonl")] == [2, 3, 4, 6]
    lose(tmp_path / "run", 3, 6)
    with pytest.warns(UserWarning, match=r"has no rows for step 3 and step 6: "):
        resume_discovery(tmp_path / "run", steps=8)
    assert gaps(tmp_path / "run") == {4: [3, 3], 8: [6, 6]}


def test_all_rows_lost_from_a_finished_run(tmp_path: Path) -> None:
    result = train(config(tmp_path / "run"))
    (result.folder / "metrics.jsonl").write_text("")
    with pytest.warns(UserWarning, match=r"has no rows for steps 4 to 20: "):
        resume(read_config(result.folder)[0])
    assert gaps(result.folder) == {23: [4, 20]}


@pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorboard")
def test_other_logs_take_numbers_only(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    crash(config(tmp_path / "run", log="tensorboard"), 18)
    lose(tmp_path / "run", 12)
    with pytest.warns(UserWarning, match="has no rows"):
        resume(read_config(tmp_path / "run")[0])
    assert gaps(tmp_path / "run") == {16: [12, 12]}


# --- memory --------------------------------------------------------------------------------------

MEASURE = """
import resource, sys
from pathlib import Path
from discorl.comparison.records import read_run
from discorl.runs.checkpoint import CheckpointConfig
from discorl.runs.curves import plot_curve, plot_discovery
from discorl.runs.run import run
from tests.runs.test_run import CountConfig, Counter

class Verbose(Counter):
    kind = "train"
    def __init__(self, config):
        super().__init__(config)
        self.row_every = (1,)
    def row(self):
        n = self.state.step
        more = {f"metric/{i}": n / (i + 1) for i in range(30)}
        return {"env_steps": n, "return": n % 7, "success": 0.5, "loss": 1 / n, **more}
    def settings(self):
        return super().settings() | {"task": "t", "rule": "r", "seed": 0, "log_every": 1}
    def finish(self, folder, rows):
        plot_curve(folder / "curve.png", rows, "title", "success")
        plot_discovery(folder / "curve.png", rows)
        return super().finish(folder, rows)

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

def go(folder, steps, resume=False):
    run(Verbose(CountConfig(folder, steps=steps, checkpoint=often)), resume=resume)

out, what, n = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
often = CheckpointConfig(n // 2, None)
go(out / what, 2)  # everything is imported, and has drawn a picture
read_run(out / what)
before = peak()
if what == "train":
    go(out / "run", n)
elif what == "resume":
    go(out / "run", n + 2, resume=True)
else:
    read_run(out / "run")
print(peak() - before)
"""


def test_rows_are_not_kept_in_memory(tmp_path: Path) -> None:
    """50,000 rows of 30 numbers take almost 200 MB as dicts."""
    grown = {}
    for what in ("train", "resume", "compare"):
        done = run_python("-c", MEASURE, tmp_path, what, "50000")
        assert done.returncode == 0, done.stderr
        grown[what] = int(done.stdout)
    assert max(grown.values()) < 60, f"{grown} MB"


def test_a_curve_leaves_out_rows_that_have_no_place_on_it(tmp_path: Path) -> None:
    rows = [{"step": 1, "return": 1.0}, {"step": 2, "env_steps": 5, "return": 2.0}]
    plot_curve(tmp_path / "curve.png", rows, "some", "success rate")
    plot_curve(tmp_path / "expected.png", rows[1:], "some", "success rate")
    assert (tmp_path / "curve.png").read_bytes() == (tmp_path / "expected.png").read_bytes()
