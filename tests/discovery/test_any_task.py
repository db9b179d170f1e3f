"""Discovery on environments of every kind, with networks of every kind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from discorl import tree
from discorl.discovery.config import DiscoverConfig, GroupConfig, groups_of
from discorl.discovery.discover import Discovering, discover, resume_discovery
from discorl.envs.env_config import EnvConfig
from discorl.errors import DiscorlError, EnvFailure
from discorl.meta.meta_step import live_window
from discorl.meta.population import Group, init_group, reborn
from discorl.meta.population_acting import act_in_group
from discorl.meta.population_replay import sample_replay, store
from discorl.nets.net_config import NetConfig
from discorl.rules.store import load_rule
from discorl.runs.checkpoint import from_bytes, to_bytes
from discorl.runs.distributed import Ranks
from discorl.runs.metrics import read_rows
from tests.builders import assert_bit_equal, rng
from tests.meta.population import tiny_config, tiny_groups

KINDS = {
    "vectors": "gym:CartPole-v1*2",
    "MinAtar": "minatar:breakout*2/conv",
    "MiniGrid": "minigrid:Empty-5x5*2",
    "several": "gym:Blackjack-v1*2",
    "memory": "memory:3*2/8+lstm4",
    "pictures and memory": "minatar:freeway*1/conv+lstm4",
}
SMALL = NetConfig(torso=(8,), action_lstm=4, head_hidden=(5,), channels=(2, 3), dense=6)


def one_group(task: str, **changes: Any) -> Group:
    [group], _ = tiny_groups(tiny_config(tasks=(task,), net=SMALL, **changes))
    return group


def run_steps(config: DiscoverConfig, steps: int, folder: Path) -> Discovering:
    program = Discovering(config, Ranks(0, 1, torch.device("cpu")))
    program.begin()
    for _ in range(steps):
        program.step(folder)
    return program


@pytest.mark.parametrize("task", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("mode", ["plain", "recompute", "mixed"])
def test_every_kind_has_a_gradient_in_every_mode(task: str, mode: Any) -> None:
    config = tiny_config(tasks=(task,), net=SMALL, memory=mode, burn_in=1, lifetimes=(2,))
    [group], params = tiny_groups(config)
    state = init_group(group, rng())
    result = live_window(group, params, state, rng(1))
    assert result.num_born >= 1  # lives of one window
    assert tree.is_finite(result.gradient)
    assert all(bool((g != 0).any()) for k, g in result.gradient.items() if k == "y_target.weight")
    structure = [(x.shape, x.dtype) for x in tree.leaves(state)]
    assert [(x.shape, x.dtype) for x in tree.leaves(result.state)] == structure


@pytest.mark.parametrize("task", ["catch:4x4*2/conv", "memory:3*2/8+lstm4", "catch:4x4*2"])
def test_agents_side_by_side_and_one_by_one_agree(task: str) -> None:
    [group], params = tiny_groups(tiny_config(tasks=(task,), net=SMALL, memory="recompute"))
    state = init_group(group, rng())
    found = [
        live_window(replace(group, window=replace(group.window, each=each)), params, state, rng(1))
        for each in (tree.vmap, tree.one_by_one)
    ]
    for name, want in found[0].gradient.items():
        torch.testing.assert_close(found[1].gradient[name], want, rtol=1e-3, atol=1e-6)


def test_all_kinds_live_in_one_population_and_resume(tmp_path: Path) -> None:
    tasks = ("gym:CartPole-v1*2", "minatar:breakout*1/conv", "catch:4x4*2", "memory:3*1/8+lstm4")
    config = tiny_config(
        tasks=tasks, net=SMALL, out=tmp_path / "run", held_out=("gym:CartPole-v1",)
    )
    config = replace(config, eval_every=2, eval_updates=2, eval_agents=1, lifetimes=(4, 8))
    result = discover(config)
    assert {"return/catch:4x4", "meta_loss/gym:CartPole-v1"} <= result.metrics[-1].keys()
    assert any("held_out/gym:CartPole-v1" in row for row in result.metrics)
    resumed = resume_discovery(tmp_path / "run", steps=6)
    assert [row["step"] for row in resumed.metrics] == [1, 2, 3, 4, 5, 6]


def test_a_checkpoint_has_all_but_the_episodes_of_other_environments(tmp_path: Path) -> None:
    config = tiny_config(tasks=("gym:CartPole-v1*2", "catch:4x4*2"), replay_capacity=6)
    config = replace(config, env=EnvConfig(normalize_observations=True))
    first = run_steps(config, 3, tmp_path)
    saved = from_bytes(to_bytes(first.snapshot()))
    second = run_steps(config, 0, tmp_path)
    assert "start new episodes" in second.restore(saved)
    again = from_bytes(to_bytes(second.snapshot()))
    [gym, catch], [gym2, catch2] = (x["groups"].values() for x in (saved, again))
    assert_bit_equal(catch, catch2)
    assert gym["state"]["env_state"] is None and gym["state"]["timestep"] is None
    for part in ("agents", "values", "replay", "age", "budget"):
        assert_bit_equal(gym["state"][part], gym2["state"][part])
    assert_bit_equal(gym["generator"], gym2["generator"])
    assert_bit_equal(gym["env"], gym2["env"])
    assert gym["env"]["observation.count"].shape == (2,)


def test_frames_of_games_are_replayed_as_they_were_seen() -> None:
    pytest.importorskip("ale_py")
    net = replace(SMALL, torso_kind="nature", channels=(2, 2, 2))
    config = tiny_config(tasks=("ale:Pong*2",), net=net, replay_capacity=6, num_replayed=2)
    [group], params = tiny_groups(config)
    assert group.num_stacked == 4
    state = init_group(group, rng())
    result = live_window(group, params, state, rng(1))
    assert tree.is_finite(result.gradient) and result.state.replay is not None
    kept = result.state.replay.storage.observations
    assert kept.frames.dtype == torch.uint8 and kept.frames.shape[:4] == (2, 6, 5 + 3, 1)
    [same] = [x for x in (state.replay,) if x is not None]
    fresh, _, _ = act_in_group(group, result.state.agents.params, result.state, 5, rng(2))
    drawn = sample_replay(store(same, fresh, 4), 50, rng(3), 4).observations
    seen = {x.numpy().tobytes() for x in drawn[0].transpose(0, 1)}
    assert {x.numpy().tobytes() for x in fresh.observations[0].transpose(0, 1)} <= seen


def test_a_newborn_begins_an_episode_and_the_others_play_on() -> None:
    group = one_group("gym:CartPole-v1*2")
    state = init_group(group, rng())
    _, state, _ = act_in_group(group, state.agents.params, state, 4, rng(1))
    before = state.timestep.observation.clone()
    after = reborn(group, state, torch.tensor([False, True]), rng(2))
    assert torch.equal(after.timestep.observation[:3], before[:3])
    assert not (after.timestep.observation[3:] == before[3:]).any()
    assert bool((after.timestep.observation[3:].abs() <= 0.05).all())  # where CartPole begins
    assert after.running_return[:3].tolist() == state.running_return[:3].tolist()
    assert after.running_return[3:].tolist() == [0.0] * 3
    # The environment itself is where the time step says.
    _, moved = group.env.step(after.env_state, torch.zeros(6, dtype=torch.long), rng())
    assert bool((moved.observation[3:].abs() < 0.5).all())


class NoMaskedReset(gymnasium.vector.VectorEnv):
    """Copies of CartPole that can only be reset all at once."""

    def __init__(self, num_envs: int) -> None:
        self._envs = SyncVectorEnv(
            [lambda: gymnasium.make("CartPole-v1")] * num_envs,
            autoreset_mode=AutoresetMode.SAME_STEP,
        )
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space = self._envs.single_observation_space
        self.single_action_space = self._envs.single_action_space

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        assert options is None
        return self._envs.reset(seed=seed)

    def step(self, actions: Any) -> Any:
        return self._envs.step(actions)


def test_where_copies_cannot_restart_a_newborn_takes_over_in_mid_episode() -> None:
    config = tiny_config(tasks=("mine*2",))
    program = Discovering(config, Ranks(0, 1, torch.device("cpu")), {"mine": NoMaskedReset(6)})
    program.begin()
    [group] = program.groups
    state = program.state.discovery.groups[0]
    _, state, _ = act_in_group(group, state.agents.params, state, 4, rng(1))
    after = reborn(group, state, torch.tensor([False, True]), rng(2))
    assert_bit_equal(after.timestep, state.timestep)
    assert after.running_return[3:].isnan().all() and not after.running_return[:3].isnan().any()
    # An episode that another agent began is not counted, the next one is.
    counts, rewards = torch.zeros(2), torch.zeros(2)
    for step in range(30):
        _, after, episodes = act_in_group(group, after.agents.params, after, 5, rng(step))
        counts, rewards = counts + episodes.count, rewards + episodes.returns
        if not after.running_return.isnan().any() and counts.min() > 2:
            break
    assert not rewards.isnan().any() and counts.min() > 2


def test_observation_statistics_belong_to_the_agent_and_die_with_it() -> None:
    options = EnvConfig(normalize_observations=True)
    config = replace(tiny_config(tasks=("gym:CartPole-v1*2",)), env=options)
    [group], _ = tiny_groups(config)
    state = init_group(group, rng())
    _, state, _ = act_in_group(group, state.agents.params, state, 4, rng(1))
    before = group.env.state_dict()  # pyright: ignore[reportAttributeAccessIssue]
    assert not torch.equal(*before["observation.mean"])  # of two agents
    reborn(group, state, torch.tensor([False, True]), rng(2))
    after = group.env.state_dict()  # pyright: ignore[reportAttributeAccessIssue]
    assert torch.equal(after["observation.mean"][0], before["observation.mean"][0])
    assert after["observation.count"][1] < before["observation.count"][1] / 2


@pytest.mark.parametrize("autoreset", ["same-step", "next-step"])
def test_time_limits_bootstrap_in_both_ways_of_resetting(autoreset: Any) -> None:
    """A constant reward of 1 and a time limit: cut-off rewards have the value added, each agent's
    own; the returns that are reported do not."""

    def make() -> gymnasium.Env:
        return gymnasium.wrappers.TimeLimit(gymnasium.make("CartPole-v1").unwrapped, 3)

    config = replace(tiny_config(tasks=("mine*2",)), env=EnvConfig(autoreset=autoreset))
    program = Discovering(config, Ranks(0, 1, torch.device("cpu")), {"mine": make})
    program.begin()
    [group], state = program.groups, program.state.discovery.groups[0]
    rollout, _, episodes = act_in_group(group, state.agents.params, state, 8, rng(1))
    cut = rollout.rewards != rollout.rewards.round()
    assert cut.flatten(1).sum(1).tolist() == [6, 6]  # two time limits in each of three copies
    assert (episodes.returns / episodes.count).tolist() == [3.0, 3.0]
    bare = replace(group, bootstraps=False)
    state = init_group(bare, rng())
    rollout, _, _ = act_in_group(bare, state.agents.params, state, 8, rng(1))
    assert set(rollout.rewards.unique().tolist()) <= {0.0, 1.0}


class Fails(gymnasium.Env):
    """Breaks in its fifth step."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == 40:
            raise RuntimeError("out of order")
        return np.zeros(2, np.float32), 1.0, False, False, {}


