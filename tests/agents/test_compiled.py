"""The compiled update: the same numbers, and a way out where there is no compiler."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import torch

from discorl import tree
from discorl.agents import compiled
from discorl.agents.compiled import compile_agent
from discorl.agents.update import update_agent
from tests.agents.test_action_masks import KEPT, NUM_ACTIONS, masked
from tests.builders import RULES, random_rollout, random_rule_params, rng, small_agent, small_disco

needs_compiler = pytest.mark.skipif(
    shutil.which("c++") is None and shutil.which("g++") is None and shutil.which("clang++") is None,
    reason="torch.compile needs a C++ compiler: install g++ or clang++",
)


@needs_compiler
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name, is_masked", [("disco", False), ("bare", False), ("disco", True)])
def test_same_numbers_as_uncompiled(name: str, is_masked: bool) -> None:
    rule = RULES[name]()
    num_actions = NUM_ACTIONS if is_masked else 3
    agent = small_agent(rule, num_actions)
    fast = compile_agent(agent)
    assert fast is not agent
    rule_params, state = random_rule_params(rule), agent.init_state(rng())
    rollout = random_rollout(num_actions=num_actions)
    if is_masked:
        rollout = masked(replace(rollout, actions=KEPT[rollout.actions % len(KEPT)]))
    other = state
    for _ in range(3):
        state, want = update_agent(agent, rule_params, state, rollout)
        other, got = update_agent(fast, rule_params, other, rollout)
        for a, b in zip(tree.leaves(got.targets), tree.leaves(want.targets), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
        for name, p in state.params.items():
            torch.testing.assert_close(other.params[name], p, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "InvalidCxxCompiler: No working C++ ...",
            r"no working C\+\+ compiler was found \(install",
        ),
        ("OSError: [Errno 28] No space left\n\nmore", r"torch.compile failed \(OSError.*left\)"),
    ],
)
def test_goes_on_uncompiled_where_it_cannot(
    monkeypatch: pytest.MonkeyPatch, said: str, told: str
) -> None:
    def fails(*_: object, **__: object) -> object:
        raise RuntimeError(said)

    monkeypatch.setattr(compiled, "use_private_cache", lambda: None)
    monkeypatch.setattr(compiled.torch, "compile", fails)
    agent = small_agent(small_disco())
    with pytest.warns(UserWarning, match=f"running uncompiled: {told}"):
        assert compile_agent(agent) is agent
