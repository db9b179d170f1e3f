"""The meta-gradient against finite differences of the meta-loss, in float64.

Some inputs of the rule are constants by definition although they depend on it: values, policies,
advantages. They are computed once and held while the rule is moved. What is a constant inside the
agent's loss and optimiser (the policy one step ahead, Adam's second moment) is left out of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch

from discorl import optim
from discorl.meta.meta_value import MetaValue, ValueNet
from discorl.meta.objective import ObjectiveWeights
from discorl.meta.window import MemoryMode, Window
from discorl.nets.torsos import MLPTorso
from discorl.rules import disco
from discorl.rules.disco import DiscoSettings
from discorl.types import Params, RuleState, Values
from tests.builders import (
    disturbed,
    double,
    random_rollout,
    random_rule_params,
    rng,
    small_agent,
    small_disco,
)
from tests.golden.meta_gradient import through

STEP = 1e-5
LARGE = ObjectiveWeights(policy_entropy=0.3, prediction_entropy=0.2, target_mean=0.4, target_kl=0.1)


class Held:
    """A function whose results of a first run are given again in each later run."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.results: list[Any] = []
        self.position: int | None = None  # None: the first run

    def __call__(self, *args: Any) -> Any:
        if self.position is None:
            self.results.append(self.fn(*args))
            return self.results[-1]
        self.position += 1
        return self.results[self.position - 1]


def window_and_inputs() -> tuple[Window, tuple[Any, ...]]:
    rule = replace(small_disco(), settings=DiscoSettings(aux_pi_cost=0.0))
    agent = small_agent(rule, optimiser=optim.chain(optim.scale_by_learning_rate(0.5)))
    meta_value = MetaValue(ValueNet(MLPTorso(4, (5,)), 5))
    state = agent.init_state(rng(3))
    params = disturbed(state.params, 0.3)
    state = replace(state, params=params, rule=rule.init_state(disturbed(params, 0.2, 5)))
    rollouts = [random_rollout(seed=i) for i in range(2)]
    args = (random_rule_params(rule), state, meta_value.init_state(rng(4)), rollouts)
    window = Window(agent, meta_value, LARGE)
    return window, double((*args, random_rollout(9, seed=99)))


@pytest.mark.parametrize("direction", range(2))
def test_equals_finite_differences_in_every_mode(
    direction: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    window, (params, *rest) = window_and_inputs()
    generator = rng(direction)
    along = {k: torch.randn(p.shape, generator=generator).double() for k, p in params.items()}
    gradients = {m: through(window, (params, *rest), m).gradient for m in get_args(MemoryMode)}

    estimate = disco.estimate_action_values
    values = Held(estimate)

    def held_values(*args: Any) -> tuple[Values, RuleState]:
        """Of the rule's memory only the moments are constants."""
        constants, memory = values(*args)
        moments = (memory.advantage_moments, memory.td_moments)
        return constants, replace(args[4], advantage_moments=moments[0], td_moments=moments[1])

    held = [
        values,
        Held(disco.experience),
        Held(window.meta_value.update),
        Held(window.meta_value.estimate),
    ]
    monkeypatch.setattr(disco, "estimate_action_values", held_values)
    monkeypatch.setattr(disco, "experience", held[1])
    monkeypatch.setattr(MetaValue, "update", lambda self, *args: held[2](*args))
    monkeypatch.setattr(MetaValue, "estimate", lambda self, *args: held[3](*args))

    def loss(params: Params) -> float:
        value = float(through(window, (params, *rest), "plain").loss)
        for h in held:
            assert h.position in (None, len(h.results)) and h.results
            h.position = 0
        return value

    at = loss(params)
    ahead, behind = (
        loss({k: p + sign * STEP * along[k] for k, p in params.items()}) for sign in (1, -1)
    )
    slope = (ahead - behind) / (2 * STEP)
    assert abs(slope) > 1e-3 and abs(ahead - at) > 0
    for mode, gradient in gradients.items():
        dot = sum(float((g * along[k]).sum()) for k, g in gradient.items())
        assert dot == pytest.approx(slope, rel=1e-6), mode


def test_all_parts_of_the_rule_are_in_the_check() -> None:
    """A gradient that is 0 would agree with anything constant."""
    window, inputs = window_and_inputs()
    gradient = through(window, inputs, "plain").gradient
    for part in ("trajectory.z.layers.0", "trajectory_rnn.gates", "lifetime_rnn.gates", "y_target"):
        assert bool((gradient[f"{part}.weight"] != 0).any()), part
