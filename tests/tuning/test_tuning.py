"""Many runs: sweeps over rules and seeds, and searches for settings."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from shlex import split
from threading import Timer
from typing import Any

import pytest
from rich.console import Console

from discorl.cli import main
from discorl.cli.many import seeds_of
from discorl.cli.train import parse_train
from discorl.errors import DiscorlError
from discorl.runs.files import held, load_params
from discorl.training.train import train
from discorl.tuning.command_line import command_line
from discorl.tuning.pool import run_all
from discorl.tuning.space import Choice, Range, space_for, value_of, with_values
from discorl.tuning.sweep import run_name, sweep, with_equal_budgets
from discorl.tuning.tune import TrialResult, TuneResult, print_result
from discorl.tuning.worker import FAILED, PRUNED, STOPPED, Trial, write_job
from discorl.tuning.worker import main as work
from tests.builders import assert_bit_equal
from tests.training.test_resume import config, crash, timeless

TINY = (
    "--num-envs 2 --batch-size 2 --rollout-length 4 --log-every 2 --net.torso 8 "
    "--net.action-lstm 4 --net.head-hidden 4 --threads 1 --device cpu --kernels off "
    "--checkpoint.every-steps 2"
)
RULES = ("actor-critic", "policy-gradient", "cmpo", "disco-mini")


# --- seeds, spaces, commands ---------------------------------------------------------------------


def test_seeds() -> None:
    assert seeds_of("0..4") == [0, 1, 2, 3, 4]
    assert seeds_of("7") == [7]
    assert seeds_of("1, 3..4,9") == [1, 3, 4, 9]
    for wrong in ("", "a", "4..1", "1,1", "0..2,2", "-1", "0..99999999"):
        with pytest.raises(DiscorlError, match="--seeds"):
            seeds_of(wrong)


@pytest.mark.parametrize("rule", RULES)
def test_a_space_holds_the_settings_that_it_begins_with(rule: str) -> None:
    for task in ("catch", "gym:CartPole-v1"):
        start = parse_train([task, "--rule", rule])
        space = space_for(start)
        assert 3 <= len(space) <= 5, "small"
        for name, of in space.items():
            now = value_of(start, name)
            if isinstance(of, Range):
                assert of.low <= now <= of.high and of.low < of.high
            else:
                assert isinstance(of, Choice) and now in of.values and len(of.values) > 1
        same = {name: value_of(start, name) for name in space}
        assert with_values(start, same) == start


def test_a_rule_that_is_not_there_has_no_space() -> None:
    with pytest.raises(DiscorlError, match="no rule is called 'nonsense'"):
        space_for(replace(parse_train(["catch", "--rule", "actor-critic"]), rule="nonsense"))


@pytest.mark.parametrize(
    "options",
    [
        "catch --rule disco-mini",
        f"catch:4x3 --rule actor-critic --steps 8 {TINY}",
        "gym:CartPole-v1 --rule cmpo --env-steps 1e4 --optimiser.learning-rate 0.0123456789",
        "ale:Pong --rule actor-critic --preset paper --sticky 0",
        """gym:CartPole-v1 --rule cmpo --kwargs '{"sutton_barto_reward": true}'""",
        "catch --rule policy-gradient --net.zero-values --returns.lambda 0.9 --max-minutes 5",
    ],
)
def test_a_command_line_gives_the_settings_back(options: str) -> None:
    wanted = parse_train(split(options))
    command = split(command_line(wanted))
    assert command[:2] == ["discorl", "train"]
    assert parse_train(command[2:]) == wanted


def test_the_best_settings_are_one_line_to_copy(tmp_path: Path) -> None:
    wanted = parse_train(split(f"gym:CartPole-v1 --rule actor-critic --steps 8 {TINY}"))
    best = TrialResult(0, "complete", 1.0, {"optimiser.learning_rate": 0.1})
    shown = io.StringIO()
    result = TuneResult(tmp_path, [best], best, wanted, interrupted=False)
    print_result(result, Console(file=shown, width=60))
    (line,) = [line for line in shown.getvalue().splitlines() if "discorl train" in line]
    assert parse_train(split(line)[2:]) == wanted


# --- sweeps --------------------------------------------------------------------------------------


def test_a_sweep_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its runs are those of the same options, and what is finished is not done again."""
    args = ["sweep", "catch:4x3", *split(f"--steps 4 {TINY}"), "--out", str(tmp_path / "many")]
    args += ["--rules", "policy-gradient,actor-critic", "--seeds", "3", "--jobs", "2"]
    assert main(args) == 0
    shown = capsys.readouterr().out
    assert "[2/2]" in shown and "policy-gradient" in shown
    assert (tmp_path / "many" / "comparison.html").exists()
    alone = f"catch:4x3 --rule actor-critic --seed 3 --steps 4 {TINY} --progress none"
    train(parse_train([*split(alone), "--out", str(tmp_path / "alone")]))
    many = tmp_path / "many" / "catch-4x3-actor-critic-3"
    assert_bit_equal(*(load_params(f / "agent.npz") for f in (tmp_path / "alone", many)))
    before = (many / "agent.npz").stat().st_mtime_ns
    assert main(args) == 0
    assert "[" not in capsys.readouterr().out.partition("rule")[0], "nothing was left to do"
    assert (many / "agent.npz").stat().st_mtime_ns == before
    assert main([*args, "--log-every", "1"]) == 2
    assert "was begun with other settings" in capsys.readouterr().err


