"""Judging rules while they are found: scores, the average, the best rule, and what resumes."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from discorl.discovery import discover as module
from discorl.discovery import judge as judge_module
from discorl.discovery.config import DiscoverConfig
from discorl.discovery.discover import Discovering, discover, resume_discovery
from discorl.discovery.judge import Best, Judge, Judged, Levels
from discorl.meta.meta_step import MetaOptimiser
from discorl.rules.store import load_rule
from discorl.runs import curves
from discorl.runs.checkpoint import load, save
from discorl.runs.distributed import Ranks
from discorl.runs.metrics import TIMING_FIELDS, read_rows
from tests.builders import assert_bit_equal
from tests.discovery.test_discover import (
    command,
    killed_until_done,
    rows_without_times,
    rule_arrays,
    run,
)
from tests.discovery.test_folder import die_after
from tests.meta.population import tiny_config

HELD_OUT = ("catch:4x3/6", "bandit:3/6")
NAN = math.nan


def judged_config(**changes: Any) -> DiscoverConfig:
    """Judged after every other meta-step, by networks that take no time."""
    base = {"held_out": HELD_OUT[:1], "eval_every": 2, "eval_updates": 3, "eval_agents": 2}
    return tiny_config(**base | {"eval_average": 3} | changes)


def levels(random: list[float], spread: list[float], baseline: list[float]) -> Levels:
    known = torch.tensor([random, spread, baseline], dtype=torch.float64)
    return Levels(*known, are_known=True)


# --- scores --------------------------------------------------------------------------------------


def test_0_is_untrained_and_1_the_baseline() -> None:
    known = levels([-0.6, 20.0], [0.1, 5.0], [0.4, 120.0])
    assert known.normalised([-0.6, 20.0]) == pytest.approx(0)
    assert known.normalised([0.4, 120.0]) == pytest.approx(1)
    assert known.normalised([0.4, 20.0]) == pytest.approx(0.5)
    assert known.normalised([-1.6, 220.0]) == pytest.approx((-1 + 2) / 2)


def test_a_baseline_that_learns_nothing_does_not_make_a_task_outweigh_the_others() -> None:
    """It counts as having gained half a standard deviation of untrained agents' returns."""
    for baseline in (1.0, 1.001, 0.3, 1.9):
        assert levels([1.0], [2.0], [baseline]).normalised([2.0]) == pytest.approx(1)
    assert levels([1.0], [2.0], [3.0]).normalised([2.0]) == pytest.approx(0.5)
    assert levels([1.0], [0.0], [1.0]).normalised([1.001]) == pytest.approx(1)


def test_missing_scores() -> None:
    known = levels([0.0, NAN], [0.1, NAN], [1.0, NAN])
    assert known.normalised([0.5, 7.0]) == pytest.approx(0.5), "a task without levels is left out"
    assert math.isnan(known.normalised([NAN, 7.0])), "one without a score is not"
    assert math.isnan(Levels.unknown(2).normalised([1.0, 1.0]))


def test_the_average_is_a_mean_at_first_and_then_moves() -> None:
    judged = Judged({"w": torch.tensor(50.0)}, Levels.unknown(1), Best({}))
    expected = []
    for step, value in enumerate([1.0, 2.0, 6.0, 3.0], 1):
        judged = judged.with_step({"w": torch.tensor(value)}, step, num_averaged=3)
        expected.append(float(judged.average["w"]))
    assert expected == pytest.approx([1.0, 1.5, 3.0, 3.0])
    judged = judged.with_step({"w": torch.tensor(9.0)}, 5, num_averaged=3)
    assert float(judged.average["w"]) == pytest.approx(3 + (9 - 3) / 3)


def test_the_rule_and_the_baseline_meet_the_same_tasks() -> None:
    """Their agents have other numbers of environments, but each the same draw of the task."""
    drawn = []
    honest = judge_module.run_trial

    def spy(trial: Any, *args: Any) -> Any:
        state = trial.group.env.sample_settings(2, args[-1].clone_state())
        drawn.append((trial.group.settings.num_envs, state))
        return honest(trial, *args)

    config = judged_config(held_out=("mdp:4x3/6",), eval_average=1)
    program = Discovering(config, Ranks(0, 1, torch.device("cpu")))
    program.begin()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judge_module, "run_trial", spy)
        assert program.judge and program.state.judged
        program.judge.judge(program.state.judged, program.state.discovery.rule_params, 1)
    (few, first), (many, second) = drawn
    assert few < many
    assert_bit_equal(first, second)