def test_a_failing_environment_names_its_group_and_the_run_is_saved(tmp_path: Path) -> None:
    config = tiny_config(tasks=("catch:4x4*2", "mine*2"), out=tmp_path / "run", steps=20)
    with pytest.raises(EnvFailure, match=r"group 'mine'.*3 environments each.*environment 0 fail"):
        discover(config, envs={"mine": Fails})
    assert (tmp_path / "run" / "rule.npz").exists()
    assert list((tmp_path / "run" / "checkpoints").glob("*.dc"))
    with pytest.raises(DiscorlError, match="no environment is called 'mine'"):
        resume_discovery(tmp_path / "run")


def test_groups_can_have_networks_of_their_own() -> None:
    net = NetConfig()
    assert GroupConfig.parse("ale:Pong*2/impala", net).net.torso_kind == "impala"
    assert GroupConfig.parse("gym:ALE/Pong-v5*2", net).task == "gym:ALE/Pong-v5"
    recurrent = GroupConfig.parse("memory/64x32+lstm16", net)
    assert (recurrent.num_agents, recurrent.net.torso, recurrent.net.core_lstm) == (1, (64, 32), 16)
    assert len(groups_of(["atari57*2", "catch*3"])) == 58
    assert groups_of(["minatar5*2/conv"])[0] == "minatar:asterix*2/conv"
    assert len(groups_of(["procgen16"])) == 16