def test_rules_of_a_sweep_take_the_same_environment_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their presets act for different times between updates: short runs had no step in common."""
    options = "--steps 1 --batch-size 2 --net.torso 8 --net.action-lstm 4 --net.head-hidden 4"
    args = ["sweep", "catch", *split(options), "--out", str(tmp_path / "s"), "--seeds", "0"]
    assert main([*args, "--rules", "actor-critic,cmpo"]) == 0
    assert "up to 256 environment steps" in " ".join(capsys.readouterr().out.split())
    runs = [path.parent for path in tmp_path.glob("s/*/config.json")]
    done = {run.name: timeless(run)[-1]["env_steps"] for run in runs}
    assert done == {"catch-actor-critic-0": 290, "catch-cmpo-0": 256}
    alike = [parse_train(["catch", "--rule", rule]) for rule in ("disco103", "actor-critic")]
    assert with_equal_budgets(alike) == alike, "there is nothing to do"


def test_runs_of_a_sweep_need_names_of_their_own(tmp_path: Path) -> None:
    one = config(tmp_path)
    assert run_name(replace(one, task="gym:a/B-v0")) == "gym-a-B-v0-actor-critic-0"
    with pytest.raises(DiscorlError, match="the same task, rule and seed"):
        sweep([one, one], tmp_path / "many")


def test_what_is_for_one_run_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "catch", "--seeds", "0..4"]) == 2
    assert "write 'discorl sweep'" in capsys.readouterr().err
    for option, instead in (("--seed", "--seeds"), ("--rule", "--rules")):
        assert main(["sweep", "catch", option, "1"]) == 2
        assert f"a sweep takes {instead}" in capsys.readouterr().err


class Child:
    """A process that ends at once."""

    def __init__(self, code: int) -> None:
        self.code = code

    def poll(self) -> int:
        return self.code


def test_processes_that_were_killed_start_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to a limit; those that failed do not."""
    codes = {"a": [-9, 130, 0], "b": [2], "c": [-9, -9, -9, 0]}
    monkeypatch.setattr("discorl.tuning.pool.PAUSE", 0.0)
    monkeypatch.setattr("discorl.tuning.pool._start", lambda f, jobs: Child(codes[f.name].pop(0)))
    left, ended = iter([tmp_path / name for name in "abc"]), []
    assert run_all(lambda: next(left, None), lambda f, code: ended.append((f.name, code)), 2)
    assert sorted(ended) == [("a", 0), ("b", 2), ("c", -9)]


