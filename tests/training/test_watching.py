"""Training that is watched: callbacks, evaluations, the best agent, goals."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch

from discorl.cli import main
from discorl.envs.env_config import EnvConfig
from discorl.errors import DiscorlError
from discorl.runs.checkpoint import CheckpointFolder, load, save
from discorl.runs.files import load_params
from discorl.runs.program import CallbackFailed
from discorl.training.callback import RunView
from discorl.training.checkup import FIRST_SEED, Checkup, Seen, checkup_table
from discorl.training.config import TrainConfig
from discorl.training.evaluate import play
from discorl.training.rule_choice import read_config
from discorl.training.train import resume, train
from discorl.training.trained_agent import load_agent
from tests.builders import assert_bit_equal
from tests.training.test_resume import config, crash, timeless
from tests.training.test_train_gymnasium import config as gymnasium_config

OFTEN: dict[str, Any] = {"eval_every": 6, "eval_episodes": 5}


def scores(folder: Path) -> list[dict[str, Any]]:
    """What the evaluations of a run have logged, by step."""
    rows = timeless(folder)
    kept = [{k: v for k, v in row.items() if k == "step" or "eval/" in k} for row in rows]
    return [row for row in kept if len(row) > 1]


# --- callbacks -----------------------------------------------------------------------------------


def test_a_callback_sees_every_step(tmp_path: Path) -> None:
    seen: list[tuple[int, int, bool, int]] = []

    def look(run: RunView) -> None:
        seen.append((run.step, run.env_steps, run.is_logged, run.metrics.get("step", 0)))
        assert run.folder == tmp_path / "run" and run.seconds > 0 and run.best is None
        assert run.config.task == "catch:4x3"

    train(config(tmp_path / "run", steps=5), callback=look)
    assert seen == [
        *[(n, n * 14, False, 0) for n in (1, 2, 3)],
        (4, 56, True, 4),
        (5, 70, False, 4),
    ]


def test_a_callback_can_change_nothing(tmp_path: Path) -> None:
    def meddle(run: RunView) -> None:
        for name in ("step", "config", "metrics", "anything"):
            with pytest.raises(AttributeError):
                setattr(run, name, 1)
        with pytest.raises(TypeError):
            run.metrics["return"] = 1.0  # pyright: ignore[reportIndexIssue]
        with torch.no_grad():
            for p in run.agent.net.parameters():
                p.zero_()
        torch.rand(3)

    train(config(tmp_path / "a"))
    train(config(tmp_path / "b"), callback=meddle)
    assert (tmp_path / "a" / "agent.npz").read_bytes() == (
        tmp_path / "b" / "agent.npz"
    ).read_bytes()


def test_the_agent_that_a_callback_takes_stays_as_it_was(tmp_path: Path) -> None:
    taken = []

    def take(run: RunView) -> None:
        if run.step == 9:
            taken.append(run.agent)
            run.checkpoint()
            run.stop("seen enough")

    result = train(config(tmp_path / "run"), callback=take)
    assert (result.stopped, result.interrupted) == ("seen enough", False)
    assert_bit_equal(dict(taken[0].net.state_dict()), load_params(tmp_path / "run" / "agent.npz"))


def test_a_run_that_a_callback_stopped_can_go_on(tmp_path: Path) -> None:
    train(config(tmp_path / "whole"))
    train(config(tmp_path / "cut"), callback=lambda run: run.stop() if run.step == 7 else None)
    assert CheckpointFolder(tmp_path / "cut" / "checkpoints").steps() == [5, 7]
    seen = []
    result = resume(read_config(tmp_path / "cut")[0], callback=lambda run: seen.append(run.step))
    assert (result.stopped, seen) == ("", list(range(8, 24)))
    for name in ("agent.npz", "curve.png"):
        whole, cut = (tmp_path / folder / name for folder in ("whole", "cut"))
        assert whole.read_bytes() == cut.read_bytes()
    assert timeless(tmp_path / "whole") == timeless(tmp_path / "cut")


def test_a_callback_that_fails_loses_nothing(tmp_path: Path) -> None:
    def fail(run: RunView) -> None:
        if run.step == 7:
            raise KeyError("loss of temper")

    said = r"the callback failed at step 7 \(.*test_watching\.py, line \d+\): KeyError: .*temper"
    with pytest.raises(CallbackFailed, match=said) as caught:
        train(config(tmp_path / "run"), callback=fail)
    chain: list[BaseException | None] = [caught.value]
    while chain[-1] is not None:
        chain.append(chain[-1].__cause__)
    assert any(isinstance(e, KeyError) for e in chain), "with the traceback of the user's code"
    assert load_params(tmp_path / "run" / "agent.npz")
    train(config(tmp_path / "whole"))
    resume(read_config(tmp_path / "run")[0])
    assert timeless(tmp_path / "whole") == timeless(tmp_path / "run")


def test_a_wrong_wish_names_the_line_of_the_callback(tmp_path: Path) -> None:
    with pytest.raises(CallbackFailed, match=r"test_watching\.py.*episodes must be at least 1"):
        train(config(tmp_path / "a"), callback=lambda run: run.evaluate(episodes=0))
    with pytest.raises(CallbackFailed, match="policy must be sampled or greedy, not 'best'"):
        train(config(tmp_path / "b"), callback=lambda run: run.evaluate(policy="best"))  # pyright: ignore


def test_a_callback_may_evaluate(tmp_path: Path) -> None:
    found: list[Checkup] = []

    def look(run: RunView) -> None:
        if run.step in (3, 6):
            found.append(run.evaluate(episodes=4, policy="greedy"))

    train(config(tmp_path / "run"), callback=look)
    assert [(c.step, c.env_steps, c.episodes) for c in found] == [(3, 42, 4), (6, 84, 4)]
    assert all(c.returns.keys() == c.success.keys() == {"greedy"} for c in found)
    assert load_agent(tmp_path / "run", best=True)
    assert scores(tmp_path / "run") == [], "rows are for what a resumed run would log again"


# --- evaluations ---------------------------------------------------------------------------------


def train_on_tensors(out: Path, **changes: Any) -> None:
    train(config(out, **changes))


def train_on_gymnasium(out: Path, **changes: Any) -> None:
    settings = gymnasium_config(out.parent, env=EnvConfig(normalize_observations=True), steps=14)
    train(replace(settings, out=out, log_every=4, **changes))


@pytest.mark.parametrize("kind", [train_on_tensors, train_on_gymnasium])
def test_evaluations_leave_training_alone(kind: Callable[..., None], tmp_path: Path) -> None:
    kind(tmp_path / "alone")
    kind(tmp_path / "watched", **OFTEN)
    alone, watched = ((tmp_path / name) for name in ("alone", "watched"))
    assert (alone / "agent.npz").read_bytes() == (watched / "agent.npz").read_bytes()
    assert (watched / "best.npz").exists()
    assert [row["step"] for row in scores(watched)][:2] == [6, 12]
    rows = {row["step"]: row for row in timeless(watched)}
    for row in timeless(alone):
        both = {k: rows[row["step"]][k] for k in ("return", "episodes", "length") if k in row}
        assert both == {k: row[k] for k in both}, "what does not depend on when rows are due"


def test_the_best_agent_is_the_one_that_scored_best(tmp_path: Path) -> None:
    agents: dict[int, Any] = {}

    def keep(run: RunView) -> None:
        agents[run.step] = run.agent.net.state_dict()

    settings = config(tmp_path / "run", eval_every=1, eval_episodes=5)
    train(settings, callback=keep)
    found = scores(tmp_path / "run")
    best = max(found, key=lambda row: row["eval/sampled"])
    assert len({row["eval/sampled"] for row in found}) > 1
    assert best["step"] < 23, "or the last agent would do"
    assert_bit_equal(dict(agents[best["step"]]), load_params(tmp_path / "run" / "best.npz"))
    assert_bit_equal(dict(agents[23]), load_params(tmp_path / "run" / "agent.npz"))


@pytest.mark.parametrize("policy", ["sampled", "greedy"])
def test_one_policy_alone(policy: str, tmp_path: Path) -> None:
    train(config(tmp_path / "both", **OFTEN))
    train(config(tmp_path / "one", **OFTEN, eval_policy=policy))
    names = {"step", f"eval/{policy}", f"eval/{policy}_success"}
    both = [{k: row[k] for k in names} for row in scores(tmp_path / "both")]
    assert scores(tmp_path / "one") == both, "each policy plays the same starts"


def test_an_evaluation_plays_the_agent_that_is_saved(tmp_path: Path) -> None:
    train(config(tmp_path / "run", steps=12, **OFTEN))
    agent = load_agent(tmp_path / "run")
    found = scores(tmp_path / "run")[-1]
    assert found["step"] == 12
    for policy in ("sampled", "greedy"):
        played = play(agent, agent.make_env(5), 5, FIRST_SEED, policy == "greedy", 100)
        assert sum(played.returns) / 5 == found[f"eval/{policy}"]


@pytest.mark.parametrize("num_rollouts", [4, 11, 18])
def test_a_crashed_run_finds_the_same_best_agent(num_rollouts: int, tmp_path: Path) -> None:
    train(config(tmp_path / "whole", **OFTEN))
    crash(config(tmp_path / "cut", **OFTEN), num_rollouts)
    resume(read_config(tmp_path / "cut")[0])
    for name in ("agent.npz", "best.npz", "curve.png"):
        whole, cut = (tmp_path / folder / name for folder in ("whole", "cut"))
        assert whole.read_bytes() == cut.read_bytes(), name
    assert timeless(tmp_path / "whole") == timeless(tmp_path / "cut")


def test_the_best_agent_of_an_abandoned_attempt_does_not_stay(tmp_path: Path) -> None:
    settings = config(tmp_path / "run", **OFTEN)
    crash(settings, 17)
    kept = load(CheckpointFolder(tmp_path / "run" / "checkpoints").path(15))["shared"]["seen"]
    (tmp_path / "run" / "best.npz").write_bytes(b"of step 16, which is gone")
    resume(replace(read_config(tmp_path / "run")[0], steps=16))
    assert_bit_equal(kept["best"]["params"], load_params(tmp_path / "run" / "best.npz"))


def test_the_best_agent_has_the_observations_that_it_learnt_from(tmp_path: Path) -> None:
    train_on_gymnasium(tmp_path / "run", eval_every=2, eval_episodes=2)
    folder = tmp_path / "run"
    assert {p.name for p in folder.glob("*.npz")} >= {"best.npz", "best-env.npz", "env.npz"}
    last, best = load_params(folder / "env.npz"), load_params(folder / "best-env.npz")
    assert best["observation.count"] < last["observation.count"]
    env = load_agent(folder, best=True).make_env(1)
    assert_bit_equal(env.state_dict(), best)  # pyright: ignore[reportAttributeAccessIssue]


def test_evaluations_need_environments_of_their_own(tmp_path: Path) -> None:
    def vector() -> Any:
        return gymnasium.make_vec("CartPole-v1", 2)

    settings = replace(gymnasium_config(tmp_path, steps=4), **OFTEN | {"eval_every": 2})
    with pytest.raises(DiscorlError, match=r"a ready one cannot be copied: pass eval_env="):
        train(replace(settings, out=tmp_path / "a"), env=vector())
    assert not (tmp_path / "a").exists()
    train(replace(settings, out=tmp_path / "b"), env=vector(), eval_env=vector())
    assert len(scores(tmp_path / "b")) == 2
    other = gymnasium.make_vec("Acrobot-v1", 2)
    with pytest.raises(DiscorlError, match="environment differs from the training's"):
        train(replace(settings, out=tmp_path / "c"), env=vector(), eval_env=other)
    train(replace(settings, out=tmp_path / "d"), env=lambda: gymnasium.make("CartPole-v1"))
    assert len(scores(tmp_path / "d")) == 2


def test_a_run_without_evaluations_has_no_best_agent(tmp_path: Path) -> None:
    train(config(tmp_path / "run"))
    train(replace(config(tmp_path / "too-short"), eval_every=1000))
    for name in ("run", "too-short"):
        with pytest.raises(DiscorlError, match=r"best\.npz: .* first evaluation on \(--eval-every"):
            load_agent(tmp_path / name, best=True)


def test_the_table_has_both_policies_and_the_last_evaluation() -> None:
    rows = [{"step": n, "env_steps": 100 * n} for n in range(1, 41)]
    for row in rows[1::2]:
        row |= {"eval/sampled": row["step"] / 10, "eval/greedy": 1.0}
    _, head, *lines = checkup_table(rows, most=5).splitlines()
    assert head.split() == ["step", "env", "steps", "sampled", "greedy"]
    assert [line.split()[0] for line in lines] == ["8", "16", "24", "32", "40"]
    assert lines[-1].split() == ["40", "4,000", "4.000", "1.000"]
    assert checkup_table(rows[:1]) == ""


def test_a_checkpoint_with_another_agent_as_its_best_is_refused(tmp_path: Path) -> None:
    train(config(tmp_path / "run", **OFTEN))
    path = CheckpointFolder(tmp_path / "run" / "checkpoints").path(23)
    for damage in ({"params": {}}, {"checkup": {}}, {"env_memory": {"a": 1}}):
        content = load(path)
        content["shared"]["seen"]["best"] |= damage
        save(path, content)
        with pytest.raises(DiscorlError, match="is not a checkpoint of this run"):
            resume(read_config(tmp_path / "run")[0])


def test_what_was_seen_survives_a_checkpoint() -> None:
    seen, params = Seen(), {"w": torch.ones(2)}
    seen.judge(Checkup(3, 30, 5, {"sampled": 1.0}), params, {})
    seen.judge(Checkup(6, 60, 5, {"sampled": 1.0}), {"w": torch.zeros(2)}, {})
    assert seen.best and seen.best.checkup.step == 3, "an equal is not better"
    again = Seen()
    again.load_state_dict(seen.state_dict(), params)
    assert again.latest == 1.0 and again.best and again.best.checkup == seen.best.checkup
    assert_bit_equal(again.best.params, params)


# --- goals ---------------------------------------------------------------------------------------


def test_a_run_ends_when_an_evaluation_is_good_enough(tmp_path: Path) -> None:
    settings = config(tmp_path / "run", **OFTEN)
    train(replace(settings, out=tmp_path / "whole"))
    goal = scores(tmp_path / "whole")[0]["eval/sampled"]
    result = train(replace(settings, stop_at_return=goal))
    assert f"--stop-at-return {goal:g}" in result.stopped and not result.interrupted
    assert result.metrics[-1]["step"] == 6
    again = resume(read_config(tmp_path / "run")[0])
    assert again.stopped == result.stopped and again.metrics[-1]["step"] == 6
    further = resume(replace(read_config(tmp_path / "run")[0], stop_at_return=None))
    assert further.stopped == ""
    assert timeless(tmp_path / "whole") == timeless(tmp_path / "run")


def test_without_evaluations_the_training_return_counts(tmp_path: Path) -> None:
    result = train(config(tmp_path / "run", stop_at_return=-1.0))
    assert [row["step"] for row in result.metrics] == [4]
    assert result.stopped
    assert resume(read_config(tmp_path / "run")[0]).stopped == result.stopped


def test_a_run_ends_when_its_time_is_over(tmp_path: Path) -> None:
    result = train(config(tmp_path / "run", max_minutes=1e-6))
    assert "--max-minutes" in result.stopped and not result.interrupted
    assert CheckpointFolder(tmp_path / "run" / "checkpoints").steps() == [1]
    again = resume(read_config(tmp_path / "run")[0])
    assert "--max-minutes" in again.stopped
    assert CheckpointFolder(tmp_path / "run" / "checkpoints").steps() == [1]
    assert resume(replace(read_config(tmp_path / "run")[0], max_minutes=None)).stopped == ""


@pytest.mark.parametrize(
    "wrong",
    [
        {"eval_every": -1},
        {"eval_episodes": 0},
        {"stop_at_return": float("nan")},
        {"max_minutes": 0},
    ],
)
def test_settings_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(DiscorlError, match=next(iter(wrong))):
        TrainConfig(**wrong)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "run")
    small = "--rule policy-gradient --steps 8 --num-envs 2 --batch-size 2 --rollout-length 4"
    sizes = "--net.torso 8 --net.action-lstm 4 --net.head-hidden 4 --threads 1"
    watched = "--eval-every 4 --eval-episodes 3 --stop-at-return 100 --max-minutes 50"
    args = f"train catch:4x3 {small} {sizes} {watched} --progress lines --out".split()
    assert main([*args, out]) == 0
    shown = capsys.readouterr().out
    assert "sampled     greedy" in shown and "Best agent: of step" in shown
    assert main(["evaluate", out, "--best", "--episodes", "3"]) == 0
    assert main(["train", "--resume", out, "--stop-at-return", "-100"]) == 0
    kept = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (kept["stop_at_return"], kept["max_minutes"]) == (-100, 50)