# --- the best rule -------------------------------------------------------------------------------


def scores_in(folder: Path) -> dict[tuple[int, bool], float]:
    """By meta-step, and whether of the average."""
    names = {"validation": False, "validation_average": True}
    rows = read_rows(folder / "metrics.jsonl")
    return {(row["step"], names[k]): row[k] for row in rows for k in row if k in names}


def test_the_best_rule_is_kept_with_its_score(tmp_path: Path) -> None:
    console = Console(record=True, width=300)
    config = judged_config(held_out=HELD_OUT, out=tmp_path / "run", steps=6, snapshot_every=1)
    optimiser = MetaOptimiser(learning_rate=0.3)
    config = replace(config, meta_optimiser=optimiser, progress="lines")
    result = discover(config, console)
    scores = scores_in(tmp_path / "run")
    assert len(scores) == 6 and all(math.isfinite(x) for x in scores.values())
    rows = [row for row in result.metrics if "validation" in row]
    assert [row["step"] for row in rows] == [2, 4, 6]
    assert {"held_out/catch:4x3", "held_out/bandit:3"} <= rows[0].keys()
    best = result.best
    assert best is not None and best.score == max(scores.values())
    assert scores[best.step, best.is_average] == best.score
    loaded = load_rule(tmp_path / "run" / "best.npz")
    assert_bit_equal(loaded.params, best.params)
    assert loaded.provenance["meta_steps"] == best.step
    assert loaded.provenance["validation"] == best.score
    assert loaded.provenance["averaged"] is best.is_average
    assert loaded.provenance["held_out"] == " ".join(HELD_OUT)
    if not best.is_average:
        snapshot = load_rule(tmp_path / "run" / "snapshots" / f"rule-{best.step}.npz")
        assert_bit_equal(loaded.params, snapshot.params)
    said = console.export_text()
    averaged = ", averaged" if best.is_average else ""
    assert f"meta-step {best.step}{averaged}, with {best.score:.2f}" in said
    assert f"discorl train TASK --rule {tmp_path / 'run' / 'best.npz'}" in said


def with_scores(patch: pytest.MonkeyPatch, *scores: float) -> None:
    """Trials have these scores instead of their own, one after the other."""
    left = iter(scores)
    patch.setattr(Judge, "_score", lambda *args: next(left))
    known = levels([0.0], [0.1], [1.0])
    patch.setattr(Judge, "_find_levels", lambda self: known)


