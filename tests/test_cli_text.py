"""What the command line prints: text from files shows as text, on every kind of terminal."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from discorl.cli import main
from discorl.errors import is_out_of_memory
from discorl.rules.store import save_rule
from tests.builders import random_rule_params, run_cli, small_disco
from tests.comparison.run_folders import constant, write_run
from tests.comparison.test_report import embedded

EVIL = "\x1b[2J\x1b]0;title\x07\u202e\ud800\nok: forged"
TINY = [
    *("--steps", "2", "--batch-size", "2", "--replay-capacity", "4", "--log-every", "1"),
    *("--rollout-length", "20", "--net.torso", "8", "--net.action-lstm", "8"),
    *("--net.head-hidden", "8", "--rule", "policy-gradient", "--device", "cpu"),
]


def assert_harmless(text: str) -> None:
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\u202e" not in text
    assert "\nok: forged" not in text
    assert text.encode(), "a broken character would not get this far"


def test_provenance_is_shown_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rule = small_disco()
    notes = {"by": EVIL, f"key{EVIL}": 1, "nested": {EVIL: [EVIL]}}
    save_rule(tmp_path / "rule.npz", rule, random_rule_params(rule), notes)
    assert main(["rules", "show", str(tmp_path / "rule.npz")]) == 0
    shown = capsys.readouterr().out
    assert_harmless(shown)
    assert "\\x1b[2J" in shown


def test_names_of_tasks_and_rules_are_shown_as_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in (0, 1):
        for name in ("a", "b"):
            folder = tmp_path / f"{name}{seed}"
            write_run(folder, constant(1.0 + seed), f"{EVIL}{name}", f"[/b]{EVIL}", seed)
            write_run(tmp_path / f"c{name}{seed}", constant(1.0), f"{EVIL}{name}", "x", seed)
    args = ["compare", str(tmp_path), "--html", str(tmp_path / "page.html"), "--bootstrap", "100"]
    assert main(args) == 0
    assert_harmless(capsys.readouterr().out)
    page = (tmp_path / "page.html").read_bytes().decode()
    assert_harmless(page)
    for task in embedded(page)["tasks"]:
        assert_harmless(task["task"] + task["groups"][0]["label"])


def test_errors_that_quote_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run", constant(1.0), task=EVIL)
    for command in (["evaluate", str(folder)], ["train", "--resume", str(folder)]):
        assert main(command) == 2
        err = capsys.readouterr().err
        assert_harmless(err)
        assert err.count("\n") == 1


def test_a_folder_whose_name_looks_like_markup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "catch:4x3", "--out", "w[bold]x[/nope]", *TINY]) == 0
    assert "w[bold]x[/nope]" in capsys.readouterr().out


def test_terminals_with_few_characters(tmp_path: Path) -> None:
    """The curve is drawn after everything is saved: too late to fail."""
    settings = os.environ | {"PYTHONIOENCODING": "ascii"}
    out = tmp_path / "run-ü"
    done = run_cli("train", "catch:4x3", "--out", str(out), *TINY, env=settings)
    assert done.returncode == 0, done.stderr
    assert "Done." in done.stdout
    assert " |" in done.stdout, "the axis of the curve"


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")],
)
def test_too_little_memory_is_one_line(
    error: Exception,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise error

    monkeypatch.setattr("discorl.training.train.act", fail)
    assert main(["train", "catch:4x3", "--out", str(tmp_path / "run"), *TINY]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: there is not enough memory")
    assert err.count("\n") == 1


@pytest.mark.parametrize("shape", [(10**15,), (10**9, 10**9, 10**9)], ids=str)
def test_what_torch_says_of_too_little_memory_is_understood(shape: tuple[int, ...]) -> None:
    with pytest.raises(RuntimeError) as error:
        torch.empty(shape)
    assert is_out_of_memory(error.value)
    assert not is_out_of_memory(RuntimeError("shapes do not match"))


def test_other_failures_keep_their_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("discorl.training.train.act", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["train", "catch:4x3", "--out", str(tmp_path / "run"), *TINY])
