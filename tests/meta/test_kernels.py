"""The meta-gradient with kernels for many agents."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from discorl import tree
from discorl.meta import trial as module
from discorl.meta.trial import Trial, run_trial
from discorl.meta.window import MemoryMode, Window
from discorl.ops import native
from discorl.optim import global_norm
from discorl.types import AgentState, Params
from tests.builders import assert_bit_equal, double, random_rollout, rng
from tests.compiler import needs_compiler
from tests.golden.meta_gradient import through
from tests.meta.population import tiny_config, tiny_groups
from tests.meta.test_estimators import MODES, inputs
from tests.meta.test_side_by_side import lived

pytestmark = needs_compiler


def grown_up(state: AgentState) -> AgentState:
    """With second moments: in an agent's first steps, Adam blows up what is only rounding."""
    adam, *rest = state.optimiser
    nu = {k: torch.full_like(x, 0.01) for k, x in adam.nu.items()}
    adam = adam._replace(num_updates=adam.num_updates + 10_000, nu=nu)
    return replace(state, optimiser=(adam, *rest))


def two_agents() -> tuple[Window, Any]:
    window, (rule_params, state, values, rollouts, valid) = inputs(2)
    first = (rule_params, grown_up(state), values, rollouts, valid)
    other, others = window.agent.init_state(rng(7)), [random_rollout(seed=20 + i) for i in range(2)]
    second = (rule_params, grown_up(other), values, others, valid)
    both = tree.map(lambda *xs: torch.stack(xs), first, second)
    return replace(window, each=tree.vmap), both


def error(gradient: Params, truth: Params) -> float:
    distances = {k: gradient[k] - x for k, x in truth.items()}
    return float(global_norm(distances) / global_norm(truth))


@pytest.mark.parametrize("mode", MODES)
def test_it_is_as_exact_as_torchs(mode: MemoryMode) -> None:
    native.build()
    window, args = two_agents()
    truth = through(window, double(args), mode)
    plain = through(window, args, mode)
    with native.for_agents(True):
        got, again = through(window, args, mode), through(window, args, mode)
    assert_bit_equal(got.gradient, again.gradient)
    torch.testing.assert_close(got.loss, truth.loss.float(), rtol=1e-4, atol=1e-5)
    allowed = 4 * error(plain.gradient, truth.gradient)
    assert error(got.gradient, truth.gradient) < allowed < 1e-3
    if torch.ops.discorl.has_agent_axis():  # or nothing would have been tested
        assert not torch.equal(got.gradient["y_target.weight"], plain.gradient["y_target.weight"])


@pytest.mark.parametrize(("memory", "threads"), [("plain", 4), ("recompute", 2)])
def test_the_number_of_threads_changes_no_bit(
    memory: str, threads: int, restored_threads: None
) -> None:
    many, one = (lived(n, memory=memory, kernels="on") for n in (threads, 1))
    assert_bit_equal(many, one)


def test_agents_on_trial_learn_by_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    native.build()
    groups, params = tiny_groups(tiny_config(replay_capacity=9))
    live, learnt = module.live, []

    def watched(*args: Any, **options: Any) -> Any:
        life, kept = live(*args, **options)
        learnt.append(life.agents.params)
        return life, kept

    monkeypatch.setattr(module, "live", watched)
    for use in (False, True, True):
        trial = Trial(replace(groups[0], kernels=use), batch_size=5)
        run_trial(trial, params, 3, rng(1))
    plain, by_kernels, again = learnt
    assert_bit_equal(by_kernels, again)
    torch.testing.assert_close(by_kernels, plain, rtol=1e-2, atol=1e-3)
    if torch.ops.discorl.has_agent_axis():  # or nothing would have been tested
        assert any(not torch.equal(x, plain[k]) for k, x in by_kernels.items())


@pytest.fixture
def restored_threads() -> Any:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
