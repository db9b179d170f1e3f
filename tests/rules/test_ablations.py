"""Rules without a part equal the full rule that is shown zeros in its place.

The full rule gets the weights of the ablated one. What it has besides is drawn at random, except
where a zero makes the part say nothing: the last layer of an embedding, the rows of an input, the
gate that multiplies by one.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from discorl import tree
from discorl.agents.agent import Agent
from discorl.agents.update import update_agent
from discorl.meta.meta_value import MetaValueSettings, make_meta_value
from discorl.meta.objective import ObjectiveWeights, Validation, policy_entropy, validation_loss
from discorl.meta.window import MemoryMode, Window
from discorl.nets.meta_net import MetaNetSizes
from discorl.nets.net_config import NetConfig
from discorl.rules import DiscoRule
from discorl.rules.disco import DiscoSettings
from discorl.types import AgentState, EnvSpec, Params
from tests.builders import (
    ABLATIONS,
    DEEP_SIZES,
    SMALL_SIZES,
    disturbed,
    double,
    random_rollout,
    random_rule_params,
    rng,
    small_agent,
    small_disco,
    small_disco_without,
)
from tests.golden.meta_gradient import through

SIZES = {"small": SMALL_SIZES, "deep": DEEP_SIZES}
close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-12)
COSTS = {"predictions": ("y_cost", "z_cost"), "value": ("q_cost",), "auxiliary": ("aux_pi_cost",)}


def columns(sizes: MetaNetSizes, embedder: str, parts: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    """Which inputs of each step and of each action of the full network the ablated one has."""
    embedding, channels = sizes.embedding[-1], sizes.action_channels[-1]
    if embedder == "lifetime":
        embedding = sizes.lifetime_prediction_embedding[-1]
        channels = sizes.lifetime_action_channels[-1]
    step = ["policy"] * 4 + ["value"] * 4 + ["policy"] + ["predictions"] * 14 * embedding
    step += ["actions"] * 2 * channels
    action = ["policy"] * 3 + ["predictions"] * 2 * embedding + ["value"] * 3 + ["taken"]

    def kept(kinds: list[str]) -> Tensor:
        return torch.tensor([i for i, kind in enumerate(kinds) if kind not in parts])

    return kept(step), kept(action)


def kept_columns(sizes: MetaNetSizes, parts: tuple[str, ...]) -> dict[str, Tensor]:
    """For each weight of the full network that is wider than the ablated one's: what is shared."""
    net, kept = small_disco(sizes).net, {}
    told = 1 if "predictions" in parts else 1 + sizes.lifetime_prediction_embedding[-1]
    for embedder, embedded, wide, num_more in (
        ("trajectory", net.trajectory, "trajectory_rnn.gates", sizes.hidden),
        ("lifetime", net.lifetime, "lifetime_mlp.layers.0", told),
    ):
        step, action = columns(sizes, embedder, parts)
        more = embedded.num_features + torch.arange(num_more)
        kept[f"{wide}.weight"] = torch.cat([step, more])
        blocks = f"{embedder}.actions.layers.0.weight"
        mean = net.get_parameter(blocks).shape[1] // 2 + action
        kept[blocks] = torch.cat([action, mean])
    return kept


def full_params(ablated: Params, sizes: MetaNetSizes, parts: tuple[str, ...]) -> Params:
    """Parameters of the full rule, shown zeros in place of ``parts``."""
    params = double(random_rule_params(small_disco(sizes), seed=7))
    kept = kept_columns(sizes, parts)
    for name, p in ablated.items():
        if p.shape == params[name].shape:
            params[name] = p
        else:  # inputs that are 0 may have any weights; values are not 0, so their weights are
            wide = params[name] * float("value" not in parts)
            params[name] = wide.index_copy(1, kept[name], p)
    if "predictions" in parts:
        for embedder, depth in (
            ("trajectory", len(sizes.embedding)),
            ("lifetime", len(sizes.lifetime_prediction_embedding)),
        ):
            for name in (f"{embedder}.{x}.layers.{depth - 1}" for x in "yz"):
                params |= zeros(params, name)
        params |= zeros(params, "y_target") | zeros(params, "z_target")
    if "lifetime" in parts:
        params |= zeros(params, "lifetime_gate")
        params["lifetime_gate.bias"] = torch.ones_like(params["lifetime_gate.bias"])
    return params


