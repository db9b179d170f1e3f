"""Training in one line, and what comes back."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import discorl
from discorl.discovery.discover import DiscoverResult
from discorl.errors import DiscorlError
from discorl.nets.net_config import NetConfig
from discorl.training import presets
from discorl.training.config import TrainConfig
from discorl.training.keywords import settings_of
from tests.builders import write_small_rule
from tests.training.test_resume import config

TINY: dict[str, Any] = {
    "rule": "actor-critic",
    "env_steps": 60,
    "num_envs": 2,
    "rollout_length": 5,
    "batch_size": 2,
    "replay_capacity": 8,
    "log_every": 2,
    "net": {"torso": (8,), "action_lstm": 4, "head_hidden": [4]},
    "progress": "none",
    "device": "cpu",
}


class Tags(HTMLParser):
    """Raises if tags do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag != "img":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_name_stands_for_the_settings_of_the_command_line() -> None:
    for task, rule in (("catch", "actor-critic"), ("gym:CartPole-v1", "policy-gradient")):
        assert settings_of(task, {"rule": rule}) == presets.for_run(task, rule)
        assert settings_of(task, {"rule": rule, "seed": 3}).seed == 3
    paper = settings_of("ale:Pong", {"rule": "actor-critic", "preset": "paper"})
    assert paper == presets.for_run("ale:Pong", "actor-critic", "paper")


def test_settings_by_keyword(tmp_path: Path) -> None:
    found = settings_of(
        TrainConfig(),
        {
            "env_steps": 1e6,
            "out": str(tmp_path),
            "num_envs": np.int64(10),
            "rollout_length": 100.0,
            "net": NetConfig(torso=(5,)),
            "optimiser": {"learning_rate": 1e-3},
            "checkpoint": {"every_minutes": None},
        },
    )
    assert (found.steps, found.out, found.num_envs) == (1000, tmp_path, 10)
    assert found.net == NetConfig(torso=(5,))
    assert found.optimiser == replace(TrainConfig().optimiser, learning_rate=1e-3)
    assert not found.checkpoint.are_wanted
    start = TrainConfig()
    assert settings_of(start, {}) is start
    assert settings_of(start, {"seed": 0}) == start


