"""A run that one bad number has poisoned is explained, and can be saved."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch

from discorl.cli import main
from discorl.cli.options import options_of
from discorl.cli.train import ResumeArgs
from discorl.errors import DiscorlError
from discorl.runs.checkpoint import CheckpointConfig, CheckpointFolder, load, to_bytes
from discorl.runs.files import load_params
from discorl.runs.metrics import read_rows
from discorl.runs.program import Diverged
from discorl.training.config import MAY_CHANGE, EnvConfig, NetConfig, TrainConfig
from discorl.training.rule_choice import read_config
from discorl.training.train import resume, train
from tests.builders import assert_bit_equal
from tests.envs.gym_examples import Spiky
from tests.training.test_resume import config as small_config
from tests.training.test_resume import die_after

SPIKE_STEP = 13
"""The training step that collects the extreme reward."""


def config(out: Path, **changes: Any) -> TrainConfig:
    start = small_config(out, task="gym:Spiky-v0", steps=30, log_every=5, num_envs=2)
    return replace(start, **changes)


@pytest.fixture
def spiky() -> Iterator[None]:
    """A registered environment that sends one reward of 1e30 in its life, not one per run."""
    steps_before = 2 * 7 * (SPIKE_STEP - 1)
    spikes = {steps_before + 8: 1e30}
    gymnasium.register("Spiky-v0", lambda **_: Spiky(spikes))
    yield
    del gymnasium.registry["Spiky-v0"]


@pytest.fixture
def poisoned(spiky: None, tmp_path: Path) -> Path:
    """A run that the reward has ended, after three checkpoints of which two are kept."""
    with pytest.raises(Diverged):
        train(config(tmp_path / "run"))
    return tmp_path / "run"


def checkpoints(run: Path) -> tuple[list[int], list[int]]:
    kept = CheckpointFolder(run / "checkpoints")
    return kept.steps(), kept.steps(is_diverged=True)


def command(run: Path, *more: str) -> list[str]:
    return ["train", "--resume", str(run), "--progress", "lines", *more]


def said_by(capsys: pytest.CaptureFixture[str]) -> str:
    """What was printed, without the breaks that a narrow terminal needs."""
    return " ".join("".join(capsys.readouterr()).split())


def test_the_message_names_what_caused_it(spiky: None, tmp_path: Path) -> None:
    with pytest.raises(Diverged) as error:
        train(config(tmp_path / "run"))
    said = str(error.value)
    assert f"reward in its batch was 1e+30, collected at step {SPIKE_STEP}" in said
    assert re.search(r"observation in its batch was [\d.]+, collected at step \d+\.", said)
    assert "--reward-clip" in said and "--skip-replay" in said and "--optimiser.learning" in said
    assert f"discorl train --resume {tmp_path / 'run'}" in said


def test_good_checkpoints_outlive_every_failed_attempt(
    poisoned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What they hold of the reward or not: they may be all that is left."""
    good, (diverged,) = checkpoints(poisoned)
    assert good and max(good) <= diverged and good[0] < SPIKE_STEP
    saved = load(CheckpointFolder(poisoned / "checkpoints").path(diverged, is_diverged=True))
    assert_bit_equal(saved["shared"]["agent"]["params"], load_params(poisoned / "agent.npz"))
    size = saved["processes"][0]["replay"]["storage"]["rewards"].abs().max()
    assert size > 1e29, "the evidence is kept"

    before = (poisoned / "checkpoints" / f"checkpoint-{good[-1]}.dc").read_bytes()
    for _ in range(3):
        assert main(command(poisoned, "--max-loss", "1e-9")) == 2
        assert f"last good one, of step {good[-1]}" in said_by(capsys)
        assert checkpoints(poisoned)[0] == good
        assert len(checkpoints(poisoned)[1]) == 1
    assert (poisoned / "checkpoints" / f"checkpoint-{good[-1]}.dc").read_bytes() == before


