"""The meta-gradient against finite differences of the meta-loss, in float64.

Some inputs of the rule are constants by definition although they depend on it: values, policies,
advantages, the memory that a burn-in leads to. They are computed once and held while the rule is
moved. What is a constant inside the agent's loss and optimiser (the policy one step ahead, Adam's
second moment) is left out of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch

from discorl import optim, tree
from discorl.agents import update
from discorl.agents.agent import Agent, agent_net
from discorl.agents.burn_in import warm_up
from discorl.agents.network import Network
from discorl.meta import window as window_module
from discorl.meta.meta_value import MetaValue, MetaValueSettings, make_meta_value
from discorl.meta.objective import ObjectiveWeights
from discorl.meta.window import MemoryMode, Window
from discorl.nets.net_config import NetConfig
from discorl.rules import DiscoRule, disco
from discorl.rules.disco import DiscoSettings
from discorl.types import EnvSpec, ObservationSpec, Params, Rollout, RuleState, Values
from tests.builders import (
    ABLATIONS,
    disturbed,
    double,
    random_rollout,
    random_rule_params,
    rng,
    small_disco,
    small_disco_with_prior,
    small_disco_without,
)
from tests.golden.meta_gradient import through

STEP = 1e-6  # small enough that no relu bends on the way
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


PICTURE = EnvSpec((2, 5, 5), 3, is_image=True)
LARGE_PICTURE = EnvSpec((1, 36, 36), 3, is_image=True)
SEVERAL = EnvSpec(
    (),
    3,
    observations={"board": ObservationSpec((2, 4, 4), is_image=True), "x": ObservationSpec((3,))},
)
SMALL = NetConfig(torso=(7, 6), action_lstm=5, head_hidden=(6,), dense=6)
NETS = {
    "mlp": (EnvSpec((4,), 3), SMALL),
    "conv": (PICTURE, replace(SMALL, channels=(3, 4))),
    "nature": (LARGE_PICTURE, replace(SMALL, torso_kind="nature", channels=(2, 3, 2))),
    "impala": (PICTURE, replace(SMALL, torso_kind="impala", channels=(2, 3))),
    "dict": (SEVERAL, replace(SMALL, channels=(3, 2))),
    "lstm": (EnvSpec((4,), 3), replace(SMALL, core_lstm=5)),
    "conv and lstm, with burn-in": (PICTURE, replace(SMALL, channels=(3,), core_lstm=4)),
}


def seen_by(net: Network, spec: EnvSpec, num_steps: int, seed: int) -> Rollout:
    """Random experience of a kind of network."""
    rollout = random_rollout(num_steps, 3, observation_shape=spec.observation_shape, seed=seed)
    generator, batch = rng(seed + 50), rollout.actions.shape
    if spec.observations:
        shown = {
            name: torch.randn(*batch, *part.shape, generator=generator)
            for name, part in spec.observations.items()
        }
        rollout = replace(rollout, observations=shown)
    memory = tree.map(
        lambda x: torch.randn(1, *x.shape, generator=generator), net.initial_memory(batch[1])
    )
    return replace(rollout, memory=memory)


def window_and_inputs(
    kind: str = "mlp", rule: DiscoRule | None = None
) -> tuple[Window, tuple[Any, ...]]:
    spec, config = NETS[kind]
    rule = replace(rule or small_disco(), settings=DiscoSettings(aux_pi_cost=0.0))
    burn_in = 2 if "burn-in" in kind else 0
    optimiser = optim.chain(optim.scale_by_learning_rate(0.5))
    agent = Agent(agent_net(spec, rule, config), rule, optimiser, burn_in)
    meta_value = make_meta_value(MetaValueSettings(torso=(5,)), spec, config)
    state = agent.init_state(rng(3))
    params = disturbed(state.params, 0.3)
    state = replace(state, params=params, rule=rule.init_state(disturbed(params, 0.2, 5)))
    rollouts = [seen_by(agent.net, spec, 6 + burn_in, i) for i in range(2)]
    judged_on = seen_by(agent.net, spec, 9, 99)
    args = (random_rule_params(rule), state, meta_value.init_state(rng(4)), rollouts)
    window = Window(agent, meta_value, LARGE)
    return window, double((*args, judged_on))


WHOLE = [("mlp", 0, "whole"), *((kind, 1, "whole") for kind in NETS)]
WITHOUT = [("mlp", 1, name) for name in ABLATIONS]
PRIOR = [("mlp", 0, "prior"), ("lstm", 1, "prior")]


@pytest.mark.parametrize("kind, direction, name", [*WHOLE, *WITHOUT, *PRIOR])
def test_equals_finite_differences_in_every_mode(
    kind: str, direction: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = small_disco_without(*ABLATIONS.get(name, ()))
    rule = small_disco_with_prior() if name == "prior" else rule
    window, (params, *rest) = window_and_inputs(kind, rule)
    generator = rng(direction)
    along = {k: torch.randn(p.shape, generator=generator).double() for k, p in params.items()}
    gradients = {m: through(window, (params, *rest), m).gradient for m in get_args(MemoryMode)}

    values = Held(disco.estimate_read_values)

    def held_values(*args: Any) -> tuple[Values, RuleState]:
        """Of the rule's memory only the moments are constants."""
        constants, memory = values(*args)
        moments = (memory.advantage_moments, memory.td_moments)
        state = next(x for x in args if isinstance(x, RuleState))
        return constants, replace(state, advantage_moments=moments[0], td_moments=moments[1])

    held = [
        values,
        Held(disco.experience),
        Held(window.meta_value.update),
        Held(window.meta_value.estimate),
    ]
    monkeypatch.setattr(disco, "estimate_read_values", held_values)
    monkeypatch.setattr(disco, "experience", held[1])
    if window.agent.burn_in:
        held += [Held(warm_up), Held(warm_up)]
        monkeypatch.setattr(update, "warm_up", held[-1])
        monkeypatch.setattr(window_module, "warm_up", held[-2])
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
    window, inputs = window_and_inputs(rule=small_disco_with_prior())
    of_strength = through(window, inputs, "plain").gradient["prior_strength.weight"]
    assert bool((of_strength != 0).all()), "of the trajectory's part and of the lifetime's"
