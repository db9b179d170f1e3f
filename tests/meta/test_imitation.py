"""The warm start: a rule that learns to say what a hand-written one would."""

from __future__ import annotations

from discorl.meta.meta_step import MetaOptimiser, init_discovery, live_window, meta_step
from discorl.meta.population import init_group
from tests.builders import assert_bit_equal, rng
from tests.meta.population import tiny_config, tiny_groups


def test_imitation_comes_closer_and_agents_live_on() -> None:
    groups, params = tiny_groups(tiny_config())
    optimiser = MetaOptimiser(learning_rate=1e-2, per_agent=False)
    generators = [rng(1), rng(2)]
    discovery = init_discovery(groups, params, optimiser, generators)
    losses = []
    for _ in range(60):
        discovery, info = meta_step(groups, discovery, optimiser, generators, imitate=True)
        losses.append(sum(float(r.loss.mean()) for r in info.results))
    assert sum(losses[-5:]) < 0.6 * sum(losses[:5])
    assert discovery.groups[0].age.tolist() == [120, 120]


def test_agents_are_updated_as_in_a_window_of_the_meta_gradient() -> None:
    [group, _], params = tiny_groups(tiny_config(lifetimes=()))
    state = init_group(group, rng())
    imitated = live_window(group, params, state, rng(5), imitate=True)
    plain = live_window(group, params, state, rng(5))
    assert_bit_equal(imitated.state.agents.params, plain.state.agents.params)