def test_settings_of_the_environment_need_no_group() -> None:
    given = {"exact_resume": True, "kwargs": {"length": 3}, "normalize_observations": True}
    env = settings_of("gym:CartPole-v1", given).env
    assert env.exact_resume and env.normalize_observations and env.kwargs == {"length": 3}


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"rule": discorl.ActorCritic()}, "name or the path of a rule file"),
        ({"stepz": 3}, "no setting 'stepz'; did you mean 'steps'"),
        ({"optimiser": {"lr": 1}}, r"no setting 'optimiser\.lr': optimiser has learning_rate"),
        ({"learning_rate": 1}, r"did you mean optimiser=\{'learning_rate': \.\.\.\}\?"),
        ({"steps": "many"}, "steps should be a whole number, not 'many'"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"steps": 1, "env_steps": 1}, "give one of them"),
        ({"log": object()}, "cannot be a setting"),
        ({"seed": [object()]}, "cannot be a setting"),
    ],
)
def test_mistakes_are_named(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(DiscorlError, match=said):
        settings_of(TrainConfig(), wrong)


def test_neither_a_name_nor_settings() -> None:
    with pytest.raises(DiscorlError, match=r"train takes the name of a task.*env=make"):
        discorl.train(3)  # pyright: ignore[reportArgumentType]


def test_one_line_each(tmp_path: Path) -> None:
    """Results can be handed on as they are."""
    result = discorl.train("catch:4x3", out=str(tmp_path / "run"), **TINY)
    assert result.folder == tmp_path / "run"
    assert result.metrics[-1]["env_steps"] == 60
    played = discorl.evaluate(result, episodes=3)
    assert discorl.evaluate(str(tmp_path / "run"), episodes=3).score == played.score
    for runs in (result, [result], str(tmp_path), [tmp_path / "run"]):
        assert discorl.compare(runs).num_runs == 1
    assert discorl.load_agent(result).folder == tmp_path / "run"


def test_the_best_agent_can_be_evaluated_by_its_folder(tmp_path: Path) -> None:
    result = discorl.train("catch:4x3", out=tmp_path / "run", eval_every=2, **TINY)
    played = discorl.evaluate(result, episodes=3, best=True)
    loaded = discorl.load_agent(result, best=True)
    assert discorl.evaluate(loaded, episodes=3, best=True).score == played.score
    with pytest.raises(DiscorlError, match=r"load_agent\(run, best=True\)"):
        discorl.evaluate(discorl.load_agent(result), episodes=3, best=True)


def test_results_describe_themselves_in_a_line(tmp_path: Path) -> None:
    result = discorl.train("catch:4x3", out=tmp_path / "run", eval_every=2, **TINY)
    said = repr(result)
    for part in (str(tmp_path / "run"), "catch:4x3", "actor-critic", "6 steps", "60 env", "return"):
        assert part in said
    stopped = discorl.train(config(tmp_path / "cut"), callback=lambda run: run.stop("a <b> c"))
    assert "stopped early: a <b> c" in repr(stopped)
    comparison, played = discorl.compare(result), discorl.evaluate(result, episodes=3)
    assert re.search(r"1 run, final scores: catch:4x3: actor-critic -?\d", repr(comparison))
    assert "3 episodes, mean return" in repr(played)
    for text in (said, repr(stopped), repr(comparison), repr(played)):
        assert "\n" not in text and len(text) < 400
    assert str(result) == said


def test_results_in_a_notebook(tmp_path: Path) -> None:
    result = discorl.train("catch:4x3", out=tmp_path / "run", **TINY)
    page = Tags(result._repr_html_())
    assert "60 environment steps" in page.text
    assert "data:image/png;base64,iVBOR" in result._repr_html_()
    assert "mean return" in Tags(discorl.evaluate(result, episodes=3)._repr_html_()).text
    assert "final score" in Tags(discorl.compare(result)._repr_html_()).text
    stopped = discorl.train(config(tmp_path / "cut"), callback=lambda run: run.stop("a <b> c"))
    assert "a &lt;b&gt; c" in stopped._repr_html_()


def test_a_run_whose_folder_is_gone_still_has_a_name(tmp_path: Path) -> None:
    result = discorl.train(config(tmp_path / "run", steps=1))
    (tmp_path / "run").rename(tmp_path / "moved")
    assert "its folder is gone" in repr(result)
    assert Tags(result._repr_html_()).text


def test_a_rule_describes_itself_in_a_line(tmp_path: Path) -> None:
    path = write_small_rule(tmp_path / "mine.npz")
    rule = discorl.load_rule(str(path))
    assert repr(rule) == f"<Rule mine: {rule.num_params:,} parameters, from {path}>"
    discorl.save_rule(str(tmp_path / "again.npz"), rule.rule, rule.params, {})
    assert discorl.load_rule(tmp_path / "again.npz").num_params == rule.num_params


def test_settings_survive_the_way_through_keywords() -> None:
    """All of them, whatever their type."""
    start = presets.for_run("ale:Pong", "actor-critic")
    again = settings_of(start, {"seed": 5})
    assert asdict(again) == asdict(replace(start, seed=5)) and again == replace(start, seed=5)


def test_a_discovery_describes_itself_in_a_line(tmp_path: Path) -> None:
    """Without the thousands of numbers in it."""
    rule = discorl.load_rule(write_small_rule(tmp_path / "rule.npz"))
    (tmp_path / "config.json").write_text('{"kind": "discover", "seed": 4}')
    (tmp_path / "metrics.jsonl").write_text('{"step": 7, "meta_return": 0.5}\n{"step": 8, "cu')
    result = DiscoverResult(tmp_path, rule.rule, rule.params, interrupted=True)
    said = f"<Run {tmp_path}: seed 4, 7 meta-steps, meta_return 0.5; interrupted>"
    assert repr(result) == said
    assert "7 meta-steps" in Tags(result._repr_html_()).text
