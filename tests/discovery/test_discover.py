"""Discovery runs: folders, resuming to the last bit, several processes, divergence."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from discorl.cli import main
from discorl.discovery import discover as module
from discorl.discovery.config import DiscoverConfig, GroupConfig
from discorl.discovery.discover import discover, resume_discovery
from discorl.errors import DiscorlError
from discorl.meta.objective import ObjectiveWeights
from discorl.rules.store import load_rule, save_rule
from discorl.rules.values import ReturnSettings
from discorl.runs.checkpoint import CheckpointFolder, load, to_bytes
from discorl.runs.config_file import read_settings
from discorl.runs.metrics import TIMING_FIELDS, read_rows
from discorl.runs.program import Diverged
from discorl.training.kernels import VARIABLE
from tests.builders import assert_bit_equal, random_rule_params, small_disco
from tests.compiler import needs_compiler
from tests.meta.population import tiny_config

TINY = "tests.discovery.tiny_discovery"


def command(folder: Path, steps: int, *more: str, processes: int = 1) -> list[str]:
    launcher = [sys.executable, "-m"]
    if processes > 1:
        launcher += ["torch.distributed.run", "--nproc-per-node", str(processes), *more]
        launcher += ["--standalone", "-m"]
        more = ()
    return [*launcher, TINY, str(folder), str(steps), *more]


def run(args: list[str]) -> None:
    result = subprocess.run(args, capture_output=True, text=True, env=environment())
    assert result.returncode == 0, result.stderr[-2000:]


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1"}


def rows_without_times(folder: Path) -> list[dict[str, Any]]:
    rows = read_rows(folder / "metrics.jsonl")
    return [{k: v for k, v in row.items() if k not in TIMING_FIELDS} for row in rows]


def rule_arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as archive:
        return {k: archive[k] for k in archive.files}


def test_leaves_a_folder_with_rules_that_load(tmp_path: Path) -> None:
    config = tiny_config(out=tmp_path / "run", held_out=("catch:5x4",), eval_every=2)
    config = replace(config, eval_updates=3, eval_agents=2)
    result = discover(config)
    assert not result.interrupted
    assert [row["step"] for row in result.metrics] == [1, 2, 3, 4]
    assert "held_out/catch:5x4" in result.metrics[1]
    assert result.metrics[-1]["return/catch:4x4"] <= 1
    for name in ("config.json", "metrics.jsonl", "curve.png", "rule.npz"):
        assert (tmp_path / "run" / name).stat().st_size > 0
    for path in (tmp_path / "run" / "snapshots" / "rule-2.npz", tmp_path / "run" / "rule.npz"):
        loaded = load_rule(path)
        assert loaded.rule.sizes.prediction == 6
        assert loaded.rule.mask_episode_starts is False
        assert loaded.provenance["tasks"] == "catch:4x4*2 bandit:3*3"
    assert_bit_equal(load_rule(tmp_path / "run" / "rule.npz").params, result.params)


def test_two_runs_with_the_same_seed_are_equal(tmp_path: Path) -> None:
    first, second = (discover(tiny_config(out=tmp_path / n)) for n in ("a", "b"))
    assert_bit_equal(first.params, second.params)
    assert rows_without_times(tmp_path / "a") == rows_without_times(tmp_path / "b")
    other = discover(tiny_config(out=tmp_path / "c", seed=1))
    name = "y_target.weight"
    assert not torch.equal(first.params[name], other.params[name])


def test_the_number_of_threads_changes_no_bit_and_may_change_on_resume(tmp_path: Path) -> None:
    config = tiny_config(lifetimes=(4, 6), held_out=("catch:4x3/6", "bandit:3/6"), eval_every=2)
    config = replace(config, eval_updates=3, eval_agents=2, threads=1)
    before = torch.get_num_threads()
    one = discover(replace(config, out=tmp_path / "one"))
    discover(replace(config, out=tmp_path / "two", steps=2, threads=2))
    two = resume_discovery(tmp_path / "two", steps=4, threads=3)
    assert_bit_equal(one.params, two.params)
    assert rows_without_times(tmp_path / "one") == rows_without_times(tmp_path / "two")
    assert "validation" in two.metrics[-1] and torch.get_num_threads() == before


@pytest.mark.parametrize("per_agent", [True, False])
def test_resumes_to_the_last_bit(tmp_path: Path, per_agent: bool) -> None:
    base = tiny_config(replay_capacity=6, num_replayed=2, lifetimes=(4, 6))
    base = replace(base, meta_optimiser=replace(base.meta_optimiser, per_agent=per_agent))
    whole = discover(replace(base, steps=5, out=tmp_path / "whole"))
    discover(replace(base, steps=3, out=tmp_path / "half"))
    resumed = resume_discovery(tmp_path / "half", steps=5)
    assert_bit_equal(whole.params, resumed.params)
    assert rows_without_times(tmp_path / "whole") == rows_without_times(tmp_path / "half")


@needs_compiler
def test_with_kernels_it_resumes_to_the_last_bit(tmp_path: Path) -> None:
    base = tiny_config(replay_capacity=6, num_replayed=2, lifetimes=(4, 6), kernels="on")
    whole = discover(replace(base, steps=5, out=tmp_path / "whole"))
    discover(replace(base, steps=3, out=tmp_path / "half"))
    assert json.loads((tmp_path / "half" / "config.json").read_text())["kernels"] == "on"
    resumed = resume_discovery(tmp_path / "half", steps=5, threads=2)
    assert_bit_equal(whole.params, resumed.params)
    assert rows_without_times(tmp_path / "whole") == rows_without_times(tmp_path / "half")


@needs_compiler
def test_a_run_that_began_without_kernels_goes_on_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = discover(tiny_config(out=tmp_path / "whole", kernels="off"))
    discover(tiny_config(out=tmp_path / "half", kernels="off", steps=2))
    path = tmp_path / "half" / "config.json"
    config = json.loads(path.read_text())
    assert config.pop("kernels") == "off"  # which earlier versions did not know
    path.write_text(json.dumps(config))
    monkeypatch.setenv(VARIABLE, "on")
    resumed = resume_discovery(tmp_path / "half", steps=4)
    assert_bit_equal(whole.params, resumed.params)


def test_a_sliding_window_resumes_to_the_last_bit(tmp_path: Path) -> None:
    base = tiny_config(num_updates=3, stride=1, memory="mixed", lifetimes=(4, 6))
    whole = discover(replace(base, steps=5, out=tmp_path / "whole"))
    discover(replace(base, steps=3, out=tmp_path / "half"))
    resumed = resume_discovery(tmp_path / "half", steps=5)
    assert_bit_equal(whole.params, resumed.params)
    assert rows_without_times(tmp_path / "whole") == rows_without_times(tmp_path / "half")


def killed_until_done(folder: Path, steps: int, kills: int, seed: int) -> int:
    """Kill -9 the run at random moments, resuming each time; returns how many kills hit."""
    rng, hits = random.Random(seed), 0
    args, metrics = command(folder, steps), folder / "metrics.jsonl"
    for i in range(kills):
        process = subprocess.Popen(args, stdout=subprocess.DEVNULL, env=environment())
        # Spread over the whole run: wait for some step, then for a moment within or after it.
        step = 1 + i * (steps - 2) // kills
        while process.poll() is None and len(read_rows(metrics)) < step:
            time.sleep(0.02)
        time.sleep(rng.uniform(0, 0.3))
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            hits += 1
        process.wait()
    run(args)
    return hits


@pytest.mark.parametrize("kills, steps", [(2, 12), pytest.param(10, 60, marks=pytest.mark.slow)])
def test_killed_at_random_moments_it_ends_bit_equal(tmp_path: Path, kills: int, steps: int) -> None:
    run(command(tmp_path / "whole", steps))
    assert killed_until_done(tmp_path / "killed", steps, kills, seed=kills) > 0
    want, got = (rule_arrays(tmp_path / n / "rule.npz") for n in ("whole", "killed"))
    assert want.keys() == got.keys()
    for name, array in want.items():
        assert np.array_equal(array, got[name]), name
    assert rows_without_times(tmp_path / "whole") == rows_without_times(tmp_path / "killed")


def test_two_processes_give_the_rule_that_one_gives(tmp_path: Path) -> None:
    run(command(tmp_path / "one", 3))
    run(command(tmp_path / "two", 3, processes=2))
    want, got = (rule_arrays(tmp_path / n / "rule.npz") for n in ("one", "two"))
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-5, atol=1e-6, err_msg=name)
    one, two = (read_rows(tmp_path / n / "metrics.jsonl") for n in ("one", "two"))
    for a, b in zip(one, two, strict=True):
        assert a.keys() == b.keys()
        for key in a.keys() - {*TIMING_FIELDS}:
            assert b[key] == pytest.approx(a[key], rel=1e-3, abs=1e-4), key


def test_a_run_of_two_processes_goes_on_in_one(tmp_path: Path) -> None:
    run(command(tmp_path / "two", 2, processes=2))
    run(command(tmp_path / "one", 2))
    a = resume_discovery(tmp_path / "two", steps=4)
    b = resume_discovery(tmp_path / "one", steps=4)
    for name, want in b.params.items():
        torch.testing.assert_close(a.params[name], want, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_rank_that_dies_is_restarted_from_the_last_checkpoint(tmp_path: Path) -> None:
    run(command(tmp_path / "whole", 8))
    marker = tmp_path / "die-once"
    marker.touch()
    os.environ["DISCORL_TEST_DIE_ONCE"] = str(marker)
    try:
        run(command(tmp_path / "died", 8, "--max-restarts", "2", processes=2))
    finally:
        del os.environ["DISCORL_TEST_DIE_ONCE"]
    assert not marker.exists()
    want, got = (rule_arrays(tmp_path / n / "rule.npz") for n in ("whole", "died"))
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_population_that_diverges_stops_with_the_last_good_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = module.meta_step
    steps = []

    def worse_and_worse(*args: Any) -> Any:
        discovery, info = honest(*args)
        steps.append(discovery.rule_params)
        if len(steps) == 3:
            info = replace(info, num_skipped=info.num_agents)
        return discovery, info

    monkeypatch.setattr(module, "meta_step", worse_and_worse)
    with pytest.raises(Diverged, match=r"at meta-step 3.*max-norm.*discorl discover --resume"):
        discover(tiny_config(out=tmp_path / "run"))
    assert_bit_equal(load_rule(tmp_path / "run" / "rule.npz").params, steps[1])


def test_a_diverged_population_goes_on_with_what_the_message_advises(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing passes a limit that small; the way out is in the message."""
    config = tiny_config(steps=2, checkpoint_every=1, out=tmp_path / "run")
    discover(config)
    args = ["discover", "--resume", str(tmp_path / "run"), "--steps", "4", "--progress", "lines"]
    assert main([*args, "--meta-optimiser.max-norm", "1e-30"]) == 2
    assert "To continue: discorl discover --resume" in capsys.readouterr().err
    kept = CheckpointFolder(tmp_path / "run" / "checkpoints")
    assert (kept.steps(), kept.steps(is_diverged=True)) == ([1, 2], [2])
    changed = ["--meta-optimiser.max-norm", "100", "--meta-optimiser.learning-rate", "1e-4"]
    assert main([*args, *changed, "--learning-rate", "1e-5"]) == 0
    assert "going back to the last good one, of meta-step 2" in unwrapped(capsys.readouterr().out)
    now, _ = read_settings(tmp_path / "run", DiscoverConfig, "discover")
    want = replace(config.meta_optimiser, max_norm=100.0, learning_rate=1e-4)
    assert (now.meta_optimiser, now.learning_rate, now.steps) == (want, 1e-5, 4)
    assert (kept.steps(), kept.steps(is_diverged=True)) == ([3, 4], [])