def test_an_environment_that_always_fails_pushes_nothing_good_out(tmp_path: Path) -> None:
    def env() -> gymnasium.Env:
        return Spiky({80: 1e30})  # a step in each attempt, after its 11 first training steps

    run = tmp_path / "run"
    with pytest.raises(Diverged):
        train(config(run), env=env)
    good = {p.name: p.read_bytes() for p in (run / "checkpoints").glob("checkpoint-?.dc")}
    good |= {p.name: p.read_bytes() for p in (run / "checkpoints").glob("checkpoint-10.dc")}
    assert len(good) == 2
    settings = replace(read_config(run)[0], checkpoint=CheckpointConfig(100, None))
    for _ in range(3):
        with pytest.raises(Diverged):
            resume(settings, env=env)
    left = {p.name: p.read_bytes() for p in (run / "checkpoints").iterdir()}
    assert left.items() >= good.items()
    assert len(left) == 3


def test_without_its_replay_the_newest_agent_goes_on(
    poisoned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, (diverged,) = checkpoints(poisoned)
    assert main(command(poisoned, "--skip-replay")) == 0
    said = said_by(capsys)
    assert f"Resuming {poisoned} after step {diverged}" in said
    assert "this run continues from it" in said
    assert checkpoints(poisoned) == ([25, 30], [])
    saved = load(poisoned / "checkpoints" / "checkpoint-30.dc")
    assert saved["processes"][0]["replay"]["storage"]["rewards"].abs().max() < 1e29


def test_skipping_the_replay_keeps_everything_else(poisoned: Path) -> None:
    """Fewer trajectories than a batch: nothing is learnt yet, so the agent is the one saved."""
    _, (diverged,) = checkpoints(poisoned)
    before = load_params(poisoned / "agent.npz")
    settings, _ = read_config(poisoned)
    resume(replace(settings, steps=diverged + 1), skip_replay=True)
    assert_bit_equal(load_params(poisoned / "agent.npz"), before)
    saved = load(poisoned / "checkpoints" / f"checkpoint-{diverged + 1}.dc")
    assert saved["processes"][0]["replay"]["size"] == 2


def test_rewards_of_another_scale_begin_with_an_empty_replay(
    poisoned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = command(poisoned, "--reward-clip", "2", "--env.reward-scale", "0.5")
    assert main(args) == 0
    assert "another scale now, so the replay starts empty" in said_by(capsys)
    now, _ = read_config(poisoned)
    assert (now.env.reward_clip, now.env.reward_scale) == (2.0, 0.5)
    storage = load(poisoned / "checkpoints" / "checkpoint-30.dc")["processes"][0]["replay"]
    assert 0 < storage["storage"]["rewards"].abs().max() <= 2
    # From then on they are as they were.
    assert main(command(poisoned, "--steps", "31")) == 0
    assert "another scale" not in said_by(capsys)


def test_rewards_of_another_scale_are_noticed_after_a_crash(poisoned: Path) -> None:
    """config.json has the new scale by then, but the checkpoint still the old one."""
    settings, _ = read_config(poisoned)
    clipped = replace(settings, env=replace(settings.env, reward_clip=2.0))
    with pytest.MonkeyPatch.context() as patch:
        die_after(patch, 1)
        with pytest.raises(MemoryError):
            resume(clipped)
    assert read_config(poisoned)[0].env.reward_clip == 2.0
    resume(read_config(poisoned)[0])
    storage = load(poisoned / "checkpoints" / "checkpoint-30.dc")["processes"][0]["replay"]
    assert storage["storage"]["rewards"].abs().max() <= 2


def test_every_setting_that_is_advised_can_be_given(poisoned: Path) -> None:
    more = ["--optimiser.learning-rate", "1e-4", "--max-loss", "1e7", "--skip-replay"]
    assert main(command(poisoned, *more)) == 0
    now, _ = read_config(poisoned)
    assert (now.optimiser.learning_rate, now.max_loss) == (1e-4, 1e7)
    assert now.optimiser == replace(TrainConfig().optimiser, learning_rate=1e-4)
    assert read_rows(poisoned / "metrics.jsonl")[-1]["step"] == 30


def test_a_new_learning_rate_is_used(tmp_path: Path) -> None:
    train(config(tmp_path / "run", task="catch:4x3", steps=5))
    before = load_params(tmp_path / "run" / "agent.npz")
    settings, _ = read_config(tmp_path / "run")
    tiny = replace(settings.optimiser, learning_rate=1e-9)
    resume(replace(settings, steps=6, optimiser=tiny))
    after = load_params(tmp_path / "run" / "agent.npz")
    moved = max(float((after[k] - p).abs().max()) for k, p in before.items())
    assert 0 < moved < 1e-7


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"seed": 1}, "seed"),
        ({"log_every": 3}, "log_every"),
        ({"env": EnvConfig(normalize_observations=True)}, "env.normalize_observations"),
        ({"net": NetConfig(torso=(8,), action_lstm=8, head_hidden=(8,))}, "net.torso"),
    ],
)
def test_what_would_make_another_run_of_it_is_refused(
    change: dict[str, Any], name: str, tmp_path: Path
) -> None:
    train(config(tmp_path / "run", task="gym:CartPole-v1", steps=2))
    settings, _ = read_config(tmp_path / "run")
    before = (tmp_path / "run" / "config.json").read_bytes()
    with pytest.raises(DiscorlError, match=f"^{name} cannot change when a run is resumed"):
        resume(replace(settings, steps=3, **change))
    assert (tmp_path / "run" / "config.json").read_bytes() == before


