"""config.json: every entry is checked against the field that it is for."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from discorl.discovery.config import DiscoverConfig
from discorl.envs.suites.suite_settings import AtariSettings, MinAtarSettings
from discorl.errors import DiscorlError
from discorl.runs.config_file import from_json, read_settings
from discorl.training.config import EnvConfig, TrainConfig

HUGE = 10**400
WRONG: list[tuple[str, Any]] = [
    *(("steps", x) for x in (None, "3", 1.5, [], {}, True, 0, HUGE, float("nan"), 1e400)),
    *(("num_envs", x) for x in (10**9, 2**63, -1, "2")),
    *(("rollout_length", x) for x in (2**31, 1, None)),
    *(("compile", x) for x in (None, "false", 2, [])),
    *(("task", x) for x in (None, 3, ["catch"], {})),
    *(("preset", x) for x in ("large", 3, None, [])),
    *(("threads", x) for x in ("many", 1.5, None, 0)),
    *(("max_loss", x) for x in ("1", None, -1, HUGE, True - 1)),
    *(("seed", x) for x in (HUGE, 0.5, "0")),
    *(("batch_size", x) for x in (10**12,)),
    *(("net", x) for x in (None, 3, [], "mlp")),
    *(("net.torso", x) for x in (3, ["a"], [1.5], [[1]], [10**9], [1] * 1000, None, [])),
    *(("net.core_lstm", x) for x in (10**9, "1", -1)),
    *(("net.torso_kind", x) for x in ("deep", 1)),
    *(("optimiser.learning_rate", x) for x in (HUGE, -1, float("inf"), "0.1")),
    *(("returns.discount", x) for x in (-3, 1.5, float("nan"), None)),
    *(("disco.q_cost", x) for x in (-1, float("nan"), float("inf"), "1")),
    *(("actor_critic.num_bins", x) for x in (1, 10**9, 2.5)),
    *(("env.reward_clip", x) for x in (0, "1", [])),
    *(("env.suite", x) for x in (3, [])),
    *(("checkpoint.every_minutes", x) for x in (0, "10")),
    *((name, "x" * 10_000) for name in ("device", "task", "rule")),
]


def write(folder: Path, content: Any) -> None:
    (folder / "config.json").write_text(json.dumps(content, default=str))


def with_entry(content: Any, name: str, value: Any) -> Any:
    first, _, rest = name.partition(".")
    return content | {first: with_entry(content[first], rest, value) if rest else value}


@pytest.mark.parametrize("name, value", WRONG, ids=lambda x: f"{x!s:.20}")
def test_a_wrong_entry_is_named(name: str, value: Any, tmp_path: Path) -> None:
    write(tmp_path, with_entry(asdict(TrainConfig()), name, value))
    with pytest.raises(DiscorlError) as error:
        read_settings(tmp_path, TrainConfig, "train")
    message = str(error.value)
    assert "config.json is not the configuration of a run" in message
    assert name.split(".")[-1] in message
    assert "\n" not in message
    assert len(message) < 400 + len(str(tmp_path))


def test_settings_come_back(tmp_path: Path) -> None:
    suite = MinAtarSettings(sticky=0.5)
    config = TrainConfig(task="minatar:pong", out=tmp_path, env=EnvConfig(suite=suite))
    write(tmp_path, asdict(config))
    assert read_settings(tmp_path, TrainConfig, "train")[0] == config
    atari = TrainConfig(out=tmp_path, env=EnvConfig(suite=AtariSettings(noops=3)), max_loss=1e400)
    write(tmp_path, asdict(atari))
    assert read_settings(tmp_path, TrainConfig, "train")[0] == atari


def test_numbers_as_python_wrote_them_are_taken(tmp_path: Path) -> None:
    """A script may have asked for 1e4 steps, and an earlier version have written it down."""
    write(tmp_path, {"steps": 1e4, "compile": 0, "max_loss": 1000, "unknown": [1]})
    config, _ = read_settings(tmp_path, TrainConfig, "train")
    assert (config.steps, type(config.steps)) == (10_000, int)
    assert config.compile is False
    assert config.max_loss == 1000


def test_settings_that_are_no_group() -> None:
    with pytest.raises(DiscorlError, match="group of settings"):
        from_json(TrainConfig, [1])


@pytest.mark.parametrize(
    "entries",
    [
        {"tasks": ["catch:5x5*99999999"]},
        {"tasks": ["catch:5x5*" + "9" * 5000]},
        {"tasks": "catch"},
        {"lifetimes": [None]},
        {"eval_agents": 10**9},
        {"rule": {"hidden": 10**9}},
        {"rule": {"num_bins": 10**9}},
        {"rule": {"max_abs_value": 1e300}},
        {"window": {"num_envs": 10**9}},
        {"objective": {"target_kl": float("nan")}},
        {"meta_value": {"torso": [10**9]}},
    ],
    ids=lambda x: f"{x!s:.40}",
)
def test_impossible_discoveries(entries: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path, {"kind": "discover", **entries})
    with pytest.raises(DiscorlError, match="not the configuration of a run"):
        read_settings(tmp_path, DiscoverConfig, "discover")
