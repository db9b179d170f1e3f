"""Comparisons of runs whose numbers are known."""

from __future__ import annotations

import io
import json
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
from rich.console import Console

from discorl.comparison.compare import compare
from discorl.comparison.result import Comparison, GroupScore
from discorl.comparison.table import print_comparison
from discorl.errors import DiscorlError
from tests.builders import run_cli
from tests.comparison.run_folders import constant, line, write_example, write_run


def group(comparison: Comparison, label: str, task: int = 0) -> GroupScore:
    return next(g for g in comparison.tasks[task].groups if g.label == label)


def printed(comparison: Comparison) -> str:
    text = io.StringIO()
    print_comparison(comparison, Console(width=100, file=text))
    return text.getvalue()


def test_scores_by_hand(tmp_path: Path) -> None:
    for seed, height in enumerate((1.0, 2.0, 3.0, 10.0)):
        write_run(tmp_path / f"a{seed}", constant(height), rule="a", seed=seed)
    for seed in range(2):
        rows = [line(10, 0.0), line(60, 5.0), line(100, 5.0)]
        write_run(tmp_path / f"b{seed}", rows, rule="b", seed=seed)
    result = compare([tmp_path])
    (task,) = result.tasks
    assert (task.metric, task.start, task.budget) == ("return", 10, 100)
    a, b = (group(result, label) for label in "ab")
    assert a.score.value == pytest.approx(2.5)  # the lowest and highest are cut
    assert a.area.value == pytest.approx(2.5)
    assert b.score.value == 5.0
    assert b.area.value == pytest.approx((2.5 * 50 + 5 * 40) / 90)
    assert (b.score.low, b.score.high) == (5.0, 5.0)
    assert (a.seconds, a.steps_per_second) == (1.0, 100.0)
    assert b.by_steps.x[0] == 10 and b.by_steps.x[-1] == 100
    assert b.by_steps.middle[-1] == 5.0
    (pair,) = result.improvements
    assert (pair.better, pair.worse, pair.chance.value) == ("b", "a", 0.75)
    assert result.overall == []
    assert result.notes == []


def test_the_better_rule_comes_first_whatever_the_order(tmp_path: Path) -> None:
    for rule, height in (("low", 1.0), ("high", 2.0)):
        for seed in range(2):
            write_run(tmp_path / f"{rule}{seed}", constant(height), rule=rule, seed=seed)
    for order in (("low", "high"), ("high", "low")):
        runs = [tmp_path / f"{rule}{seed}" for rule in order for seed in range(2)]
        result = compare(runs)
        assert result.labels == list(order)
        (pair,) = result.improvements
        assert (pair.better, pair.worse) == ("high", "low")
        assert (pair.chance.value, pair.chance.low, pair.chance.high) == (1.0, 1.0, 1.0)


def test_the_same_runs_give_the_same_numbers(tmp_path: Path) -> None:
    write_example(tmp_path)
    assert compare([tmp_path], samples=200) == compare([tmp_path], samples=200)


def test_success_is_compared_where_all_runs_have_it(tmp_path: Path) -> None:
    rows = [{**line(10, 3.0), "success": 0.25}]
    run = write_run(tmp_path / "a", rows, seed=0)
    assert compare([run]).tasks[0].metric == "success"
    assert compare([run], metric="return").tasks[0].groups[0].score.value == 3.0
    other = write_run(tmp_path / "b", constant(3.0, steps=(10,)), seed=1)
    assert compare([run, other]).tasks[0].metric == "return"
    with pytest.raises(DiscorlError, match="never logged a success"):
        compare([run, other], metric="success")


def test_runs_are_compared_up_to_where_the_shortest_ends(tmp_path: Path) -> None:
    write_run(tmp_path / "short", [line(10, 1.0), line(50, 1.0)], seed=0)
    write_run(tmp_path / "long", [line(10, 1.0), line(50, 1.0), line(100, 9.0)], seed=1)
    result = compare([tmp_path])
    assert result.tasks[0].budget == 50
    assert result.tasks[0].groups[0].score.value == 1.0
    assert any("up to 50" in note and str(tmp_path / "short") in note for note in result.notes)


def test_curves_go_on_where_the_shortest_ends(tmp_path: Path) -> None:
    """The scores do not."""
    write_run(tmp_path / "short", [line(10, 1.0), line(50, 1.0)], rule="short")
    write_run(tmp_path / "long", [line(10, 1.0), line(50, 1.0), line(100, 9.0)], rule="long")
    result = compare([tmp_path])
    long, short = (group(result, label) for label in ("long", "short"))
    assert result.tasks[0].budget == 50
    assert (long.by_steps.x[-1], long.by_steps.middle[-1]) == (100, 9.0)
    assert short.by_steps.x[-1] == 50
    assert [p[0] for p in long.runs[0].points] == [10, 50, 100]
    assert (long.score.value, long.area.value) == (1.0, 1.0)


