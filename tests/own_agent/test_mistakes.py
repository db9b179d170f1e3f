"""Mistakes in agents, rollouts and environments get a message that names them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from discorl.errors import DiscorlError
from discorl.own_agent import AgentRollout, DiscoTrainer, DiscoUpdateRule, collect_rollout
from discorl.rules import DiscoRule
from discorl.types import Rollout
from tests.builders import random_rollout
from tests.own_agent.own_agents import Corridor, PlainAgent, RecurrentAgent, small_rule

# The small rule: A = 3, y and z of 6, q of 11 bins; 6 steps of 3 trajectories are 18 rows.
SHAPES = {
    "logits": ("[B, A]", [18, 3]),
    "y": ("[B, 6]", [18, 6]),
    "z": ("[B, A, 6]", [18, 3, 6]),
    "q": ("[B, A, 11]", [18, 3, 11]),
    "aux_pi": ("[B, A, A]", [18, 3, 3]),
}


class Altered(PlainAgent):
    """A sound agent, but for what is done to its output."""

    def __init__(self, change: Callable[[dict[str, Any]], Any]) -> None:
        super().__init__(small_rule().heads(3))
        self.change = change

    def forward(self, obs: Tensor) -> Any:
        return self.change(super().forward(obs))


def message_of(agent: nn.Module, rollout: Any = None) -> str:
    """What the trainer says in its very first step, long before the replay is full."""
    trainer = DiscoTrainer(agent, rule=small_rule())
    before = {k: p.detach().clone() for k, p in agent.named_parameters()}
    with pytest.raises(DiscorlError) as e:
        trainer.step(random_rollout() if rollout is None else rollout)
    assert len(trainer.replay) == 0
    assert trainer.acting_steps == 0
    for k, p in agent.named_parameters():
        assert torch.equal(p, before[k])
    assert "\n" not in str(e.value)
    return str(e.value)


# --- heads ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHAPES)
def test_a_head_of_the_wrong_size(name: str) -> None:
    def change(out: dict[str, Any]) -> Any:
        return out | {name: torch.cat([out[name], out[name][..., :1]], -1)}

    symbols, sizes = SHAPES[name]
    got = [*sizes[:-1], sizes[-1] + 1]
    assert message_of(Altered(change)) == (
        f"the agent's head '{name}' has shape {got}, but the rule needs {symbols}, here {sizes}"
    )


@pytest.mark.parametrize("name", SHAPES)
def test_a_head_with_a_dimension_too_few(name: str) -> None:
    symbols, sizes = SHAPES[name]
    message = message_of(Altered(lambda out: out | {name: out[name][..., 0]}))
    assert f"'{name}' has shape {sizes[:-1]}, but the rule needs {symbols}" in message


@pytest.mark.parametrize("name", SHAPES)
def test_a_missing_head(name: str) -> None:
    symbols, sizes = SHAPES[name]

    def change(out: dict[str, Any]) -> Any:
        del out[name]
        return out

    message = message_of(Altered(change))
    assert message == (
        f"the agent's output lacks the head '{name}': the rule needs a tensor {symbols}, "
        f"here {sizes}"
    )
    assert message_of(Altered(lambda out: out | {name: None})) == message


@pytest.mark.parametrize("name", SHAPES)
def test_a_head_of_another_type(name: str) -> None:
    message = message_of(Altered(lambda out: out | {name: out[name].double()}))
    assert f"head '{name}' is float64, but the rule computes in float32: convert it" in message
    message = message_of(Altered(lambda out: out | {name: out[name].tolist()}))
    assert f"has a list for the head '{name}'" in message


@pytest.mark.parametrize("name", SHAPES)
def test_a_head_that_is_nan(name: str) -> None:
    message = message_of(Altered(lambda out: out | {name: out[name] * float("nan")}))
    assert message == f"the agent's head '{name}' is NaN or infinite"


@pytest.mark.parametrize("name", SHAPES)
def test_a_head_on_another_device(name: str) -> None:
    message = message_of(Altered(lambda out: out | {name: out[name].to("meta")}))
    assert message == f"the agent's head '{name}' is on meta, but its parameters are on cpu"


@pytest.mark.parametrize("name", SHAPES)
def test_heads_of_a_recurrent_agent_are_checked_too(name: str) -> None:
    class Wrong(RecurrentAgent):
        def forward(self, obs: Tensor, state: Any) -> Any:
            out, state = super().forward(obs, state)
            return out | {name: out[name][..., :-1]}, state

    symbols, sizes = SHAPES[name]
    message = message_of(Wrong(small_rule().heads(3)))
    assert f"'{name}' has shape {[3, *sizes[1:-1], sizes[-1] - 1]}" in message
    assert f"needs {symbols}, here {[3, *sizes[1:]]}" in message


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda out: list(out.values()), "forward returned a list; it must return a dict of heads"),
        (
            lambda out: (out, None),
            "forward returned a tuple; return just the dict of heads, or add",
        ),
        (lambda out: out["y"], "forward returned a Tensor"),
    ],
)
def test_an_output_of_the_wrong_kind(change: Any, message: str) -> None:
    assert message in message_of(Altered(change))


def test_disco103_sizes_are_named() -> None:
    rule = DiscoRule()
    agent = PlainAgent(small_rule().heads(3))
    trainer = DiscoTrainer(
        agent, rule=DiscoUpdateRule(rule, rule.init_params(torch.Generator())), batch_size=1
    )
    with pytest.raises(DiscorlError, match=r"needs \[B, 600\], here \[18, 600\]"):
        trainer.step(random_rollout())


# --- agents --------------------------------------------------------------------------------------


def test_batch_norm_in_training_mode_is_refused() -> None:
    agent = PlainAgent(small_rule().heads(3), middle=nn.BatchNorm1d(8))
    message = message_of(agent)
    assert "changes its buffer 'middle.num_batches_tracked' in forward" in message
    assert "eval mode, or use LayerNorm" in message
    agent.middle.eval()
    assert DiscoTrainer(agent, rule=small_rule(), batch_size=1).step(random_rollout())["grad_steps"]


def test_a_buffer_that_is_replaced_is_noticed() -> None:
    class Counting(PlainAgent):
        def __init__(self) -> None:
            super().__init__(small_rule().heads(3))
            self.register_buffer("count", torch.zeros(()))

        def forward(self, obs: Tensor) -> Any:
            self.count = self.count + 1
            return super().forward(obs)

    assert "changes its buffer 'count'" in message_of(Counting())


def test_agents_that_cannot_learn() -> None:
    agent = PlainAgent(small_rule().heads(3)).requires_grad_(False)
    with pytest.raises(DiscorlError, match="none of its parameters requires a gradient"):
        DiscoTrainer(agent, rule=small_rule())
    lazy = PlainAgent(small_rule().heads(3), middle=nn.LazyLinear(8))
    with pytest.raises(
        DiscorlError, match=r"'middle\.weight' has no shape yet: call the agent once"
    ):
        DiscoTrainer(lazy, rule=small_rule())


def test_forward_with_two_arguments_needs_an_initial_state() -> None:
    class Wrong(PlainAgent):
        def forward(self, obs: Tensor, state: Any) -> Any:  # pyright: ignore
            return super().forward(obs), state

    assert "also needs initial_state(batch_size)" in message_of(Wrong(small_rule().heads(3)))


def test_wrong_memories() -> None:
    class Forgetful(RecurrentAgent):
        def forward(self, obs: Tensor, state: Any) -> Any:
            return super().forward(obs, state)[0]

    class Layered(RecurrentAgent):
        def initial_state(self, batch_size: int) -> Any:
            return torch.zeros(1, batch_size, 5)

    heads = small_rule().heads(3)
    assert "must return (output, state), not a dict" in message_of(Forgetful(heads))
    message = message_of(Layered(heads))
    assert (
        "state holds a tensor of shape [1, 3, 5]; its first dimension must be the batch" in message
    )


def test_an_agent_on_another_device() -> None:
    agent = PlainAgent(small_rule().heads(3)).to("meta")
    with pytest.raises(DiscorlError, match=r"'torso.weight' is on meta, but the rule is on cpu"):
        DiscoTrainer(agent, rule=small_rule())


def test_freezing_after_the_fact() -> None:
    agent = PlainAgent(small_rule().heads(3))
    trainer = DiscoTrainer(agent, rule=small_rule(), batch_size=1)
    trainer.step(random_rollout())
    agent.torso.requires_grad_(False)
    with pytest.raises(DiscorlError, match="make a new DiscoTrainer after freezing"):
        trainer.step(random_rollout())


def test_a_rule_without_its_parameters() -> None:
    with pytest.raises(DiscorlError, match="DiscoRule has learnt parameters: pass params="):
        DiscoUpdateRule(DiscoRule())


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"lr": 0}, "lr must be a number above 0"),
        ({"lr": "0.1"}, "lr must be a number above 0, not '0.1'"),
        ({"max_grad_value": -1.0}, "max_grad_value must be a number above 0"),
        ({"replay_capacity": 1e3}, "replay_capacity must be a whole number, not 1000.0"),
        ({"seed": 0.5}, "seed must be a whole number"),
        ({"seed": 2**63}, "seed must be between"),
        ({"batch_size": 0}, "must be at least 1, not 0 and 1"),
        ({"replay_ratio": 0}, "must be at least 1"),
        ({"replay_capacity": 10}, "below batch_size 64, so learning would never start"),
    ],
)
def test_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DiscorlError, match=message):
        DiscoTrainer(PlainAgent(small_rule().heads(3)), rule=small_rule(), **settings)


# --- NaN while learning --------------------------------------------------------------------------


def test_a_nan_while_learning_leaves_the_agent_as_it_was() -> None:
    class Ageing(PlainAgent):
        is_broken = False

        def forward(self, obs: Tensor) -> Any:
            out = super().forward(obs)
            return out | {"q": out["q"] * float("nan")} if self.is_broken else out

    agent = Ageing(small_rule().heads(3))
    trainer = DiscoTrainer(agent, rule=small_rule(), batch_size=2)
    trainer.step(random_rollout())
    before = {k: p.clone() for k, p in agent.state_dict().items()}
    target = trainer.state_dict()["rule_state"]["target_params"]
    agent.is_broken = True
    with pytest.raises(DiscorlError, match="head 'q' is NaN or infinite; the update was skipped"):
        trainer.step(random_rollout())
    assert trainer.grad_steps == 1
    for k, p in agent.state_dict().items():
        assert torch.equal(p, before[k])
    for k, p in trainer.state_dict()["rule_state"]["target_params"].items():
        assert torch.equal(p, target[k])


def test_an_extreme_reward_is_named_and_leaves_the_agent_as_it_was() -> None:
    agent = PlainAgent(small_rule().heads(3))
    trainer = DiscoTrainer(agent, rule=small_rule())
    trainer.update(random_rollout())
    before = {k: p.clone() for k, p in agent.state_dict().items()}
    poison = random_rollout()
    poison.rewards[2, 0] = -1e30
    with pytest.raises(DiscorlError, match=r"skipped: .*reward in its batch is -1e\+30"):
        trainer.update(poison)
    assert trainer.grad_steps == 1
    for k, p in agent.state_dict().items():
        assert torch.equal(p, before[k])
    assert np.isfinite(trainer.update(random_rollout())["total_loss"])


def test_parameters_that_were_broken_elsewhere() -> None:
    agent = PlainAgent(small_rule().heads(3))
    trainer = DiscoTrainer(agent, rule=small_rule(), batch_size=2)
    trainer.step(random_rollout())
    with torch.no_grad():
        agent.torso.bias[0] = float("nan")
    with pytest.raises(DiscorlError, match=r"parameter 'torso\.bias' is NaN or infinite"):
        trainer.step(random_rollout())


# --- rollouts ------------------------------------------------------------------------------------


def altered(**changes: Callable[[Tensor], Any]) -> Rollout:
    rollout = random_rollout()
    return replace(rollout, **{k: f(getattr(rollout, k)) for k, f in changes.items()})


def poisoned(x: Tensor) -> Tensor:
    x = x.clone()
    x[2, 1] = float("nan")
    return x


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"actions": lambda x: x[0]}, "rollout.actions has shape [3], expected [T, B]"),
        (
            {"rewards": lambda x: x[:-1]},
            "rollout.rewards has shape [5, 3], expected [T, B] with T = 6, B = 3 as in "
            "rollout.actions; rewards[t] arrives with observations[t], so prepend one for "
            "t = 0",
        ),
        ({"discounts": lambda x: x[..., None]}, "rollout.discounts has shape [6, 3, 1]"),
        ({"discounts": lambda x: x[:, :2]}, "rollout.discounts has shape [6, 2]"),
        ({"behaviour_logits": lambda x: x[..., 0]}, "shape [6, 3], expected [T, B, A] with"),
        ({"observations": lambda x: x[1:]}, "rollout.observations has shape [5, 3, 4]"),
        (
            {"observations": lambda x: {"a": x, "b": (x, x[:, :1])}},
            "rollout.observations['b'][1] has shape [6, 1, 4], expected [T, B, ...]",
        ),
        ({"observations": lambda x: [x]}, "rollout.observations is a list"),
        ({"actions": lambda x: x.float()}, "rollout.actions is float32, expected int64"),
        (
            {"rewards": lambda x: x.long()},
            "rollout.rewards is int64, but the rule computes in float32",
        ),
        ({"rewards": lambda x: x.double()}, "rewards is float64, but the rule computes in float32"),
        ({"rewards": lambda x: x.numpy()}, "rollout.rewards is a ndarray, expected a tensor"),
        ({"actions": lambda x: None}, "rollout.actions is a NoneType, expected a tensor"),
        ({"actions": lambda x: x[:, :0]}, "the rollout is empty"),
        (
            {"discounts": lambda x: -x},
            "rollout.discounts contains -1: it must be 0 at the first step",
        ),
        ({"discounts": lambda x: 2 * x}, "rollout.discounts contains 2"),
        ({"actions": lambda x: x + 1}, "rollout.actions contains 3, but behaviour_logits has 3"),
        ({"actions": lambda x: x - 1}, "rollout.actions contains -1"),
        ({"rewards": poisoned}, "rollout.rewards is NaN or infinite, first at t = 2, b = 1"),
        ({"observations": poisoned}, "rollout.observations is NaN or infinite"),
        ({"behaviour_logits": poisoned}, "rollout.behaviour_logits is NaN or infinite"),
        (
            {"rewards": lambda x: x.to("meta")},
            "rollout.rewards is on meta, but the agent is on cpu: move it with .to('cpu')",
        ),
    ],
)
def test_rollouts_that_are_wrong(changes: Any, message: str) -> None:
    assert message in message_of(PlainAgent(small_rule().heads(3)), altered(**changes))
    rule = small_rule()
    agent = PlainAgent(rule.heads(3))
    with pytest.raises(DiscorlError):
        rule.loss(agent, altered(**changes), rule.init_state(agent))


def test_what_is_no_rollout() -> None:
    agent = PlainAgent(small_rule().heads(3))
    assert "must be a discorl.Rollout" in message_of(agent, {"observations": 1})
    one_step = random_rollout(num_steps=1)
    assert "at least 2 time steps (a transition), but this one has 1" in message_of(agent, one_step)


def test_rollouts_unlike_those_before() -> None:
    agent = PlainAgent(small_rule().heads(3))
    trainer = DiscoTrainer(agent, rule=small_rule())
    trainer.step(random_rollout())
    trainer.step(random_rollout(batch=2))  # another number of environments is fine
    with pytest.raises(
        DiscorlError, match=r"\[T, ...\] = \[7, 4\], but it was .* in earlier rollouts"
    ):
        trainer.step(random_rollout(num_steps=7))
    with pytest.raises(DiscorlError, match=r"is torch\.float64, but it was .* in earlier rollouts"):
        trainer.step(altered(observations=lambda x: x.double()))
    with pytest.raises(DiscorlError, match="observations have different parts"):
        trainer.step(altered(observations=lambda x: {"a": x}))
    with_state = AgentRollout(**vars(random_rollout()), agent_state=torch.zeros(3, 1))
    with pytest.raises(
        DiscorlError, match="either all of a trainer's rollouts have an agent_state"
    ):
        trainer.step(with_state)


# --- environments --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "step_fn, message",
    [
        (lambda a: (np.zeros((2, 4)), np.zeros(2), np.zeros(2), np.zeros(2), {}), "5 values"),
        (lambda a: [np.zeros((2, 4))], "step_fn returned list"),
        (lambda a: (np.zeros((2, 4)), np.zeros((2, 1)), np.zeros(2)), r"rewards of shape \[2, 1\]"),
        (lambda a: (np.zeros((2, 4)), np.zeros(2), False), r"dones of shape \[\]"),
    ],
)
def test_environments_that_answer_wrongly(step_fn: Any, message: str) -> None:
    agent = PlainAgent(small_rule().heads(3))
    with pytest.raises(DiscorlError, match=message):
        collect_rollout(agent, step_fn, np.zeros((2, 4)))


def test_other_mistakes_of_acting() -> None:
    agent, env = PlainAgent(small_rule().heads(3)), Corridor()
    with pytest.raises(DiscorlError, match="rollout_len must be a whole number, 1 or more"):
        collect_rollout(agent, env.step_fn, env.obs(), rollout_len=0)
    with pytest.raises(DiscorlError, match="obs is a single number"):
        collect_rollout(agent, env.step_fn, 3.0)
    with pytest.raises(DiscorlError, match="previous rollout has 3 environments, not 2"):
        collect_rollout(agent, env.step_fn, env.obs(), previous=random_rollout())
    wrong = Altered(lambda out: out | {"logits": out["logits"][0]})
    with pytest.raises(DiscorlError, match=r"'logits' has shape \[3\], but acting needs \[B, A\]"):
        collect_rollout(wrong, env.step_fn, env.obs())


def test_environments_that_change_their_mind() -> None:
    agent, env = PlainAgent(small_rule().heads(3)), Corridor()

    def step_fn(change: Callable[[np.ndarray], np.ndarray]) -> Any:
        steps = iter(range(9))

        def step(actions: np.ndarray) -> Any:
            obs, rewards, dones = env.step_fn(actions)
            return (change(obs) if next(steps) == 2 else obs), rewards, dones

        return step

    for change, said in (
        (
            lambda x: x[:, :3],
            r"torch.float32 \[2, 3\], but the previous ones were torch.float32 \[2, 4",
        ),
        (lambda x: x[:1], r"\[1, 4\], but the previous ones"),
        (lambda x: x.astype(np.uint8), "torch.uint8"),
    ):
        with pytest.raises(DiscorlError, match=said):
            collect_rollout(agent, step_fn(change), env.obs())


@pytest.mark.parametrize(
    "obs, message",
    [
        (None, "obs is None, which cannot become a tensor"),
        (["a", "b"], "which cannot become a tensor"),
        (np.zeros((0, 4)), r"not B = \[0\]"),
        ({"a": np.zeros((2, 4)), "b": np.zeros((3, 4))}, r"not B = \[2, 3\]"),
    ],
)
def test_what_is_no_observation(obs: Any, message: str) -> None:
    with pytest.raises(DiscorlError, match=message):
        collect_rollout(PlainAgent(small_rule().heads(3)), Corridor().step_fn, obs)


def test_a_memory_of_other_environments() -> None:
    """One environment's memory would be given to all of them, without a word."""
    agent, one = RecurrentAgent(small_rule().heads(3)), Corridor(num_envs=1)
    _, _, state = collect_rollout(agent, one.step_fn, one.obs(), None, 5)
    for num_envs in (2, 3):
        env = Corridor(num_envs)
        with pytest.raises(DiscorlError, match=rf"must be the batch, here {num_envs}"):
            collect_rollout(agent, env.step_fn, env.obs(), state, 5)
    with pytest.raises(DiscorlError, match="state is a Tensor, but the agent's memory is a tuple"):
        collect_rollout(agent, one.step_fn, one.obs(), torch.zeros(1, 5), 5)