# --- searches ------------------------------------------------------------------------------------


def study_with(folder: Path, returns: list[float], budget: int) -> Any:
    """A study in which trials have had these returns all along."""
    from discorl.tuning.study import open_study

    folder.mkdir()
    study = open_study(folder, budget, seed=0)
    for height in returns:
        trial = study.ask()
        for step in range(14, budget + 1, 14):
            trial.report(height, step)
        study.tell(trial, height)
    return study


@pytest.mark.parametrize("height, stops", [(100.0, True), (-100.0, False)])
def test_a_trial_is_stopped_if_others_do_better(height: float, stops: bool, tmp_path: Path) -> None:
    from discorl.tuning.study import JOURNAL, NAME, reporter

    budget = 23 * 14
    study = study_with(tmp_path / "study", [height] * 6, budget)
    number = study.ask().number
    where = Trial(str(tmp_path / "study" / JOURNAL), NAME, number, budget)
    result = train(config(tmp_path / "run"), callback=reporter(where))
    assert (result.stopped == PRUNED) is stops
    reported = study.get_trials()[number].intermediate_values
    rows = {row["env_steps"]: row["return"] for row in result.metrics if "return" in row}
    assert {step: rows[step] for step in reported} == reported
    if stops:
        assert result.metrics[-1]["env_steps"] > budget / 4, "not before a quarter of the budget"


def test_a_trial_that_is_resumed_reports_each_step_once(tmp_path: Path) -> None:
    from discorl.tuning.study import JOURNAL, NAME, reporter

    study = study_with(tmp_path / "study", [], 23 * 14)
    where = Trial(str(tmp_path / "study" / JOURNAL), NAME, study.ask().number, 23 * 14)
    for folder in ("a", "b"):  # warnings are errors here
        train(config(tmp_path / folder), callback=reporter(where))
    assert len(study.get_trials()[0].intermediate_values) == 5


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.delitem(sys.modules, "discorl.tuning.study", raising=False)
    assert main(["tune", "catch", "--rule", "actor-critic", "--out", str(tmp_path / "x")]) == 2
    assert not (tmp_path / "x").exists()


TUNE = f"tune catch:4x3 --rule policy-gradient --steps 8 {TINY} --jobs 2 --trials"


