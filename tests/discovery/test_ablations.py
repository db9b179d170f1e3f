"""Discovery of rules without a part, and what becomes of their files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from discorl.cli import main
from discorl.discovery.build import starting_rule
from discorl.discovery.config import DiscoverConfig
from discorl.discovery.discover import discover, resume_discovery
from discorl.rules.store import load_rule
from discorl.training.evaluate import evaluate
from discorl.training.presets import for_run
from discorl.training.train import resume, train
from discorl.training.trained_agent import load_agent
from tests.builders import (
    ABLATIONS,
    assert_bit_equal,
)
from tests.meta.population import tiny_config


def config_without(parts: tuple[str, ...], **changes: object) -> DiscoverConfig:
    config = tiny_config(**changes)
    return replace(config, rule=replace(config.rule, **dict.fromkeys(parts, False)))


@pytest.mark.parametrize("parts", ABLATIONS.values(), ids=ABLATIONS)
def test_is_discovered_resumed_and_trains_agents(parts: tuple[str, ...], tmp_path: Path) -> None:
    """A warm start, then meta-gradients, cut in the middle; then an agent, also cut."""
    whole = discover(config_without(parts, out=tmp_path / "whole", warm_start=1))
    discover(config_without(parts, out=tmp_path / "cut", warm_start=1, steps=2))
    again = resume_discovery(tmp_path / "cut", steps=4)
    assert_bit_equal(whole.params, again.params)
    path = tmp_path / "cut" / "rule.npz"
    loaded = load_rule(path)
    assert loaded.rule.missing == parts
    assert_bit_equal(loaded.params, {k: whole.params[k] for k in loaded.params})
    started = starting_rule(config_without(parts))[1]
    assert any(not torch.equal(p, started[k]) for k, p in loaded.params.items())

    config = replace(for_run("catch", str(path)), num_envs=3, steps=4, batch_size=3)
    config = replace(config, replay_capacity=9, device="cpu", progress="none", log_every=1)
    agent = train(replace(config, out=tmp_path / "agent"))
    train(replace(config, steps=2, out=tmp_path / "half"))
    half = resume(replace(config, out=tmp_path / "half"))
    assert (agent.folder / "agent.npz").read_bytes() == (half.folder / "agent.npz").read_bytes()
    names = {name.split(".")[1] for name in tree_names(agent.folder) if "heads" in name}
    assert names >= {"logits"} and ("y" in names) == ("predictions" not in parts)
    assert evaluate(load_agent(agent.folder), episodes=3).mean_length > 0
    exported = tmp_path / "exported.npz"
    assert main(["rules", "export", str(path), str(exported)]) == 0
    assert exported.read_bytes() == path.read_bytes()


def tree_names(folder: Path) -> list[str]:
    return list(load_agent(folder).net.state_dict())
