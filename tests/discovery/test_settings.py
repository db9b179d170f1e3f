"""Settings of discovery that are refused, and those that must reach the population."""

from __future__ import annotations

import operator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from discorl import tree
from discorl.discovery.discover import discover, resume_discovery
from discorl.discovery.presets import PRESETS
from discorl.errors import DiscorlError
from discorl.rules.disco import DiscoSettings
from discorl.rules.store import load_rule
from tests.builders import rng
from tests.meta.population import tiny_config, tiny_groups

NAN, INFINITY = float("nan"), float("inf")

IMPOSSIBLE: list[tuple[str, Any]] = [
    *(("seed", seed) for seed in (10**16, -(10**16))),
    *(("warm_start", -1), ("warm_start_rate", 0.0)),
    *(("learning_rate", 0.0), ("learning_rate", NAN), ("max_abs_update", INFINITY)),
    *(("rule.discount", 1.5), ("rule.discount", -1.0), ("rule.lambda_", NAN)),
    *(("rule.num_bins", 1), ("rule.max_abs_value", 0.0)),
    *(("window.num_replayed", -1), ("window.replay_capacity", -1)),
    *(("meta_value.torso", ()), ("meta_value.torso", (4, 0))),
    *(("meta_value.learning_rate", -1e-3), ("meta_value.discount", 2.0)),
    *(("meta_value.lambda_", 1.1), ("meta_optimiser.learning_rate", INFINITY)),
    *(("meta_optimiser.max_abs_update", -1.0), ("meta_optimiser.max_norm", 0.0)),
]


def named(settings: Any, name: str) -> Any:
    """The setting that is named as in ``rule.discount``."""
    return operator.attrgetter(name)(settings)


def changed(settings: Any, name: str, value: Any) -> Any:
    """The settings with another value of one that is named as in ``rule.discount``."""
    name, _, rest = name.partition(".")
    value = changed(getattr(settings, name), rest, value) if rest else value
    return replace(settings, **{name: value})


@pytest.mark.parametrize("name, value", IMPOSSIBLE)
def test_impossible_numbers_are_refused(name: str, value: Any) -> None:
    with pytest.raises(DiscorlError, match=name.split(".")[-1]):
        changed(tiny_config(), name, value)


@pytest.mark.parametrize("preset", PRESETS)
def test_possible_numbers_are_not(preset: str) -> None:
    config = PRESETS[preset]()
    for name, value in (
        *(("seed", -(2**43) + 1), ("seed", 2**43 - 1), ("warm_start", None), ("warm_start", 0)),
        *(("rule.discount", 0.0), ("rule.discount", 1.0), ("meta_value.lambda_", 1.0)),
        *(("meta_optimiser.max_abs_update", 0.0), ("meta_optimiser.max_norm", INFINITY)),
    ):
        assert named(changed(config, name, value), name) == value


def test_the_largest_seeds_work(tmp_path: Path) -> None:
    found = []
    for seed in (2**43 - 1, -(2**43) + 1):
        out = tmp_path / str(seed)
        discover(tiny_config(seed=seed, steps=1, out=out))
        found.append(load_rule(out / "rule.npz").params)
    first, second = found
    assert all(p.isfinite().all() for p in tree.leaves(found))
    assert any(not p.equal(second[name]) for name, p in first.items()), "a seed changes nothing"


def test_the_target_rate_is_a_share() -> None:
    for rate in (-0.1, 1.1, NAN):
        with pytest.raises(DiscorlError, match="target_rate"):
            DiscoSettings(target_rate=rate)
    assert DiscoSettings(target_rate=1.0).target_rate == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "is not a run"),
        ("{", "cannot read"),
        ("[]", "not the configuration"),
        ("3", "not the configuration"),
        ('{"tasks": 3}', "not the configuration"),
        ('{"meta_value": []}', "not the configuration"),
        ('{"steps": 0}', "steps must be"),
    ],
)
def test_folders_without_a_discovery(text: str | None, message: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(DiscorlError, match=message):
        resume_discovery(tmp_path)


@pytest.mark.parametrize("zero_values", [False, True])
def test_the_network_is_the_one_asked_for(zero_values: bool) -> None:
    """Of a group with a torso of its own, too."""
    config = changed(tiny_config(), "net.zero_values", zero_values)
    groups, _ = tiny_groups(replace(config, tasks=("catch:4x4*2", "catch:4x4*2/9x7")))
    for group, torso in zip(groups, [(8,), (9, 7)], strict=True):
        params = group.window.agent.init_state(rng()).params
        assert ("torso.mlp.layers.1.weight" in params) == (len(torso) == 2)
        assert params["torso.mlp.layers.0.weight"].shape[0] == torso[0]
        assert bool((params["action_model.heads.q.layers.1.weight"] == 0).all()) == zero_values