@pytest.mark.slow
def test_a_search_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It goes on where it stopped, ends with a command that repeats the best, and says so."""
    args = [*split(TUNE), "2", "--out", str(tmp_path / "t")]
    assert main(args) == 0
    assert "2 trials ran to their end" in " ".join(capsys.readouterr().out.split())
    args[args.index("--trials") + 1] = "3"
    assert main(args) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "[3/3]" in shown and "[1/3]" not in shown
    assert (tmp_path / "t" / "tuning.png").exists()
    trials = json.loads((tmp_path / "t" / "trials.json").read_text())
    best = max(trials, key=lambda t: t["score"])
    command = split(shown.partition("The best settings: ")[2])[2:]
    out = tmp_path / "again"
    train(parse_train([*command, "--out", str(out), "--progress", "none"]))
    assert timeless(out) == timeless(tmp_path / "t" / f"trial-{best['number']}")
    assert main([*args, "--log-every", "1"]) == 2
    assert "began with other settings" in capsys.readouterr().err


def wait_for(condition: Callable[[], Any], seconds: float = 240) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.1)
    return found


def workers_of(parent: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(parent)], capture_output=True, text=True)
    return [int(pid) for pid in found.stdout.split()]


@pytest.mark.slow
def test_trials_that_are_killed_are_not_lost(tmp_path: Path) -> None:
    """First a trial, then the whole search, without warning."""
    out = tmp_path / "t"
    args = [*split(TUNE.replace("--steps 8", "--steps 400")), "3", "--out", str(out)]
    command = [sys.executable, "-m", "discorl", *args]
    search = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: list(out.glob("trial-*/checkpoints/*.dc")))
        first = workers_of(search.pid)
        os.kill(first[0], signal.SIGKILL)
        wait_for(lambda: set(workers_of(search.pid)) - set(first))
        workers = workers_of(search.pid)
    finally:
        search.kill()
        search.wait()
    assert main(args) == 0
    for worker in workers:  # they have noticed that nobody waits for them
        wait_for(lambda worker=worker: not Path(f"/proc/{worker}/cmdline").exists())
    trials = json.loads((out / "trials.json").read_text())
    assert [(t["number"], t["state"]) for t in trials] == [(n, "complete") for n in range(3)]
    steps = [row["step"] for row in timeless(out / "trial-0")]
    assert steps == list(range(2, 401, 2)), "each once"


def test_a_crashed_run_of_a_sweep_is_resumed(tmp_path: Path) -> None:
    """In the process that would do it."""
    settings = config(tmp_path / "run")
    train(replace(settings, out=tmp_path / "whole"))
    crash(settings, 18)
    write_job(tmp_path / "run", asdict(settings))
    assert work(tmp_path / "run", os.getppid()) == 0
    assert timeless(tmp_path / "run") == timeless(tmp_path / "whole")


def test_a_search_that_is_continued_draws_what_it_would_have_drawn(tmp_path: Path) -> None:
    """And not the same settings again."""
    from discorl.tuning.study import open_study
    from discorl.tuning.tune import _Search

    start = replace(parse_train(["catch", "--rule", "cmpo", "--steps", "4"]), out=None)
    space = space_for(start)

    def drawn(name: str, *sittings: int) -> list[dict[str, Any]]:
        out, total = tmp_path / name, 0
        out.mkdir()
        for num in sittings:
            total += num
            study = open_study(out, 100, seed=0)
            search = _Search(study, start, space, out, total, Console(file=io.StringIO()))
            for _ in range(num):
                folder = search.next_folder()
                assert folder is not None
                study.tell(int(folder.name.removeprefix("trial-")), 0.5)
        return [trial.params for trial in open_study(out, 100, seed=0).trials]

    whole = drawn("whole", 6)
    assert drawn("continued", 2, 3, 1) == whole
    assert len({str(params) for params in whole}) == 6


def test_a_run_waits_for_the_process_of_a_search_that_was_killed(tmp_path: Path) -> None:
    """The same command may be quicker than that process, which ends after its step."""
    settings = config(tmp_path / "run")
    crash(settings, 18)
    write_job(tmp_path / "run", asdict(settings))
    with ExitStack() as other:
        other.enter_context(held(tmp_path / "run"))
        leaves = Timer(1.0, other.close)
        leaves.start()
        assert work(tmp_path / "run", os.getppid()) == 0
        leaves.join()


def test_a_run_that_another_process_has_begun_in_the_meantime_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config(tmp_path / "run")
    write_job(tmp_path / "run", asdict(settings))

    def too_late(*args: Any, **options: Any) -> None:
        crash(settings, 18)  # of the other process
        train(settings)

    monkeypatch.setattr("discorl.tuning.worker.train", too_late)
    assert work(tmp_path / "run", os.getppid()) == 0
    assert (tmp_path / "run" / "agent.npz").exists()


def test_a_folder_that_stays_in_use_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("discorl.tuning.worker.PATIENCE", 0.5)
    settings = config(tmp_path / "run")
    crash(settings, 18)
    write_job(tmp_path / "run", asdict(settings))
    with held(tmp_path / "run"):
        assert work(tmp_path / "run", os.getppid()) == FAILED
    assert "another process is training" in capsys.readouterr().err


def test_a_process_that_nobody_waits_for_begins_nothing(tmp_path: Path) -> None:
    """If the search was killed while its processes still imported torch."""
    write_job(tmp_path / "run", asdict(config(tmp_path / "run")))
    assert work(tmp_path / "run", parent=os.getpid()) == STOPPED
    assert not (tmp_path / "run").exists()
