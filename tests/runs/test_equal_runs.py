"""Files of equal runs are equal in every byte that is not a time."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from discorl.discovery.discover import discover, resume_discovery
from discorl.envs.env_config import EnvConfig
from discorl.runs.checkpoint import load, to_bytes
from discorl.runs.metrics import TIMING_FIELDS, read_rows
from discorl.training.config import CheckpointConfig
from discorl.training.rule_choice import read_config
from discorl.training.train import resume, train
from tests.builders import write_small_rule
from tests.discovery.test_folder import die_after
from tests.meta.population import tiny_config
from tests.training.test_resume import config, crash
from tests.training.test_train_gymnasium import config as gymnasium_config


def timeless(path: Path) -> Any:
    """The content of a file without the times in it."""
    if path.name == "metrics.jsonl":
        rows = read_rows(path)
        assert path.read_text() == "".join(f"{json.dumps(row)}\n" for row in rows)
        return [json.dumps({k: v for k, v in r.items() if k not in TIMING_FIELDS}) for r in rows]
    if path.suffix == ".dc":
        content = load(path)
        shared = content.get("shared", content)
        assert shared.pop("seconds") > 0
        return to_bytes(content)
    return path.read_bytes()


def files(folder: Path) -> dict[str, Any]:
    return {
        str(p.relative_to(folder)): timeless(p) for p in sorted(folder.rglob("*")) if p.is_file()
    }


def assert_same_files(first: Path, second: Path, *expected: str) -> None:
    one, two = files(first), files(second)
    assert one.keys() == two.keys() >= {"config.json", "metrics.jsonl", "curve.png", *expected}
    assert [name for name in one if one[name] != two[name]] == []


def train_on_tensors(out: Path) -> None:
    rule = write_small_rule(out.resolve().parents[1] / "rule.npz")
    train(config(out, rule=str(rule), updates_per_step=2))


def train_on_gymnasium(out: Path) -> None:
    env = EnvConfig(normalize_observations=True)
    often = CheckpointConfig(every_steps=4, every_minutes=None)
    train(replace(gymnasium_config(out.parent, env=env, steps=9), checkpoint=often, seed=3))


def discover_a_rule(out: Path) -> None:
    discover(tiny_config(out=out, held_out=("catch:5x4",), eval_every=2, eval_updates=2))


KINDS: dict[Callable[[Path], None], tuple[str, ...]] = {
    train_on_tensors: ("agent.npz", "checkpoints/checkpoint-20.dc", "checkpoints/checkpoint-23.dc"),
    train_on_gymnasium: ("agent.npz", "env.npz", "checkpoints/checkpoint-9.dc"),
    discover_a_rule: ("rule.npz", "snapshots/rule-2.npz", "checkpoints/checkpoint-4.dc"),
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda f: f.__name__)
def test_the_same_seed_twice(
    kind: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In folders of the same name, which config.json has."""
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        monkeypatch.chdir(tmp_path / place)
        kind(Path("run"))
    assert_same_files(tmp_path / "a" / "run", tmp_path / "b" / "run", *KINDS[kind])


def test_a_crashed_run_leaves_what_a_whole_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
    monkeypatch.chdir(tmp_path / "a")
    train(config(Path("run")))
    monkeypatch.chdir(tmp_path / "b")
    crash(config(Path("run")), 18)
    resume(read_config(Path("run"))[0])
    assert_same_files(tmp_path / "a" / "run", tmp_path / "b" / "run", "agent.npz")


def test_a_crashed_discovery_leaves_what_a_whole_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
    monkeypatch.chdir(tmp_path / "a")
    settings = tiny_config(out=Path("run"), lifetimes=(6, 10), replay_capacity=6, num_replayed=2)
    discover(settings)
    monkeypatch.chdir(tmp_path / "b")
    with pytest.MonkeyPatch.context() as patch:
        die_after(patch, 3)
        with pytest.raises(MemoryError):
            discover(settings)
    resume_discovery("run")
    assert_same_files(tmp_path / "a" / "run", tmp_path / "b" / "run", "rule.npz")
