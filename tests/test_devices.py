"""Everything is made on the device that was asked for: another default device changes nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from discorl import tree
from discorl.agents.replay import Replay
from discorl.agents.update import update_agent
from discorl.discovery.build import make_group, starting_rule
from discorl.envs.env_config import EnvConfig
from discorl.envs.gymnasium import gymnasium_env
from discorl.envs.registry import make_env, make_tensor_env
from discorl.meta.meta_step import MetaOptimiser, init_discovery, meta_step
from discorl.meta.population import init_group
from discorl.meta.trial import Trial, run_trial
from discorl.own_agent import DiscoTrainer, collect_rollout
from discorl.own_agent import collect_rollout as collect_own
from discorl.own_agent.noise import noise_from
from discorl.training.evaluate import rewards_of
from discorl.types import TimeStep
from tests.builders import RULES, assert_bit_equal, random_rule_params, rng, small_agent
from tests.meta.population import tiny_config, tiny_groups
from tests.own_agent.own_agents import Corridor, PlainAgent, small_rule

TASKS = (
    "catch:sampled",
    "grid:dense",
    "chain:bits",
    "deep-sea",
    "memory",
    "umbrella",
    "bandit:3x2",
    "cartpole:sampled",
    "balance",
    "mdp",
)
WINDOWS: dict[str, dict[str, Any]] = {
    "plain": {},
    "short lives": {"lifetimes": (2, 3)},
    "replay": {"num_replayed": 2, "replay_capacity": 6},
    "sliding": {"stride": 1, "memory": "recompute"},
    "mixed": {"memory": "mixed"},
}


def assert_same_with_another_default(fn: Callable[[], Any]) -> None:
    """``fn`` gives the same, on the CPU, where the default device has no numbers at all."""
    expected = fn()
    with torch.device("meta"):
        found = fn()
    assert_bit_equal(found, expected)


@pytest.mark.parametrize("window", WINDOWS)
def test_a_meta_step(window: str) -> None:
    groups, params = tiny_groups(tiny_config(**WINDOWS[window]))
    optimiser = MetaOptimiser()

    def step() -> Any:
        generators = [rng(1), rng(2)]
        start = init_discovery(groups, params, optimiser, generators)
        after, info = meta_step(groups, start, optimiser, generators)
        return after, info.results[0].gradient

    assert_same_with_another_default(step)


def test_a_step_with_one_optimiser_that_imitates() -> None:
    groups, params = tiny_groups(tiny_config())
    optimiser = MetaOptimiser(per_agent=False)

    def step() -> Any:
        generators = [rng(1), rng(2)]
        start = init_discovery(groups, params, optimiser, generators)
        return meta_step(groups, start, optimiser, generators, imitate=True)[0]

    assert_same_with_another_default(step)


def test_a_trial() -> None:
    groups, params = tiny_groups(tiny_config(replay_capacity=8))
    trial = Trial(groups[0], batch_size=5, num_fresh=2, updates_per_step=2)
    assert_same_with_another_default(lambda: run_trial(trial, params, 4, rng()).nan_to_num(9))


@pytest.mark.parametrize("name", RULES)
def test_a_rollout_and_an_update(name: str) -> None:
    rule = RULES[name]()
    rule_params = random_rule_params(rule)
    agent = small_agent(rule, 3, (8, 8))

    def train() -> Any:
        env, generator, replay = make_env("catch", 3), rng(), Replay(4)
        state = agent.init_state(generator)
        rollout, *_ = collect_rollout(
            agent.net, state.params, env, *env.reset(generator), 12, generator, bootstrap=rule
        )
        replay.add(rollout)
        batch = replay.sample(4, generator, num_fresh=2)
        return update_agent(agent, rule_params, state, batch)[0], batch

    assert_same_with_another_default(train)


@pytest.mark.parametrize("task", ["catch:4x4*2", "bandit:3*2"])
def test_newborn_agents_live_where_their_tasks_do(task: str) -> None:
    config = tiny_config(tasks=(task,), **WINDOWS["short lives"], **WINDOWS["replay"])
    rule, _ = starting_rule(config)
    group = make_group(config, config.groups[0], rule, torch.device("meta"))
    assert all(x.is_meta for x in tree.leaves(init_group(group, rng())))


def test_an_agent_and_a_loop_of_the_users_own() -> None:
    rule = small_rule()
    agent = PlainAgent(rule.heads(3))

    def train() -> Any:
        env, ours = Corridor(), copy.deepcopy(agent)
        trainer = DiscoTrainer(ours, rule=rule, batch_size=2, replay_capacity=4, seed=1)
        rollout, *_ = collect_own(
            ours, env.step_fn, env.obs(), None, 6, generator=trainer.generator
        )
        trainer.step(rollout)
        return rollout, [p.detach() for p in ours.parameters()]

    assert_same_with_another_default(train)


def test_an_environment_of_gymnasium() -> None:
    options = EnvConfig(normalize_observations=True, autoreset="next-step")

    def live() -> Any:
        env = gymnasium_env("CartPole-v1", 2, options=options)
        state, first = env.reset(rng())
        actions = torch.zeros(2, dtype=torch.long, device="cpu")
        return first, env.step(state, actions, rng())[1], env.state_dict()

    assert_same_with_another_default(live)


class WithoutFloat64(TorchDispatchMode):
    """The device "meta" has no float64, like that of Apple's chips."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **kwargs or {})
        if isinstance(out, torch.Tensor) and out.is_meta and out.dtype == torch.float64:
            raise TypeError("this device has no float64")
        return out


@pytest.mark.parametrize("autoreset", ["same-step", "next-step"])
def test_an_environment_on_a_device_without_float64(autoreset: Any) -> None:
    options = EnvConfig(normalize_observations=True, autoreset=autoreset, reward_scale=2.0)
    env = gymnasium_env("MountainCar-v0", 2, "meta", options)
    with WithoutFloat64():
        state, first = env.reset(rng())
        _, then = env.step(state, torch.zeros(2, dtype=torch.long), rng())
    assert all(x.is_meta for x in tree.leaves((first, then)))


class OnADeviceWithoutFloat64(torch.Tensor):
    """Numbers that must come to the CPU before they can be float64."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.cpu:
            return args[0].as_subclass(torch.Tensor)
        assert func is not torch.Tensor.double
        return super().__torch_function__(func, types, args, kwargs or {})


def test_rewards_of_a_device_without_float64() -> None:
    rewards = torch.ones(2).as_subclass(OnADeviceWithoutFloat64)
    assert rewards_of(TimeStep(torch.zeros(2), rewards, torch.ones(2))).tolist() == [1, 1]


def test_noise_of_an_agent() -> None:
    def draw() -> torch.Tensor:
        with noise_from(rng(), torch.device("cpu")):
            return torch.rand(3, device="cpu")

    assert_same_with_another_default(draw)


@pytest.mark.parametrize("task", TASKS)
def test_a_task(task: str) -> None:
    def live() -> Any:
        generator = rng()
        env = make_tensor_env(task, 4)
        state, first = env.reset(generator, env.sample_settings(4, generator))
        zeros = torch.zeros(4, dtype=torch.long, device="cpu")
        return first, env.step(state, zeros, generator)

    assert_same_with_another_default(live)