def test_the_average_is_kept_if_it_is_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pair of scores is of the rule and of its average."""
    config = judged_config(steps=6, out=tmp_path / "run")
    with_scores(monkeypatch, 0.2, 0.1, 0.3, 0.7, 0.7, 0.5)
    best = discover(config).best
    assert best is not None
    assert (best.step, best.score, best.is_average) == (4, 0.7, True)
    assert load_rule(tmp_path / "run" / "best.npz").provenance["averaged"] is True
    assert scores_in(tmp_path / "run")[4, True] == 0.7
    with_scores(monkeypatch, 0.2, 0.9, 0.3)
    best = discover(replace(config, eval_average=1, out=tmp_path / "alone")).best
    assert best is not None and (best.step, best.is_average) == (4, False)
    assert not any(of_average for _, of_average in scores_in(tmp_path / "alone"))


def test_a_rule_without_a_score_is_never_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = judged_config(eval_average=1, out=tmp_path / "run")
    with_scores(monkeypatch, NAN, NAN)
    assert discover(config).best is None
    assert scores_in(tmp_path / "run") == {}
    assert not (tmp_path / "run" / "best.npz").exists()


def test_nothing_is_judged_without_held_out_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Judge, "__init__", lambda *args: pytest.fail("there is nothing to judge"))
    result = discover(tiny_config(out=tmp_path / "run", eval_every=1))
    assert result.best is None and not (tmp_path / "run" / "best.npz").exists()
    assert load(tmp_path / "run" / "checkpoints" / "checkpoint-4.dc")["judged"] is None


def test_a_task_on_which_no_episode_ends_is_said_to_count_for_nothing(tmp_path: Path) -> None:
    """Episodes have 2000 steps, and the actor-critic acts for 928 in each copy."""
    config = judged_config(held_out=("umbrella:2000/6",), out=tmp_path / "run", eval_updates=1)
    with pytest.warns(UserWarning, match=r"no episode of umbrella:2000 ended.*--eval-updates"):
        assert discover(config).best is None


# --- resuming, and several processes -------------------------------------------------------------


def test_judgement_resumes_to_the_last_bit_and_the_baseline_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, honest = [], Judge._find_levels

    def find(self: Judge) -> Levels:
        found.append(1)
        return honest(self)

    monkeypatch.setattr(Judge, "_find_levels", find)
    whole = discover(judged_config(steps=7, out=tmp_path / "whole"))
    with pytest.MonkeyPatch.context() as patch:
        die_after(patch, 5)
        with pytest.raises(MemoryError):
            discover(judged_config(steps=7, checkpoint_every=3, out=tmp_path / "half"))
    assert len(found) == 2
    # As if best.npz had been lost, or were that of an attempt that was given up.
    (tmp_path / "half" / "best.npz").write_bytes(b"damaged")
    half = resume_discovery(tmp_path / "half")
    assert len(found) == 2
    assert_bit_equal(whole.params, half.params)
    assert whole.best and half.best
    assert_bit_equal(whole.best.params, half.best.params)
    assert rows_without_times(tmp_path / "whole") == rows_without_times(tmp_path / "half")
    one, two = (tmp_path / name / "best.npz" for name in ("whole", "half"))
    assert one.read_bytes() == two.read_bytes()
    saved = [
        load(tmp_path / name / "checkpoints" / "checkpoint-7.dc") for name in ("whole", "half")
    ]
    assert_bit_equal(saved[0]["judged"], saved[1]["judged"])


def test_checkpoints_from_before_rules_were_judged(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    discover(judged_config(steps=3, out=folder))
    path = folder / "checkpoints" / "checkpoint-3.dc"
    content = load(path)
    save(path, {name: x for name, x in content.items() if name != "judged"})
    config = judged_config(steps=4, out=folder)
    program = Discovering(config, Ranks(0, 1, torch.device("cpu")))
    program.begin()
    program.restore(load(path))
    assert program.state.judged and program.best is None
    assert_bit_equal(program.state.judged.average, content["rule"])
    assert resume_discovery(folder, steps=4).best is not None


@pytest.mark.slow
def test_killed_at_random_moments_the_best_rule_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "DISCORL_TEST_HELD_OUT", " ".join(HELD_OUT))
    run(command(tmp_path / "whole", 10))
    assert killed_until_done(tmp_path / "killed", 10, 2, seed=3) > 0
    for name in ("best.npz", "rule.npz"):
        one, two = (tmp_path / folder / name for folder in ("whole", "killed"))
        assert one.read_bytes() == two.read_bytes()
    assert rows_without_times(tmp_path / "whole") == rows_without_times(tmp_path / "killed")


@pytest.mark.slow
def test_two_processes_judge_as_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "DISCORL_TEST_HELD_OUT", " ".join(HELD_OUT))
    run(command(tmp_path / "one", 3))
    run(command(tmp_path / "two", 3, processes=2))
    one, two = (read_rows(tmp_path / n / "metrics.jsonl") for n in ("one", "two"))
    assert {"validation", "validation_average"} <= one[-1].keys()
    for a, b in zip(one, two, strict=True):
        assert a.keys() == b.keys()
        for key in a.keys() - {*TIMING_FIELDS}:
            assert b[key] == pytest.approx(a[key], rel=1e-3, abs=1e-4), key
    want, got = (rule_arrays(tmp_path / n / "best.npz") for n in ("one", "two"))
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-5, atol=1e-6, err_msg=name)


# --- the picture ---------------------------------------------------------------------------------


def panels(rows: list[dict[str, Any]], patch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """The titles of a picture's panels, with the labels of the lines in each."""
    drawn: list[Any] = []
    patch.setattr(curves, "_save", lambda figure, path: drawn.append(figure))
    module.plot_discovery(Path("curve.png"), rows)
    return {
        axes.get_title(): {line.get_label() for line in axes.get_lines()} for axes in drawn[0].axes
    }


def test_the_picture_shows_population_and_validation_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"step": 1, "return/catch": 0.1, "held_out/chain": 0.2}
    before = panels([row], monkeypatch)
    assert [*before.values()] == [{"catch"}, {"chain"}]
    score = {"validation": 0.4, "validation_average": 0.5}
    now = panels([row, row | score | {"step": 2}], monkeypatch)
    assert [*now][:2] == [*before]
    *_, title = now
    assert title.startswith("Validation")
    assert now[title] == {"the rule", "its moving average", "actor-critic", "untrained"}