SCALED_DOWN = """
--tasks ale:Pong*1 ale:Breakout*1 --steps 3 --checkpoint-every 1 --device cpu --progress none
--net.channels 2 3 --net.dense 8 --net.action-lstm 4 --net.head-hidden 6 --meta-value.torso 6
--rule.prediction-size 6 --rule.hidden 7 --rule.lifetime-hidden 5 --rule.embedding-width 4
--rule.num-bins 11 --window.num-updates 4 --window.stride 2 --window.num-envs 2
--window.rollout-length 5 --window.valid-length 5 --window.num-replayed 4 --window.replay-capacity 8
"""


def scaled_down(out: Path, *launcher: str) -> list[str]:
    """The preset of the paper on two games, with everything small."""
    program = [sys.executable, "-m", *launcher, "-m"] if launcher else [sys.executable, "-m"]
    return [*program, "discorl", "discover", "paper", "--out", str(out), *SCALED_DOWN.split()]


@pytest.mark.slow
def test_the_papers_preset_scaled_down_in_two_processes_killed_and_resumed(tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    torchrun = ("torch.distributed.run", "--nproc-per-node", "2", "--standalone")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(scaled_down(tmp_path / "one"), env=environment, check=True)
    subprocess.run(scaled_down(tmp_path / "two", *torchrun), env=environment, check=True)
    rules = [load_rule(tmp_path / name / "rule.npz").params for name in ("one", "two")]
    for name, want in rules[0].items():
        torch.testing.assert_close(rules[1][name], want, rtol=1e-4, atol=1e-5)

    job = subprocess.Popen(
        scaled_down(tmp_path / "killed", *torchrun), env=environment, start_new_session=True
    )
    first = tmp_path / "killed" / "checkpoints" / "checkpoint-1.dc"
    while not first.exists():
        assert job.poll() is None
        time.sleep(0.05)
    os.killpg(job.pid, signal.SIGKILL)
    job.wait()
    again = [sys.executable, "-m", *torchrun, "-m", "discorl", "discover"]
    subprocess.run([*again, "--resume", str(tmp_path / "killed")], env=environment, check=True)
    rows = list(read_rows(tmp_path / "killed" / "metrics.jsonl"))
    assert rows[-1]["step"] == 3 and load_rule(tmp_path / "killed" / "rule.npz")
