"""Help: which options are shown first, how they are named, and how wide the lines are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

import pytest

from discorl.cli import COMMANDS, FUNCTIONS, main
from discorl.cli.help import help_text
from discorl.cli.options import groups_of, options_of
from discorl.discovery.config import DiscoverConfig
from discorl.discovery.presets import discovery_preset
from discorl.envs.env_config import of_other_envs
from discorl.option_marks import Common
from discorl.training.config import TrainConfig
from tests.builders import run_python

SETTINGS = {
    "train": (TrainConfig, TrainConfig()),
    "discover": (DiscoverConfig, discovery_preset("suite")),
}


def shown(*args: str, capsys: pytest.CaptureFixture[str]) -> str:
    try:
        code = main([*args])
    except SystemExit as stopped:
        code = stopped.code
    assert not code
    return capsys.readouterr().out


def flags(text: str) -> list[str]:
    return re.findall(r"^  (--[a-z][\w.-]*)", text, re.MULTILINE)


@pytest.mark.parametrize("command", SETTINGS)
def test_help_shows_about_ten_options_and_help_all_every_one(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    short = shown(command, "--help", capsys=capsys)
    assert 6 <= len(flags(short)) <= 14
    assert len(short.splitlines()) < 70
    assert f"discorl {command}" in short and "--help-all' explains all" in short
    every = shown(command, "--help-all", capsys=capsys)
    assert set(flags(short)) < set(flags(every))
    hidden = {"task", *(f"env.{name}" for name in of_other_envs())} if command == "train" else ()
    assert flags(every) == [o.name for o in options_of(*SETTINGS[command], hidden=hidden)]


@pytest.mark.parametrize("command", SETTINGS)
def test_every_option_has_a_text_and_its_default(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    every = shown(command, "--help-all", capsys=capsys)
    assert len(flags(every)) > 50
    assert every.count("(default: ") == len(flags(every))
    for option in options_of(*SETTINGS[command]):
        assert option.text.endswith("."), option.name


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
@pytest.mark.parametrize("command", [*COMMANDS, *FUNCTIONS])
def test_lines_fill_the_terminal_and_no_more(
    command: str,
    columns: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = shown(command, "--help-all", capsys=capsys)
    lines = text.splitlines()
    long_names = [line for line in lines if line.startswith("  --")]
    assert max(len(line) for line in lines if line not in long_names) <= columns


@pytest.mark.parametrize("command", [*SETTINGS, "evaluate", "compare", "analyse"])
def test_options_are_named_as_they_are_typed(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(command, "--help-all", capsys=capsys)
    fields_with_underscores = {
        part
        for cls, default in SETTINGS.values()
        for option in options_of(cls, default)
        for part in option.field.split(".")
        if "_" in part
    }
    words = set(re.findall(r"[\w.]+", text))
    assert not words & (fields_with_underscores - {"policy_target"})
    assert "lambda_" not in text


def test_the_trace_is_typed_as_it_is_shown() -> None:
    from discorl.cli.train import parse_train

    rule = ["--rule", "policy-gradient"]
    assert parse_train(["--returns.lambda", "0.5", *rule]).returns.lambda_ == 0.5
    assert parse_train(["--returns.lambda_=0.5", *rule]).returns.lambda_ == 0.5, "the old name"


def test_discover_offers_no_option_that_it_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown("discover", "--help-all", capsys=capsys)
    assert "suite:" not in text and "--env.suite" not in text and "subcommands" not in text


def test_train_offers_a_task_only_its_own_options(capsys: pytest.CaptureFixture[str]) -> None:
    on_tensors = shown("train", "catch", "--help-all", capsys=capsys)
    assert "--env.action-bins" not in on_tensors and "--env.truncation" in on_tensors
    on_atari = shown("train", "ale:Pong", "--rule", "cmpo", "--help-all", capsys=capsys)
    assert "--env.suite.sticky" in on_atari and "--env.action-bins" in on_atari


@dataclass(frozen=True)
class Inner:
    """What is inside."""

    width_: int = 3
    """How wide."""


@dataclass(frozen=True)
class Outer:
    """What is outside."""

    size: Common[int] = 1
    """How large,
    in all."""
    kind: Literal["a", "b"] = "a"
    """Which kind."""
    layers: tuple[int, ...] = (4, 5)
    """How many."""
    is_on: bool = False
    """Whether."""
    inner: Inner = field(default_factory=Inner)


def test_one_mark_at_a_field_decides() -> None:
    groups = groups_of(Outer, Outer(size=7))
    assert [o.name for g in groups for o in g.options if o.is_common] == ["--size"]
    text = help_text("discorl try [options]", "Try it.", groups, ["--help"])
    assert "--size INT" in text and "How large, in all. (default: 7)" in text
    assert "--kind a|b" in text and "--is-on, --no-is-on" in text, "few enough to show all"
    assert "(default: 4 5)" in text and "--inner.width INT" in text
    assert len(fields(Outer)) == 5


def test_help_does_not_wait_for_torch() -> None:
    code = "import sys, discorl.cli as c; c.main(['--help']); print('torch' in sys.modules)"
    done = run_python("-c", code, env={"PYTHONPATH": os.getcwd()})
    assert done.stdout.endswith("\nFalse\n"), done.stderr


@pytest.mark.parametrize("args", [["--help"], ["train", "--help-all"], ["rules", "list"]])
def test_a_reader_that_has_seen_enough_is_no_error(args: list[str]) -> None:
    """As in ``discorl --help | head -1``."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "discorl", *args],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        timeout=600,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


INTERRUPTED = """
import os, signal, sys
from discorl.cli import main
def strike(event, args):
    if event == "import" and args[0] == "torch._C":
        os.kill(os.getpid(), signal.SIGINT)
sys.addaudithook(strike)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_ctrl_c_while_torch_is_imported_is_one_line(command: str, tmp_path: Path) -> None:
    done = run_python("-c", INTERRUPTED, command, str(tmp_path), env={"PYTHONPATH": os.getcwd()})
    assert done.returncode == 130
    assert (done.stdout, done.stderr) == ("", "stopped\n")