def test_runs_of_one_budget_have_its_end_in_common(tmp_path: Path) -> None:
    """A run whose only step is long and one of many short steps, both asked for 10."""
    sizes: list[dict[str, Any]] = [{"num_envs": n, "rollout_length": 2} for n in (2, 8)]
    write_run(tmp_path / "a", [line(4, 1.0), line(12, 3.0)], rule="a", **sizes[0])
    b = write_run(tmp_path / "b", [line(16, 2.0)], rule="b", **sizes[1])
    result = compare([tmp_path])
    assert (result.tasks[0].start, result.tasks[0].budget) == (12, 12)
    assert [group(result, label).score.value for label in "ab"] == [3.0, 2.0]
    rmtree(b)
    write_run(b, [line(32, 2.0)], rule="b", **sizes[1])
    with pytest.raises(DiscorlError, match="no environment steps in common"):
        compare([tmp_path])


def test_labels_have_the_digits_that_tell_settings_apart(tmp_path: Path) -> None:
    for seed, rate in enumerate((0.0031415926535897933, 0.001, 2.718281828459045e-05)):
        write_run(tmp_path / f"{seed}", constant(1.0), optimiser={"learning_rate": rate})
    name = "disco103 (optimiser.learning-rate {})"
    assert compare([tmp_path]).labels == [name.format(r) for r in ("0.00314", "0.001", "2.72e-05")]
    write_run(tmp_path / "3", constant(1.0), optimiser={"learning_rate": 0.0031415})
    assert name.format("0.0031416") in compare([tmp_path]).labels


def test_runs_without_a_step_in_common_are_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [line(10, 1.0)], seed=0)
    write_run(tmp_path / "b", [line(20, 1.0), line(30, 1.0)], seed=1)
    with pytest.raises(DiscorlError, match="no environment steps in common"):
        compare([tmp_path])


def test_runs_in_which_no_episode_ended_are_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", [line(10, 1.0, metric="loss")])
    with pytest.raises(DiscorlError, match="never logged a return"):
        compare([run])


def test_one_line_is_enough(tmp_path: Path) -> None:
    result = compare([write_run(tmp_path / "a", [line(10, 4.0)])])
    assert result.tasks[0].groups[0].by_steps.middle == [4.0]
    assert result.tasks[0].groups[0].area.value == 4.0


def test_one_seed_has_no_interval_and_the_table_says_so(tmp_path: Path) -> None:
    result = compare([write_run(tmp_path / "a", constant(4.0))])
    only = result.tasks[0].groups[0]
    assert only.score.low is None and only.by_steps.low is None
    text = printed(result)
    assert "4.000 (one seed)" in text
    assert "an interval needs two or more" in " ".join(text.split())


def test_a_seed_counts_once(tmp_path: Path) -> None:
    write_run(tmp_path / "a", constant(1.0), seed=7)
    write_run(tmp_path / "b", constant(2.0), seed=7)
    result = compare([tmp_path])
    assert [run.folder for run in result.tasks[0].groups[0].runs] == [str(tmp_path / "a")]
    assert "seed 7 appears twice" in result.notes[0]


def test_other_settings_are_another_group(tmp_path: Path) -> None:
    for name, rate, seed in (("a", 0.1, 0), ("b", 0.1, 1), ("c", 0.2, 0)):
        settings = {"optimiser": {"learning_rate": rate}, "device": name, "log_every": seed}
        settings |= {"timeout_minutes": seed}
        write_run(tmp_path / name, constant(1.0), seed=seed, **settings)
    apart = compare([tmp_path])
    name = "disco103 (optimiser.learning-rate {})"
    assert apart.labels == [name.format(0.1), name.format(0.2)]
    assert [len(g.runs) for g in apart.tasks[0].groups] == [2, 1]
    together = compare([tmp_path], by_settings=False)
    assert together.labels == ["disco103"]


def test_rule_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for rule in ("mine", "disco103"):
        for seed in range(2):
            write_run(
                tmp_path / f"{rule}{seed}",
                constant(1.0),
                rule=rule,
                seed=seed,
                resolved_rule={"name": rule, "path": f"/{seed}/{rule}.npz"},
            )
    labels = compare([tmp_path]).labels
    assert labels == ["disco103", "mine (rule file /0/mine.npz)", "mine (rule file /1/mine.npz)"]


# --- several tasks -------------------------------------------------------------------------------