def test_equal_discoveries_leave_equal_checkpoints(tmp_path: Path) -> None:
    def checkpoint(run: str, dirt: float) -> bytes:
        trash = [torch.full((n,), dirt) for n in range(1, 4000, 7)]
        del trash  # what is allocated next may lie where it was
        discover(tiny_config(steps=1, replay_capacity=50, num_replayed=2, out=tmp_path / run))
        content = load(tmp_path / run / "checkpoints" / "checkpoint-1.dc")
        unused = content["groups"]["0"]["state"]["replay"]["storage"]["rewards"][:, 20:]
        assert unused.numel() and not unused.any()
        return to_bytes(content | {"seconds": 0.0})

    assert checkpoint("a", 0.1) == checkpoint("b", 0.2)


def test_only_some_settings_of_a_discovery_may_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    discover(tiny_config(steps=1, out=tmp_path / "run"))
    with pytest.raises(DiscorlError, match=r"objective\.target_kl cannot change"):
        resume_discovery(tmp_path / "run", objective=ObjectiveWeights(target_kl=0.5))
    args = ["discover", "--resume", str(tmp_path / "run")]
    assert main([*args, "--objective.target-kl", "0.5"]) == 2
    assert "--objective.target-kl cannot change" in capsys.readouterr().err


def unwrapped(text: str) -> str:
    return " ".join(text.split())