# --- gradients -----------------------------------------------------------------------------------


def test_an_agent_without_gradients() -> None:
    said = "heads carry no gradient: its forward must not use detach() or no_grad()"
    blind = Altered(lambda out: {k: x.detach() for k, x in out.items()})
    assert said in message_of(blind)
    rule = small_rule()
    with pytest.raises(DiscorlError, match="heads carry no gradient"):
        rule.loss(blind, random_rollout(), rule.init_state(blind))


def test_a_frozen_head_stays_and_the_others_learn() -> None:
    agent = Altered(lambda out: out | {"q": out["q"].detach()})
    trainer = DiscoTrainer(agent, rule=small_rule(), batch_size=2)
    before = {k: p.clone() for k, p in agent.state_dict().items()}
    trainer.step(random_rollout())
    changed = {k for k, p in agent.state_dict().items() if not torch.equal(p, before[k])}
    assert {"torso.weight", "heads.layers.logits.weight"} <= changed
    assert not {"heads.layers.q.weight", "heads.layers.q.bias"} & changed


def test_inference_mode() -> None:
    agent = PlainAgent(small_rule().heads(3))
    trainer = DiscoTrainer(agent, rule=small_rule(), batch_size=2)
    with torch.inference_mode():
        rollout = random_rollout()
        with pytest.raises(DiscorlError, match="learning needs gradients"):
            trainer.update(rollout)
    assert trainer.update(rollout)["grad_steps"] == 1  # made there, but learnt from here
    rule = small_rule()
    rule.loss(agent, rollout, rule.init_state(agent)).loss.backward()


