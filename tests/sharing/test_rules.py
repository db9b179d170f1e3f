"""Rules to the hub and back, through its client and a stand-in of its interface."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pytest

from discorl.cli import main
from discorl.errors import DiscorlError
from discorl.rules.store import load_rule, save_rule
from discorl.sharing.rules import publish_rule, pull_rule
from tests.builders import random_rule_params, run_cli, small_disco, write_small_rule
from tests.sharing.stand_in import TOKEN, StandIn


def test_a_rule_arrives_byte_for_byte(hub: StandIn, tmp_path: Path) -> None:
    rule = write_small_rule(tmp_path / "found.npz")
    assert publish_rule(rule, "me/my-rule") == f"{hub.url}/me/my-rule"
    assert hub.messages == ["The update rule found"]
    loaded = pull_rule("me/my-rule")
    assert loaded.path == Path("my-rule.npz")
    assert loaded.path.read_bytes() == rule.read_bytes()
    assert [p.name for p in Path.cwd().iterdir()] == ["my-rule.npz"], "nothing else is left"
    assert hub.served == ["rule.npz"], "nothing else is fetched"


def test_the_card(hub: StandIn, tmp_path: Path) -> None:
    """Its provenance, scores and curve, with text of strangers as text."""
    run, rule = tmp_path / "run", small_disco()
    run.mkdir()
    (run / "config.json").write_text("{}")
    (run / "curve.png").write_bytes(b"a picture")
    rows = [{"step": 1, "held_out/catch": 0.25}, {"step": 2, "held_out/catch": 0.75}]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    provenance = {"seed": 7, "note": "a | b <script> [x](http://evil) \x1b[2J\nnew line"}
    save_rule(run / "rule.npz", rule, random_rule_params(rule), provenance)
    publish_rule(run, "me/my-rule")
    assert set(hub.files["me/my-rule"]) == {"README.md", "rule.npz", "curve.png"}
    card = hub.files["me/my-rule"]["README.md"].decode()
    assert card.startswith("---\nlibrary_name: discorl\n") and "- meta-learning\n" in card
    assert "discorl rules pull me/my-rule" in card
    assert hashlib.sha256((run / "rule.npz").read_bytes()).hexdigest() in card
    assert "| seed | 7 |" in card and "| held&#95;out/catch | 0.75 |" in card
    assert "![The curve of the run](curve.png)" in card
    assert "<script>" not in card and "\x1b" not in card and "](http://evil" not in card


def test_the_commands(hub: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "publish", "disco-mini", "me/mini", "--private"]) == 0
    assert f"Published: {hub.url}/me/mini" in capsys.readouterr().out
    assert hub.private == {"me/mini": True}
    out = tmp_path / "pulled.npz"
    assert main(["rules", "pull", "me/mini", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert hashlib.sha256(out.read_bytes()).hexdigest() in shown
    assert load_rule(out).provenance == load_rule("disco-mini").provenance
    assert main(["rules", "pull", "me/mini", "--out", str(out)]) == 2
    assert "is already there" in capsys.readouterr().err


def test_files_that_are_no_rules_are_refused(hub: StandIn, tmp_path: Path) -> None:
    publish_rule(write_small_rule(tmp_path / "rule.npz"), "me/rule")
    hub.files["me/rule"]["rule.npz"] = b"\x80\x04a pickle"
    with pytest.raises(DiscorlError, match="is not a rule file"):
        pull_rule("me/rule")
    hub.claimed["rule.npz"] = 10**12
    hub.served.clear()
    with pytest.raises(DiscorlError, match="too many: at most 268435456 are read"):
        pull_rule("me/rule")
    assert hub.served == [], "which was seen before anything was fetched"
    del hub.files["me/rule"]["rule.npz"]
    with pytest.raises(DiscorlError, match=r"me/rule has no rule\.npz: was it published by"):
        pull_rule("me/rule")
    assert list(Path.cwd().iterdir()) == []


def test_what_can_go_wrong_with_the_hub(
    hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = write_small_rule(tmp_path / "rule.npz")
    publish_rule(rule, "me/rule")
    with pytest.raises(DiscorlError, match="the hub has no me/other, or it is private"):
        pull_rule("me/other")
    with pytest.raises(DiscorlError, match="the hub has no me/rule"):
        pull_rule("me/rule", revision="never")
    with pytest.raises(DiscorlError, match="is not the name of a repository"):
        pull_rule("a/b/c")
    with pytest.raises(DiscorlError, match=r"must end in \.npz"):
        pull_rule("me/rule", "rule.pt")
    with pytest.raises(DiscorlError, match="there is no folder"):
        pull_rule("me/rule", "no/rule.npz")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(DiscorlError, match=r"the hub refused me/rule .*hf auth login"):
        publish_rule(rule, "me/rule")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(DiscorlError, match=r"pip install 'discorl\[hub\]'"):
        pull_rule("me/rule")


def test_offline_means_offline(hub: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISCORL_OFFLINE", "1")
    with pytest.raises(DiscorlError, match="forbids using the hub"):
        pull_rule("me/rule")


def test_a_hub_out_of_reach(hub: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DiscorlError, match="cannot reach the hub for me/rule"):
        pull_rule("me/rule")


def test_the_command_in_a_process_of_its_own(hub: StandIn, tmp_path: Path) -> None:
    """With the variables that users set."""
    publish_rule(write_small_rule(tmp_path / "mine.npz"), "me/rule")
    env = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path / "home")}
    done = run_cli("rules", "pull", "me/rule", env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Rule: rule.npz") and (tmp_path / "rule.npz").exists()
