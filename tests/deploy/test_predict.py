"""An agent in the user's own loop acts as it does in an evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from discorl.envs.env_config import EnvConfig
from discorl.errors import DiscorlError
from discorl.training.trained_agent import LoadedAgent
from tests.deploy.agents import KINDS, evaluation, trained
from tests.envs.gym_examples import Sampler

VECTORS = [kind for kind in KINDS if kind not in ("tensors", "next-step", "atari")]


def replayed(agent: LoadedAgent, shown: Any, greedy: bool = True) -> list[Any]:
    """The actions that ``predict`` chooses for what an evaluation saw."""
    generator = torch.Generator().manual_seed(0)
    torch.randint(2**31, (), generator=generator)  # the seed of the environments
    memory, chosen = None, []
    for observation, starts in zip(shown.observations[:-1], shown.starts, strict=False):
        action, memory = agent.predict(
            observation, memory, greedy, episode_start=starts, generator=generator
        )
        chosen.append(action)
    return chosen


@pytest.mark.parametrize("kind", VECTORS)
def test_a_batch_gets_the_actions_of_an_evaluation(kind: str, tmp_path: Path) -> None:
    """Sampled ones, too, with the same random numbers."""
    agent = trained(tmp_path / "run", **KINDS[kind])
    for greedy in (True, False):
        shown = evaluation(agent, num_envs=3, steps=25, greedy=greedy)
        chosen = replayed(agent, shown, greedy)
        np.testing.assert_array_equal(np.stack(chosen), np.stack(shown.actions))
        assert chosen[0].dtype == shown.actions[0].dtype
    assert len(np.unique(np.stack(chosen))) > 1, "they say nothing if all are alike"


def test_frames_are_stacked_as_atari_does(tmp_path: Path) -> None:
    """Its own C++ stacks them there; the newest is what an environment alone would show."""
    agent = trained(tmp_path / "run", **KINDS["atari"])
    assert agent.observation_space == spaces.Box(0, 255, (84, 84), np.uint8)
    shown = evaluation(agent, num_envs=2, steps=30)
    shown.observations = [x[:, -1] for x in shown.observations]
    np.testing.assert_array_equal(np.stack(replayed(agent, shown)), np.stack(shown.actions))


@pytest.mark.parametrize("kind", ["recurrent", "bins", "tuple"])
def test_single_observations_in_a_loop_of_gymnasiums_own(kind: str, tmp_path: Path) -> None:
    """The loop that everybody writes, against an evaluation with one copy."""
    agent = trained(tmp_path / "run", **KINDS[kind])
    shown = evaluation(agent, num_envs=1, steps=30)
    env = gymnasium.make(agent.config.task.removeprefix("gym:"))
    seed = int(torch.randint(2**31, (), generator=torch.Generator().manual_seed(0)))
    observation, _ = env.reset(seed=seed)
    memory, actions = None, []
    for _ in range(30):
        action, memory = agent.predict(observation, memory)
        assert env.action_space.contains(action)
        actions.append(action)
        observation, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            (observation, _), memory = env.reset(), None
    np.testing.assert_array_equal(np.stack(actions), np.stack(shown.actions)[:, 0])


def test_steps_that_only_reset_do_not_matter(tmp_path: Path) -> None:
    """With the other way of resetting, a new episode begins one step after the last one's end."""
    agent = trained(tmp_path / "run", **KINDS["next-step"])
    shown = evaluation(agent, num_envs=3, steps=40)
    ended = [np.zeros(3, bool), *shown.starts[1:]]
    shown.starts[1:] = ended[:-1]
    mine, theirs = np.stack(replayed(agent, shown)), np.stack(shown.actions)
    played = ~np.stack(ended[: len(theirs)])  # the action after an end is ignored
    np.testing.assert_array_equal(mine[played], theirs[played])
    assert not played.all()


def test_tasks_on_tensors(tmp_path: Path) -> None:
    agent = trained(tmp_path / "run", **KINDS["tensors"])
    assert agent.action_space == spaces.Discrete(3)
    env = agent.make_env(2)
    at, memory = agent.begin(env, 0), None
    for _ in range(20):
        starts = at.timestep.discount == 0
        mine, memory = agent.predict(at.timestep.observation, memory, episode_start=starts)
        actions, at = agent.step(env, at, greedy=True)
        assert mine.tolist() == actions.tolist()


NESTED = spaces.Dict(
    {
        "picture": spaces.Box(0, 255, (6, 5, 3), np.uint8),
        "inside": spaces.Tuple(
            (
                spaces.Discrete(4, start=-1),
                spaces.Dict({"a": spaces.MultiDiscrete([2, 3]), "b": spaces.MultiBinary(3)}),
            )
        ),
        "stacked": spaces.Box(-1, 1, (2, 3, 6, 5), np.float64),
        "glyphs": spaces.Box(0, 99, (4, 4), np.int16),
        "numbers": spaces.Box(-np.inf, np.inf, (3,), np.float64),
        "single": spaces.Box(-1, 1, ()),
    }
)
ACTIONS = {
    "discrete": spaces.Discrete(3, start=2),
    "many": spaces.MultiDiscrete([2, 3]),
    "binary": spaces.MultiBinary(2),
    "box": spaces.Box(-1, 1, (2,), np.float32),
}


