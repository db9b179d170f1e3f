"""Disco103 on first use: asked once in a terminal, and never elsewhere."""

from __future__ import annotations

import builtins
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from discorl.cli import first_use, main
from discorl.cli.first_use import ask_before_download
from discorl.errors import DiscorlError
from discorl.rules import store
from discorl.rules.store import cache_path, fetch_disco103, load_rule

QUESTION = "Download Disco103 now"


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A machine without Disco103, whose user answers no; an entry for each answer so far."""
    answers: list[str] = []

    def answer() -> str:
        answers.append("n")
        return "n"

    for name in ("DISCORL_DISCO103", "DISCORL_OFFLINE", "RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(builtins, "input", answer)
    monkeypatch.setattr(first_use, "_someone_is_there", lambda: True)
    return answers


def downloads(monkeypatch: pytest.MonkeyPatch, error: str = "") -> list[Path]:
    """Downloads write a file at once, or fail; the files so far."""
    fetched: list[Path] = []

    def download(url: str, path: Path, *_: object) -> None:
        if error:
            raise DiscorlError(error)
        fetched.append(path)

    monkeypatch.setattr(store, "download", download)
    return fetched


def test_a_user_who_declines_is_asked_once(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fetched = downloads(monkeypatch)
    ask_before_download("auto")
    ask_before_download("auto")
    assert len(asked) == 1 and not fetched
    out = capsys.readouterr().out
    assert QUESTION in out and "this run uses cmpo" in out


@pytest.mark.parametrize("answer", ["", "y", "Yes "])
def test_a_user_who_agrees_gets_it(
    answer: str, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builtins, "input", lambda: answer)
    fetched = downloads(monkeypatch)
    ask_before_download("auto")
    assert fetched == [cache_path()]


def test_a_download_that_fails_leaves_the_fallback(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(builtins, "input", lambda: "y")
    downloads(monkeypatch, "no connection")
    ask_before_download("auto")
    err = capsys.readouterr().err
    assert err.startswith("warning: ") and err.count("\n") == 1
    assert "no connection" in err and "--rule cmpo" in err


@pytest.mark.parametrize("why", ["offline", "nobody is there", "it is here"])
def test_nobody_is_asked(why: str, asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if why == "offline":
        monkeypatch.setenv("DISCORL_OFFLINE", "1")
    elif why == "nobody is there":
        monkeypatch.undo()  # there is no terminal in a test
        monkeypatch.setattr(store, "find_disco103", lambda: None)
    else:
        monkeypatch.setattr(store, "find_disco103", lambda: Path("disco_103.npz"))
    ask_before_download("auto")
    assert not asked


@pytest.mark.parametrize(
    "command",
    [
        ("train", "--rule", "disco103"),
        ("sweep", "--rules", "actor-critic,disco103", "--seeds", "0"),
        ("tune", "--rule", "disco103"),
        ("discover", "--init", "disco103"),
        ("analyse", "disco103"),
        ("rules", "show", "disco103"),
        ("rules", "verify"),
        ("rules", "export", "disco103", "rule.npz"),
    ],
    ids=lambda command: command[0] + command[1],
)
def test_whoever_names_it_is_asked_too(
    command: tuple[str, ...],
    asked: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It used to be downloaded without a question."""
    monkeypatch.chdir(tmp_path)
    fetched = downloads(monkeypatch)
    for _ in range(2):
        assert main(list(command)) == 2
        assert "declined to download it: use 'discorl rules fetch'" in capsys.readouterr().err
    assert len(asked) == 1 and not fetched
    assert main(["rules", "fetch"]) == 0
    assert fetched == [cache_path()], "which does not ask"


@pytest.mark.parametrize(
    "command", [("evaluate",), ("export",), ("train", "--resume")], ids=lambda command: command[0]
)
def test_agents_that_need_it_ask_too(
    command: tuple[str, ...],
    asked: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, fetched = tmp_path / "run", downloads(monkeypatch)
    assert main([*TINY, "--rule", "actor-critic", "--out", str(run)]) == 0
    content = json.loads((run / "config.json").read_text())
    content["resolved_rule"] |= {"name": "disco103"}
    (run / "config.json").write_text(json.dumps(content))
    assert main([*command, str(run)]) == 2
    assert "declined to download it" in capsys.readouterr().err
    assert len(asked) == 1 and not fetched


def test_whoever_names_it_and_agrees_gets_it(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builtins, "input", lambda: "y")
    fetched = downloads(monkeypatch)
    ask_before_download("disco103")
    assert fetched == [cache_path()]
    downloads(monkeypatch, "no connection")
    with pytest.raises(DiscorlError, match="no connection"):
        ask_before_download("disco103")


@pytest.mark.parametrize("rule", ["disco-mini", "actor-critic", "rule.npz"])
def test_other_rules_need_no_question(rule: str, asked: list[str]) -> None:
    ask_before_download(rule)
    assert not asked


def test_help_asks_nothing(asked: list[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    assert not asked


TINY = (
    *("train", "--steps", "1", "--num-envs", "1", "--rollout-length", "2"),
    *("--net.torso", "4", "--net.action-lstm", "4", "--net.head-hidden", "4"),
)


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
def test_training_in_a_terminal_asks_once(tmp_path: Path) -> None:
    assert QUESTION in in_terminal("n\n", tmp_path)
    said = in_terminal("", tmp_path)
    assert QUESTION not in said and "this run uses cmpo" in said


def in_terminal(answer: str, folder: Path) -> str:
    """What a terminal shows of a short run on a machine without Disco103."""
    import pty

    ours, theirs = pty.openpty()
    env = {k: v for k, v in os.environ.items() if k not in ("DISCORL_DISCO103", "RANK")}
    command = [sys.executable, "-m", "discorl", *TINY, "--out", f"{folder / 'run'}{len(answer)}"]
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, env=env | {"XDG_CACHE_HOME": str(folder)}
    )
    os.close(theirs)
    os.write(ours, answer.encode())
    shown = b""
    with contextlib.suppress(OSError):  # the end, on Linux
        while part := os.read(ours, 4096):
            shown += part
    os.close(ours)
    assert process.wait(timeout=600) == 0
    return " ".join(shown.decode().split())


def test_offline_never_downloads(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fetched = downloads(monkeypatch)
    monkeypatch.setenv("DISCORL_OFFLINE", "0")  # so that it is put back, whatever main does
    assert load_rule_or_error() == "" and len(fetched) == 1
    assert main(["train", "--rule", "disco103", "--offline"]) == 2
    assert "--rule cmpo" in capsys.readouterr().err
    assert os.environ["DISCORL_OFFLINE"] == "1", "for other processes, too"
    with pytest.raises(DiscorlError, match="--offline or DISCORL_OFFLINE forbids"):
        fetch_disco103()
    assert len(fetched) == 1 and not asked


def load_rule_or_error() -> str:
    """Ask for Disco103 by name, which is to be downloaded; what the file lacks does not matter."""
    with pytest.raises(DiscorlError, match="no such rule file"):
        load_rule("disco103")
    return ""
