"""Evaluating agents whose scores are known, and real ones."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from discorl.envs.tasks.catch import Catch
from discorl.errors import DiscorlError
from discorl.runs.files import load_params, save_params
from discorl.training.config import NetConfig, OptimiserConfig, TrainConfig
from discorl.training.evaluate import evaluate, play
from discorl.training.train import train
from discorl.training.trained_agent import LoadedAgent, load_agent
from discorl.types import EnvSpec, TimeStep
from tests.builders import assert_bit_equal, run_cli, write_small_rule


def config(out: Path, **changes) -> TrainConfig:
    start = TrainConfig(
        task="catch:4x3",
        rule="policy-gradient",
        steps=3,
        out=out,
        progress="none",
        device="cpu",
        batch_size=4,
        replay_capacity=16,
        net=NetConfig(torso=(16,), action_lstm=8, head_hidden=(8,)),
    )
    return replace(start, **changes)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An agent that has learnt an easy Catch."""
    out = tmp_path_factory.mktemp("runs") / "run"
    settings = config(out, steps=150, num_envs=8, batch_size=16, replay_capacity=64)
    train(replace(settings, optimiser=OptimiserConfig(learning_rate=1e-2)))
    return out


# --- counting episodes, with an agent and an environment of known scores -------------------------


class Net(nn.Module):
    """Prefers the last action, by a little."""

    def initial_memory(self, batch: int) -> None:
        return None

    def step(self, now: TimeStep, memory: None) -> tuple[torch.Tensor, None]:
        return torch.tensor([0.0, 0.5]).expand(len(now.observation), 2), memory


@dataclass
class Corridor:
    """Copy i has episodes of i + 1 steps; each step is worth the action taken."""

    num_envs: int
    endless: bool = False

    def __post_init__(self) -> None:
        self.spec = EnvSpec(observation_shape=(1,), num_actions=2, success_return=2.0)

    def reset(self, generator: torch.Generator) -> tuple[torch.Tensor, TimeStep]:
        zeros = torch.zeros(self.num_envs)
        return zeros, TimeStep(zeros[:, None], zeros, zeros + 1)

    def step(self, state: torch.Tensor, actions: torch.Tensor, generator: torch.Generator):
        state = state + 1
        ended = (state > torch.arange(self.num_envs)) & ~torch.tensor(self.endless)
        state = torch.where(ended, 0, state)
        return state, TimeStep(state[:, None], actions.float(), 1.0 - ended.float())


def known_agent() -> LoadedAgent:
    net: Any = Net()
    return LoadedAgent(Path("run"), TrainConfig(), "none", net, torch.device("cpu"))


def test_every_copy_plays_its_share() -> None:
    """Whoever took the first seven to end would have four of the shortest."""
    result = play(known_agent(), Corridor(3), episodes=7, seed=0, greedy=True, max_steps=100)
    assert sorted(result.lengths) == [1, 1, 1, 2, 2, 3, 3]
    assert result.returns == [float(n) for n in result.lengths]
    assert result.num_cut == 0


def test_episodes_that_do_not_end_are_cut() -> None:
    env = Corridor(2, endless=True)
    result = play(known_agent(), env, episodes=4, seed=0, greedy=True, max_steps=5)
    assert (result.lengths, result.returns, result.num_cut) == ([5, 5], [5.0, 5.0], 2)


def test_steps_that_only_reset_are_not_counted() -> None:
    class Slow(Corridor):
        """Two real steps, then one that resets."""

        def step(self, state, actions, generator):
            state = (state + 1) % 3
            dead = state == 2
            starts = (state == 2) | (state == 0)
            reward = torch.where(state == 0, 0.0, actions.float())
            return state, TimeStep(state[:, None], reward, 1.0 - starts.float(), is_dead=dead)

    result = play(known_agent(), Slow(1), episodes=3, seed=0, greedy=True, max_steps=100)
    assert (result.lengths, result.returns) == ([2, 2, 2], [2.0, 2.0, 2.0])


def test_rewards_that_are_nan_are_refused() -> None:
    class Broken(Corridor):
        def step(self, state, actions, generator):
            state, timestep = super().step(state, actions, generator)
            return state, replace(timestep, reward=timestep.reward * float("nan"))

    with pytest.raises(DiscorlError, match="rewards that are NaN"):
        play(known_agent(), Broken(1), episodes=1, seed=0, greedy=True, max_steps=9)


class Mirror:
    """Shows the last actions; at every fourth time step the first copy begins an episode."""

    def __init__(self, num_envs: int) -> None:
        self.spec, self.num_envs = EnvSpec((), 2), num_envs

    def reset(self, generator: torch.Generator) -> tuple[int, TimeStep]:
        zeros = torch.zeros(self.num_envs)
        return 0, TimeStep(zeros, zeros, zeros + 1)

    def step(self, state: int, actions: torch.Tensor, generator: torch.Generator):
        discount = torch.ones(self.num_envs)
        discount[0] = float(state % 4 != 3)
        return state + 1, TimeStep(actions, actions.float(), discount)


