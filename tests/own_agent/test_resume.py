"""A trainer's state is complete: what goes on from it goes on to the last bit."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from discorl.agents.agent import adam_clip
from discorl.errors import DiscorlError
from discorl.optim import warmup_cosine
from discorl.own_agent import DiscoTrainer, collect_rollout
from discorl.rules import ActorCritic
from tests.builders import assert_bit_equal, random_rollout, random_rule_params
from tests.own_agent.own_agents import Corridor, PlainAgent, RecurrentAgent, small_rule


def dropout_agent() -> nn.Module:
    return PlainAgent(small_rule().heads(3), middle=nn.Dropout(0.3))


def plain_agent() -> nn.Module:
    return PlainAgent(small_rule().heads(3))


def recurrent_agent() -> nn.Module:
    return RecurrentAgent(small_rule().heads(3))


def the_same(make_agent: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make_agent()


def make(agent: nn.Module, **settings: Any) -> DiscoTrainer:
    given = {"rule": small_rule(), "replay_capacity": 7, "batch_size": 4, "replay_ratio": 2}
    return DiscoTrainer(agent, **(given | settings))  # pyright: ignore


class Life:
    """An agent in its environment, with everything that a run is made of."""

    def __init__(self, agent: nn.Module, **settings: Any) -> None:
        self.trainer, self.env = make(agent, **settings), Corridor()
        self.obs, self.state, self.previous = self.env.obs().copy(), None, None

    def run(self, num_steps: int) -> list[dict[str, float]]:
        logs = []
        for _ in range(num_steps):
            self.previous, self.obs, self.state = collect_rollout(
                self.trainer.agent,
                self.env.step_fn,
                self.obs,
                self.state,
                rollout_len=5,
                generator=self.trainer.generator,
                previous=self.previous,
            )
            logs.append(self.trainer.step(self.previous))
        return logs

    def resume_from(self, other: Life, saved: dict[str, Any]) -> None:
        self.trainer.load_state_dict(saved)
        self.env.place = other.env.place.copy()
        self.obs, self.state, self.previous = other.obs.copy(), other.state, other.previous


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("make_agent", [plain_agent, dropout_agent, recurrent_agent])
@pytest.mark.parametrize("num_before", [1, 5])  # with the replay half empty, and when it is full
def test_five_and_five_are_ten(make_agent: Any, num_before: int) -> None:
    whole = Life(the_same(make_agent))
    logs = whole.run(10)

    first = Life(the_same(make_agent))
    first.run(num_before)
    saved = through_a_file(first.trainer.state_dict())
    torch.manual_seed(1234)  # nothing may depend on the global generator
    second = Life(make_agent(), seed=99)
    second.resume_from(first, saved)
    rest = second.run(10 - num_before)

    assert rest == logs[num_before:]
    ours, theirs = second.trainer.state_dict(), whole.trainer.state_dict()
    for part in ("agent", "optimiser", "rule_state", "replay", "rng"):
        assert_bit_equal(ours[part], theirs[part])
    assert ours["counters"] == theirs["counters"]
    assert ours["replay"]["next"] == theirs["replay"]["next"]


def test_schedules_go_on_too() -> None:
    optimiser = adam_clip(warmup_cosine(0.01, 3, 20))
    whole, half = (make(the_same(plain_agent), optimiser=optimiser) for _ in range(2))
    for i in range(4):
        whole.update(random_rollout(seed=i))
    for i in range(2):
        half.update(random_rollout(seed=i))
    other = make(plain_agent(), optimiser=optimiser)
    other.load_state_dict(through_a_file(half.state_dict()))
    for i in range(2, 4):
        other.update(random_rollout(seed=i))
    assert_bit_equal(dict(other.agent.state_dict()), dict(whole.agent.state_dict()))


def test_a_rule_without_parameters_or_target() -> None:
    rule = ActorCritic(num_bins=11, max_abs_value=5.0)
    trainers = [make(PlainAgent(rule.heads(3)), rule=rule) for _ in range(2)]
    for i in range(4):
        trainers[0].step(random_rollout(seed=i))
    trainers[1].load_state_dict(through_a_file(trainers[0].state_dict()))
    logs = [t.step(random_rollout(seed=9)) for t in trainers]
    assert logs[0] == logs[1]
    assert logs[0]["num_grad_steps_this_call"] == 2


def test_dict_observations_are_kept() -> None:
    def rollout(seed: int) -> Any:
        plain = random_rollout(seed=seed)
        parts = {"a": plain.observations[..., :2], "b": (plain.observations[..., 2:],)}
        return replace(plain, observations=parts)  # pyright: ignore

    class DictAgent(PlainAgent):
        def forward(self, obs: Any) -> dict[str, Tensor]:
            return super().forward(torch.cat([obs["a"], obs["b"][0]], -1))

    trainers = [make(DictAgent(small_rule().heads(3))) for _ in range(2)]
    for i in range(3):
        trainers[0].step(rollout(i))
    trainers[1].load_state_dict(through_a_file(trainers[0].state_dict()))
    logs = [t.step(rollout(9)) for t in trainers]
    assert logs[0] == logs[1]


def test_a_loaded_trainer_shares_nothing_with_the_state() -> None:
    trainer = make(plain_agent())
    for i in range(3):
        trainer.step(random_rollout(seed=i))
    saved = through_a_file(trainer.state_dict())
    copy = through_a_file(trainer.state_dict())
    other = make(plain_agent())
    other.load_state_dict(saved)
    other.step(random_rollout(seed=7))
    for part in ("agent", "optimiser", "rule_state", "replay", "rng"):
        assert_bit_equal(saved[part], copy[part])


def broken(change: Any) -> tuple[DiscoTrainer, dict[str, Any]]:
    trainer = make(plain_agent())
    trainer.step(random_rollout())
    state = through_a_file(trainer.state_dict())
    change(state)
    return trainer, state


def drop(*path: str) -> Any:
    def change(state: dict[str, Any]) -> None:
        for key in path[:-1]:
            state = state[key]
        del state[path[-1]]

    return change


def put(value: Any, *path: str) -> Any:
    def change(state: dict[str, Any]) -> None:
        for key in path[:-1]:
            state = state[key]
        state[path[-1]] = value

    return change


@pytest.mark.parametrize(
    "change, message",
    [
        (drop("version"), "has no version"),
        (put(2, "version"), "version 2, but this package reads version 1"),
        (drop("replay"), "is missing replay"),
        (drop("agent", "torso.bias"), "agent lacks torso.bias"),
        (
            put(torch.zeros(9), "agent", "torso.bias"),
            r"agent\.torso\.bias is torch\.float32 \[9\], not .*\[8\]",
        ),
        (put(torch.zeros(1), "agent", "other"), "agent has other, which does not belong there"),
        (put(None, "optimiser"), "optimiser is None, not a tuple of 3"),
        (drop("rule_state", "td_moments"), "rule_state lacks td_moments"),
        (put(3.0, "rule_state", "td_moments", "mean"), "mean is of type float, not "),
        (put("x", "counters", "grad_steps"), "counters.grad_steps is of type str, not of type int"),
        (put(8, "replay", "capacity"), "pass replay_capacity=8"),
        (drop("replay", "storage", "rewards"), "the saved replay is broken"),
        (put(torch.zeros(6, 2), "replay", "storage", "rewards"), "the saved replay is broken"),
        (put(None, "replay", "storage", "actions"), "the saved replay is broken"),
        (put(70, "replay", "next"), "the saved replay is broken"),
        (put(None, "replay", "newest"), "the saved replay is broken"),
        (put({}, "replay"), "replay must have the entries capacity, newest, next, storage"),
        (put({"name": "a", "sha256": "b"}, "rule"), "saved with the rule 'a'"),
        (put(7, "rule"), "saved with the rule 7"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(
    change: Any, message: str
) -> None:
    trainer, state = broken(change)
    before = through_a_file(trainer.state_dict())
    with pytest.raises(DiscorlError, match=message):
        trainer.load_state_dict(state)
    now = trainer.state_dict()
    for part in ("agent", "optimiser", "rule_state", "replay", "rng"):
        assert_bit_equal(now[part], before[part])
    assert now["counters"] == before["counters"]


def test_not_a_state_at_all() -> None:
    with pytest.raises(DiscorlError, match="not the state of a DiscoTrainer"):
        make(plain_agent()).load_state_dict([1, 2])  # pyright: ignore


def test_another_rule_is_refused() -> None:
    trainer = make(plain_agent())
    rule = small_rule()
    other = make(plain_agent(), rule=small_rule(rule.rule, random_rule_params(rule.rule, seed=5)))
    with pytest.raises(DiscorlError, match="make the trainer with the same rule"):
        other.load_state_dict(trainer.state_dict())