def zeros(params: Params, layer: str) -> Params:
    return {k: torch.zeros_like(params[k]) for k in (f"{layer}.weight", f"{layer}.bias")}


def living(agent: Agent, shared: AgentState | None = None, seed: int = 0) -> AgentState:
    """An agent whose target network differs; with the parameters that it shares with another."""
    params = double(disturbed(agent.init_state(rng(seed)).params, 0.3, seed))
    targets = disturbed(params, 0.2, seed + 1)
    if shared is not None:
        assert shared.rule.target_params is not None
        params, targets = params | shared.params, targets | shared.rule.target_params
    rule = double(agent.rule.init_state(targets))
    return AgentState(params, agent.optimiser.init(params), rule)


def both(parts: tuple[str, ...], sizes: MetaNetSizes) -> list[tuple[Agent, Params, AgentState]]:
    """The ablated rule and the full one, each with an agent; heads of one alone cost nothing."""
    ablated = small_disco_without(*parts, sizes=sizes)
    params = double(random_rule_params(ablated))
    free = {cost: 0.0 for part in parts for cost in COSTS.get(part, ())}
    full: DiscoRule = replace(small_disco(sizes), settings=DiscoSettings(**free))
    agent, full_agent = small_agent(ablated), small_agent(full)
    state = living(agent)
    of_full = (full_agent, full_params(params, sizes, parts), living(full_agent, state, seed=3))
    return [(agent, params, state), of_full]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", ABLATIONS)
def test_agents_learn_as_from_the_full_rule_that_is_shown_zeros(name: str, sizes: str) -> None:
    ours, full = both(ABLATIONS[name], SIZES[sizes])
    for step in range(3):
        rollout = double(random_rollout(seed=step))
        results = []
        for agent, params, state in (ours, full):
            new, info = update_agent(agent, params, state, rollout)
            results.append((agent, params, new, info))
        (*_, state, info), (*_, full_state, full_info) = results
        for part in ("pi", "y", "z"):
            if (target := getattr(info.targets, part)) is not None:
                close(target, getattr(full_info.targets, part))
        close(info.loss, full_info.loss)
        assert info.losses.keys() < full_info.losses.keys() or name == "no-lifetime"
        for key, p in state.params.items():
            close(p, full_state.params[key])
        ours, full = ((a, p, s) for a, p, s, _ in results)


@pytest.mark.parametrize("mode", ["plain", "recompute", "mixed"])
@pytest.mark.parametrize("name", ABLATIONS)
def test_meta_gradients_are_those_of_the_full_rule(name: str, mode: MemoryMode) -> None:
    """Of all weights that both have. Nothing keeps the full rule's unused y and z spread out."""
    parts, spec = ABLATIONS[name], EnvSpec((4,), 3)
    weights = ObjectiveWeights(0.3, 0.0 if "predictions" in parts else 0.2, 0.4, 0.1)
    meta_value = make_meta_value(MetaValueSettings(torso=(5,)), spec, NetConfig())
    values = double(meta_value.init_state(rng(4)))
    rollouts = [double(random_rollout(seed=i)) for i in range(2)]
    judged_on = double(random_rollout(9, seed=99))
    estimates = [
        through(
            Window(agent, meta_value, weights), (params, state, values, rollouts, judged_on), mode
        )
        for agent, params, state in both(parts, SMALL_SIZES)
    ]
    ablated, full = estimates
    close(ablated.loss, full.loss)
    kept = kept_columns(SMALL_SIZES, parts)
    for key, g in ablated.gradient.items():
        theirs = full.gradient[key]
        theirs = theirs if g.shape == theirs.shape else theirs[:, kept[key]]
        torch.testing.assert_close(g, theirs, rtol=1e-8, atol=1e-11, msg=key)


