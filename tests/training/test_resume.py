"""Runs that were killed end as if they never had been."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch

from discorl.cli import main
from discorl.cli.train import parse_train
from discorl.errors import DiscorlError
from discorl.runs import distributed
from discorl.runs.checkpoint import CheckpointFolder, load
from discorl.runs.files import held, load_params
from discorl.runs.metrics import TIMING_FIELDS, read_rows
from discorl.training import train as train_module
from discorl.training.config import CheckpointConfig, EnvConfig, NetConfig, TrainConfig
from discorl.training.rule_choice import read_config
from discorl.training.train import Training, resume, train
from discorl.training.trained_agent import load_agent
from tests.builders import assert_bit_equal, run_cli, write_small_rule

FILES = {"config.json", "metrics.jsonl", "curve.png", "agent.npz", "checkpoints"}


def config(out: Path, **changes: Any) -> TrainConfig:
    start = TrainConfig(
        task="catch:4x3",
        rule="actor-critic",
        steps=23,
        log_every=4,
        rollout_length=7,
        out=out,
        progress="none",
        device="cpu",
        batch_size=4,
        replay_capacity=12,
        checkpoint=CheckpointConfig(every_steps=5, every_minutes=None),
        net=NetConfig(torso=(16,), action_lstm=8, head_hidden=(8,)),
    )
    return replace(start, **changes)


def timeless(folder: Path) -> list[dict[str, Any]]:
    rows = read_rows(folder / "metrics.jsonl")
    return [{k: v for k, v in row.items() if k not in TIMING_FIELDS} for row in rows]


def assert_same_run(a: Path, b: Path) -> None:
    assert (a / "agent.npz").read_bytes() == (b / "agent.npz").read_bytes()
    assert timeless(a) == timeless(b)


def die_after(monkeypatch: pytest.MonkeyPatch, num_rollouts: int) -> None:
    """The next run crashes in the middle of a step."""
    act, count = train_module.act, iter(range(num_rollouts))

    def act_or_die(*args: Any, **options: Any) -> Any:
        if next(count, None) is None:
            raise MemoryError("the end")
        return act(*args, **options)

    monkeypatch.setattr(train_module, "act", act_or_die)


def crash(settings: TrainConfig, num_rollouts: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        die_after(patch, num_rollouts)
        with pytest.raises(MemoryError):
            train(settings)


@pytest.mark.parametrize("rule", ["actor-critic", "cmpo", "policy-gradient", "disco"])
@pytest.mark.parametrize("num_rollouts", [2, 5, 8, 19])
def test_a_crashed_run_goes_on_to_the_last_bit(
    rule: str, num_rollouts: int, tmp_path: Path
) -> None:
    if rule == "disco":
        rule = str(write_small_rule(tmp_path / "rule.npz"))
    changes = {"rule": rule, "updates_per_step": 2, "estimate_values": rule == "cmpo"}
    whole = train(config(tmp_path / "whole", **changes))
    crash(config(tmp_path / "cut", **changes), num_rollouts)
    result = resume(read_config(tmp_path / "cut")[0])
    assert not result.interrupted
    assert_same_run(whole.folder, result.folder)
    assert [row["step"] for row in result.metrics] == [4, 8, 12, 16, 20, 23]
    assert {p.name for p in result.folder.iterdir()} == FILES
    assert CheckpointFolder(result.folder / "checkpoints").steps() == [20, 23]


def test_a_finished_run_can_be_made_longer(tmp_path: Path) -> None:
    """As if it had been so long from the start, although the short one logged a last row."""
    whole = train(config(tmp_path / "whole"))
    short = train(config(tmp_path / "short", steps=10))
    assert [row["step"] for row in short.metrics] == [4, 8, 10]
    before, _ = read_config(tmp_path / "short")
    result = resume(replace(before, steps=23))
    assert_same_run(whole.folder, result.folder)
    assert json.loads((result.folder / "config.json").read_text())["steps"] == 23

    again = resume(read_config(result.folder)[0])
    assert_same_run(whole.folder, again.folder)
    with pytest.raises(DiscorlError, match="already at step 23"):
        resume(replace(before, steps=22))


def test_a_damaged_checkpoint_costs_time_only(tmp_path: Path) -> None:
    whole = train(config(tmp_path / "whole"))
    crash(config(tmp_path / "cut"), 13)
    path = tmp_path / "cut" / "checkpoints" / "checkpoint-10.dc"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.warns(UserWarning, match="using the checkpoint before"):
        result = resume(read_config(tmp_path / "cut")[0])
    assert_same_run(whole.folder, result.folder)


def test_gymnasium_goes_on_with_new_episodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = config(tmp_path / "cut", task="gym:CartPole-v1", progress="lines")
    crash(settings, 13)
    saved = load(tmp_path / "cut" / "checkpoints" / "checkpoint-10.dc")
    result = resume(read_config(tmp_path / "cut")[0])
    assert [row["step"] for row in result.metrics] == [4, 8, 12, 16, 20, 23]
    assert "start new episodes" in capsys.readouterr().out.replace("\n", " ")
    assert saved["shared"]["step"] == 10
    assert len(saved["processes"]) == 1


def test_a_checkpoint_at_a_time_limit_can_be_resumed(tmp_path: Path) -> None:
    def limited() -> gymnasium.Env:
        return gymnasium.make("CartPole-v1", max_episode_steps=7)  # as long as a rollout

    settings = config(tmp_path / "run", task="mine", steps=4, rollout_length=7)
    train(settings, env=limited)
    saved = load(tmp_path / "run" / "checkpoints" / "checkpoint-4.dc")
    assert saved["processes"][0]["timestep"]["truncated"].all()
    begun = read_config(tmp_path / "run")[0]
    assert resume(replace(begun, steps=6), env=limited).metrics[-1]["step"] == 6


def test_a_recurrent_agent_forgets_the_episodes_that_were_not_saved(tmp_path: Path) -> None:
    net = NetConfig(torso=(16,), action_lstm=8, head_hidden=(8,), core_lstm=4)
    settings = config(tmp_path / "run", task="gym:CartPole-v1", steps=5, net=net)
    train(settings)
    kept = load(tmp_path / "run" / "checkpoints" / "checkpoint-5.dc")
    assert kept["processes"][0]["core_state"]["hidden"].any()
    training = Training(settings, distributed.start("cpu"))
    training.begin()
    assert "start new episodes" in training.restore(kept)
    core_state = training.state.core_state
    assert core_state is not None and not core_state.hidden.any()


def test_the_state_is_all_there(tmp_path: Path) -> None:
    train(config(tmp_path / "run"))
    saved = load(tmp_path / "run" / "checkpoints" / "checkpoint-23.dc")
    shared = {"step", "seconds", "agent", "updates", "seen", "reward_settings"}
    assert saved["shared"].keys() == shared
    (own,) = saved["processes"]
    assert own.keys() == {
        *(
            "env_state",
            "timestep",
            "act_rng",
            "core_state",
            "env_memory",
            "sample_rng",
            "replay",
            "episodes",
        ),
    }
    assert own["replay"]["storage"]["observations"].shape == (7, 12, 4, 3)
    assert len(saved["shared"]["updates"]["pending"]) == 3, "steps 21 to 23 were not logged yet"


def test_checkpoints_by_the_minute(tmp_path: Path) -> None:
    often = CheckpointConfig(every_minutes=1e-9, keep=100)
    train(config(tmp_path / "often", steps=6, checkpoint=often))
    assert CheckpointFolder(tmp_path / "often" / "checkpoints").steps() == [1, 2, 3, 4, 5, 6]
    seldom = CheckpointConfig(every_minutes=1e9)
    train(config(tmp_path / "seldom", steps=6, checkpoint=seldom))
    assert CheckpointFolder(tmp_path / "seldom" / "checkpoints").steps() == [6]


def test_no_checkpoints_no_resume(tmp_path: Path) -> None:
    none = CheckpointConfig(every_steps=None, every_minutes=None)
    train(config(tmp_path / "run", steps=6, checkpoint=none))
    assert not (tmp_path / "run" / "checkpoints").exists()
    with pytest.raises(DiscorlError, match="without checkpoints"):
        resume(read_config(tmp_path / "run")[0])


def test_checkpoints_that_are_there_count_even_if_no_more_are_wanted(tmp_path: Path) -> None:
    train(config(tmp_path / "run", steps=6))
    none = CheckpointConfig(every_steps=None, every_minutes=None)
    resume(replace(read_config(tmp_path / "run")[0], steps=8, checkpoint=none))
    again = resume(replace(read_config(tmp_path / "run")[0], steps=9))
    assert again.metrics[-1]["step"] == 9


def test_a_run_that_is_refused_changes_nothing(tmp_path: Path) -> None:
    train(config(tmp_path / "run", steps=6))
    before = (tmp_path / "run" / "config.json").read_bytes()
    with held(tmp_path / "run"), pytest.raises(DiscorlError, match="another process"):
        resume(replace(read_config(tmp_path / "run")[0], steps=50))
    assert (tmp_path / "run" / "config.json").read_bytes() == before


def test_a_rule_that_changed_is_noticed(tmp_path: Path) -> None:
    rule = write_small_rule(tmp_path / "rule.npz")
    train(config(tmp_path / "run", rule=str(rule), steps=6))
    write_small_rule(rule, seed=1)
    with pytest.raises(DiscorlError, match="has changed since the run began"):
        resume(read_config(tmp_path / "run")[0])


def test_another_torch_is_worth_a_warning(tmp_path: Path) -> None:
    train(config(tmp_path / "run", steps=6))
    path = tmp_path / "run" / "config.json"
    path.write_text(path.read_text().replace(torch.__version__, "1.0"))
    with pytest.warns(UserWarning, match="began with torch 1.0"):
        resume(read_config(tmp_path / "run")[0])


def test_every_setting_survives_the_config_file(tmp_path: Path) -> None:
    settings = config(tmp_path / "run", steps=6, mask_episode_starts=False, seed=-3)
    train(settings)
    assert read_config(tmp_path / "run")[0] == replace(settings, kernels="off")  # it has decided


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "is not a run"),
        ("{", "cannot read"),
        ("[]", "not the configuration"),
        ("{}", "not the configuration"),
        ('{"resolved_rule": 3}', "not the configuration"),
        ('{"net": {"torso": 3}}', "not the configuration"),
        ('{"steps": 0}', "steps must be"),
    ],
)
def test_folders_without_a_run(text: str | None, message: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(DiscorlError, match=message):
        read_config(tmp_path)


@pytest.mark.parametrize("command", [["train", "--resume"], ["evaluate"]])
def test_a_discovery_is_sent_to_its_own_command(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text('{"kind": "discover", "steps": 3}')
    assert main([*command, str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert f"resume it with 'discorl discover --resume {tmp_path}'" in err
    assert f"discorl train --rule {tmp_path}/rule.npz" in err


def test_files_from_before_they_had_a_version_are_read(tmp_path: Path) -> None:
    train(config(tmp_path / "run", steps=6))
    path = tmp_path / "run" / "config.json"
    content = json.loads(path.read_text())
    old = {k: v for k, v in content.items() if k not in ("kind", "version", "discorl")}
    path.write_text(json.dumps(old))
    resume(replace(read_config(tmp_path / "run")[0], steps=8))
    assert json.loads(path.read_text()).keys() == content.keys()


# --- through the command line --------------------------------------------------------------------


def arguments(settings: TrainConfig) -> list[str]:
    net = settings.net
    return [
        *("train", settings.task, "--rule", settings.rule, "--device", "cpu"),
        *("--steps", str(settings.steps), "--log-every", str(settings.log_every)),
        *("--rollout-length", str(settings.rollout_length), "--out", str(settings.out)),
        *("--num-envs", str(settings.num_envs), "--batch-size", str(settings.batch_size)),
        *("--replay-capacity", str(settings.replay_capacity)),
        *("--checkpoint.every-steps", str(settings.checkpoint.every_steps)),
        *("--checkpoint.every-minutes", "None"),
        *("--net.torso", str(net.torso[0]), "--net.action-lstm", str(net.action_lstm)),
        *("--net.head-hidden", str(net.head_hidden[0])),
    ]


def last_step(out: Path) -> int:
    rows = read_rows(out / "metrics.jsonl")
    return rows[-1]["step"] if rows else 0


def kill(args: list[str], out: Path, step: int, delay: float) -> bool:
    """Start, wait until ``step`` is logged and then ``delay`` more, kill -9; False if it ended."""
    mark = out / "config.json"  # written when a run begins, and again when it goes on
    before = mark.stat().st_mtime_ns if mark.exists() else 0
    process = subprocess.Popen(
        [sys.executable, "-m", "discorl", *args],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    while process.poll() is None and (not mark.exists() or mark.stat().st_mtime_ns == before):
        time.sleep(0.01)
    while process.poll() is None and last_step(out) < step:
        time.sleep(0.01)
    time.sleep(delay)
    killed = process.poll() is None
    process.send_signal(signal.SIGKILL)
    _, err = process.communicate()
    assert killed or process.returncode == 0, err.decode()
    return killed


def kill_and_resume(
    tmp_path: Path, num_kills: int, steps: int, rule: str = "actor-critic"
) -> list[int]:
    """Each kill at a random moment of a run, or of what resumes it; the steps they struck after."""
    settings = config(tmp_path / "whole", steps=steps, rule=rule)
    # A small rule has a preset of its own, so the whole run starts from the command line, too.
    train(replace(parse_train(arguments(settings)[1:]), progress="none"))
    noise = random.Random(0)
    struck = []
    while len(struck) < num_kills:
        out = tmp_path / "cut"
        shutil.rmtree(out, ignore_errors=True)
        args, begun = arguments(replace(settings, out=out)), 0
        while len(struck) < num_kills:
            # Somewhere in what is left, and not always at the end of a step.
            step = noise.randint(begun, begun + steps // 3)
            if not kill(args, out, step, noise.uniform(0, 0.3)):
                break
            begun = last_step(out)
            struck.append(begun)
            args = ["train", "--resume", str(out)]
        done = run_cli("train", "--resume", out)
        assert done.returncode == 0, done.stderr
        assert_same_run(tmp_path / "whole", out)
    return struck


def test_kill_9(tmp_path: Path) -> None:
    kill_and_resume(tmp_path, num_kills=2, steps=300)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["actor-critic", "disco"])
def test_kill_9_at_20_random_moments(rule: str, tmp_path: Path) -> None:
    name = str(write_small_rule(tmp_path / "rule.npz")) if rule == "disco" else rule
    struck = kill_and_resume(tmp_path, num_kills=20, steps=300, rule=name)
    print(f"{rule}: killed after steps {struck}")
    assert len(struck) == 20 and len(set(struck)) > 10


def test_two_processes_do_not_train_into_one_folder(tmp_path: Path) -> None:
    train(config(tmp_path / "run", steps=6))
    with held(tmp_path / "run"):
        done = run_cli("train", "--resume", tmp_path / "run", "--steps", "9")
    assert done.returncode == 2
    assert "another process is training into" in done.stderr
    assert done.stderr.count("\n") == 1
    assert read_rows(tmp_path / "run" / "metrics.jsonl")[-1]["step"] == 6
    result = resume(replace(read_config(tmp_path / "run")[0], steps=9))
    assert result.metrics[-1]["step"] == 9


def test_ctrl_c_and_sigterm_save_first(tmp_path: Path) -> None:
    """Nothing is computed twice: the checkpoint is of the very step it stopped at."""
    train(config(tmp_path / "whole", steps=400))
    settings = config(tmp_path / "cut", steps=400, checkpoint=CheckpointConfig(every_steps=10**6))
    args = arguments(settings)
    log = tmp_path / "cut" / "metrics.jsonl"
    for number, word in ((signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")):
        before = log.stat().st_size if log.exists() else 0
        process = subprocess.Popen(
            [sys.executable, "-m", "discorl", *args],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        while process.poll() is None and (not log.exists() or log.stat().st_size <= before):
            time.sleep(0.01)
        process.send_signal(number)
        out, _ = process.communicate(timeout=1800)
        assert process.returncode == 130
        assert f"Stopped by {word}" in out
        assert "--resume" in out
        (step,) = CheckpointFolder(tmp_path / "cut" / "checkpoints").steps()[-1:]
        rows = read_rows(log)
        assert rows[-1]["step"] <= step < rows[-1]["step"] + settings.log_every
        args = ["train", "--resume", str(tmp_path / "cut")]
    assert main([*args, "--progress", "none"]) == 0
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_a_damaged_checkpoint_is_one_line_for_the_user(tmp_path: Path) -> None:
    train(config(tmp_path / "run", steps=6))
    path = tmp_path / "run" / "checkpoints" / "checkpoint-6.dc"
    path.write_bytes(path.read_bytes()[:-1])
    done = run_cli("train", "--resume", tmp_path / "run")
    assert done.returncode == 0
    assert done.stderr.startswith(f"warning: {path} is damaged")
    assert done.stderr.count("\n") == 1


def test_only_some_settings_may_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(config(tmp_path / "run", steps=6))
    args = ["train", "--resume", str(tmp_path / "run"), "--steps", "9", "--progress", "none"]
    assert main([*args, "--checkpoint.keep", "5"]) == 0
    assert read_rows(tmp_path / "run" / "metrics.jsonl")[-1]["step"] == 9
    assert read_config(tmp_path / "run")[0].checkpoint == CheckpointConfig(5, None, keep=5)
    capsys.readouterr()
    for option in ("--seed", "--batch_size", "--no-compile", "--net.torso", "--action-bins"):
        value = [] if option.startswith("--no-") else ["3"]
        assert main([*args, option, *value]) == 2
        err = capsys.readouterr().err
        said = f"{option.replace('_', '-').replace('--action', '--env.action')} cannot change"
        assert err.startswith(f"error: {said}") and err.count("\n") == 1
        assert "--optimiser.learning-rate" in err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--resume"], "needs a run folder"),
        (["--resume", "--steps", "3"], "needs a run folder"),
        (["--resume", "nowhere"], "nowhere is not a run"),
        (["--resume=nowhere"], "nowhere is not a run"),
    ],
)
def test_bad_resumes_are_one_line(
    args: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *args]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and err.count("\n") == 1
    assert words in err


# --- a full disk ---------------------------------------------------------------------------------

FILL_THE_DISK = """
import resource, sys
from discorl.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("limit", [100, 20_000])
def test_a_full_disk_stops_with_a_message_and_loses_nothing(limit: int, tmp_path: Path) -> None:
    """The limit falls into the metrics, or into a checkpoint."""
    train(config(tmp_path / "whole"))
    train(config(tmp_path / "cut", steps=10))
    before = {p.name for p in (tmp_path / "cut" / "checkpoints").iterdir()}
    args = ["train", "--resume", str(tmp_path / "cut"), "--steps", "23", "--progress", "none"]
    done = subprocess.run(
        [sys.executable, "-c", FILL_THE_DISK, str(limit), *args],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    assert {p.name for p in (tmp_path / "cut" / "checkpoints").iterdir()} == before
    assert main(args) == 0
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


# --- losses that explode -------------------------------------------------------------------------


def test_a_loss_that_explodes_is_explained_and_the_last_good_state_kept(tmp_path: Path) -> None:
    bad = config(tmp_path / "run", max_loss=1e-3)
    with pytest.raises(DiscorlError) as error:
        train(bad)
    said = str(error.value)
    assert "at step 2" in said
    assert "policy" in said
    assert "--max-loss" in said and "--optimiser.learning-rate" in said
    assert "checkpoint-2-diverged.dc" in said
    assert "--reward-clip" not in said, "which tasks on tensors do not have"
    saved = load(tmp_path / "run" / "checkpoints" / "checkpoint-2-diverged.dc")
    newborn = train(config(tmp_path / "newborn", steps=1))
    assert_bit_equal(
        load_params(tmp_path / "run" / "agent.npz"), load_params(newborn.folder / "agent.npz")
    )
    assert_bit_equal(saved["shared"]["agent"]["params"], load_params(newborn.folder / "agent.npz"))


def test_the_scale_of_observations_is_kept_too(tmp_path: Path) -> None:
    scaled = EnvConfig(normalize_observations=True)
    with pytest.raises(DiscorlError, match="--max-loss"):
        train(config(tmp_path / "run", task="gym:CartPole-v1", env=scaled, max_loss=1e-3))
    assert load_params(tmp_path / "run" / "env.npz")["observation.count"] > 1
    load_agent(tmp_path / "run").make_env(1)
    (tmp_path / "run" / "env.npz").unlink()
    with pytest.raises(DiscorlError, match=r"no env\.npz"):
        load_agent(tmp_path / "run").make_env(1)


def test_a_learning_rate_beyond_reason(tmp_path: Path) -> None:
    optimiser = replace(TrainConfig().optimiser, learning_rate=1e38)
    with pytest.raises(DiscorlError, match=r"at step \d.*learning-rate"):
        train(config(tmp_path / "run", optimiser=optimiser))
    params = load_params(tmp_path / "run" / "agent.npz")
    assert all(bool(p.isfinite().all()) for p in params.values())
