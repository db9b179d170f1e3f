"""The rule that ships with the package, and the one that users get without asking."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from discorl.rules.store import DISCO103_ENV, embedded_rules, load_rule
from discorl.training import presets
from discorl.training.evaluate import evaluate
from discorl.training.rule_choice import best_at_hand
from discorl.training.train import train


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without Disco103."""
    monkeypatch.delenv(DISCO103_ENV, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_it_is_small_and_says_where_it_comes_from() -> None:
    [(name, path)] = embedded_rules()
    assert name == "disco-mini"
    assert path.stat().st_size < 2_000_000
    loaded = load_rule(name)
    assert loaded.rule.mask_episode_starts is False
    assert "ecaf570" in loaded.provenance["discovered_by"]
    assert path.with_suffix(".md").read_text().startswith("# disco-mini")


@pytest.mark.usefixtures("offline")
def test_cmpo_is_the_default_where_disco103_is_not_at_hand() -> None:
    name, note = best_at_hand()
    assert name == "cmpo"
    assert "discorl rules fetch" in note
    config = presets.for_rule(presets.for_task("catch"), "auto")
    assert (config.num_envs, config.batch_size, config.returns.discount) == (16, 16, 0.99)
    assert (config.updates_per_step, config.replay_share) == (8, 0.5)
    assert presets.for_rule(config, "disco103") is config


@pytest.mark.slow
@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("seed", range(5))
def test_the_default_learns_catch_in_400_updates(tmp_path: Path, seed: int) -> None:
    config = presets.for_run("catch")
    config = replace(config, steps=400 // config.updates_per_step, seed=seed, progress="none")
    train(replace(config, out=tmp_path / "run"))
    success = evaluate(tmp_path / "run", episodes=200, greedy=True).success
    assert success is not None and success.value >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_it_learns_catch(tmp_path: Path, seed: int) -> None:
    config = presets.for_rule(presets.for_task("catch"), "disco-mini")
    assert config.steps * config.updates_per_step == 1000
    out = tmp_path / "run"
    result = train(replace(config, rule="disco-mini", seed=seed, out=out, progress="none"))
    assert max(row["success"] for row in result.metrics) >= 0.95
    assert result.metrics[-1]["success"] >= 0.9