def test_starts_from_a_rule_file(tmp_path: Path) -> None:
    first = discover(tiny_config(steps=1, out=tmp_path / "first"))
    rule = str(tmp_path / "first" / "rule.npz")
    second = discover(tiny_config(steps=1, init=rule, out=tmp_path / "second"))
    assert second.rule.sizes == first.rule.sizes
    moved = max(float((second.params[k] - p).abs().max()) for k, p in first.params.items())
    assert 0 < moved < 2e-3  # one step from where the other stopped
    provenance = load_rule(tmp_path / "second" / "rule.npz").provenance
    assert provenance["init"] == "rule.npz", "without the folder, which is nobody's business"


def test_a_rule_file_keeps_its_moments(tmp_path: Path) -> None:
    """Discount and trace are settings of the run; how moments decay is the rule's own."""
    rule = replace(small_disco(), returns=ReturnSettings(0.9, 0.8, moment_decay=0.5))
    path = tmp_path / "rule.npz"
    save_rule(path, rule, random_rule_params(rule), {})
    config = tiny_config(steps=1, init=str(path), out=tmp_path / "run")
    result = discover(replace(config, rule=replace(config.rule, discount=0.7)))
    assert result.rule.returns == ReturnSettings(0.7, 0.95, 0.5)
    assert load_rule(tmp_path / "run" / "rule.npz").rule.returns == result.rule.returns


def test_groups_are_written_in_few_signs() -> None:
    net = tiny_config().net
    assert GroupConfig.parse("catch:5x5", net) == GroupConfig("catch:5x5", 1, net)
    parsed = GroupConfig.parse("grid:random-small@7*12/64x32", net)
    assert (parsed.task, parsed.num_agents, parsed.net.torso) == (
        "grid:random-small@7",
        12,
        (64, 32),
    )


@pytest.mark.parametrize("text", ["*3", "catch*0", "catch*2/x", "catch*-1"])
def test_groups_that_make_no_sense(text: str) -> None:
    with pytest.raises(DiscorlError, match="TASK"):
        DiscoverConfig(tasks=(text,))


def test_the_folder_says_what_made_it(tmp_path: Path) -> None:
    discover(tiny_config(steps=1, out=tmp_path / "run"))
    content = json.loads((tmp_path / "run" / "config.json").read_text())
    assert content["tasks"] == ["catch:4x4*2", "bandit:3*3"]
    assert content["window"]["num_updates"] == 2
