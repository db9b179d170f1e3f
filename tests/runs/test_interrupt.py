"""Signals that ask a run to stop."""

from __future__ import annotations

import os
import pty
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from discorl.runs.checkpoint import CheckpointFolder
from discorl.runs.interrupt import StopRequest
from discorl.runs.metrics import read_rows

TINY = (
    *("--rule", "actor-critic", "--steps", "1000000", "--log-every", "1", "--device", "cpu"),
    *("--num-envs", "2", "--batch-size", "4", "--replay-capacity", "16", "--rollout-length", "5"),
    *("--net.torso", "8", "--net.action-lstm", "4", "--net.head-hidden", "4"),
)
DISCOVER = (
    *("discover", "suite", "--tasks", "catch:4x3*1/8x8", "--steps", "100000", "--device", "cpu"),
    *("--held-out", "--warm-start", "0", "--log-every", "1", "--window.num-updates", "2"),
)
TRAIN = ("train", "catch:4x3", *TINY)
ASYNC = ("train", "gym:CartPole-v1", *TINY, "--workers", "async")


@pytest.fixture(autouse=True)
def _handlers_stay_as_they_were() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)}
    yield
    after = {number: signal.getsignal(number) for number in before}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert after == before


@pytest.mark.parametrize("patient", [False, True])
@pytest.mark.parametrize(
    "number, name",
    [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM"), (signal.SIGHUP, "SIGHUP")],
)
def test_the_first_signal_is_noted(number: int, name: str, patient: bool) -> None:
    with StopRequest(patient) as stop:
        assert not stop.requested
        os.kill(os.getpid(), number)
        assert (stop.requested, stop.reason, stop.insisted) == (True, name, False)


def test_a_second_ctrl_c_raises() -> None:
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGHUP)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert stop.insisted
    with StopRequest(patient=True) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        assert not stop.insisted


def test_nohup_is_respected_unless_torchrun_got_through_it() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.requested
        with StopRequest(patient=True) as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.reason == "SIGHUP"
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


# --- real runs -----------------------------------------------------------------------------------


def num_rows(out: Path) -> int:
    path = out / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def start(*args: str, out: Path, first: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """A run in a process group of its own, which has logged a few steps."""
    process = subprocess.Popen(
        [*first, sys.executable, "-m", "discorl", *args, "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    while process.poll() is None and num_rows(out) < 3:
        time.sleep(0.01)
    return process


def assert_saved(process: subprocess.Popen[str], out: Path, reason: str) -> None:
    said, err = process.communicate(timeout=600)
    assert (process.returncode, err) == (130, "")
    assert f"Stopped by {reason}" in said and "Resume with" in said
    (*_, step) = CheckpointFolder(out / "checkpoints").steps()
    assert step == read_rows(out / "metrics.jsonl")[-1]["step"], "the step it stopped at"


@pytest.mark.parametrize("args", [TRAIN, DISCOVER], ids=["train", "discover"])
def test_sighup_saves_first(args: tuple[str, ...], tmp_path: Path) -> None:
    process = start(*args, out=tmp_path / "run")
    process.send_signal(signal.SIGHUP)
    assert_saved(process, tmp_path / "run", "SIGHUP")


def test_nohup_keeps_a_run_going(tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start(*TRAIN, out=out, first=("nohup",))
    process.send_signal(signal.SIGHUP)
    seen = num_rows(out)
    while process.poll() is None and num_rows(out) < seen + 3:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=600)  # nohup itself says something on standard error
    assert process.returncode == 130 and "Stopped by SIGTERM" in said


@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP", "SIGTERM"])
def test_a_signal_to_all_processes_of_an_async_run(name: str, tmp_path: Path) -> None:
    """At random moments: a terminal's Ctrl-C or hang-up, or a batch system's end of a job."""
    moments = random.Random(name)
    for i in range(4 if name == "SIGINT" else 1):
        out = tmp_path / str(i)
        process = start(*ASYNC, out=out)
        time.sleep(moments.uniform(0, 0.2))
        os.killpg(process.pid, signal.Signals[name])
        assert_saved(process, out, "Ctrl-C" if name == "SIGINT" else name)
        shutil.rmtree(out)


def test_a_terminal_that_is_closed(tmp_path: Path) -> None:
    """SIGHUP comes to all processes, and there is nothing to print to any more."""
    out = tmp_path / "run"
    command = [sys.executable, "-m", "discorl", *ASYNC, "--out", str(out), "--progress", "bar"]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(command[0], command, os.environ | {"OMP_NUM_THREADS": "1"})
    shown = b""
    while num_rows(out) < 3:
        shown += os.read(terminal, 1024)
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 130, shown
    assert b"Training on" in shown
    assert (out / "agent.npz").exists()
    (step,) = CheckpointFolder(out / "checkpoints").steps()
    assert step == read_rows(out / "metrics.jsonl")[-1]["step"]


OWN_VECTOR = """
import sys
from pathlib import Path
from gymnasium.vector import AsyncVectorEnv
from discorl import TrainConfig, train
from discorl.cli.train import parse_train
from tests.envs.gym_examples import Corridor
config = parse_train(["gym:Own", *sys.argv[1:]])
vector = AsyncVectorEnv([Corridor] * 2, autoreset_mode="SameStep")
sys.exit(130 if train(config, env=vector).interrupted else 0)
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_worker_processes_that_the_user_made(name: str, tmp_path: Path) -> None:
    """They do not leave signals to the run: it saves when they report them, or are gone."""
    out = tmp_path / "run"
    with subprocess.Popen(
        [sys.executable, "-c", OWN_VECTOR, *TINY, "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # Gymnasium logs tracebacks
        text=True,
        start_new_session=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    ) as process:
        while process.poll() is None and num_rows(out) < 3:
            time.sleep(0.01)
        os.killpg(process.pid, signal.Signals[name])
        said, _ = process.communicate(timeout=600)
    assert process.returncode == 130
    assert f"Stopped by {'Ctrl-C' if name == 'SIGINT' else name}" in said
    (*_, step) = CheckpointFolder(out / "checkpoints").steps()
    assert step == read_rows(out / "metrics.jsonl")[-1]["step"]


def test_a_second_ctrl_c_ends_at_once_and_leaves_no_half_file(tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start(*ASYNC, out=out)
    for _ in range(2):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.001)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 130 and "Traceback" not in err
    assert not list(out.rglob(".*"))
