"""Saliency of networks that look at known places, and of what cannot be looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from discorl.agents.agent import Agent, adam_clip, agent_net
from discorl.analysis.attention import NEWBORN, attention, saliency, similarity
from discorl.analysis.lives import Age, Life
from discorl.analysis.questions import RANDOM
from discorl.analysis.results import NotApplicable
from discorl.training.config import TrainConfig
from discorl.types import EnvSpec, Rollout
from tests.analysis.lives import life_of
from tests.builders import random_rollout, random_rule_params, rng, small_disco

SIDE = 6


class Reads(nn.Module):
    """A torso that sees a part of the board and no more."""

    embedding_size = 8

    def __init__(self, part: Callable[[Tensor], Tensor], size: int) -> None:
        super().__init__()
        self.part, self.layer = part, nn.Linear(size, self.embedding_size)

    def forward(self, observation: Tensor) -> Tensor:
        return torch.tanh(self.layer(self.part(observation.float()).reshape(len(observation), -1)))


def boards(seed: int, shape: tuple[int, ...] = (SIDE, SIDE)) -> Rollout:
    """Random boards with something in about one cell of five."""
    rollout = random_rollout(num_steps=12, batch=8, observation_shape=shape, seed=seed)
    return replace(rollout, observations=(rollout.observations > 0.9).float())


def life_with(
    part: Callable[[Tensor], Tensor],
    size: int,
    seed: int = 0,
    shape: tuple[int, ...] = (SIDE, SIDE),
) -> Life:
    rule, spec = small_disco(), EnvSpec(shape, 3)
    agent = Agent(agent_net(spec, rule, torso=Reads(part, size)), rule, adam_clip(1e-2))
    rollout = boards(seed, shape)
    states = [agent.init_state(rng(10 * seed + i)) for i in range(2)]
    ages = [Age(10 * i, state, rollout, rollout) for i, state in enumerate(states)]
    return Life(
        "the rule", "a board", seed, agent, random_rule_params(rule), ages, TrainConfig(), spec
    )


def test_a_network_that_reads_one_cell() -> None:
    lives = [life_with(lambda x: x[:, 2, 4], 1, seed) for seed in range(2)]
    maps = saliency(lives[0], lives[0].ages[-1].state.params, lives[0].ages[-1].played)
    assert set(maps) == {"y", "z", "policy", "value"}
    for heat in maps.values():
        assert heat.shape == (11, 8, SIDE, SIDE)
        elsewhere = heat.copy()
        elsewhere[..., 2, 4] = 0
        assert heat[..., 2, 4].min() > 0 and elsewhere.max() == 0
    found = attention(lives)
    for panel in (p for row in found.maps.panels for p in row):
        assert np.argwhere(np.array(panel.heat) > 0).tolist() == [[2, 4]]
    # All weights lead to the same cell, so the sanity check has to object.
    assert all(s.correlation.value > 0.99 for s in found.sanity)
    cell = [life.ages[-1].played.observations[:-1, :, 2, 4] for life in lives]
    share = float(torch.stack(cell).mean())
    on_y = found.on("y")
    assert on_y is not None and on_y.value == pytest.approx(share), "all of it where the cell is on"


def test_planes_are_added_up_and_bytes_are_scaled() -> None:
    life = life_with(lambda x: x[:, 1, 3, 2], 1, shape=(3, SIDE, SIDE))
    state, played = life.ages[-1].state, life.ages[-1].played
    heat = saliency(life, state.params, played)["policy"]
    assert np.argwhere(heat[0, 0] > 0).tolist() == [[3, 2]]
    bytes_ = replace(played, observations=(255 * played.observations).to(torch.uint8))
    assert saliency(life, state.params, bytes_)["policy"] == pytest.approx(heat)


def test_random_weights_look_elsewhere() -> None:
    """A dense torso that looks at one row: the sanity check and the control find no such row."""

    def top_row_trained(life: Life) -> Life:
        first, last = life.ages
        weight = last.state.params["torso.layer.weight"].clone()
        weight[:, SIDE:] *= 0.01
        params = last.state.params | {"torso.layer.weight": weight}
        return replace(life, ages=[first, replace(last, state=replace(last.state, params=params))])

    lives = [top_row_trained(life_with(lambda x: x, SIDE**2, seed)) for seed in range(3)]
    found = attention(lives)
    heat = np.array([panel.heat for row in found.maps.panels for panel in row])
    assert heat[:, 0].mean() > 20 * heat[:, 1:].mean()
    for similar in found.sanity:
        assert abs(similar.correlation.value) < 0.4, similar
    between = found.similar("y", "z")
    assert between is not None and between.value > 0.5, "all outputs read the same torso"
    # Things are anywhere, and so a map of one row has no more of them than there are.
    for source in (RANDOM, NEWBORN):
        share = found.on("policy", source)
        assert share is not None and found.occupied is not None
        assert abs(share.value - found.occupied.value) < 0.05
    names = [figure.name for figure in found.figures()]
    assert names == ["maps", "things", "sanity", "outputs"]
    assert len(found.findings()) == 3


def test_rank_correlation() -> None:
    a = np.arange(12.0).reshape(1, 3, 4)
    assert similarity(a, a**3) == pytest.approx(1)
    assert similarity(a, -a) == pytest.approx(-1)
    assert similarity(a, np.ones_like(a)) == 0, "a flat map is like no other"
    spot, other = np.zeros((2, 1, 3, 4))
    spot[0, 0, 0], other[0, 2, 3] = 1, 1
    assert similarity(spot, other) == pytest.approx(-1 / 11), "zeros are ties, not an order"
    noise = np.random.default_rng(0).normal(size=(2, 200, 5, 5))
    assert abs(similarity(*noise)) < 0.05, "nothing in common stays near nothing"


def test_vectors_and_codes_cannot_be_looked_at() -> None:
    with pytest.raises(NotApplicable, match="neither images nor boards"):
        attention([life_of(small_disco())])
    blind = life_with(lambda x: x.long().float()[:, 0, 0], 1)
    with pytest.raises(NotApplicable, match="as codes, not as numbers"):
        attention([blind])
