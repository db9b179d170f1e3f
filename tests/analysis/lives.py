"""Short lives of small agents, and rules whose answers are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from discorl.analysis.lives import Age, Life
from discorl.rules import CMPO, DiscoRule, UpdateRule
from discorl.rules.cmpo import PolicyTargets
from discorl.training.config import TrainConfig
from discorl.types import ActionValues, Params, ReadUnroll, Rollout, RuleState
from tests.builders import disturbed, random_rollout, random_rule_params, rng, small_agent

Formula = Callable[[ReadUnroll, ActionValues, Rollout], Tensor]


@dataclass(frozen=True)
class Known(CMPO):
    """A rule whose pi-hat is a formula of what it sees."""

    num_bins: int | None = 11
    max_abs_value: float = 5.0
    formula: Formula = lambda unroll, values, rollout: unroll.predictions.logits[:-1]

    def targets(
        self,
        rule_params: Params,
        state: RuleState,
        agent_params: Params,
        unroll: ReadUnroll,
        target: ReadUnroll,
        rollout: Rollout,
        across: Any,
    ) -> tuple[PolicyTargets[ActionValues], RuleState]:
        seen = (unroll, target, rollout)
        targets, state = super().targets(rule_params, state, agent_params, *seen, across)
        return replace(targets, pi=self.formula(unroll, targets.values, rollout)), state


def life_of(
    rule: UpdateRule,
    params: Params | None = None,
    seed: int = 0,
    rollout: Rollout | None = None,
    num_ages: int = 2,
    observation_shape: tuple[int, ...] = (4,),
) -> Life:
    """A life that never learnt: its agent at each age has other parameters."""
    agent = small_agent(rule, observation_shape=observation_shape)
    if params is None:
        params = random_rule_params(rule, seed) if isinstance(rule, DiscoRule) else {}
    state = agent.init_state(rng(seed))
    ages = []
    for i in range(num_ages):
        own = disturbed(state.params, 0.3, seed=10 * seed + i)
        memory = replace(state.rule, target_params=disturbed(own, 0.1))
        if memory.lifetime_rnn is not None:
            h = torch.randn(2, len(memory.lifetime_rnn.hidden), generator=rng(seed))
            memory = replace(memory, lifetime_rnn=type(memory.lifetime_rnn)(*h))
        seen = rollout or random_rollout(num_steps=12, batch=40, seed=seed)
        ages.append(Age(10 * i, replace(state, params=own, rule=memory), seen, seen))
    config = TrainConfig(task="catch:4x3", steps=6)
    return Life("the rule", "a task", seed, agent, params, ages, config)


def endless(seed: int = 0) -> Rollout:
    """Experience in which no episode ends."""
    rollout = random_rollout(num_steps=12, batch=40, seed=seed)
    return replace(rollout, discounts=torch.ones_like(rollout.discounts))


def blind_to_predictions(rule: DiscoRule, params: Params) -> Params:
    """The rule's weights with those on embeddings of y and z set to 0."""
    params = {name: p.clone() for name, p in params.items()}
    size = rule.sizes.embedding[-1]
    params["trajectory_rnn.gates.weight"][:, 9 : 9 + 14 * size] = 0
    weight = params["trajectory.actions.layers.0.weight"]
    for part in weight.chunk(2, 1):
        part[:, 3 : 3 + 2 * size] = 0
    return params