def test_greedy_takes_the_likeliest_and_sampling_draws() -> None:
    agent, env = known_agent(), Mirror(4000)
    at = agent.begin(env, seed=0)
    actions, after = agent.step(env, at, greedy=True)
    assert bool((actions == 1).all())
    assert_bit_equal(after.timestep.observation, actions)
    share = agent.step(env, at, greedy=False)[0].float().mean()
    assert float(share) == pytest.approx(np.exp(0.5) / (1 + np.exp(0.5)), abs=0.03)


def test_recurrent_networks_remember_and_are_told_of_new_episodes() -> None:
    class Recurrent(nn.Module):
        def initial_memory(self, batch: int) -> torch.Tensor:
            return torch.zeros(batch)

        def step(self, now, memory):
            memory = torch.where(now.discount == 0, 0, memory) + 1
            return torch.stack([2 - memory, memory - 2], -1), memory

    net: Any = Recurrent()
    agent, env = replace(known_agent(), net=net), Mirror(2)
    at, chosen = agent.begin(env, seed=0), []
    for _ in range(5):
        actions, at = agent.step(env, at, greedy=True)
        chosen.append(actions.tolist())
    assert chosen == [[0, 0], [0, 0], [1, 1], [1, 1], [0, 1]]


# --- real runs -----------------------------------------------------------------------------------


def test_a_trained_agent_scores_what_it_learnt(trained: Path) -> None:
    agent = load_agent(trained)
    result = evaluate(agent, episodes=50, seeds=(0, 1), greedy=True)
    assert [len(p.returns) for p in result.seeds] == [50, 50]
    assert result.success is not None and result.success.value > 0.9
    assert result.score.value == pytest.approx(2 * result.success.value - 1)
    assert result.mean_length == 3.0
    assert (result.success_name, result.human_normalised) == ("catch rate", None)
    assert evaluate(agent, 50, (0, 1), greedy=True) == result, "equal seeds, equal episodes"


def test_the_agent_is_the_one_that_was_saved(tmp_path: Path) -> None:
    rule = write_small_rule(tmp_path / "rule.npz")
    for name, choice in (("disco", str(rule)), ("critic", "actor-critic"), ("cmpo", "cmpo")):
        folder = train(config(tmp_path / name, rule=choice)).folder
        agent = load_agent(folder)
        saved = load_params(folder / "agent.npz")
        for key, value in agent.net.state_dict().items():
            assert torch.equal(value, saved[key])
        assert agent.config.net == NetConfig(torso=(16,), action_lstm=8, head_hidden=(8,))
        assert isinstance(agent.make_env(2), Catch)


def test_gymnasium_agents(tmp_path: Path) -> None:
    folder = train(config(tmp_path / "run", task="gym:CartPole-v1")).folder
    result = evaluate(load_agent(folder), episodes=5, num_envs=2)
    assert all(r == n >= 1 for r, n in zip(result.seeds[0].returns, result.seeds[0].lengths))
    assert result.success is None


def test_bad_runs_are_named(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(DiscorlError, match="is not a run"):
        load_agent(tmp_path)
    folder = train(config(tmp_path / "run")).folder
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"net": {"torso": [9]}}))
    with pytest.raises(DiscorlError, match="does not fit the network"):
        load_agent(folder)
    (folder / "config.json").write_text(json.dumps(settings | {"net": 3}))
    with pytest.raises(DiscorlError, match="not the configuration of a run"):
        load_agent(folder)
    (folder / "config.json").write_text(json.dumps(settings))
    save_params(folder / "agent.npz", {"x": torch.zeros(1)})
    with pytest.raises(DiscorlError, match="does not fit the network"):
        load_agent(folder)
    (folder / "agent.npz").unlink()
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(DiscorlError, match="no agent yet"):
        load_agent(folder)


@pytest.mark.parametrize(
    "changes",
    [{"episodes": 0}, {"num_envs": 0}, {"max_steps": 0}, {"seeds": (1, 1)}, {"seeds": (2**70,)}],
    ids=str,
)
def test_impossible_evaluations_are_refused(changes: dict, trained: Path) -> None:
    with pytest.raises(DiscorlError, match=next(iter(changes))):
        evaluate(load_agent(trained), **changes)


def test_the_command(trained: Path, tmp_path: Path) -> None:
    numbers, video = tmp_path / "numbers.json", tmp_path / "episode.gif"
    options = ("--episodes", "10", "--seeds", "3", "4", "--greedy")
    done = run_cli("evaluate", trained, *options, "--json", numbers, "--video", video)
    assert (done.returncode, done.stderr) == (0, "")
    assert "catch:4x3, policy-gradient, greedy actions" in done.stdout
    assert "catch rate" in done.stdout and "95 % interval" in done.stdout
    read = json.loads(numbers.read_text())
    assert [(p["seed"], len(p["returns"])) for p in read["seeds"]] == [(3, 10), (4, 10)]
    assert video.read_bytes().startswith(b"GIF89a")

    for args, says in (
        ((tmp_path,), "is not a run"),
        ((trained, "--video", tmp_path / "x.avi"), "must end in .gif or .mp4"),
        ((trained, "--video", tmp_path / "no" / "x.gif"), "there is no folder"),
    ):
        failed = run_cli("evaluate", *args)
        assert failed.returncode == 2 and says in failed.stderr
        assert failed.stderr.count("\n") == 1, "one line, no traceback"
