"""Attention: where in what it sees an agent's predictions come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from discorl import tree
from discorl.analysis.episodes import episode_to_show, evenly, pictures, shows_pictures
from discorl.analysis.lives import Age, Life
from discorl.analysis.predictions import predicted
from discorl.analysis.questions import RANDOM, shuffled
from discorl.analysis.results import (
    Dots,
    Figure,
    Maps,
    NotApplicable,
    Panel,
    Row,
    estimate,
    shown,
)
from discorl.comparison.statistics import Array, Estimate
from discorl.training.pictures import is_channels_first, is_image_called, most_like_a_picture
from discorl.types import Params, Rollout

TRAINED, NEWBORN = "trained", "newborn"
NUM_SAMPLES = 48
"""Noisy copies of each observation that a map is the mean of."""
NOISE = 0.15
"""Standard deviation of that noise, as a share of the range of observations (SmoothGrad's)."""
NUM_FRAMES, NUM_TRAJECTORIES = 128, 8
"""Observations that numbers are means over, and the trajectories that they come from at most."""
NUM_SHOWN = 5
"""Frames of an episode whose maps are drawn."""
MAX_CELLS = 48
"""On a side of a drawn map; larger ones are averaged over squares."""
MOST_OCCUPIED = 0.5
"""A board with more than this share of its cells in use shows no things to look at."""


@dataclass(frozen=True)
class Similarity:
    """How alike two maps are: rank correlation over the cells of a frame, a mean over frames."""

    output: str
    other: str
    """Another output of the same agents, or the same output of another network."""
    correlation: Estimate
    network: str = "trained"
    """Whose agents they are; others than those of the rule are controls."""


@dataclass(frozen=True)
class OnThings:
    """Share of a map that lies on cells in which a board has something."""

    output: str
    network: str
    share: Estimate


@dataclass(frozen=True)
class Attention:
    """Maps of gradients, and how much of them is learnt, of agents at the end of training."""

    task: str
    rule: str
    step: int
    """Training steps of these agents."""
    num_frames: int
    """Observations of each agent that numbers are means over."""
    sanity: list[Similarity]
    """With the same network's weights in random places, and with the newborn agent's: about 0 if
    maps show what was learnt, 1 if they only show the picture or the architecture."""
    between: list[Similarity]
    """Of outputs of the same agents, also of those that learnt by control rules."""
    on_things: list[OnThings]
    """Empty for images, which have something everywhere."""
    occupied: Estimate | None
    """Share of the cells that have something: what a map that ignores the board has there."""
    maps: Maps

    def similar(self, output: str, other: str, network: str = TRAINED) -> Estimate | None:
        """The correlation of two maps, if there is one."""
        found = (*self.sanity, *self.between)
        wanted = (output, other, network)
        found = (s for s in found if (s.output, s.other, s.network) == wanted)
        return next((s.correlation for s in found), None)

    def on(self, output: str, network: str = TRAINED) -> Estimate | None:
        """The share on things, if there is one."""
        found = (o for o in self.on_things if (o.output, o.network) == (output, network))
        return next((o.share for o in found), None)

    def findings(self) -> list[str]:
        """Whether maps can be trusted, what lies on things, and which outputs look elsewhere."""
        random = [s for s in self.sanity if s.other == RANDOM]
        said = [
            "Maps against those of the same network with its weights in random places, rank "
            f"correlation: {', '.join(f'{s.output} {shown(s.correlation, 2)}' for s in random)}."
        ]
        if self.occupied is not None:
            shares = [o for o in self.on_things if o.network == TRAINED]
            said.append(
                f"Of the cells, {shown(self.occupied, 2)} have something; of the maps, "
                f"{', '.join(f'{o.output} {shown(o.share, 2)}' for o in shares)} lies there."
            )
        own = [s for s in self.between if s.network == TRAINED]
        if own:
            least = min(own, key=lambda s: s.correlation.value)
            text = (
                f"The outputs that look at the most different places are {least.output} and "
                f"{least.other}: rank correlation {shown(least.correlation, 2)}"
            )
            pair = (least.output, least.other)
            others = [s for s in self.between if s.network != TRAINED]
            for s in (s for s in others if (s.output, s.other) == pair):
                text += f"; of agents {s.network} {shown(s.correlation, 2)}"
            said.append(f"{text}.")
        return said

    def figures(self) -> list[Figure]:
        """The maps over frames, and the numbers beside their controls."""
        made: list[Figure] = [self.maps]
        rows = [Row(o.output, o.network, o.share) for o in self.on_things]
        if self.occupied is not None:
            rows.append(Row("all cells", "occupied", self.occupied))
            label = "share of the map on cells that have something"
            made.append(Dots("things", "Attention to things", label, rows))
        label = "rank correlation of maps"
        rows = [Row(s.output, f"with {s.other}", s.correlation) for s in self.sanity]
        made.append(Dots("sanity", "Is attention learnt? 0: yes; 1: no", label, rows))
        if self.between:
            rows = [Row(f"{s.output}, {s.other}", s.network, s.correlation) for s in self.between]
            made.append(Dots("outputs", "Do outputs look at the same places?", label, rows))
        return made


def attention(
    lives: Sequence[Life], controls: Mapping[str, Sequence[Life]] | None = None
) -> Attention:
    """Size of the gradient of y, z, policy and value with respect to each cell of what is seen.

    The networks with random weights and the newborn ones are shown what the trained agent saw, and
    so are those of agents with the same seeds that learnt by other rules, ``controls``.
    """
    first = lives[0]
    if not shows_pictures(first):
        raise NotApplicable(f"{first.task} shows agents neither images nor boards")
    others = {f"by {name}": of_rule for name, of_rule in (controls or {}).items()}
    maps = [  # agents, networks, outputs
        _of_networks(life, {name: of_rule[i] for name, of_rule in others.items()})
        for i, life in enumerate(lives)
    ]
    outputs = list(maps[0][TRAINED])
    sanity = [
        Similarity(
            *(output, other),
            estimate([similarity(m[TRAINED][output], m[other][output]) for m in maps]),
        )
        for output in outputs
        for other in (RANDOM, NEWBORN)
        if _is_there(maps, other, output)
    ]
    between = [
        Similarity(a, b, estimate([similarity(m[n][a], m[n][b]) for m in maps]), n)
        for i, a in enumerate(outputs)
        for b in outputs[i + 1 :]
        for n in (TRAINED, *others)
        if _is_there(maps, n, a) and _is_there(maps, n, b)
    ]
    things = [_things(life, _some(life.ages[-1])) for life in lives]
    on_things, occupied = [], None
    if max(t.mean() for t in things) <= MOST_OCCUPIED and min(t.mean() for t in things) > 0:
        occupied = estimate([float(t.mean()) for t in things])
        on_things = [
            OnThings(o, n, estimate([_share_on(m[n][o], t) for m, t in zip(maps, things)]))
            for o in outputs
            for n in (TRAINED, *others, NEWBORN, RANDOM)
            if _is_there(maps, n, o)
        ]
    step, num_frames = first.ages[-1].step, len(maps[0][TRAINED][outputs[0]])
    drawn = _draw(first)
    return Attention(
        first.task, first.label, step, num_frames, sanity, between, on_things, occupied, drawn
    )


def saliency(life: Life, params: Params, rollout: Rollout) -> dict[str, Array]:
    """Size of the gradient of each output at each cell of each frame. [S, B, H, W] each

    It is the root of the mean, over noisy copies of the observation, of the squared derivatives of
    all probabilities, summed over the channels of a cell. The sum over probabilities is estimated
    by weighing them at random, which needs one derivative where there would be hundreds. A
    recurrent network's frame also counts for what is predicted later.
    """
    generator = torch.Generator().manual_seed(life.seed)
    name = most_like_a_picture(rollout.observations)
    seen = rollout.observations[name] if name else rollout.observations
    seen = seen.float() / 255 if seen.dtype == torch.uint8 else seen.float()  # as networks do
    spread = NOISE * float(seen.max() - seen.min())
    sums: dict[str, Tensor] = {}
    for _ in range(NUM_SAMPLES):
        noisy = seen + spread * torch.randn(seen.shape, generator=generator)
        noisy.requires_grad_()
        observations = rollout.observations | {name: noisy} if name else noisy
        outputs = predicted(life, params, replace(rollout, observations=observations))
        for output, logits in outputs.items():
            p = torch.softmax(logits, -1)
            weighed = (p * torch.randn(p.shape, generator=generator)).sum()
            if not weighed.requires_grad:
                raise NotApplicable(f"the network takes {life.task} as codes, not as numbers")
            (g,) = torch.autograd.grad(weighed, noisy, retain_graph=True, allow_unused=True)
            if g is None:
                raise NotApplicable(f"the network takes {life.task} as codes, not as numbers")
            sums[output] = sums.get(output, 0) + g.square()
    is_image = is_image_called(life.spec, name)
    num_steps = len(rollout.actions) - 1
    return {
        output: _cells(x, is_image)[:num_steps].div(NUM_SAMPLES).sqrt().double().numpy()
        for output, x in sums.items()
    }


def similarity(a: Array, b: Array) -> float:
    """Rank correlation of two maps over the cells of each frame, a mean over frames. [F, H, W]

    A map that is the same everywhere is like no other.
    """
    found = []
    for x, y in zip(a.reshape(len(a), -1), b.reshape(len(b), -1)):
        x, y = (_ranks(v) - (len(v) + 1) / 2 for v in (x, y))
        size = np.sqrt((x @ x) * (y @ y))
        found.append(x @ y / size if size > 0 else 0.0)
    return float(np.mean(found))


def _ranks(x: Array) -> Array:
    """From 1 on; equal values share the mean of theirs."""
    _, place, counts = np.unique(x, return_inverse=True, return_counts=True)
    return (counts.cumsum() - (counts - 1) / 2)[place]


def _cells(x: Tensor, is_image: bool) -> Tensor:
    """The sum over channels or planes. [T, B, ...] -> [T, B, H, W]"""
    if x.dim() == 4:
        return x
    return x.sum(2 if is_channels_first(x.shape[2:], is_image) else -1)


def _some(age: Age) -> Rollout:
    """The observations that numbers are about, and one more time step."""
    batch = min(NUM_TRAJECTORIES, age.played.actions.shape[1])
    num_steps = -(-NUM_FRAMES // batch)
    return tree.map(lambda x: x[: num_steps + 1, :batch], age.played)


def _of_networks(life: Life, others: Mapping[str, Life]) -> dict[str, dict[str, Array]]:
    """The maps of the trained, the newborn, a randomised network, and others. [F, H, W] each"""
    trained = life.ages[-1].state.params
    networks = {
        TRAINED: (life, trained),
        NEWBORN: (life, life.ages[0].state.params),
        RANDOM: (life, shuffled(trained, life.seed)),
    } | {name: (other, other.ages[-1].state.params) for name, other in others.items()}
    rollout = _some(life.ages[-1])
    return {
        name: {k: x.reshape(-1, *x.shape[2:]) for k, x in saliency(own, p, rollout).items()}
        for name, (own, p) in networks.items()
    }


def _is_there(maps: list[dict[str, dict[str, Array]]], network: str, output: str) -> bool:
    """Whether every agent has that output and a gradient; a head that starts at 0 has none."""
    return all(output in m[network] and m[network][output].any() for m in maps)


def _things(life: Life, rollout: Rollout) -> NDArray[np.bool_]:
    """Where boards have something. [F, H, W]"""
    name = most_like_a_picture(rollout.observations)
    seen = (rollout.observations[name] if name else rollout.observations)[:-1]
    there = _cells((seen != 0).float(), is_image_called(life.spec, name)) > 0
    return there.flatten(0, 1).numpy()


def _share_on(maps: Array, there: NDArray[np.bool_]) -> float:
    """Of each frame's map, the part on cells that have something; a mean over frames."""
    whole = maps.sum((1, 2))
    return float(((maps * there).sum((1, 2)) / np.where(whole > 0, whole, 1)).mean())


def _draw(life: Life) -> Maps:
    """Frames of an episode and the maps of all outputs, each in units of its own largest value."""
    age = life.ages[-1]
    episode = episode_to_show(age)
    maps = saliency(life, age.state.params, episode)
    steps = evenly(len(episode.actions) - 1, NUM_SHOWN)
    there = _things(life, episode)
    tops = {output: float(x[steps].max()) or 1.0 for output, x in maps.items()}
    panels = [
        [_panel(x[t, 0] / tops[output], there[t]) for output, x in maps.items()] for t in steps
    ]
    return Maps(
        "maps",
        "Where predictions come from",
        "size of the gradient, share of the column's largest",
        list(maps),
        [f"step {t}" for t in steps],
        pictures(life, episode, steps),
        panels,
    )


def _panel(heat: Array, there: NDArray[np.bool_]) -> Panel:
    """A map of at most so many cells."""
    pooled = torch.from_numpy(heat)[None]
    while max(pooled.shape) > MAX_CELLS:
        pooled = nn.functional.avg_pool2d(pooled, 2, ceil_mode=True)
    rows = [[float(f"{v:.3g}") for v in row] for row in pooled[0].tolist()]
    marks = np.argwhere(there) if there.mean() <= MOST_OCCUPIED else []
    is_whole = pooled.shape[1:] == there.shape
    return Panel(rows, [(int(r), int(c)) for r, c in marks] if is_whole else [])
