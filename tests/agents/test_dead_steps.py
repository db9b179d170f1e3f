"""Steps in which an environment only resets change nothing that is learnt or counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from gymnasium.vector import AutoresetMode

from discorl import tree
from discorl.agents.acting import assemble
from discorl.agents.agent import Agent, agent_net
from discorl.agents.network import with_params
from discorl.agents.replay import Replay
from discorl.agents.update import loss_mask, update_agent
from discorl.envs.gymnasium import GymnasiumEnv, make_vector
from discorl.nets.net_config import NetConfig
from discorl.optim import Transform
from discorl.own_agent import collect_rollout
from discorl.training.stats import EpisodeStats
from discorl.types import AgentState, EnvSpec, Rollout
from tests.builders import (
    RULES,
    assert_bit_equal,
    disturbed,
    double,
    random_rollout,
    random_rule_params,
    rng,
    small_agent,
    with_target_params,
)
from tests.envs.gym_examples import Corridor

AS_THEY_ARE = Transform(lambda params: (), lambda grads, state, params: (grads, state))
"""An optimiser whose update is the gradient itself."""

# For each of two copies of a corridor of length 3: what it does as long as its actions count. The
# first ends its episodes after 3 and 8 of them, the second after 5 and 10.
PLAN = [[1, 1, 1, 0, 1, 1, 0, 1, 0, 1, 0], [0, 1, 0, 1, 1, 1, 1, 0, 0, 1, 0]]
NUM_STEPS = len(PLAN[0])


def follow_plan(mode: AutoresetMode, agent: Agent, state: AgentState, num_steps: int) -> Rollout:
    """The rollout of PLAN, however the corridors reset; ignored actions are 1."""
    env = GymnasiumEnv(make_vector([lambda: Corridor(3)] * 2, "sync", mode))
    env_state, now = env.reset(rng())
    shown, taken, done = [now], [], [0, 0]
    memory = agent.initial_memory(2)
    for _ in range(num_steps):
        actions = torch.ones(2, dtype=torch.long)
        for b in range(2):
            if now.is_dead is None or not now.is_dead[b]:
                actions[b] = PLAN[b][done[b]]
                done[b] += 1
        policy, memory = with_params(
            agent.net, state.params, lambda net, now=now, memory=memory: net.step(now, memory)
        )
        taken.append((actions, policy.detach()))
        env_state, now = env.step(env_state, actions, rng())
        shown.append(now)
    assert done == [NUM_STEPS, NUM_STEPS], "all of the plan, and no more"
    return assemble(shown, taken)


def agent_and_state(name: str, mask: bool, core: int = 0) -> tuple[Agent, AgentState, dict]:
    made: Any = RULES[name]()
    rule = replace(made, mask_episode_starts=mask)
    net = agent_net(EnvSpec((3,), 2), rule, NetConfig((7, 6), 5, (6,), core_lstm=core))
    agent = Agent(net, rule, AS_THEY_ARE)
    state = agent.init_state(rng())
    state = replace(state, params=disturbed(state.params, 0.3))
    if state.rule.target_params is not None:
        state = with_target_params(state, disturbed(state.params, 0.2, seed=5))
    return agent, state, random_rule_params(rule)


def rollouts(agent: Agent, state: AgentState) -> tuple[Rollout, Rollout]:
    same = follow_plan(AutoresetMode.SAME_STEP, agent, state, NUM_STEPS)
    then = follow_plan(AutoresetMode.NEXT_STEP, agent, state, NUM_STEPS + 2)
    assert then.is_dead is not None
    assert then.is_dead.sum(0).tolist() == [2, 2]
    return same, then


@pytest.mark.parametrize("core", [0, 4])
@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("name", RULES)
def test_both_ways_of_resetting_teach_the_same(name: str, mask: bool, core: int) -> None:
    """Equal loss, gradient and memory of the rule, from the same episodes."""
    agent, state, rule_params = agent_and_state(name, mask, core)
    same, then = rollouts(agent, state)
    results = [
        update_agent(agent, double(rule_params), double(state), double(x)) for x in (same, then)
    ]
    (state_a, info_a), (state_b, info_b) = results
    torch.testing.assert_close(info_a.loss, info_b.loss, rtol=1e-10, atol=1e-12)
    for part in info_a.losses:
        torch.testing.assert_close(info_a.losses[part], info_b.losses[part])
    for x, y in zip(tree.leaves(state_a), tree.leaves(state_b), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-11)
    assert info_a.gradient_norm > 1e-3
    entropies = [
        agent.rule.diagnostics(info.predictions, info.targets, x)["entropy"]
        for info, x in ((info_a, same), (info_b, then))
    ]
    torch.testing.assert_close(*entropies)


def test_a_recurrent_agent_acts_as_it_would_without_dead_steps() -> None:
    """What it sees in a dead step leaves no trace: the step after it begins an episode."""
    agent, state, _ = agent_and_state("policy-gradient", mask=True, core=4)
    same, then = rollouts(agent, state)
    assert then.is_dead is not None
    for b in range(2):
        alive = then.behaviour_logits[:, b][~then.is_dead[:, b]]
        torch.testing.assert_close(alive, same.behaviour_logits[:, b])


@pytest.mark.parametrize("name", RULES)
def test_without_the_marks_they_would_teach_otherwise(name: str) -> None:
    agent, state, rule_params = agent_and_state(name, mask=False)
    same, then = rollouts(agent, state)
    _, info = update_agent(agent, rule_params, state, same)
    _, unmarked = update_agent(agent, rule_params, state, replace(then, is_dead=None))
    assert max((g - unmarked.gradient[k]).abs().max() for k, g in info.gradient.items()) > 5e-3


def test_marks_that_mark_nothing_change_nothing() -> None:
    for name in RULES:
        agent, state, rule_params = agent_and_state(name, mask=False)
        rollout = random_rollout(8, 3, 2, (3,))
        marked = replace(rollout, is_dead=torch.zeros(8, 3, dtype=torch.bool))
        _, plain = update_agent(agent, double(rule_params), double(state), double(rollout))
        _, with_marks = update_agent(agent, double(rule_params), double(state), double(marked))
        torch.testing.assert_close(plain.loss, with_marks.loss)


def test_what_a_dead_step_holds_does_not_matter() -> None:
    """Not even how unlikely its action was."""
    agent, state, rule_params = agent_and_state("disco", mask=False)
    _, then = rollouts(agent, state)
    dead = then.is_dead
    assert dead is not None
    other = replace(
        then,
        actions=torch.where(dead, 1 - then.actions, then.actions),
        behaviour_logits=torch.where(
            dead.unsqueeze(-1), torch.tensor([9.0, -9.0]), then.behaviour_logits
        ),
    )
    a, _ = update_agent(agent, rule_params, state, then)
    b, _ = update_agent(agent, rule_params, state, other)
    assert_bit_equal(a, b)


def test_which_steps_count() -> None:
    agent, state, _ = agent_and_state("policy-gradient", mask=False)
    same, then = rollouts(agent, state)
    # The first copy: its third action ends the first episode, so time step 3 is dead and 4 is the
    # first of the next; its actions 4 to 8 take it to the end at time step 9, which is dead.
    assert loss_mask(then, False)[:, 0].tolist() == [1, 1, 1, 0, 1, 1, 1, 1, 1, 0, 1, 1]
    assert loss_mask(then, True)[:, 0].tolist() == [1, 1, 1, 0, 0, 1, 1, 1, 1, 0, 0, 1]
    assert loss_mask(same, False)[:, 0].tolist() == [1] * 10
    assert loss_mask(same, True)[:, 0].tolist() == [1, 1, 1, 0, 1, 1, 1, 1, 0, 1]
    assert then.is_terminal[:, 0].nonzero().flatten().tolist() == [2, 3, 8, 9]
    assert then.ended[:, 0].nonzero().flatten().tolist() == [3, 9]


def test_a_dead_step_already_shows_the_next_episode() -> None:
    agent, state, _ = agent_and_state("policy-gradient", mask=True)
    _, then = rollouts(agent, state)
    first = torch.tensor([0.0, 0.0, 0.1])
    for t in (3, 4, 9, 10):
        torch.testing.assert_close(then.observations[t, 0], first)
    assert then.rewards[3:5, 0].tolist() == [pytest.approx(3.1), 0.0]


def test_at_the_border_of_two_rollouts() -> None:
    """A dead step may be the last of one rollout or the first of the next."""
    agent = small_agent(RULES["actor-critic"](), 2, (3,))
    state = agent.init_state(rng())
    envs = make_vector([lambda: Corridor(1)] * 2, "sync", AutoresetMode.NEXT_STEP)
    env = GymnasiumEnv(envs)
    env_state, now = env.reset(rng())
    generator = rng(3)
    stats = EpisodeStats(env.spec, 2)
    finished = []
    for _ in range(40):
        rollout, env_state, now = collect_rollout(
            agent.net, state.params, env, env_state, now, 3, generator
        )
        assert rollout.is_dead is not None
        # The corridor's only other place is its end, which is never shown.
        assert rollout.observations[..., 0].eq(0).all()
        starts = rollout.discounts == 0
        assert torch.equal(rollout.is_dead[:-1] & starts[1:], rollout.is_dead[:-1])
        finished += stats.observe(rollout)
    assert len(finished) > 30
    # One step to the end for a 1, and one more for each 0 before it; resetting takes none.
    assert {round(r, 3) for r, _ in finished} == {1.1}
    assert min(n for _, n in finished) == 1
    total = sum(n for _, n in finished)
    assert 220 < total + len(finished) <= 240, "every time step is one of these, but for the rest"


def test_replay_keeps_the_marks() -> None:
    agent, state, _ = agent_and_state("policy-gradient", mask=True)
    _, then = rollouts(agent, state)
    replay = Replay(4)
    replay.add(replace(then, raw_rewards=then.rewards))
    batch = replay.sample(5, rng())
    assert batch.is_dead is not None
    assert batch.is_dead.dtype == torch.bool
    assert batch.is_dead.sum(0).tolist() == [2] * 5
    assert batch.raw_rewards is None