def test_a_run_from_before_suites_had_options_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("minatar")
    train(config(tmp_path / "run", task="minatar:breakout", steps=1))
    path = tmp_path / "run" / "config.json"
    content = json.loads(path.read_text())
    assert content["env"].pop("suite")
    path.write_text(json.dumps(content))
    assert resume(replace(read_config(tmp_path / "run")[0], steps=2)).metrics[-1]["step"] == 2


def test_the_command_line_offers_what_may_change() -> None:
    offered = {option.field.removesuffix("_") for option in options_of(ResumeArgs)}
    offered = {"checkpoint" if o.startswith("checkpoint.") else o for o in offered}
    decided_by_the_machine = {"device", "kernels", "out", "precision", "rule"}
    others = {"resume", "skip_replay", "env_steps", "task"}
    assert offered - others == {*MAY_CHANGE} - decided_by_the_machine


def test_large_rewards_are_fine_while_the_loss_is(tmp_path: Path) -> None:
    spikes = {20: 100.0}
    train(config(tmp_path / "run", steps=8, max_loss=1e9), env=lambda: Spiky(spikes))
    assert not spikes, "it was sent"


def test_unused_places_of_a_replay_are_zero(tmp_path: Path, filled_memory: None) -> None:
    """Otherwise they hold whatever the memory held before, and equal runs leave other files."""
    settings = config(tmp_path / "run", task="catch:4x3", steps=2, replay_capacity=64)
    train(settings)
    saved = load(tmp_path / "run" / "checkpoints" / "checkpoint-2.dc")
    replay = saved["processes"][0]["replay"]
    assert replay["size"] == 4
    for x in replay["storage"].values():
        if x is not None:
            assert not x[:, 4:].any()
    assert replay["storage"]["behaviour_logits"][:, :4].all()


def test_equal_runs_leave_equal_checkpoints(tmp_path: Path) -> None:
    """Also one that was stopped and resumed; all that may differ is the time."""

    def checkpoint(run: str) -> bytes:
        content = load(tmp_path / run / "checkpoints" / "checkpoint-4.dc")
        content["shared"]["seconds"] = 0.0
        return to_bytes(content)

    for run, dirt in (("a", 0.1), ("b", 0.2), ("c", 0.3)):
        trash = [torch.full((n,), dirt) for n in range(1, 4000, 7)]
        del trash  # what is allocated next may lie where it was
        steps = 2 if run == "c" else 4
        train(config(tmp_path / run, task="catch:4x3", steps=steps, replay_capacity=64))
    resume(replace(read_config(tmp_path / "c")[0], steps=4))
    assert checkpoint("a") == checkpoint("b") == checkpoint("c")


@pytest.fixture
def filled_memory() -> Iterator[None]:
    """torch fills new memory with NaN and the largest integers, instead of leaving it as it was."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
