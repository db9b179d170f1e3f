"""The trainer learns, in the agent's own weights, by the package's one update."""

from __future__ import annotations

import math
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import discorl
from discorl.agents.replay import Replay
from discorl.agents.update import update_agent
from discorl.envs.tasks.catch import Catch
from discorl.optim import scale_by_learning_rate
from discorl.own_agent import DiscoTrainer, DiscoUpdateRule, collect_rollout
from discorl.rules import CMPO, ActorCritic, DiscoRule, PolicyGradient
from tests.builders import (
    RULES,
    random_rollout,
    random_rule_params,
    rng,
    small_agent,
    small_disco,
    write_small_rule,
)
from tests.own_agent.own_agents import Corridor, PlainAgent, RecurrentAgent, TypedAgent, small_rule


def test_public_names() -> None:
    assert discorl.DiscoTrainer is DiscoTrainer
    assert discorl.DiscoUpdateRule is DiscoUpdateRule
    assert discorl.collect_rollout is collect_rollout
    for name in ("AgentOutput", "AgentRollout", "Rollout", "DiscoTrainer"):
        assert name in discorl.__all__
        assert getattr(discorl, name).__doc__


def test_equals_a_loop_around_update_agent() -> None:
    """Replay, sampling, target network, optimiser: as in a run of the package itself."""
    rule = small_disco()
    rule_params = random_rule_params(rule)
    agent = small_agent(rule)
    state, replay, sample_rng = agent.init_state(rng()), Replay(5), rng(2)

    own: Any = agent.net
    own.load_state_dict(state.params)
    trainer = DiscoTrainer(
        own,
        rule=DiscoUpdateRule(rule, rule_params),
        lr=1e-2,
        replay_capacity=5,
        batch_size=4,
        seed=0,
    )
    agent = small_agent(rule)
    for i in range(6):
        rollout = random_rollout(batch=2, seed=i)
        logs = trainer.step(rollout)
        replay.add(rollout)
        if len(replay) >= 4:
            state, info = update_agent(agent, rule_params, state, replay.sample(4, sample_rng))
            assert logs["total_loss"] == pytest.approx(float(info.loss), rel=1e-5)
            assert logs["gradient_norm"] == pytest.approx(float(info.gradient_norm), rel=1e-4)
    for name, p in own.named_parameters():
        torch.testing.assert_close(p, state.params[name], rtol=1e-3, atol=1e-4)


def test_counts_and_logs() -> None:
    agent = PlainAgent(small_rule().heads(3))
    trainer = DiscoTrainer(
        agent, rule=small_rule(), batch_size=4, replay_capacity=5, replay_ratio=3
    )
    before = {k: p.clone() for k, p in agent.state_dict().items()}
    logs = trainer.step(random_rollout())
    assert math.isnan(logs["total_loss"])
    assert trainer.diagnostics() == {}
    assert all(torch.equal(p, before[k]) for k, p in agent.state_dict().items())
    assert [logs["buffer_size"], logs["num_grad_steps_this_call"]] == [3, 0]
    logs = trainer.step(random_rollout(seed=1))
    counts = ("grad_steps", "acting_steps", "buffer_size", "num_grad_steps_this_call")
    assert [logs[name] for name in counts] == [3, 2, 5, 3]
    assert trainer.grad_steps == 3
    assert trainer.acting_steps == 2
    weights = {"pi": 1, "y": 1, "z": 1, "aux": 1, "q": 0.2}
    assert all(math.isfinite(logs[f"{name}_loss"]) for name in weights)
    assert logs["update_norm"] > 0
    assert not any(torch.equal(p, before[k]) for k, p in agent.state_dict().items())
    diagnostics = trainer.diagnostics()
    assert 0 < diagnostics["entropy"] <= math.log(3) + 1e-6
    assert "target_kl" in diagnostics


def test_update_learns_past_the_replay() -> None:
    agent = PlainAgent(small_rule().heads(3))
    trainer = DiscoTrainer(agent, rule=small_rule())
    before = agent.torso.weight.clone()
    assert trainer.update(random_rollout())["grad_steps"] == 1
    assert len(trainer.replay) == 0
    assert not torch.equal(agent.torso.weight, before)


