"""Small rules, agents and rollouts that tests are made of."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from discorl import tree
from discorl.agents.agent import Agent, adam_clip, mlp_agent_net
from discorl.nets.meta_net import MetaNetSizes
from discorl.optim import Transform
from discorl.rules import CMPO, ActorCritic, DiscoRule, PolicyGradient, UpdateRule
from discorl.rules.improvement import Improvement
from discorl.rules.store import save_rule
from discorl.rules.values import ValueHead
from discorl.types import AgentState, EnvSpec, Params, Rollout

GOLDEN = Path(__file__).parent / "golden"

SMALL_SIZES = MetaNetSizes(
    prediction=6,
    hidden=5,
    embedding=(4, 1),
    action_channels=(4, 2),
    policy_channels=(3,),
    lifetime_hidden=4,
    lifetime_embedding=(3,),
    lifetime_prediction_embedding=(4, 1),
    lifetime_action_channels=(4, 2),
)
DEEP_SIZES = MetaNetSizes(
    prediction=7,
    hidden=6,
    embedding=(5, 4, 3),
    action_channels=(4,),
    policy_channels=(3, 5, 2),
    lifetime_hidden=3,
    lifetime_embedding=(6, 2),
    lifetime_prediction_embedding=(2,),
    lifetime_action_channels=(3, 2, 4),
)
SMALL_VALUE = ValueHead(num_bins=11, max_abs=5.0)

T = TypeVar("T")


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small_disco(sizes: MetaNetSizes = SMALL_SIZES) -> DiscoRule:
    return DiscoRule(sizes=sizes, value_head=SMALL_VALUE)


ABLATIONS = {
    "no-predictions": ("predictions",),
    "no-value": ("value",),
    "no-auxiliary": ("auxiliary",),
    "no-lifetime": ("lifetime",),
    "bare": ("predictions", "value", "auxiliary", "lifetime"),
}


def small_disco_without(*parts: str, sizes: MetaNetSizes = SMALL_SIZES) -> DiscoRule:
    return DiscoRule(
        sizes.limited_to(predictions="predictions" not in parts, lifetime="lifetime" not in parts),
        None if "value" in parts else SMALL_VALUE,
        auxiliary="auxiliary" not in parts,
    )


def small_disco_with_prior() -> DiscoRule:
    return replace(small_disco(), prior=Improvement(1.5, 0.7, trust=0.75))


RULES: dict[str, Callable[[], UpdateRule]] = {
    "disco": small_disco,
    **{name: partial(small_disco_without, *parts) for name, parts in ABLATIONS.items()},
    "prior": small_disco_with_prior,
    "cmpo": lambda: CMPO(num_bins=11, max_abs_value=5.0),
    "actor-critic": lambda: ActorCritic(num_bins=11, max_abs_value=5.0),
    "policy-gradient": PolicyGradient,
}


def small_agent(
    rule: UpdateRule,
    num_actions: int = 3,
    observation_shape: tuple[int, ...] = (4,),
    optimiser: Transform | None = None,
    torso: tuple[int, ...] = (7, 6),
    lstm_size: int = 5,
    head_hidden: tuple[int, ...] = (6,),
) -> Agent:
    net = mlp_agent_net(
        EnvSpec(observation_shape, num_actions), rule, torso, lstm_size, head_hidden
    )
    return Agent(net, rule, optimiser or adam_clip(1e-2))


def random_rollout(
    num_steps: int = 6,
    batch: int = 3,
    num_actions: int = 3,
    observation_shape: tuple[int, ...] = (4,),
    seed: int = 0,
) -> Rollout:
    """Random experience in which about one step in five ends an episode."""
    generator = rng(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(num_steps, batch, *shape, generator=generator)

    return Rollout(
        observations=normal(*observation_shape),
        actions=torch.randint(num_actions, (num_steps, batch), generator=generator),
        rewards=normal(),
        discounts=(torch.rand(num_steps, batch, generator=generator) > 0.2).float(),
        behaviour_logits=normal(num_actions),
    )


def random_rule_params(rule: UpdateRule, seed: int = 0, bias_std: float = 0.1) -> Params:
    """Rule parameters with biases that are not zero, so that no bias goes untested."""
    generator = rng(seed)
    return {
        name: p + bias_std * torch.randn(p.shape, generator=generator)
        for name, p in rule.init_params(generator).items()
    }


def disturbed(params: Params, std: float = 0.1, seed: int = 1) -> Params:
    """Other parameters of the same shapes."""
    generator = rng(seed)
    return {k: p + std * torch.randn(p.shape, generator=generator).to(p) for k, p in params.items()}


def double(state: T) -> T:
    """The same in float64; integers and flags stay."""
    return tree.map(lambda x: x.double() if x.is_floating_point() else x, state)


def clone(state: T) -> T:
    return tree.map(Tensor.clone, state)


def assert_bit_equal(a: object, b: object) -> None:
    left, right = tree.leaves(a), tree.leaves(b)
    assert len(left) == len(right) > 0
    for x, y in zip(left, right, strict=True):
        assert x.shape == y.shape
        assert torch.equal(x, y), f"differ by up to {(x - y).abs().max()}"


def with_target_params(state: AgentState, target_params: Params) -> AgentState:
    """The same agent with another target network."""
    return replace(state, rule=replace(state.rule, target_params=target_params))


def write_small_rule(path: Path, seed: int = 0) -> Path:
    """A valid rule file of a few kilobytes."""
    rule = small_disco()
    save_rule(path, rule, random_rule_params(rule, seed), {"origin": "a test"})
    return path


def run_python(
    *args: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """This interpreter on ``args``, to the end."""
    return subprocess.run(
        [sys.executable, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=1800,  # for a hang; machines may be busy
        cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | (env or {}),
    )


def run_cli(
    *args: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """``discorl`` with ``args``, as a user runs it."""
    return run_python("-m", "discorl", *args, env=env, cwd=cwd)
