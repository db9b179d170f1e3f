"""One step of the rule: the mean over agents, divergence, and how it is spread over processes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from discorl import optim, tree
from discorl.meta import meta_step as module
from discorl.meta.meta_step import MetaOptimiser, init_discovery, live_window, meta_step
from discorl.meta.population_acting import Episodes
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


SIZES = (2, 3)  # agents of two groups
LIMIT, MAX_NORM, RATE = 0.3, 20.0, 1e-2


def gradients_of_a_run(num_steps: int) -> list[list[np.ndarray]]:
    """Made up, of each step and group [P, 4]: some are NaN, some beyond the largest norm."""
    generator = np.random.default_rng(0)
    run = [[generator.normal(size=(n, 4)) * 3 for n in SIZES] for _ in range(num_steps)]
    run[2][0][1] = np.nan
    run[3][1][2] *= 100
    run[4][1][2] *= 100
    run[4][0][0, 3] = np.inf
    return run


class ByHand:
    """Adam from its formula, in float64."""

    def __init__(self) -> None:
        self.count, self.mean, self.square = 0, np.zeros(4), np.zeros(4)

    def step(self, gradient: np.ndarray) -> np.ndarray:
        self.count += 1
        self.mean = 0.9 * self.mean + 0.1 * gradient
        self.square = 0.999 * self.square + 0.001 * gradient**2
        mean = self.mean / (1 - 0.9**self.count)
        return mean / (np.sqrt(self.square / (1 - 0.999**self.count)) + 1e-8)


@pytest.mark.parametrize("per_agent", [True, False])
def test_several_steps_by_hand(per_agent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adam first, then the clip, then the mean over the agents whose gradient is sound."""
    run = gradients_of_a_run(6)
    start = torch.tensor([0.5, -1.0, 2.0, 0.0])
    groups, _ = tiny_groups(tiny_config(tasks=("bandit:3*2", "bandit:3*3")))
    optimiser = MetaOptimiser(RATE, per_agent=per_agent, max_abs_update=LIMIT, max_norm=MAX_NORM)
    generators = [rng(1), rng(2)]
    discovery = init_discovery(groups, {"rule": start}, optimiser, generators)
    adams = [ByHand() for _ in range(sum(SIZES))]
    want, some_skipped = start.numpy().astype(np.float64), False

    for gradients in run:
        given = iter(gradients)

        def made_up(group, params, state, *rest, given=given) -> module.WindowResult:
            gradient = {"rule": torch.from_numpy(next(given)).float()}
            zeros = torch.zeros(group.num_agents)
            return module.WindowResult(state, zeros, gradient, Episodes(*[zeros] * 4), 0)

        monkeypatch.setattr(module, "live_window", made_up)
        discovery, info = meta_step(groups, discovery, optimiser, generators)

        rows = np.concatenate(gradients)
        sound = [i for i, g in enumerate(rows) if np.linalg.norm(g) <= MAX_NORM]
        if per_agent:
            clipped = [np.clip(adams[i].step(rows[i]), -LIMIT, LIMIT) for i in sound]
            step = np.mean(clipped, 0)
        else:
            step = np.clip(adams[0].step(rows[sound].mean(0)), -LIMIT, LIMIT)
        want = want - RATE * step
        some_skipped |= len(sound) < len(rows)
        assert info.num_skipped == len(rows) - len(sound)
        assert info.gradient_norm == pytest.approx(
            np.mean([np.linalg.norm(rows[i]) for i in sound]), rel=1e-5
        )
        assert info.update_norm == pytest.approx(RATE * np.linalg.norm(step), rel=1e-5)
        np.testing.assert_allclose(discovery.rule_params["rule"].numpy(), want, rtol=1e-5)
    assert some_skipped


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
