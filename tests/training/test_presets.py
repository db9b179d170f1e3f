"""Presets: the paper's table as transcribed, and that everything can be overridden."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from discorl.agents.agent import agent_net
from discorl.cli import main
from discorl.cli.train import parse_train
from discorl.errors import DiscorlError
from discorl.nets.conv import ImpalaTorso
from discorl.nets.meta_net import MetaNetSizes
from discorl.rules import ActorCritic, DiscoRule
from discorl.rules.disco import DiscoSettings
from discorl.rules.improvement import STRONG
from discorl.rules.store import save_rule
from discorl.rules.values import ReturnSettings
from discorl.training import presets
from discorl.training.config import OptimiserConfig, TrainConfig
from discorl.training.rule_choice import choose_rule
from discorl.types import EnvSpec
from tests.builders import ABLATIONS, SMALL_SIZES, rng, small_disco, small_disco_without

TASKS = {
    "atari": "ale:Breakout",
    "crafter": "crafter",
    "dmlab": "dmlab:rooms_watermaze",
    "nethack": "nethack:score",
    "procgen": "procgen:coinrun",
    "sokoban": "sokoban:levels.txt",
}
# Extended Data Table 6, from a transcription. A second copy: a slip in one of them shows.
TABLE = {
    "atari": (3e-4, "cosine", 5e6, 0.1, 1.0, 0.997, 4, 96, 1.76e6, 0.95, 29),
    "crafter": (3e-4, "constant", 0, 0.3, 1.0, 0.997, 32, 24, 4e5, 0.99, 29),
    "dmlab": (5e-4, "cosine", 1e6, 0.01, 1.0, 0.99, 1, 96, 2.2e5, 0.9, 100),
    "nethack": (1e-4, "cosine", 1e7, 0.03, 0.3, 0.997, 4, 96, 1.76e6, 0.95, 29),
    "procgen": (3e-4, "cosine", 1e6, 0.1, 1.0, 0.997, 4, 192, 8.8e5, 0.9, 29),
    "sokoban": (3e-4, "cosine", 0, 0.1, 1.0, 0.997, 4, 96, 8.8e5, 0.9, 29),
}


@pytest.mark.parametrize("suite", TABLE)
def test_paper_presets_are_the_table(suite: str) -> None:
    c = presets.for_task(TASKS[suite], "paper")
    assert c.task == TASKS[suite]
    assert c.preset == "paper"
    o = c.optimiser
    got = (o.learning_rate, o.schedule, o.warmup_steps, o.weight_decay, o.max_abs_update)
    got += (c.returns.discount, c.frame_stack, c.batch_size, c.replay_transitions)
    assert (*got, c.replay_share, c.rollout_length) == TABLE[suite]


@pytest.mark.parametrize("suite", TABLE)
def test_paper_presets_use_each_fresh_trajectory_once(suite: str) -> None:
    c = presets.for_task(TASKS[suite], "paper")
    assert c.num_envs == c.num_fresh * c.updates_per_step
    assert abs(c.num_fresh - (1 - c.replay_share) * c.batch_size) < 1


@pytest.mark.parametrize("suite", TABLE)
def test_small_presets_are_small(suite: str) -> None:
    paper, small = (presets.for_task(TASKS[suite], kind) for kind in ("paper", "small"))
    assert presets.for_task(TASKS[suite]) == small
    assert small.preset == "small"
    assert small.batch_size < paper.batch_size
    assert small.replay_transitions < paper.replay_transitions
    assert small.steps * small.num_envs * small.rollout_length <= 1_000_000
    assert small.returns == paper.returns
    assert small.optimiser.weight_decay == paper.optimiser.weight_decay
    assert small.optimiser.schedule == paper.optimiser.schedule


def test_the_papers_atari_agent() -> None:
    config = presets.for_task("ale:Pong", "paper")
    with torch.device("meta"):
        net = agent_net(EnvSpec((4, 84, 84), 18, is_image=True), ActorCritic(), config.net)
    assert isinstance(net.torso, ImpalaTorso)
    channels = [block.conv.out_channels for block in net.torso.blocks]  # type: ignore[union-attr]
    assert channels == [256, 384, 384, 256]
    assert net.torso.embedding_size == 768
    assert config.net.action_lstm == 1024
    assert config.net.head_hidden == (1024,)
    assert config.net.core_lstm == 0
    assert presets.for_task("dmlab:x", "paper").net.core_lstm == 256


def test_tasks_choose_by_their_prefix() -> None:
    assert presets.for_task("catch:4x3") == TrainConfig(task="catch:4x3")
    assert presets.for_task("gym:CartPole-v1") == presets.gymnasium("gym:CartPole-v1")
    assert presets.for_task("minatar:breakout") == presets.minatar("minatar:breakout")
    assert presets.for_task("minigrid:Empty-5x5") == presets.minigrid("minigrid:Empty-5x5")


@pytest.mark.parametrize("task", ["gym:CartPole-v1", "minatar:breakout", "minigrid:Empty-5x5"])
def test_the_actor_critic_has_settings_of_its_own(task: str) -> None:
    preset = presets.for_task(task)
    assert presets.for_rule(preset, "disco103") == preset
    own = presets.for_rule(preset, "actor-critic")
    assert own.optimiser.learning_rate < preset.optimiser.learning_rate
    assert own.replay_share < preset.replay_share
    assert own.actor_critic.entropy_cost == 0.01
    assert (own.actor_critic.num_bins is None) == (not task.startswith("gym"))
    assert own.net == replace(preset.net, zero_values=True)
    same = ("steps", "num_envs", "rollout_length", "returns")
    assert [getattr(own, k) for k in same] == [getattr(preset, k) for k in same]


@pytest.mark.parametrize("task", ["catch", "ale:Pong", "memory:8"])
def test_elsewhere_the_actor_critic_keeps_the_tasks(task: str) -> None:
    preset = presets.for_task(task)
    assert presets.for_rule(preset, "actor-critic") == preset


@pytest.mark.parametrize("task", ["catch", "gym:CartPole-v1", "minatar:breakout", "ale:Pong"])
def test_cmpo_has_the_settings_of_a_small_rule_and_more_updates(task: str) -> None:
    preset = presets.for_task(task)
    own, mini = (presets.for_rule(preset, rule) for rule in ("cmpo", "disco-mini"))
    has_small_net = task in ("catch", "gym:CartPole-v1")
    updates = 8 if has_small_net else preset.updates_per_step
    assert own == replace(mini, disco=preset.disco, updates_per_step=updates)
    assert (own.net != preset.net) == has_small_net


@pytest.mark.parametrize("discount", [0.99, 0.997])
@pytest.mark.parametrize("task", ["catch", "gym:CartPole-v1", "minatar:breakout"])
def test_a_rule_with_a_prior_trains_as_its_prior_does(task: str, discount: float) -> None:
    """But with its own discount."""
    returns = ReturnSettings(discount)
    rule = replace(small_disco(), prior=STRONG, returns=returns)
    own = presets.for_disco_rule(presets.for_task(task), rule)
    by_hand = presets.for_rule(presets.for_task(task), "cmpo")
    assert replace(own, disco=by_hand.disco) == replace(by_hand, returns=returns)


@pytest.mark.parametrize("parts", ABLATIONS.values(), ids=ABLATIONS)
def test_a_rule_that_lacks_a_part_is_as_large_as_the_rest_of_it(
    parts: tuple[str, ...], tmp_path: Path
) -> None:
    sizes = {"small": SMALL_SIZES, "large": MetaNetSizes()}
    for name, of in sizes.items():
        rule = small_disco_without(*parts, sizes=of)
        save_rule(tmp_path / f"{name}.npz", rule, rule.init_params(rng()), {})
    small, large = (presets.for_run("catch", str(tmp_path / f"{name}.npz")) for name in sizes)
    assert large.net == presets.for_run("catch", "disco103").net
    assert small.net == presets.for_run("catch", "disco-mini").net != large.net


def test_a_rule_file_brings_its_settings(tmp_path: Path) -> None:
    rule = replace(
        small_disco(),
        returns=ReturnSettings(discount=0.9, lambda_=0.8),
        settings=DiscoSettings(q_cost=0.5, target_rate=0.2),
    )
    path = tmp_path / "rule.npz"
    save_rule(path, rule, rule.init_params(rng()), {})
    config = presets.for_run("catch", str(path))
    assert (config.returns.discount, config.returns.lambda_) == (0.9, 0.8)
    assert (config.disco.q_cost, config.disco.target_rate) == (0.5, 0.2)
    assert config.rule == str(path)
    assert config.net == presets.for_run("catch", "disco-mini").net, "it is no larger"
    assert (
        presets.for_run("minatar:breakout", str(path)).net
        == presets.for_task("minatar:breakout").net
    )
    chosen = choose_rule(config).rule
    assert isinstance(chosen, DiscoRule)
    assert (chosen.returns, chosen.settings) == (rule.returns, rule.settings)


def test_a_rule_file_trains_with_its_moments(tmp_path: Path) -> None:
    """Options say otherwise of what they name, and of nothing else."""
    path = tmp_path / "rule.npz"
    rule = replace(small_disco(), returns=ReturnSettings(0.9, 0.8, moment_decay=0.5))
    save_rule(path, rule, rule.init_params(rng()), {})
    assert returns_on_the_command_line(path) == rule.returns
    assert returns_on_the_command_line(path, "--returns.discount", "0.7") == ReturnSettings(
        0.7, 0.8, 0.5
    )
    assert returns_on_the_command_line(path, "--returns.lambda_", "1") == ReturnSettings(
        0.9, 1.0, 0.5
    )
    assert returns_on_the_command_line(path, "--returns.moment-decay", "0.6") == ReturnSettings(
        0.9, 0.8, 0.6
    )


def returns_on_the_command_line(path: Path, *args: str) -> ReturnSettings:
    return choose_rule(parse_train(["catch", "--rule", str(path), *args])).rule.returns


def test_dmlab_is_as_long_as_the_others() -> None:
    config = presets.dmlab("x")
    assert config.steps * config.num_envs * config.rollout_length == pytest.approx(
        500_000, rel=1e-2
    )


@pytest.mark.parametrize("task", ["catch", "gym:CartPole-v1", "minatar:breakout"])
def test_no_paper_preset_where_the_paper_has_no_numbers(task: str) -> None:
    with pytest.raises(DiscorlError, match="remove --preset"):
        presets.for_task(task, "paper")


def test_presets_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    for args in (["--preset", "paper"], ["--preset=paper"]):
        with pytest.raises(SystemExit):
            main(["train", "ale:Breakout", *args, "--help-all"])
        shown = capsys.readouterr().out
        assert "1760000" in shown
        assert "256 384 384 256" in shown
    with pytest.raises(SystemExit):
        main(["train", "ale:Breakout", "--help-all"])
    assert "1760000" not in capsys.readouterr().out
    assert main(["train", "ale:Breakout", "--preset", "huge"]) == 2
    assert "use small or paper" in capsys.readouterr().err


def test_a_warm_up_longer_than_the_run_is_refused() -> None:
    config = presets.for_task("ale:Breakout", "paper")
    with pytest.raises(DiscorlError, match="warmup-steps"):
        replace(config, steps=100)
    short = replace(config.optimiser, warmup_steps=0)
    assert replace(config, steps=100, optimiser=short).steps == 100


# --- what the new settings mean -------------------------------------------------------------------


def test_replay_in_transitions() -> None:
    config = TrainConfig(replay_transitions=2900, rollout_length=29)
    assert config.replay_trajectories == 100
    assert TrainConfig(replay_capacity=77).replay_trajectories == 77


@pytest.mark.parametrize("share, fresh", [(1.0, 0), (0.95, 5), (0.9, 10), (0.999, 1), (0.0, 96)])
def test_share_of_replay(share: float, fresh: int) -> None:
    assert TrainConfig(batch_size=96, replay_share=share).num_fresh == fresh


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"replay_transitions": 100}, "replay_transitions 100 .4 trajectories. is below"),
        ({"replay_transitions": -1}, "replay_transitions"),
        ({"replay_share": 1.5}, "replay_share"),
        ({"frame_stack": 0}, "frame_stack"),
        ({"burn_in": 28}, "0 to 27"),
        ({"burn_in": -1}, "burn_in"),
    ],
    ids=str,
)
def test_impossible_settings_are_refused(changes: dict, words: str) -> None:
    with pytest.raises(DiscorlError, match=words):
        replace(TrainConfig(), **changes)


@pytest.mark.parametrize("changes", [{"weight_decay": -0.1}, {"warmup_steps": -1}])
def test_impossible_optimisers_are_refused(changes: dict) -> None:
    with pytest.raises(DiscorlError, match=next(iter(changes))):
        OptimiserConfig(**changes)
