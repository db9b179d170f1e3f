"""The shell around a program, with a program that only counts."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from discorl.errors import DiscorlError, EnvFailure
from discorl.runs import distributed
from discorl.runs import outputs as outputs_module
from discorl.runs.checkpoint import CheckpointConfig, CheckpointFolder
from discorl.runs.config_file import VERSION
from discorl.runs.distributed import LostContact, Ranks
from discorl.runs.files import held
from discorl.runs.metrics import MetricsFile, Row, read_rows
from discorl.runs.program import Asked, CallbackFailed, Diverged, RunResult
from discorl.runs.run import run
from discorl.runs.threads import Threads

CPU = Ranks(0, 1, torch.device("cpu"))


@dataclass(frozen=True)
class CountConfig:
    out: Path | None
    steps: int = 10
    threads: Threads = 1
    log: str = ""
    progress: str = "none"
    checkpoint: CheckpointConfig = field(default_factory=lambda: CheckpointConfig(4, None))


@dataclass
class CountState:
    step: int = 0
    seconds: float = 0.0
    since_row: int = 0


class Counter:
    """Counts its steps since the last row; may fail on the way."""

    kind, unit, result, name, success_name = "count", "count", "count.txt", "counting", "success"
    ranks = CPU

    def __init__(self, config: CountConfig, fails: dict[int, Exception] | None = None) -> None:
        self.config, self.state = config, CountState()
        self.row_every: Sequence[int] = (3, 5)
        self._fails = fails or {}
        self.watched: list[tuple[int, int | None]] = []
        self.wishes: dict[int, Asked] = {}

    def begin(self, before: dict[str, Any] | None) -> str:
        self.before = before
        if 0 in self._fails:
            raise self._fails[0]
        return "Counting"

    def step(self, folder: Path) -> None:
        assert (folder / "config.json").exists(), "a run that steps has begun"
        if self.state.step + 1 in self._fails:
            raise self._fails[self.state.step + 1]
        self.state.step += 1
        self.state.since_row += 1

    def position(self) -> int:
        return self.state.step

    def watch(self, folder: Path, row: Row | None) -> None:
        self.watched.append((self.state.step, row.get("counted") if row else None))

    def asked(self) -> Asked:
        return self.wishes.get(self.state.step, Asked())

    def row(self) -> Row:
        counted, self.state.since_row = self.state.since_row, 0
        return {"counted": counted}

    def snapshot(self) -> Any:
        return asdict(self.state)

    def restore(self, content: Any) -> str:
        self.state.seconds, self.state.since_row = content["seconds"], content["since_row"]
        return ""

    def finish(self, folder: Path, rows: Iterable[Row]) -> str:
        (folder / self.result).write_text(str(self.state.step))
        return "Counted"

    def settings(self) -> dict[str, Any]:
        return asdict(self.config)


def count(config: CountConfig, resume: bool = False, fails: Any = None) -> RunResult:
    return run(Counter(config, fails), resume=resume)


def counted(folder: Path) -> list[tuple[int, int]]:
    return [(row["step"], row["counted"]) for row in read_rows(folder / "metrics.jsonl")]


def contents(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def test_rows_at_all_intervals_and_at_the_end(tmp_path: Path) -> None:
    result = count(CountConfig(tmp_path / "run", steps=11))
    assert counted(result.folder) == [(3, 3), (5, 2), (6, 1), (9, 3), (10, 1), (11, 1)]
    assert (result.metrics[-1]["step"], result.interrupted) == (11, False)
    assert CheckpointFolder(result.folder / "checkpoints").steps() == [8, 11]
    assert (result.folder / "count.txt").read_text() == "11"


def test_a_longer_run_has_no_row_out_of_turn(tmp_path: Path) -> None:
    whole = count(CountConfig(tmp_path / "whole", steps=13))
    count(CountConfig(tmp_path / "cut", steps=11))
    count(CountConfig(tmp_path / "cut", steps=13), resume=True)
    assert counted(tmp_path / "cut") == counted(whole.folder)


def test_resuming_what_is_done_changes_nothing(tmp_path: Path) -> None:
    config = CountConfig(tmp_path / "run", steps=11)
    count(config)
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    assert not count(config, resume=True).interrupted
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_a_crash_costs_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    config = CountConfig(tmp_path / "run", steps=11)
    with pytest.raises(MemoryError):
        count(config, fails={8: MemoryError()})
    assert counted(tmp_path / "run")[-1] == (6, 1)
    count(config, resume=True)
    assert counted(tmp_path / "run") == [(3, 3), (5, 2), (6, 1), (9, 3), (10, 1), (11, 1)]


def test_config_json_says_what_is_run_and_by_whom(tmp_path: Path) -> None:
    folder = count(CountConfig(tmp_path / "run")).folder
    content = json.loads((folder / "config.json").read_text())
    assert (content["kind"], content["version"], content["steps"]) == ("count", VERSION, 10)
    assert (content["out"], content["torch"]) == (str(folder), torch.__version__)
    content["torch"], content["note"] = "1.0", "of another day"
    (folder / "config.json").write_text(json.dumps(content))
    with pytest.warns(UserWarning, match=r"began with torch 1\.0"):
        count(CountConfig(folder, steps=12), resume=True)
    assert json.loads((folder / "config.json").read_text()) == content | {"steps": 12}


@pytest.mark.parametrize("kind, says", [("train", "discorl train --resume"), ("x", "wrote it")])
def test_another_kind_of_run_is_not_resumed(kind: str, says: str, tmp_path: Path) -> None:
    folder = count(CountConfig(tmp_path / "run")).folder
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | {"kind": kind}))
    with pytest.raises(DiscorlError, match=f"is a run of 'discorl {kind}'.*{says}"):
        count(CountConfig(folder, steps=12), resume=True)


def test_a_configuration_of_tomorrow_is_not_guessed_at(tmp_path: Path) -> None:
    folder = count(CountConfig(tmp_path / "run")).folder
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | {"version": VERSION + 1}))
    with pytest.raises(DiscorlError, match="use the version of discorl that wrote it"):
        count(CountConfig(folder, steps=12), resume=True)


def test_folders_may_be_given_as_text(tmp_path: Path) -> None:
    path: Any = str(tmp_path / "run")
    assert count(CountConfig(path)).folder == tmp_path / "run"
    assert count(CountConfig(path, steps=12), resume=True).metrics[-1]["step"] == 12


def test_checkpoints_by_the_minute(tmp_path: Path) -> None:
    often = CheckpointConfig(None, every_minutes=1e-9, keep=100)
    count(CountConfig(tmp_path / "often", steps=4, checkpoint=often))
    assert CheckpointFolder(tmp_path / "often" / "checkpoints").steps() == [1, 2, 3, 4]


def test_rows_are_on_disk_before_the_state_that_follows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    for cls, name in ((MetricsFile, "write"), (MetricsFile, "sync"), (CheckpointFolder, "save")):
        honest = getattr(cls, name)

        def noted(*args: Any, honest: Any = honest, name: str = name) -> Any:
            done.append(name)
            return honest(*args)

        monkeypatch.setattr(cls, name, noted)
    count(CountConfig(tmp_path / "run", steps=4))
    assert done == ["write", "sync", "save", "write", "sync"]


# --- runs without checkpoints --------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["all", "what is in it"])
def test_a_result_without_checkpoints_is_not_overwritten(lost: str, tmp_path: Path) -> None:
    """As after a copy without that folder."""
    folder = count(CountConfig(tmp_path / "run")).folder
    shutil.rmtree(folder / "checkpoints")
    if lost != "all":
        (folder / "checkpoints").mkdir()
    before = {p: p.read_bytes() for p in contents(folder) if p.is_file()}
    with pytest.raises(DiscorlError, match=r"overwrite its count\.txt: copy .*'checkpoints' too"):
        count(CountConfig(folder, steps=20), resume=True)
    assert {p: p.read_bytes() for p in contents(folder) if p.is_file()} == before


def test_rows_without_a_folder_for_checkpoints_are_not_overwritten(tmp_path: Path) -> None:
    folder = count(CountConfig(tmp_path / "run")).folder
    shutil.rmtree(folder / "checkpoints")
    (folder / "count.txt").unlink()
    with pytest.raises(DiscorlError, match=r"overwrite its metrics\.jsonl: copy"):
        count(CountConfig(folder, steps=20), resume=True)
    assert counted(folder)[-1] == (10, 1)


def test_a_run_killed_before_its_first_checkpoint_starts_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rare = CheckpointConfig(100, None)
    config = CountConfig(tmp_path / "run", checkpoint=rare, progress="lines")
    with pytest.raises(MemoryError):
        count(config, fails={8: MemoryError()})
    assert counted(tmp_path / "run")[-1] == (6, 1)
    capsys.readouterr()
    count(config, resume=True)
    said = " ".join(capsys.readouterr().out.split())
    assert "has no checkpoint yet, so the run starts over" in said
    assert counted(tmp_path / "run") == [(3, 3), (5, 2), (6, 1), (9, 3), (10, 1)]


def restarted(config: CountConfig, steps: int = 20, fails: Any = None) -> RunResult:
    """As a process that torchrun has started again."""
    program = Counter(replace(config, steps=steps), fails)
    program.ranks = replace(CPU, restarts=1)
    return run(program)


def test_a_restart_does_not_take_over_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = CountConfig(tmp_path / "run")
    count(config)
    for job in ("none", "mine"):
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", job)
        with pytest.raises(DiscorlError, match="already holds a run"):
            restarted(config)
    assert counted(tmp_path / "run")[-1] == (10, 1)


@pytest.mark.parametrize("job", ["none", "some-id"])
def test_a_restart_goes_on_with_what_it_began(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even before the first checkpoint, and with a result that it left."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", job)
    config = CountConfig(tmp_path / "run")

    def as_if_of_two(folder: Path, ranks: Ranks) -> None:
        honest(folder, replace(ranks, size=2))

    honest = distributed.mark_as_begun
    monkeypatch.setattr(distributed, "mark_as_begun", as_if_of_two)
    with pytest.raises(MemoryError):
        count(config, fails={3: MemoryError()})
    (tmp_path / "run" / "count.txt").write_text("2")
    with pytest.raises(MemoryError):
        restarted(config, fails={6: MemoryError()})
    assert CheckpointFolder(tmp_path / "run" / "checkpoints").steps() == [4]
    assert restarted(config).metrics[-1]["step"] == 20
    assert not (tmp_path / "run" / distributed.JOB_FILE).exists()
    with pytest.raises(DiscorlError, match="already holds a run"):
        restarted(config, steps=30)


# --- starts that fail ----------------------------------------------------------------------------


def test_a_program_that_cannot_begin_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(DiscorlError, match="no"):
        count(CountConfig(tmp_path / "a" / "b"), fails={0: DiscorlError("no")})
    assert contents(tmp_path) == []


@pytest.mark.parametrize("out", [None, "run", "deep/er/run", "there"])
def test_a_log_that_cannot_be_opened_leaves_nothing(
    out: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a folder that was there before, what was in it stays."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "wandb", None)
    honest = outputs_module.open_log
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "notes").write_text("mine")
    before = contents(tmp_path)

    def leave_something(name: str, folder: Path, *more: Any) -> Any:
        (folder / "wandb").mkdir()
        (folder / "wandb" / "debug.log").write_text("...")
        return honest(name, folder, *more)

    monkeypatch.setattr(outputs_module, "open_log", leave_something)
    with pytest.raises(DiscorlError, match="needs a package"):
        count(CountConfig(Path(out) if out else None, log="wandb"))
    assert contents(tmp_path) == before


def test_a_log_that_cannot_be_opened_changes_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = CountConfig(tmp_path / "run")
    count(config)
    before = {p: p.read_bytes() for p in contents(tmp_path) if p.is_file()}
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(DiscorlError, match="needs a package"):
        count(replace(config, steps=20, log="wandb"), resume=True)
    assert {p: p.read_bytes() for p in contents(tmp_path) if p.is_file()} == before


def test_a_folder_that_another_process_is_starting_in_is_left_alone(tmp_path: Path) -> None:
    """It has no config.json yet, and what it writes is not ours to remove."""
    folder = tmp_path / "run"
    folder.mkdir()
    with held(folder):
        (folder / "metrics.jsonl").touch()
        before = contents(tmp_path)
        with pytest.raises(DiscorlError, match="another process"):
            count(CountConfig(folder))
        assert contents(tmp_path) == before


# --- ends that were not planned ------------------------------------------------------------------


def test_ctrl_c_in_the_middle_of_a_step(tmp_path: Path) -> None:
    result = run(Counter(CountConfig(tmp_path / "run"), {7: KeyboardInterrupt()}))  # pyright: ignore
    assert result.interrupted
    assert (result.folder / "count.txt").read_text() == "6"


def test_ctrl_c_that_a_worker_reports_is_saved_like_a_failure(tmp_path: Path) -> None:
    """Nobody has pressed it a second time: the program is as it was before the step."""
    run(Counter(CountConfig(tmp_path / "run"), {7: KeyboardInterrupt()}))  # pyright: ignore
    assert CheckpointFolder(tmp_path / "run" / "checkpoints").steps() == [4, 6]


class Stopped(Counter):
    """Gets signals while it takes a step or writes its result."""

    def __init__(self, config: CountConfig, where: str, signals: Sequence[int]) -> None:
        super().__init__(config)
        self._where, self._signals = where, signals

    def _strike(self, where: str) -> None:
        if where == self._where:
            for number in self._signals:
                os.kill(os.getpid(), number)

    def step(self, folder: Path) -> None:
        super().step(folder)
        if self.state.step == 7:
            self._strike("step")

    def snapshot(self) -> Any:
        self._strike("save")
        return super().snapshot()

    def finish(self, folder: Path, rows: Iterable[Row]) -> str:
        self._strike("finish")
        return super().finish(folder, rows)


def test_a_second_ctrl_c_in_the_middle_of_a_save(tmp_path: Path) -> None:
    twice = [signal.SIGINT, signal.SIGINT]
    result = run(Stopped(CountConfig(tmp_path / "run"), "save", twice))
    assert result.interrupted
    assert (result.folder / "count.txt").read_text() == "4"
    assert contents(result.folder / "checkpoints") == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_while_the_result_is_written_wait_for_it(number: int, tmp_path: Path) -> None:
    """A terminal that is closed sends SIGHUP more than once."""
    result = run(Stopped(CountConfig(tmp_path / "run"), "finish", [number]))
    assert not result.interrupted
    assert (result.folder / "count.txt").read_text() == "10"


def test_an_environment_that_a_signal_ended_is_no_failure(tmp_path: Path) -> None:
    class Ended(Stopped):
        def step(self, folder: Path) -> None:
            if self.state.step == 6:
                os.kill(os.getpid(), signal.SIGTERM)
                raise EnvFailure("environment 0 died")
            super().step(folder)

    result = run(Ended(CountConfig(tmp_path / "run"), "", []))
    assert result.interrupted
    assert CheckpointFolder(tmp_path / "run" / "checkpoints").steps() == [4, 6]


def test_contact_that_is_lost_leaves_the_result(tmp_path: Path) -> None:
    lost = LostContact("gone")
    with pytest.raises(LostContact, match=r"gone .*what was learnt before that is in .*count\.txt"):
        count(CountConfig(tmp_path / "run"), fails={7: lost})
    assert (tmp_path / "run" / "count.txt").read_text() == "6"


def test_what_diverged_is_saved_as_it_was_before(tmp_path: Path) -> None:
    path = tmp_path / "run" / "checkpoints" / "checkpoint-6-diverged.dc"
    with pytest.raises(Diverged, match=f"too much .*what was learnt before that is in {path} and"):
        count(CountConfig(tmp_path / "run"), fails={7: Diverged("too much")})
    assert path.exists()
    assert (tmp_path / "run" / "count.txt").read_text() == "6"


def test_a_program_is_shown_every_step_with_the_row_that_was_logged(tmp_path: Path) -> None:
    program = Counter(CountConfig(tmp_path / "run", steps=6))
    run(program)
    assert program.watched == [(1, None), (2, None), (3, 3), (4, None), (5, 2), (6, 1)]


def test_a_program_may_ask_for_a_checkpoint_and_for_the_end(tmp_path: Path) -> None:
    program = Counter(CountConfig(tmp_path / "run", checkpoint=CheckpointConfig(100, None)))
    program.wishes = {2: Asked(checkpoint=True), 7: Asked(stop="enough")}
    result = run(program)
    assert (result.interrupted, result.stopped) == (False, "enough")
    assert CheckpointFolder(result.folder / "checkpoints").steps() == [2, 7]
    assert (result.folder / "count.txt").read_text() == "7"


def test_a_run_that_is_over_takes_no_step_when_it_is_resumed(tmp_path: Path) -> None:
    for resume in (False, True):
        program = Counter(CountConfig(tmp_path / "run"))
        program.wishes = {7: Asked(stop="enough")}
        assert run(program, resume=resume).stopped == "enough"
        assert program.state.step == 7
    assert count(CountConfig(tmp_path / "run"), resume=True).stopped == ""
    assert (tmp_path / "run" / "count.txt").read_text() == "10"


def test_who_looks_on_and_fails_ends_the_run_and_loses_nothing(tmp_path: Path) -> None:
    program = Counter(CountConfig(tmp_path / "run"))
    program.wishes = {6: Asked(failure=CallbackFailed("it fell over"))}
    path = tmp_path / "run" / "checkpoints" / "checkpoint-6.dc"
    said = rf"it fell over .*in {path} and .*count\.txt.* To continue: discorl count --resume"
    with pytest.raises(CallbackFailed, match=said):
        run(program)
    assert path.exists()
    assert (tmp_path / "run" / "count.txt").read_text() == "6"
