"""Parts of benchmarks/ that can go wrong without a run: settings, tables, pictures."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import memory_modes, precision_study, same_stream
from benchmarks.catch_curves import keep, last_hundred, spreads, step_to, table
from benchmarks.jobs import NAMES, OWN_PRODUCTS, PRODUCTS_OF
from benchmarks.measure import Session, Timings
from benchmarks.peers.ours import begin_training, catch_of_suite
from benchmarks.peers.pipe import receive, send
from benchmarks.report import matmul_figures, render
from benchmarks.same_updates import distance
from benchmarks.scaling import SWEEPS
from benchmarks.speed_plot import plot_times
from benchmarks.worker import NOTEBOOK, SUITE_CATCH, CatchDiscovery
from discorl.cli.train import parse_train
from discorl.discovery.config import DiscoverConfig, GroupConfig
from discorl.discovery.presets import PRESETS, notebook
from tests.compiler import needs_compiler


@needs_compiler
@pytest.mark.disco103
def test_there_is_an_agent_for_as_many_environments_as_are_measured() -> None:
    most = max(value for sweep in SWEEPS if sweep.work == "act" for value in sweep.values)
    assert begin_training("catch", most).env.num_envs == most


def test_agents_on_catch_are_as_many_in_any_number_of_groups() -> None:
    for num_groups in (1, 2, 4, 8):
        groups = catch_of_suite(num_groups).groups
        assert len(groups) == num_groups
        assert sum(group.num_agents for group in groups) == SUITE_CATCH.agents
    with pytest.raises(ValueError, match="3 equal groups"):
        catch_of_suite(3)


@pytest.mark.parametrize(
    ("sizes", "config"), [(NOTEBOOK, notebook()), (SUITE_CATCH, catch_of_suite())]
)
def test_the_reference_discovers_at_our_sizes(
    sizes: CatchDiscovery, config: DiscoverConfig
) -> None:
    (group,), net, window, rule = config.groups, config.net, config.window, config.rule
    value = config.meta_value
    assert sizes == CatchDiscovery(
        agents=group.num_agents,
        updates=window.num_updates,
        envs=window.num_envs + window.num_replayed,
        steps=window.rollout_length,
        judged_steps=window.valid_length * window.valid_rollouts,
        board=int(group.task.removeprefix("catch:").split("x")[0]),
        learning_rate=config.learning_rate,
        torso=net.torso,
        hidden=net.action_lstm,
        value_torso=value.torso,
        value_lambda=value.lambda_,
        rule_learning_rate=config.meta_optimiser.learning_rate,
        prediction=rule.prediction_size,
        rule_hidden=rule.hidden,
        rule_lifetime_hidden=rule.lifetime_hidden,
        bins=rule.num_bins,
        max_abs_value=rule.max_abs_value,
        discount=rule.discount,
    )
    assert net.head_hidden == (sizes.hidden,)
    assert (value.learning_rate, value.discount) == (1e-3, 0.99)  # the peer's, always
    assert not config.lifetimes, "its agents live for ever"


def test_shares_of_the_products_speed() -> None:
    session = Session()
    for job, seconds in {"train_step": 4.0, "discover_catch": 2.0}.items():
        session.timings[job] = {"discorl": Timings([[seconds]])}
    for job, flop in {"matmul": 8.0, "matmul_square": 80.0, "catch_matmul": 6.0}.items():
        session.timings[job] = {"discorl": Timings([[1.0]], {"flop": flop})}
    figures = matmul_figures(session)
    shares = {k: x for k, x in figures.items() if k.startswith("share_of_")}
    assert shares == {
        "share_of_matmul": 0.25,
        "share_of_matmul_square": 0.025,  # of what the step's own products come to
        "share_of_catch_matmul": 0.5,
    }
    assert figures["discover_catch_flop_per_second"] == 3.0
    assert {*OWN_PRODUCTS, *PRODUCTS_OF} <= {*NAMES}


def test_a_report_lists_the_goals_of_what_was_measured() -> None:
    machine = dict.fromkeys(("processor", "instructions", "cores", "memory_gb", "system"), "?")
    settings = {"machine": machine, "date": "?", "threads": 2, "commit": "?", "rounds": 1}
    settings["clock"] = "seconds"
    seconds = {"discorl": 1.0, "jax": 2.0}
    timings = {name: Timings([[s]]) for name, s in seconds.items()}
    facts: dict[str, dict[str, object]] = {name: {} for name in seconds}
    text = render(Session(timings={"train_step": timings}, facts=facts), settings)
    assert "| `train_step`: discorl at least 1.75 x JAX reference | 2.00 x, met |" in text
    assert text.count("`:") == 1 and "not measured" not in text
    text = render(Session(timings={"act_catch": timings}, facts=facts), settings)
    assert "goal" not in text and "|---|---|\n\n" not in text


def test_table_of_catch_curves() -> None:
    steps = range(50, 1001, 50)
    ours = {0: {s: 0.5 if s < 700 else 0.96 for s in steps}, 1: dict.fromkeys(steps, 0.2)}
    assert [step_to(curve, 0.95) for curve in ours.values()] == [700, None]
    assert last_hundred(ours[0] | {950: 0.9}) == pytest.approx(0.93)
    text = table(ours, {4: ours[0]}, "a command")
    assert "| 0 | 0.500 |" in text and text.count("| 700 | 0.960 |") == 2
    assert "| JAX reference 4 |" in text and "`a command`" in text


def test_catch_curves_are_added_to_those_that_are_there(tmp_path: Path) -> None:
    curve, files = dict.fromkeys(range(50, 1001, 50), 0.5), tmp_path / "catch-disco103-mine"
    keep({7: curve}, {}, files, [])
    text = keep({1: curve}, {4: curve}, files, ["--num-envs", "3"])
    made_by = "python -m benchmarks.catch_curves --seeds 1 7 --reference-seeds 4 --name mine"
    assert f"`{made_by} -- --num-envs 3`" in text
    assert [line.split("|")[1].strip() for line in text.splitlines()[6:12]] == [
        *("1", "7", "JAX reference 0", "JAX reference 1", "JAX reference 2", "JAX reference 4"),
    ]
    assert files.with_suffix(".png").stat().st_size > 0


def test_spreads_of_catch_curves() -> None:
    def seeds(*steps: int) -> dict[int, dict[int, float]]:
        return {i: {s - 1: 0.1, s: 1.0} for i, s in enumerate(steps)}

    said = spreads(seeds(400, 800), seeds(600, 610))
    assert "mean 600, standard deviation 200; the reference's 605 and 5" in said
    assert "chance of 0.17" in said, "one of the six ways to choose two of four"
    assert spreads(seeds(400), seeds(600, 610)) == "Too few seeds to compare."


def test_distance_of_updates() -> None:
    start = {"a": torch.zeros(2), "b": torch.zeros(1)}
    want = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([4.0])}
    assert distance(want, want, start) == 0
    assert distance(start, want, start) == 1
    assert distance(want | {"b": torch.tensor([4.5])}, want, start) == pytest.approx(0.1)


def test_picture_of_times(tmp_path: Path) -> None:
    times = {"train_step": {"discorl": {"ratio_to_discorl": 1.0}, "jax": {"ratio_to_discorl": 1.5}}}
    assert plot_times(times, tmp_path / "times.png")
    assert (tmp_path / "times.png").read_bytes().startswith(b"\x89PNG")
    assert not plot_times({"learn_18": {"jax": {"ratio_to_discorl": 2.0}}}, tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


def test_arrays_go_through_a_pipe() -> None:
    sent = [{"a/b": np.arange(6.0).reshape(2, 3)}, {"x": np.array(1.0), "y": np.zeros(0)}]
    stream = io.BytesIO()
    for arrays in sent:
        send(stream, arrays)
    stream.seek(0)
    for arrays in sent:
        got = receive(stream)
        assert got is not None and got.keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(got[name], array)
    assert receive(stream) is None


def test_table_of_a_run_with_both_learners() -> None:
    text = same_stream.table({1: {100: 0.2, 200: 0.96}}, {1: {100: 0.1, 200: 0.3}})
    ours, theirs = text.splitlines()[-2:]
    assert ours.startswith("| 1 | ours | 0.100 | 0.300 |") and ours.endswith("| None |")
    assert theirs.startswith("| 1 | the reference's | 0.200 | 0.960 |")
    assert theirs.endswith("| 200 |")


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("mode", memory_modes.MODES)
def test_memory_is_measured_with_one_agent_of_any_preset(preset: str, mode: str) -> None:
    config = PRESETS[preset]()
    [agent] = memory_modes.settings(config, mode, 1).groups
    assert agent == GroupConfig(config.groups[0].task, 1, config.groups[0].net)
    assert memory_modes.tiny(memory_modes.settings(config, mode, 1)).groups[0].task == agent.task


@pytest.mark.slow
def test_precisions_are_compared_seed_by_seed(tmp_path: Path) -> None:
    assert len(list(precision_study.queue())) == 2 * (12 + 3 * 3)
    for task, seed, precision in precision_study.queue():
        assert parse_train(precision_study.arguments_of(task, seed, precision)).seed == seed
        if seed > 2 or (task, seed, precision) == ("catch", 2, "bf16"):
            continue
        folder = precision_study.folder_of(tmp_path, task, seed, precision)
        folder.mkdir()
        late = precision == "bf16" and task == "catch"
        rows = [
            {"step": s, "success": float(s >= 400 + 100 * seed + 300 * late), "return": s + seed}
            for s in range(10, 1001, 10)
        ]
        (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
        (folder / "config.json").write_text(json.dumps({"precision": precision}))
        (folder / "curve.png").touch()
    text = precision_study.table(precision_study.found_in(tmp_path))
    # Of six ways to deal 400, 500, 700, 800 out, two put the means as far apart.
    assert "| catch | step to 95 % | 2 | 450 ± 71 | 750 ± 71 | 300 (-4.27 to 604) | 0.3" in text
    assert "| catch | rate over the last 100 | 2 | 1 ± 0 | 1 ± 0 | 0 (0 to 0) | 1.00 | not " in text
    assert "| cartpole | return over the last tenth | 3 | 956 ± 1 | 956 ± 1 | 0 (-2.27 to " in text
    assert "Seeds that have not ended: 10 of catch." in text


def test_precisions_that_differ_are_told_apart() -> None:
    early = [{"float32": {"step": 500.0 + i}, "bf16": {"step": 700.0 + i}} for i in range(12)]
    level = [{"float32": {"step": 500.0 + i}, "bf16": {"step": 511.0 - i}} for i in range(12)]
    for task, pairs, said in (
        ("catch", early, "distinguishable"),
        ("catch", level, "not distinguishable"),
        ("cartpole", early[:3], "outside of the interval"),
        ("cartpole", level[:3], "outside of the interval"),
        ("cartpole", level, "within the interval"),
    ):
        assert f"| {said} |" in precision_study.table({task: pairs})
    first = [task for task, _, _ in precision_study.queue()][:24]
    assert first == ["catch"] * 24
