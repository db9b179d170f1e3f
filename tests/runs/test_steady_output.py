"""Standard output and error that break in the middle of something."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from discorl.runs.metrics import read_rows
from discorl.runs.steady_output import SteadyStream, steady_output
from tests.builders import run_cli

TINY = (
    *("--rule", "actor-critic", "--steps", "40", "--log-every", "1", "--device", "cpu"),
    *("--num-envs", "2", "--batch-size", "4", "--replay-capacity", "16", "--rollout-length", "5"),
    *("--net.torso", "8", "--net.action-lstm", "4", "--net.head-hidden", "4"),
    *("--progress", "lines"),
)


class Breaks(io.StringIO):
    """Takes some lines, then fails."""

    def __init__(self, num_lines: int, error: Exception) -> None:
        super().__init__()
        self.left, self.error = num_lines, error

    def write(self, text: str) -> int:
        if self.left == 0:
            raise self.error
        self.left -= 1
        return super().write(text)


@pytest.mark.parametrize(
    "error, why",
    [
        (BrokenPipeError(32, "Broken pipe"), "Broken pipe"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (ValueError("I/O operation on closed file"), "I/O operation on closed file"),
    ],
)
def test_what_is_lost_is_said_at_the_end(
    error: Exception, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, err = Breaks(2, error), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with steady_output():
        for _ in range(5):
            sys.stdout.write("a line")
            sys.stdout.flush()
        with steady_output():
            print("inside")
        assert err.getvalue() == "", "only at the end"
    assert (sys.stdout, sys.stderr) == (out, err)
    assert out.getvalue() == "a linea line"
    said = err.getvalue()
    assert said.startswith("warning: standard output was lost since 2") and f"({why})" in said
    assert said.count("\n") == 1


def test_nothing_is_said_if_nothing_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    with steady_output():
        sys.stdout.writelines(["one\n", "two\n"])
        print("three", file=sys.stderr)
    assert capsys.readouterr() == ("one\ntwo\n", "three\n")


def test_text_that_cannot_be_encoded_is_not_the_streams_fault() -> None:
    stream = SteadyStream(io.TextIOWrapper(io.BytesIO(), "ascii"))
    with pytest.raises(UnicodeEncodeError):
        stream.write("é")
    assert stream.loss is None


def discorl(*args: str | Path, out: Any, err: Any = subprocess.PIPE) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "discorl", *map(str, args)],
        stdout=out,
        stderr=err,
        text=True,
        timeout=1800,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    return done.returncode, done.stderr


def is_whole(folder: Path, steps: int) -> bool:
    found = {path.name for path in folder.iterdir()}
    assert found >= {"config.json", "curve.png", "checkpoints", "metrics.jsonl"}
    return read_rows(folder / "metrics.jsonl")[-1]["step"] == steps


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_standard_output(tmp_path: Path) -> None:
    """Training, evaluation and comparison go on to their end."""
    lost = "warning: standard output was lost since "
    run, report, numbers = tmp_path / "run", tmp_path / "report.html", tmp_path / "numbers.json"
    with open("/dev/full", "w") as full:
        code, err = discorl("train", "catch:4x3", *TINY, "--out", run, out=full)
        assert code == 0 and err.startswith(lost) and err.count("\n") == 1, err
        assert is_whole(run, 40) and (run / "agent.npz").exists()
        code, err = discorl("evaluate", run, "--episodes", "4", "--json", numbers, out=full)
        assert code == 0 and err.startswith(lost) and numbers.exists(), err
        code, err = discorl("compare", run, "--html", report, out=full)
        assert code == 0 and err.startswith(lost) and report.exists(), err
        code, err = discorl("train", "--resume", run, "--steps", "50", out=full, err=full)
        assert code == 0 and is_whole(run, 50), "with standard error gone, too"
        code, err = discorl("train", "--resume", tmp_path / "none", out=full)
        assert code == 2 and err.startswith("error: "), "failures are still failures"


@pytest.mark.parametrize("kind", ["train", "discover"])
def test_a_pipe_that_is_closed(kind: str, tmp_path: Path) -> None:
    """As by ``| head -1``."""
    args = ["train", "catch:4x3", *TINY]
    if kind == "discover":
        args = ["discover", "suite", "--tasks", "catch:4x3*1/8x8", "--steps", "6", "--device"]
        args += ["cpu", "--held-out", "--warm-start", "0", "--progress", "lines"]
        args += ["--log-every", "1", "--window.num-updates", "2"]
    with subprocess.Popen(
        [sys.executable, "-m", "discorl", *args, "--out", str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert "ing on" in process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read()
    assert process.returncode == 0, err
    assert err.count("\n") == 1 and "(Broken pipe)" in err
    assert is_whole(tmp_path / "run", 40 if kind == "train" else 6)


def test_streams_that_were_closed_from_the_start(tmp_path: Path) -> None:
    """Nothing is printed into files that get their numbers."""
    command = 'exec "$0" -m discorl train catch:4x3 "$@" >&- 2>&-'
    args = [sys.executable, *TINY, "--out", str(tmp_path / "run")]
    done = subprocess.run(["sh", "-c", command, *args], timeout=1800)
    assert done.returncode == 0 and is_whole(tmp_path / "run", 40)


def test_help_into_a_closed_pipe() -> None:
    read, write = os.pipe()
    os.close(read)
    code, err = discorl("--help", out=write)
    os.close(write)
    assert code == 0 and "Traceback" not in err and "Exception" not in err
    assert run_cli("--help").stderr == ""