@pytest.mark.parametrize("name", ABLATIONS)
def test_what_a_rule_lacks_its_agents_and_its_weights_lack(name: str) -> None:
    parts = ABLATIONS[name]
    rule = small_disco_without(*parts)
    assert rule.missing == parts and not small_disco().missing
    heads = rule.heads(3)
    found = {*heads.flat, *heads.per_action}
    gone = {"predictions": {"y", "z"}, "value": {"q"}, "auxiliary": {"aux_pi"}, "lifetime": set()}
    assert found == {"logits", "y", "z", "q", "aux_pi"} - set().union(*(gone[p] for p in parts))
    agent = small_agent(rule)
    state, info = update_agent(
        agent, random_rule_params(rule), agent.init_state(rng()), random_rollout()
    )
    assert (state.rule.lifetime_rnn is None) == ("lifetime" in parts)
    assert len(tree.leaves(info.predictions)) == len(found)
    lengths = {k.split(".")[0] for k in rule.init_params(rng())}
    assert any(k.startswith("lifetime") for k in lengths) == ("lifetime" not in parts)
    assert ("y_target" in lengths) == ("predictions" not in parts)
    means = rule.diagnostics(info.predictions, info.targets, random_rollout())
    assert ("q_td" in means) == ("value" not in parts) and tree.is_finite(means)


@pytest.mark.parametrize("name", ABLATIONS)
def test_heads_that_the_rule_does_not_ask_for_are_left_alone(name: str) -> None:
    rule = small_disco_without(*ABLATIONS[name])
    agent, params = small_agent(rule), random_rule_params(rule)
    richer = replace(small_agent(small_disco()), rule=rule)
    state = living(agent)
    rich = living(richer, state, seed=3)
    params, rollout = double(params), double(random_rollout())
    new, info = update_agent(agent, params, state, rollout)
    rich_new, rich_info = update_agent(richer, params, rich, rollout)
    close(info.loss, rich_info.loss)
    for key, p in rich_new.params.items():
        close(p, new.params.get(key, rich.params[key]))


def test_without_values_the_rule_sees_rewards_but_no_returns() -> None:
    """A trajectory's last reward reaches its first step through the LSTM alone: in a rule whose
    LSTM remembers nothing, only the step before it changes."""
    rule = small_disco_without("value", "lifetime")
    agent, params = small_agent(rule), random_rule_params(rule)
    forgets = params["trajectory_rnn.gates.weight"].clone()
    forgets[:, -SMALL_SIZES.hidden :] = 0
    params["trajectory_rnn.gates.weight"] = forgets
    params["trajectory_rnn.gates.bias"][2 * SMALL_SIZES.hidden : 3 * SMALL_SIZES.hidden] = -1e9
    state, rollout = agent.init_state(rng()), random_rollout()
    rollout = replace(rollout, discounts=torch.ones_like(rollout.discounts))
    paid = rollout.rewards.clone()
    paid[-1] += 3.0
    _, before = update_agent(agent, params, state, rollout)
    _, after = update_agent(agent, params, state, replace(rollout, rewards=paid))
    changed = (before.targets.pi != after.targets.pi).flatten(1).any(1)
    assert changed.tolist() == [False] * 4 + [True]


def test_no_entropy_is_asked_of_predictions_that_are_not_there() -> None:
    rollout = random_rollout()
    weights = ObjectiveWeights(policy_entropy=0.5, prediction_entropy=7.0)
    validation = Validation(rollout.behaviour_logits, None, None)
    _, regulariser = validation_loss(validation, rollout, torch.zeros(5, 3), weights)
    torch.testing.assert_close(regulariser, 0.5 * policy_entropy(validation))
