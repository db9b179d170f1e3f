"""Discovery of rules without a part, and what becomes of their files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from discorl import tree
from discorl.agents.update import update_agent
from discorl.cli import main
from discorl.discovery.build import starting_rule
from discorl.discovery.config import DiscoverConfig
from discorl.discovery.discover import discover, resume_discovery
from discorl.errors import DiscorlError
from discorl.meta.meta_step import live_window
from discorl.meta.population import init_group
from discorl.own_agent import DiscoTrainer
from discorl.rules.improvement import Improvement, improved_policy
from discorl.rules.store import load_rule, save_rule
from discorl.training.evaluate import evaluate
from discorl.training.presets import for_run
from discorl.training.train import resume, train
from discorl.training.trained_agent import load_agent
from tests.builders import (
    ABLATIONS,
    assert_bit_equal,
    random_rollout,
    random_rule_params,
    rng,
    small_agent,
    small_disco_without,
    write_small_rule,
)
from tests.meta.population import tiny_config, tiny_groups
from tests.own_agent.own_agents import PlainAgent


def config_without(parts: tuple[str, ...], **changes: Any) -> DiscoverConfig:
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
    trained = load_agent(agent.folder)
    assert trained.net.head_sizes == loaded.rule.heads(trained.net.num_actions)
    assert evaluate(trained, episodes=3).mean_length > 0
    exported = tmp_path / "exported.npz"
    assert main(["rules", "export", str(path), str(exported)]) == 0
    assert exported.read_bytes() == path.read_bytes()


def test_an_option_cannot_take_a_part_from_a_rule_that_has_it(tmp_path: Path) -> None:
    path = str(write_small_rule(tmp_path / "rule.npz"))
    for name in ("predictions", "value", "auxiliary", "lifetime"):
        with pytest.raises(DiscorlError, match=f"--rule.no-{name}: .* has that part"):
            starting_rule(config_without((name,), init=path))


@pytest.mark.parametrize("parts", ABLATIONS.values(), ids=ABLATIONS)
def test_fine_tuning_takes_the_parts_from_the_file(parts: tuple[str, ...], tmp_path: Path) -> None:
    rule = small_disco_without(*parts)
    params = random_rule_params(rule)
    save_rule(tmp_path / "rule.npz", rule, params, {})
    init = str(tmp_path / "rule.npz")
    for config in (tiny_config(init=init), config_without(parts, init=init)):
        started, weights = starting_rule(config)
        assert started.missing == parts
        assert_bit_equal(weights, {k: params[k] for k in weights})


@pytest.mark.parametrize("option", ["predictions", "value", "auxiliary", "lifetime"])
def test_options_reach_the_rule(option: str, tmp_path: Path) -> None:
    """As a user writes them, on a task whose agents have convolutions and so take turns."""
    tiny = "--tasks catch:4x4*2/conv --steps 1 --window.num-envs 2 --window.num-updates 1"
    tiny += " --held-out --warm-start 0 --net.channels 2 --net.dense 4 --progress none"
    args = ["discover", "suite", *tiny.split(), "--out", str(tmp_path / "run")]
    assert main([*args, f"--rule.no-{option}"]) == 0
    assert load_rule(tmp_path / "run" / "rule.npz").rule.missing == (option,)


@pytest.mark.parametrize("memory", ["plain", "recompute", "mixed"])
@pytest.mark.parametrize("parts", ABLATIONS.values(), ids=ABLATIONS)
def test_agents_side_by_side_and_one_by_one_agree(parts: tuple[str, ...], memory: Any) -> None:
    [group, _], params = tiny_groups(config_without(parts, memory=memory))
    state = init_group(group, rng())
    results = [
        live_window(replace(group, window=replace(group.window, each=each)), params, state, rng(1))
        for each in (tree.vmap, tree.one_by_one)
    ]
    together, apart = (r.gradient for r in results)
    assert together.keys() == params.keys()
    for name, g in together.items():
        torch.testing.assert_close(g, apart[name], rtol=1e-3, atol=1e-6)
    assert any(bool((g != 0).any()) for g in together.values())


def test_without_values_the_warm_start_follows_returns() -> None:
    """The action that was taken moves by its normalised return, the others stay."""
    rule = small_disco_without("value")
    agent, rollout = small_agent(rule), random_rollout()
    _, info = update_agent(agent, random_rule_params(rule), agent.init_state(rng()), rollout)
    logits, values = info.targets.target_logits, info.targets.values
    moved = improved_policy(logits, values, rollout.actions, Improvement()) - logits[:-1]
    taken = torch.nn.functional.one_hot(rollout.actions[:-1], 3)
    step = Improvement().strength * values.normalized_advantage.clamp(-1, 1)
    torch.testing.assert_close(moved, taken * step.unsqueeze(-1))
    assert (step.abs() > 0.1).any()


def test_own_agents_need_only_the_heads_that_there_are(tmp_path: Path) -> None:
    rule = small_disco_without("predictions", "auxiliary")
    save_rule(tmp_path / "rule.npz", rule, random_rule_params(rule), {})
    agent = PlainAgent(rule.heads(3))
    assert set(agent.heads.shapes) == {"logits", "q"}
    before = agent.torso.weight.clone()
    logs = DiscoTrainer(agent, rule=tmp_path / "rule.npz", batch_size=2).step(random_rollout())
    assert {"pi_loss", "q_loss"} <= logs.keys() and not {"y_loss", "aux_loss"} & logs.keys()
    assert not torch.equal(agent.torso.weight, before)