@pytest.mark.parametrize("agent_class", [PlainAgent, TypedAgent, RecurrentAgent])
@pytest.mark.parametrize("name", RULES)
def test_every_kind_of_agent_and_rule(name: str, agent_class: Any) -> None:
    rule = RULES[name]()
    given = small_rule(rule) if isinstance(rule, DiscoRule) else rule
    agent = agent_class(rule.heads(3))
    trainer = DiscoTrainer(agent, rule=given, batch_size=2)
    env = Corridor()
    rollout, _, _ = collect_rollout(agent, env.step_fn, env.obs(), None, 6)
    before = {k: p.clone() for k, p in agent.state_dict().items()}
    logs = trainer.step(rollout)
    assert math.isfinite(logs["total_loss"])
    changed = {k for k, p in agent.state_dict().items() if not torch.equal(p, before[k])}
    # Untaken actions leave their rows alone, but every layer has a taken one.
    assert changed >= {k for k in before if "weight" in k}


def test_frozen_parameters_and_tied_ones() -> None:
    class Tied(PlainAgent):
        def __init__(self) -> None:
            super().__init__(small_rule().heads(3), middle=nn.Linear(8, 8))
            self.again = self.middle

        def forward(self, obs: Tensor) -> Any:
            return self.heads(self.again(torch.tanh(self.middle(torch.tanh(self.torso(obs))))))

    agent = Tied()
    agent.torso.weight.requires_grad_(False)
    trainer = DiscoTrainer(agent, rule=small_rule(), batch_size=2)
    frozen, tied = agent.torso.weight.clone(), agent.middle.weight.clone()  # pyright: ignore
    for i in range(3):
        trainer.step(random_rollout(seed=i))
    assert torch.equal(agent.torso.weight, frozen)
    assert agent.torso.weight.grad is None
    assert agent.again.weight is agent.middle.weight
    assert not torch.equal(agent.middle.weight, tied)  # pyright: ignore


def test_the_target_network_is_not_the_agent() -> None:
    agent = PlainAgent(small_rule().heads(3))
    trainer = DiscoTrainer(agent, rule=small_rule(), batch_size=2)
    start = agent.torso.weight.detach().clone()
    trainer.step(random_rollout())
    once = agent.torso.weight.detach().clone()
    trainer.step(random_rollout(seed=1))
    target = trainer.state_dict()["rule_state"]["target_params"]["module.torso.weight"]
    # It follows the parameters from before each update: start, then once.
    torch.testing.assert_close(target, torch.lerp(start, once, 0.1))


def test_the_last_action_of_a_rollout_does_not_matter() -> None:
    """``collect_rollout`` takes none there."""
    losses = []
    for action in (0, 2):
        torch.manual_seed(0)
        agent = PlainAgent(small_rule().heads(3))
        rollout = random_rollout()
        rollout.actions[-1] = action
        rollout.behaviour_logits[-1] = float(action)
        losses.append(DiscoTrainer(agent, rule=small_rule()).update(rollout))
    assert losses[0] == losses[1]


def test_episode_starts_can_be_learnt_from() -> None:
    rollout = random_rollout()
    losses = {}
    for mask in (None, True, False):
        torch.manual_seed(0)
        agent = PlainAgent(small_rule().heads(3))
        trainer = DiscoTrainer(agent, rule=small_rule(), mask_episode_starts=mask)
        losses[mask] = trainer.update(rollout)["total_loss"]
    assert losses[None] == losses[True] != losses[False]
    unmasked = replace(small_disco(), mask_episode_starts=False)
    torch.manual_seed(0)
    trainer = DiscoTrainer(PlainAgent(unmasked.heads(3)), rule=small_rule(unmasked))
    assert trainer.update(rollout)["total_loss"] == losses[False], "as the rule's agents did"


def test_rules_by_path_and_hand_written(tmp_path: Any) -> None:
    path = write_small_rule(tmp_path / "mine.npz")
    agent = PlainAgent(small_rule().heads(3))
    trainer = DiscoTrainer(agent, rule=path, batch_size=2)
    assert trainer.rule.name == "mine"
    assert trainer.step(random_rollout())["grad_steps"] == 1
    sizes = {"num_bins": 11, "max_abs_value": 5.0}
    for rule in (ActorCritic(**sizes), CMPO(**sizes), PolicyGradient()):
        agent = PlainAgent(rule.heads(3))
        assert (
            DiscoTrainer(agent, rule=rule, batch_size=2).step(random_rollout())["grad_steps"] == 1
        )


