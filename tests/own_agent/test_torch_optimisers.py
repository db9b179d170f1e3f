"""Optimisers of torch's in a trainer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from discorl.agents.agent import adam_clip
from discorl.errors import DiscorlError
from discorl.optim import scale_by_learning_rate
from tests.builders import assert_bit_equal
from tests.own_agent.test_resume import Life, make, plain_agent, the_same, through_a_file

Made = Callable[[nn.Module], Any]
PAIRS: dict[str, tuple[Made, Any]] = {
    "sgd": (lambda a: torch.optim.SGD(a.parameters(), lr=0.1), scale_by_learning_rate(0.1)),
    "adam": (lambda a: torch.optim.Adam(a.parameters(), lr=1e-2), adam_clip(1e-2, 1e9)),
    "adamw": (
        lambda a: torch.optim.AdamW(a.parameters(), lr=1e-2, weight_decay=0.1),
        adam_clip(1e-2, 1e9, 0.1),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_the_same_steps_as_our_own(name: str) -> None:
    make_theirs, ours = PAIRS[name]
    agent = the_same(plain_agent)
    theirs, own = (
        Life(agent, optimizer=make_theirs(agent)),
        Life(the_same(plain_agent), optimiser=ours),
    )
    for one, other in zip(theirs.run(8), own.run(8), strict=True):
        assert one == pytest.approx(other, rel=1e-3, nan_ok=True)
    assert theirs.trainer.grad_steps > 5
    for p, q in zip(agent.parameters(), own.trainer.agent.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
        assert p.grad is None


def with_adam() -> Life:
    agent = the_same(plain_agent)
    return Life(agent, optimiser=torch.optim.Adam(agent.parameters(), lr=1e-2))


@pytest.mark.parametrize("num_before", [1, 5])  # before the first update, and after some
def test_a_resumed_trainer_goes_on_to_the_last_bit(num_before: int) -> None:
    whole = with_adam()
    logs = whole.run(10)
    first = with_adam()
    first.run(num_before)
    saved = through_a_file(first.trainer.state_dict())
    second = with_adam()
    second.resume_from(first, saved)
    assert second.run(10 - num_before) == logs[num_before:]
    assert_bit_equal(second.trainer.state_dict()["agent"], whole.trainer.state_dict()["agent"])


def test_the_state_of_another_kind_of_optimiser_is_refused() -> None:
    own, theirs = Life(the_same(plain_agent)), with_adam()
    with pytest.raises(DiscorlError, match="saved with an optimiser of torch's"):
        own.trainer.load_state_dict(theirs.trainer.state_dict())
    with pytest.raises(DiscorlError, match="with the trainer's own optimiser"):
        theirs.trainer.load_state_dict(own.trainer.state_dict())
    agent = the_same(plain_agent)
    parts = [{"params": [p]} for p in agent.parameters()]
    other = Life(agent, optimiser=torch.optim.Adam(parts, lr=1e-2))
    with pytest.raises(DiscorlError, match="the saved optimiser does not fit this one"):
        other.trainer.load_state_dict(theirs.trainer.state_dict())


def test_mistakes_say_what_to_write() -> None:
    agent = the_same(plain_agent)
    for given, words in {
        torch.optim.Adam: r"the optimiser is Adam: pass .*torch.optim.Adam\(agent.parameters\(\)",
        "adam": "the optimiser is a str: pass one of torch's",
        torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1): (
            "does not have the agent's parameter 'torso.weight': make it from agent.parameters"
        ),
        torch.optim.LBFGS(agent.parameters()): "use an optimiser that steps once",
    }.items():
        with pytest.raises(DiscorlError, match=words):
            make(agent, optimizer=given)
    adam = torch.optim.Adam(agent.parameters())
    with pytest.raises(DiscorlError, match="optimiser and optimizer are the same thing"):
        make(agent, optimiser=adam, optimizer=adam)


def test_frozen_parameters_stay() -> None:
    agent: Any = the_same(plain_agent)
    agent.torso.weight.requires_grad_(False)
    before = agent.torso.weight.clone()
    life = Life(agent, optimiser=torch.optim.Adam(agent.parameters(), lr=1e-2))
    life.run(6)
    assert life.trainer.grad_steps > 0
    assert torch.equal(agent.torso.weight, before)
    assert not torch.equal(agent.torso.bias, the_same(plain_agent).torso.bias)  # pyright: ignore


def test_a_step_that_ruins_the_agent_is_taken_back() -> None:
    agent = the_same(plain_agent)
    life = Life(agent, optimiser=torch.optim.SGD(agent.parameters(), lr=1e38))
    kept = {k: x.clone() for k, x in agent.state_dict().items()}
    with pytest.raises(DiscorlError, match="update_norm is inf"):
        life.run(8)
    assert_bit_equal(kept, dict(agent.state_dict()))