def test_over_tasks_by_hand(tmp_path: Path) -> None:
    """On x the scores are success rates; on y they are scaled: worst 0, best 1."""
    for seed in range(2):
        for rule, success, value in (("a", 0.5, 10.0), ("b", 1.0, 30.0)):
            name = f"{rule}{seed}"
            write_run(tmp_path / f"x{name}", constant(success, "success"), "x", rule, seed)
            write_run(tmp_path / f"y{name}", constant(value + seed * 10), "y", rule, seed)
    result = compare([tmp_path])
    assert [task.task for task in result.tasks] == ["x", "y"]
    scores = {o.label: o.score.value for o in result.overall}
    # a: 1/2, 1/2, 0, 1/3. b: 1, 1, 2/3, 1. A quarter is cut from either end.
    assert scores == {"a": pytest.approx(5 / 12), "b": pytest.approx(1.0)}
    assert "worst run = 0" in result.overall_scale
    (pair,) = result.improvements
    assert (pair.better, pair.tasks, pair.chance.value) == ("b", ["x", "y"], 1.0)


def test_tasks_that_a_rule_lacks_stay_out_of_the_overall_score(tmp_path: Path) -> None:
    result = compare([write_example(tmp_path)], samples=200)
    assert [o.label for o in result.overall] == ["disco103", "actor-critic", "policy-gradient"]
    assert "Acrobot" not in result.overall_scale
    assert any("gym:Acrobot-v1" in note and "not every rule" in note for note in result.notes)


def test_rules_on_different_tasks_cannot_be_compared(tmp_path: Path) -> None:
    write_run(tmp_path / "a", constant(1.0), "x", "a")
    write_run(tmp_path / "b", constant(1.0), "y", "b")
    result = compare([tmp_path])
    assert (result.improvements, result.overall) == ([], [])
    assert any("fewer than two tasks in common" in note for note in result.notes)


# --- the command ---------------------------------------------------------------------------------

TINY = (
    *("--steps", "4", "--log-every", "1", "--device", "cpu", "--rollout-length", "5"),
    *("--batch-size", "4", "--replay-capacity", "8", "--net.torso", "8"),
)


def test_the_command_on_real_runs(tmp_path: Path) -> None:
    for seed in range(2):
        out = tmp_path / "runs" / str(seed)
        options = ("--rule", "policy-gradient", "--seed", str(seed), "--out", out, *TINY)
        assert run_cli("train", "catch:4x3", *options).returncode == 0
    page, numbers = tmp_path / "report.html", tmp_path / "numbers.json"
    done = run_cli("compare", tmp_path / "runs", "--html", page, "--json", numbers)
    assert (done.returncode, done.stderr) == (0, "")
    assert "policy-gradient" in done.stdout and "catch:4x3: success rate" in done.stdout
    assert f"Report: {page}" in done.stdout
    read = json.loads(numbers.read_text())
    assert [run["seed"] for run in read["tasks"][0]["groups"][0]["runs"]] == [0, 1]
    assert read["labels"] == ["policy-gradient"]
    assert page.read_text().startswith("<!doctype html>")


def test_discoveries_are_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "run", constant(1.0))
    found = tmp_path / "runs" / "discovery"
    found.mkdir()
    (found / "config.json").write_text('{"kind": "discover"}')
    comparison = compare([run, found])
    assert len(comparison.tasks) == 1
    assert f"{found} is a discovery run: left out" in comparison.notes
    with pytest.raises(DiscorlError, match="train agents with the rules"):
        compare([found])


def test_starts_that_failed_are_left_out(tmp_path: Path) -> None:
    """Earlier versions left such folders; 'discorl compare runs/*' names all of them."""
    run = write_run(tmp_path / "run", constant(1.0))
    (tmp_path / "no-config").mkdir()
    (tmp_path / "no-config" / "metrics.jsonl").touch()
    write_run(tmp_path / "no-rows", [])
    write_run(tmp_path / "no-metrics", [])
    (tmp_path / "no-metrics" / "metrics.jsonl").unlink()
    others = sorted(tmp_path.glob("no-*"))
    comparison = compare([*others, run])
    assert [g.label for g in comparison.tasks[0].groups] == ["disco103"]
    for folder in others:
        (note,) = [note for note in comparison.notes if str(folder) in note]
        assert note.endswith(": left out")
    with pytest.raises(DiscorlError, match="no agent was trained here"):
        compare([others[2]])


def test_the_command_on_bad_input(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", constant(1.0))
    unwritable = tmp_path / "no" / "such" / "folder.html"
    for args, says in (
        ([tmp_path / "nowhere"], "is not a folder"),
        ([], "name the runs to compare"),
        ([run, "--bootstrap", "3"], "at least 100 samples"),
        ([run, "--html", unwritable], "cannot write"),
    ):
        done = run_cli("compare", *args)
        assert done.returncode == 2
        assert says in done.stderr
        assert done.stderr.count("\n") == 1, "one line, no traceback"
