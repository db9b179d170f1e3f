"""Two real processes for one agent, as torchrun starts them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from discorl import tree
from discorl.errors import DiscorlError
from discorl.runs import distributed
from discorl.runs.checkpoint import CheckpointFolder, load, restore
from discorl.runs.distributed import Ranks
from discorl.runs.files import load_params
from discorl.runs.metrics import TIMING_FIELDS, read_rows
from discorl.training.rule_choice import read_config
from discorl.training.train import resume
from tests.builders import RULES, assert_bit_equal, run_python
from tests.runs import two_processes

ROOT = Path(__file__).parents[2]
ENV = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
TINY = (
    *("--rule", "actor-critic", "--steps", "12", "--log-every", "4", "--device", "cpu"),
    *("--num-envs", "4", "--batch-size", "4", "--replay-capacity", "16", "--rollout-length", "5"),
    *("--net.torso", "8", "--net.action-lstm", "4", "--net.head-hidden", "4"),
    *("--checkpoint.every-steps", "4"),
)


@pytest.fixture(scope="module")
def shared_updates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("shared")
    script = Path(two_processes.__file__)
    done = run_python(*TORCHRUN, script, out, env=ENV)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.parametrize("name", RULES)
def test_two_processes_equal_one_with_the_whole_batch(name: str, shared_updates: Path) -> None:
    """Parameters, moments, lifetime state, losses and gradient norms, in float64."""
    want, want_said = two_processes.learn(name, 0, two_processes.BATCH)
    first, second = (load(shared_updates / f"{name}-{rank}.dc") for rank in range(2))
    got = restore(want, first["state"])
    for x, y in zip(tree.leaves(got), tree.leaves(want), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-9)
    assert first["said"] == pytest.approx(want_said, rel=1e-6)
    assert_bit_equal(got, restore(want, second["state"]))

    half, _ = two_processes.learn(name, 0, two_processes.BATCH // 2)
    distance = max(float((x - y).abs().max()) for x, y in zip(tree.leaves(half), tree.leaves(want)))
    assert distance > 1e-3, "the halves would not do alone"


def test_alone_the_same_functions_do_nothing() -> None:
    ranks = distributed.start("cpu")
    assert (ranks.rank, ranks.size, ranks.is_first) == (0, 1, True)
    two_processes.check_messages(ranks)


def test_shares() -> None:
    ranks = Ranks(1, 4, torch.device("cpu"))
    assert ranks.shard(8, "batch_size") == 2
    with pytest.raises(DiscorlError, match="batch_size is 6, which 4 processes cannot share"):
        ranks.shard(6, "batch_size")
    assert [ranks.share(n) for n in (0, 1, 8, 9)] == [0, 1, 2, 3]
    assert len({Ranks(r, 4, torch.device("cpu")).seed(7) for r in range(4)}) == 4
    assert Ranks(0, 4, torch.device("cpu")).seed(7) == 7


# --- whole runs ----------------------------------------------------------------------------------


def timeless(folder: Path) -> list[dict]:
    rows = read_rows(folder / "metrics.jsonl")
    return [{k: v for k, v in row.items() if k not in TIMING_FIELDS} for row in rows]


@pytest.mark.slow
def test_a_run_of_two_processes_and_its_resumption(tmp_path: Path) -> None:
    def torchrun(*args: str | Path) -> subprocess.CompletedProcess[str]:
        return run_python(*TORCHRUN, "-m", "discorl", "train", *args, env=ENV)

    whole, cut = tmp_path / "whole", tmp_path / "cut"
    done = torchrun("catch:4x3", *TINY, "--out", whole)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("step 12/12") == 1, "one process speaks for both"
    assert json.loads((whole / "config.json").read_text())["num_processes"] == 2
    rows = timeless(whole)
    assert [row["step"] for row in rows] == [4, 8, 12]
    assert [row["env_steps"] for row in rows] == [80, 160, 240]
    assert rows[0]["episodes"] == 4 * (20 // 3), "of all four environments"
    saved = load(whole / "checkpoints" / "checkpoint-12.dc")
    first, second = saved["processes"]
    assert first["replay"]["storage"]["observations"].shape == (5, 8, 4, 3)
    assert not torch.equal(
        first["replay"]["storage"]["observations"], second["replay"]["storage"]["observations"]
    )

    args = list(TINY)
    args[args.index("12")] = "8"
    assert torchrun("catch:4x3", *args, "--out", cut).returncode == 0
    with pytest.raises(DiscorlError, match=r"a run of 2 process\(es\), not 1"):
        resume(read_config(cut)[0])
    done = torchrun("--resume", cut, "--steps", "12")
    assert done.returncode == 0, done.stderr
    assert_bit_equal(load_params(whole / "agent.npz"), load_params(cut / "agent.npz"))
    assert timeless(cut) == rows


@pytest.mark.slow
def test_the_first_of_two_processes_evaluates_and_stops_both(tmp_path: Path) -> None:
    """Neither changes the agent, and the run is resumed exactly."""

    def torchrun(*args: str | Path) -> None:
        done = run_python(*TORCHRUN, "-m", "discorl", "train", *args, env=ENV)
        assert done.returncode == 0, done.stderr

    alone, watched = tmp_path / "alone", tmp_path / "watched"
    torchrun("catch:4x3", *TINY, "--out", alone)
    watching = ("--eval-every", "4", "--eval-episodes", "3")
    torchrun("catch:4x3", *TINY, *watching, "--stop-at-return", "-1", "--out", watched)
    assert [row["step"] for row in timeless(watched)] == [4], "an evaluation reached the goal"
    torchrun("--resume", watched, "--stop-at-return", "None")
    assert_bit_equal(load_params(alone / "agent.npz"), load_params(watched / "agent.npz"))
    assert all("eval/sampled" in row for row in timeless(watched))
    assert (watched / "best.npz").exists()


def workers_of(torchrun: int) -> list[int]:
    """The processes that a torchrun started."""
    found = subprocess.run(["pgrep", "-P", str(torchrun)], capture_output=True, text=True)
    return [int(pid) for pid in found.stdout.split()]


@pytest.mark.slow
@pytest.mark.parametrize("max_restarts", [0, 1])
def test_a_dead_process(max_restarts: int, tmp_path: Path) -> None:
    """It brings the job down, or the job starts again from the last checkpoint."""
    args = list(TINY)
    args[args.index("12")] = "300"
    command = [sys.executable, *TORCHRUN, "--max-restarts", str(max_restarts)]
    command += ["-m", "discorl", "train", "catch:4x3", *args, "--out"]
    done = subprocess.run(
        [*command, str(tmp_path / "whole")], capture_output=True, env=os.environ | ENV
    )
    assert done.returncode == 0
    cut = tmp_path / "cut"
    process = subprocess.Popen(
        [*command, str(cut)], stderr=subprocess.PIPE, text=True, env=os.environ | ENV
    )
    while process.poll() is None and len(CheckpointFolder(cut / "checkpoints").steps()) < 2:
        time.sleep(0.02)
    os.kill(workers_of(process.pid)[-1], signal.SIGKILL)
    _, err = process.communicate(timeout=1800)
    if max_restarts:
        assert process.returncode == 0, err
    else:
        assert process.returncode != 0
        done = run_python(*TORCHRUN, "-m", "discorl", "train", "--resume", cut, env=ENV)
        assert done.returncode == 0, done.stderr
    assert timeless(cut) == timeless(tmp_path / "whole")
    assert_bit_equal(load_params(cut / "agent.npz"), load_params(tmp_path / "whole" / "agent.npz"))


def start_two(out: Path, *more: str, kind: str = "train") -> subprocess.Popen[str]:
    """A job that has logged something and would go on for long."""
    args = ["train", "catch:4x3", *TINY, "--steps", "1000000"]
    if kind == "discover":
        args = ["discover", "suite", "--tasks", "catch:4x3*1/8x8", "chain*1/8x8", "--held-out"]
        args += ["--steps", "100000", "--device", "cpu", "--warm-start", "0"]
        args += ["--window.num-updates", "2", "--log-every", "1"]
    process = subprocess.Popen(
        [sys.executable, *TORCHRUN, "-m", "discorl", *args, "--out", str(out), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | ENV,
    )
    while process.poll() is None and not read_rows(out / "metrics.jsonl"):
        time.sleep(0.02)
    return process


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["train", "discover"])
@pytest.mark.parametrize("name, said", [("SIGINT", "Ctrl-C"), ("SIGTERM", None), ("SIGHUP", None)])
def test_signals_to_torchrun_save_first(
    name: str, said: str | None, kind: str, tmp_path: Path
) -> None:
    """It hands them on, and waits for half a minute."""
    never = "--checkpoint.every-steps" if kind == "train" else "--checkpoint-every"
    process = start_two(tmp_path / "run", never, "1000000", kind=kind)
    process.send_signal(signal.Signals[name])
    out, err = process.communicate(timeout=600)
    assert f"Stopped by {said or name}" in out, err
    (step,) = CheckpointFolder(tmp_path / "run" / "checkpoints").steps()
    last = read_rows(tmp_path / "run" / "metrics.jsonl")[-1]["step"]
    assert last <= step < last + 4
    assert (tmp_path / "run" / ("agent.npz" if kind == "train" else "rule.npz")).exists()


@pytest.mark.slow
def test_a_process_that_is_stopped(tmp_path: Path) -> None:
    """After --timeout-minutes the job ends, and keeps the agent and its last checkpoint."""
    process = start_two(tmp_path / "run", "--timeout-minutes", "0.2")
    while process.poll() is None and not CheckpointFolder(tmp_path / "run/checkpoints").steps():
        time.sleep(0.02)
    started = time.monotonic()
    os.kill(workers_of(process.pid)[-1], signal.SIGSTOP)
    _, err = process.communicate(timeout=600)
    assert process.returncode != 0
    assert 10 < time.monotonic() - started < 300
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert "another process of this run has not answered in time" in line
    assert "--timeout-minutes" in line and "agent.npz" in line
    assert (tmp_path / "run" / "agent.npz").exists()
    assert CheckpointFolder(tmp_path / "run" / "checkpoints").latest() is not None


@pytest.mark.slow
def test_a_restart_leaves_a_run_of_someone_else_alone(tmp_path: Path) -> None:
    args = list(TINY)
    args[args.index("12")] = "4"
    command = [*TORCHRUN, "--max-restarts", "1", "-m", "discorl", "train", "catch:4x3"]
    assert run_python(*command, *args, "--out", tmp_path / "run", env=ENV).returncode == 0
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    done = run_python(*command, *TINY, "--out", tmp_path / "run", env=ENV)
    assert done.returncode != 0
    assert done.stderr.count("already holds a run") == 2, "the second time after a restart"
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_joining_ends_although_torch_would_wait_for_ever() -> None:
    """For a process that was stopped just as it joined; the wait cannot be interrupted."""
    script = (
        "import time\n"
        "from datetime import timedelta\n"
        "from discorl.runs.distributed import _no_longer_than\n"
        "with _no_longer_than(timedelta(seconds=60)):\n"
        "    pass  # in time\n"
        "with _no_longer_than(timedelta(seconds=0.2)):\n"
        "    time.sleep(100)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: another process does not answer")
