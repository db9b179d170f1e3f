"""One step of the rule: the mean over agents, divergence, and how it is spread over processes."""

from __future__ import annotations

from dataclasses import replace

import torch

from discorl import optim, tree
from discorl.meta import meta_step as module
from discorl.meta.meta_step import MetaOptimiser, init_discovery, live_window, meta_step
from tests.builders import assert_bit_equal, rng
from tests.meta.population import tiny_config, tiny_groups


def test_per_agent_adam_then_the_mean() -> None:
    groups, params = tiny_groups(tiny_config())
    optimiser = MetaOptimiser(learning_rate=1e-2)
    generators = [rng(1), rng(2)]
    start = init_discovery(groups, params, optimiser, generators)
    resume = [g.get_state() for g in generators]
    after, info = meta_step(groups, start, optimiser, generators)
    assert (info.num_agents, info.num_skipped) == (5, 0)

    adam = optim.scale_by_adam()
    steps = []
    for group, state, generator, saved in zip(
        groups, start.groups, generators, resume, strict=True
    ):
        generator.set_state(saved)
        gradient = live_window(group, params, state, generator).gradient
        for i in range(group.num_agents):
            own = tree.index(gradient, i)
            steps.append(adam.update(own, adam.init(params), params)[0])
    for name, p in params.items():
        mean = torch.stack([s[name].clamp(-1, 1) for s in steps]).mean(0)
        torch.testing.assert_close(after.rule_params[name], p - 1e-2 * mean, rtol=1e-5, atol=1e-7)


def test_one_adam_for_the_mean_gradient() -> None:
    groups, params = tiny_groups(tiny_config())
    optimiser = MetaOptimiser(learning_rate=1e-2, per_agent=False)
    generators = [rng(1), rng(2)]
    start = init_discovery(groups, params, optimiser, generators)
    resume = [g.get_state() for g in generators]
    after, _ = meta_step(groups, start, optimiser, generators)
    gradients = []
    for group, state, generator, saved in zip(
        groups, start.groups, generators, resume, strict=True
    ):
        generator.set_state(saved)
        gradients.append(live_window(group, params, state, generator).gradient)
    mean = {k: torch.cat([g[k] for g in gradients]).mean(0) for k in params}
    adam = optim.scale_by_adam()
    want, _ = adam.update(mean, adam.init(params), params)
    for name, p in params.items():
        torch.testing.assert_close(after.rule_params[name], p - 1e-2 * want[name])


def test_a_diverging_agent_is_left_out_and_counted(monkeypatch) -> None:
    groups, params = tiny_groups(tiny_config(tasks=("catch:4x4*3",)))
    optimiser = MetaOptimiser(learning_rate=1e-2, max_norm=1e6)
    start = init_discovery(groups, params, optimiser, [rng(1)])
    honest = module.live_window

    def one_blows_up(*args):
        result = honest(*args)
        spoilt = {k: g.clone() for k, g in result.gradient.items()}
        for g in spoilt.values():
            g[1] = float("nan")
            g[2] = 1e30
        return replace(result, gradient=spoilt)

    monkeypatch.setattr(module, "live_window", one_blows_up)
    generator = rng(3)
    after, info = meta_step(groups, start, optimiser, [generator])
    assert (info.num_skipped, info.num_agents) == (2, 3)
    assert tree.is_finite(after.rule_params)
    assert_bit_equal(tree.index(after.adam[0], 1), tree.index(start.adam[0], 1))
    assert float(after.adam[0].num_updates[0]) == 1
    moved = max(float((after.rule_params[k] - p).abs().max()) for k, p in params.items())
    assert 0 < moved <= 1e-2 * 1.0001


def test_groups_in_two_processes_give_the_rule_that_one_gives() -> None:
    groups, params = tiny_groups(tiny_config())
    optimiser = MetaOptimiser()
    together = init_discovery(groups, params, optimiser, [rng(1), rng(2)])
    both, _ = meta_step(groups, together, optimiser, [rng(11), rng(12)])

    sums = []
    for i in range(2):  # what each process would send
        alone = init_discovery(groups[i : i + 1], params, optimiser, [rng(1 + i)])

        def catch(part, sums=sums):
            sums.append(part)
            return dict(part)

        meta_step(groups[i : i + 1], alone, optimiser, [rng(11 + i)], total=catch)
    total = {k: sums[0][k] + sums[1][k] for k in sums[0]}
    alone = init_discovery(groups[:1], params, optimiser, [rng(1)])
    spread, info = meta_step(groups[:1], alone, optimiser, [rng(11)], total=lambda part: total)
    assert info.num_agents == 5
    for name, p in both.rule_params.items():
        torch.testing.assert_close(spread.rule_params[name], p, rtol=1e-6, atol=1e-8)