def test_a_rollout_with_a_graph_does_not_keep_it_alive() -> None:
    agent = PlainAgent(small_rule().heads(3))
    trainer = DiscoTrainer(agent, rule=small_rule(), batch_size=2)
    weight = torch.ones(1, requires_grad=True)
    trainer.step(altered(behaviour_logits=lambda x: x * weight, observations=lambda x: x * weight))
    stored = trainer.state_dict()["replay"]["storage"]
    assert not stored["behaviour_logits"].requires_grad
    assert not stored["observations"].requires_grad


# --- what is not even of the right kind ----------------------------------------------------------


def test_things_that_are_no_agent_rule_or_state() -> None:
    rule, agent = small_rule(), PlainAgent(small_rule().heads(3))
    for thing in (PlainAgent, lambda obs: obs, None):
        with pytest.raises(DiscorlError, match="but it must be an nn"):
            DiscoTrainer(thing, rule=rule)  # pyright: ignore
    for thing in (None, 3, DiscoRule):
        with pytest.raises(DiscorlError, match="must be the name or file of a rule"):
            DiscoTrainer(agent, rule=thing)  # pyright: ignore
    with pytest.raises(DiscorlError, match=r"what rule\.init_state\(agent\)"):
        rule.loss(agent, random_rollout(), None)  # pyright: ignore
    with pytest.raises(DiscorlError, match="cannot use the device 'nonsense'"):
        DiscoTrainer(agent, rule=rule, device="nonsense")