def test_two_trainers_with_one_seed_do_the_same() -> None:
    logs = []
    for seed in (0, 0, 1):
        torch.manual_seed(0)
        agent = PlainAgent(small_rule().heads(3))
        trainer = DiscoTrainer(agent, rule=small_rule(), batch_size=2, seed=seed)
        logs.append([trainer.step(random_rollout(seed=i)) for i in range(4)])
    assert logs[0] == logs[1] != logs[2]


# --- the loss alone ------------------------------------------------------------------------------


def test_the_loss_has_the_gradient_of_the_update() -> None:
    rule = small_rule()
    agent = PlainAgent(rule.heads(3))
    state = rule.init_state(agent)
    params = {f"module.{k}": p.detach().clone() for k, p in agent.named_parameters()}
    result = rule.loss(agent, random_rollout(), state)
    assert result.logs["total_loss"] == result.loss.item()
    assert "update_norm" not in result.logs
    (2 * result.loss + agent.torso.bias.sum()).backward()

    again = rule.loss(agent, random_rollout(), state)
    grads = torch.autograd.grad(again.loss, list(agent.parameters()))
    norm = torch.stack([g.norm() for g in grads]).norm()
    assert float(norm) == pytest.approx(again.logs["gradient_norm"], rel=1e-5)
    for p, g in zip(agent.parameters(), grads, strict=True):
        extra = 1.0 if p is agent.torso.bias else 0.0
        assert p.grad is not None
        torch.testing.assert_close(p.grad, 2 * g + extra)
    for name, p in agent.named_parameters():
        assert torch.equal(p, params[f"module.{name}"])  # the step is the user's to make


def test_an_optimiser_of_ones_own_equals_the_trainer() -> None:
    """Plain SGD by hand, and the same as the trainer's optimiser."""
    rule = small_rule()
    torch.manual_seed(0)
    agents = [PlainAgent(rule.heads(3)) for _ in range(2)]
    agents[1].load_state_dict(agents[0].state_dict())
    descent = scale_by_learning_rate(0.1)
    trainer = DiscoTrainer(agents[0], rule=rule, optimiser=descent)
    optimiser = torch.optim.SGD(agents[1].parameters(), lr=0.1)
    state = rule.init_state(agents[1])
    for i in range(3):
        logs = trainer.update(random_rollout(seed=i))
        loss, state, own_logs = rule.loss(agents[1], random_rollout(seed=i), state)
        assert own_logs["total_loss"] == logs["total_loss"]
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        for p, q in zip(agents[0].parameters(), agents[1].parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)


def test_the_loss_of_a_recurrent_agent_starts_from_its_memory() -> None:
    rule = small_rule()
    agent = RecurrentAgent(rule.heads(3))
    env = Corridor()
    _, obs, state = collect_rollout(agent, env.step_fn, env.obs(), None, 7)
    rollout: Any = collect_rollout(agent, env.step_fn, obs, state, 7)[0]
    rollout = replace(rollout, discounts=torch.ones_like(rollout.discounts))
    forgot = replace(rollout, agent_state=None)
    fresh = rule.init_state(agent)
    losses = [rule.loss(agent, r, fresh).logs["total_loss"] for r in (rollout, forgot)]
    assert losses[0] != losses[1]


@pytest.mark.slow
@pytest.mark.disco103
def test_learns_catch() -> None:
    """Disco103 on the module of ``examples/own_agent.py``: all balls are caught in the end."""
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "own_agent.py"))
    torch.manual_seed(0)
    rule, env, generator = DiscoUpdateRule("disco103"), Catch(num_envs=2), rng(0)
    sizes = rule.heads(env.spec.num_actions)
    agent = example["MyAgent"](64, env.spec.num_actions, sizes.flat | sizes.per_action)
    trainer = DiscoTrainer(agent, rule=rule, lr=0.01, seed=0)
    env_state, timestep = env.reset(generator)

    def step_fn(actions: Any) -> Any:
        nonlocal env_state
        env_state, now = env.step(env_state, torch.as_tensor(actions), generator)
        return now.observation, now.reward, now.discount == 0

    obs, state, caught = timestep.observation, None, []
    for _ in range(800):
        rollout, obs, state = collect_rollout(
            agent, step_fn, obs, state, generator=trainer.generator
        )
        trainer.step(rollout)
        caught += (rollout.rewards[1:][rollout.discounts[1:] == 0] > 0).tolist()
    assert sum(caught[:300]) / 300 < 0.5, "nothing was left to learn"
    assert sum(caught[-300:]) / 300 > 0.97
