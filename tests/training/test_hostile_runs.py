"""Run folders that someone has tampered with end in one line, whatever is done with them."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from discorl.cli import main
from discorl.runs.files import load_params, save_params

FOLDERS = Path(__file__).parents[1] / "compatibility" / "v0_1"
PREFIX = struct.Struct("<8sIQQ")


def copy(name: str, to: Path) -> Path:
    shutil.copytree(FOLDERS / name, to / name)
    return to / name


def checkpoint_of(folder: Path) -> Path:
    return next((folder / "checkpoints").iterdir())


def tamper(path: Path, change: Callable[[Any], None]) -> None:
    """Change a checkpoint's header, and seal it again."""
    whole = path.read_bytes()
    magic, version, length, data = PREFIX.unpack(whole[: PREFIX.size])
    header = json.loads(whole[PREFIX.size : PREFIX.size + length])
    change(header)
    text = json.dumps(header).encode()
    body = PREFIX.pack(magic, version, len(text), data) + text
    body += whole[PREFIX.size + length : PREFIX.size + length + data]
    path.write_bytes(body + hashlib.sha256(body).digest())


def assert_one_line(args: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    code = main(args)
    err = capsys.readouterr().err
    assert code == 2
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert says in err


def of_process(header: Any) -> Any:
    return header["tree"]["dict"]["processes"]["list"][0]["dict"]


def of_all(header: Any) -> Any:
    return header["tree"]["dict"]["shared"]["dict"]


CHANGES: dict[str, Callable[[Any], Any]] = {
    "episodes are an array": lambda h: of_process(h).update(episodes={"tensor": 5}),
    "an episode is nothing": lambda h: of_process(h)["episodes"]["dict"]["recent"][
        "list"
    ].__setitem__(0, None),
    "memory of an environment without": lambda h: of_process(h).update(env_memory="text"),
    "metrics without names": lambda h: of_all(h)["updates"]["dict"].update(latest={"scalar": 0}),
    "metrics of other names": lambda h: of_all(h)["updates"]["dict"].update(names={"list": [1]}),
    "another step": lambda h: of_all(h).update(step=-1),
    "no time": lambda h: of_all(h).update(seconds=float("nan")),
    "a replay beyond its end": lambda h: of_process(h)["replay"]["dict"].update(size=10**9),
    "a replay before its start": lambda h: of_process(h)["replay"]["dict"].update(next=-1),
    "no processes": lambda h: h["tree"]["dict"].update(processes={"list": []}),
    "processes are a number": lambda h: h["tree"]["dict"].update(processes=3),
    "nothing shared": lambda h: h["tree"]["dict"].pop("shared"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_sealed_checkpoint_that_makes_no_sense(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy("catch", tmp_path)
    tamper(checkpoint_of(folder), CHANGES[name])
    assert_one_line(["train", "--resume", str(folder), "--steps", "9"], "checkpoint", capsys)


def test_a_checkpoint_of_another_kind_of_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training, discovery = copy("catch", tmp_path), copy("discover-plain", tmp_path)
    one, other = checkpoint_of(training), checkpoint_of(discovery)
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    for command, folder in (("train", training), ("discover", discovery)):
        args = [command, "--resume", str(folder), "--steps", "9"]
        assert_one_line(args, "the checkpoint is not from", capsys)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("options", [[], ["--greedy"]], ids=["sampled", "greedy"])
def test_an_agent_of_nan(
    value: float, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy("catch", tmp_path)
    params = load_params(folder / "agent.npz")
    save_params(folder / "agent.npz", {k: torch.full_like(p, value) for k, p in params.items()})
    args = ["evaluate", str(folder), "--episodes", "2", *options]
    assert_one_line(args, "NaN or infinite", capsys)


def test_no_memory_is_taken_for_a_network_that_the_agent_does_not_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The widest layers would take gigabytes; the file has a few kilobytes."""
    folder = copy("catch", tmp_path)
    settings = json.loads((folder / "config.json").read_text())
    settings["net"]["torso"] = [2**14] * 100
    (folder / "config.json").write_text(json.dumps(settings))
    assert_one_line(["evaluate", str(folder)], "does not fit the network", capsys)


@pytest.mark.parametrize("rule", [None, 3, [], {}, {"name": 3, "path": None}, {"name": "x"}])
def test_a_rule_that_is_none(rule: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = copy("catch", tmp_path)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"resolved_rule": rule}))
    assert_one_line(["evaluate", str(folder)], "resolved_rule", capsys)


def test_metrics_that_are_no_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They would only be noticed when the curve is drawn, at the end of the run."""
    folder = copy("catch", tmp_path)
    path = folder / "metrics.jsonl"
    path.write_text('{"step": 1, "return": "high"}\n' + path.read_text())
    args = ["train", "--resume", str(folder), "--steps", "9"]
    assert_one_line(args, "line 1: its return is not a number", capsys)