@pytest.mark.parametrize("kind", ACTIONS)
def test_every_kind_of_space(kind: str, tmp_path: Path) -> None:
    """What the network sees is equal to the last bit, normalisation included."""

    def make() -> gymnasium.Env:
        return Sampler(NESTED, ACTIONS[kind])

    options = EnvConfig(action_bins=3, normalize_observations=True)
    agent = trained(tmp_path / "run", source=make, task="mine", env=options)
    shown = evaluation(agent, num_envs=2, steps=12)
    np.testing.assert_array_equal(np.stack(replayed(agent, shown)), np.stack(shown.actions))
    env: Any = agent.make_env(2)
    for observation in shown.observations:
        arrays, is_single = agent.policy.read(observation)
        seen, _ = agent.policy.observing(arrays, {}, torch.zeros(2, dtype=torch.bool))
        expected = env._observe(observation)
        assert not is_single and seen.keys() == expected.keys()
        for name, x in expected.items():
            assert x.dtype == seen[name].dtype
            assert torch.equal(x, seen[name])
    action, _ = agent.predict(NESTED.sample())
    assert ACTIONS[kind].contains(action)


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> LoadedAgent:
    """With a memory, on Dict observations."""
    space = spaces.Dict({"place": spaces.Box(-1, 1, (2,)), "colour": spaces.Discrete(3)})
    folder = tmp_path_factory.mktemp("runs") / "run"
    return trained(folder, lambda: Sampler(space), task="mine", net=KINDS["recurrent"]["net"])


PLACE, COLOUR = np.zeros(2, np.float32), 1


def test_memory_is_forgotten_where_episodes_begin(agent: LoadedAgent) -> None:
    batch = {"place": np.ones((2, 2), np.float32), "colour": np.array([0, 2])}
    _, first = agent.predict(batch)
    _, second = agent.predict(batch, first)
    _, third = agent.predict(batch, first, episode_start=[True, False])
    assert first and second and third
    for name, x in third.items():
        assert torch.equal(x[0], first[name][0]) and torch.equal(x[1], second[name][1])
        assert not torch.equal(x[1], first[name][1])


def test_tensors_and_plain_numbers_are_welcome(agent: LoadedAgent) -> None:
    as_arrays, _ = agent.predict({"place": PLACE, "colour": np.int64(1)})
    as_tensors, _ = agent.predict({"place": torch.tensor(PLACE), "colour": torch.tensor(1)})
    plain, _ = agent.predict({"place": [0.0, 0.0], "colour": 1})
    assert as_arrays == as_tensors == plain


@pytest.mark.parametrize(
    "observation, expected",
    [
        ({"place": PLACE}, "no 'colour': give what agent.observation_space describes"),
        (PLACE, "no 'colour'"),
        (({"place": PLACE, "colour": 1}, {}), r"no 'colour'.*env\.reset\(\)"),
        ({"place": np.zeros(3), "colour": 1}, r"'place' has the shape \(3,\), but it should be"),
        ({"place": np.zeros((4, 2)), "colour": 1}, "batches of different sizes"),
        ({"place": np.zeros((0, 2)), "colour": np.zeros(0, int)}, r"the shape \(0"),
        ({"place": PLACE, "colour": 3}, "outside of its Discrete space"),
        ({"place": PLACE, "colour": 0.5}, "has fractions"),
        ({"place": np.array([0, np.nan]), "colour": 1}, "NaN"),
        ({"place": ["a", "b"], "colour": 1}, "not an array of numbers"),
        ({"place": [[1.0], [1.0, 2.0]], "colour": 1}, "not an array of numbers"),
    ],
    ids=str,
)
def test_observations_of_another_kind_are_refused(
    observation: Any, expected: str, agent: LoadedAgent
) -> None:
    with pytest.raises(DiscorlError, match=expected):
        agent.predict(observation)


def test_what_reset_returns_is_a_pair(tmp_path: Path) -> None:
    agent = trained(tmp_path / "run", lambda: Sampler(spaces.Box(-1, 1, (2,))), task="mine")
    assert agent.predict(PLACE)[0] in (0, 1)
    with pytest.raises(DiscorlError, match=r"not an array of numbers \(if env\.reset\(\) returned"):
        agent.predict((PLACE, {}))


def test_memories_of_another_kind_are_refused(agent: LoadedAgent) -> None:
    batch = {"place": np.zeros((2, 2)), "colour": np.zeros(2, int)}
    _, memory = agent.predict(batch)
    with pytest.raises(DiscorlError, match="the memory is not of 1 such observation"):
        agent.predict({"place": PLACE, "colour": COLOUR}, memory)
    wrong: Any = "memory"
    with pytest.raises(DiscorlError, match="pass what the last call returned, or None"):
        agent.predict(batch, wrong)
    with pytest.raises(DiscorlError, match="episode_start has 3 entries for 2"):
        agent.predict(batch, memory, episode_start=[True, False, False])
