"""Evolution strategies: which way the rule should move, judged by whole lives.

Nothing is differentiated. Agents live in pairs: both of a pair start alike, on the same draw of the
task and with the same random numbers, and learn as in training, but noise moves their rules in
opposite directions. What their returns differ by says how good the direction was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from discorl import tree
from discorl.bounds import check_above_0
from discorl.errors import DiscorlError
from discorl.meta.meta_step import WindowResult
from discorl.meta.population import GroupState, Lifetimes
from discorl.meta.trial import Trial, curve_of, last_fifth, live_trial
from discorl.types import Params


@dataclass(frozen=True)
class EvolutionSettings:
    """Evolution strategies, for --estimator evolution."""

    spread: float = 0.05
    """Standard deviation of the noise on each weight."""
    parts: tuple[str, ...] = ("policy_target", "prior_strength", "prior_trust")
    """The parts of the rule's network that change: the fewer weights, the better the estimate."""

    def __post_init__(self) -> None:
        check_above_0("evolution: ", self, "spread")
        if not self.parts:
            raise DiscorlError("evolution: parts must name one part of the rule or more")

    def check(self, rule_params: Params) -> None:
        """Raise unless the rule has all parts."""
        names = sorted({name.partition(".")[0] for name in rule_params})
        if unknown := [part for part in self.parts if part not in names]:
            raise DiscorlError(
                f"evolution: the rule has no part '{unknown[0]}': choose --evolution.parts from "
                f"{', '.join(names)}"
            )


def live_pairs(
    trial: Trial,
    lifetimes: Lifetimes,
    settings: EvolutionSettings,
    rule_params: Params,
    state: GroupState,
    generator: torch.Generator,
) -> WindowResult:
    """A life of every pair of agents, as many pairs as ``trial`` has agents; all equally long.

    The gradient has an entry for each pair, whose mean the rule descends. ``state`` passes through:
    nothing of a life goes on in the next.
    """
    group, device = trial.group, generator.device
    num_updates = int(lifetimes.draw(1, generator))
    noise = {
        name: torch.randn(group.num_agents, *p.shape, generator=generator, device=device)
        for name, p in rule_params.items()
        if name.partition(".")[0] in settings.parts
    }
    seed = int(torch.randint(2**62, (), generator=generator, device=device))
    lives = []
    for step in (settings.spread, -settings.spread):
        rule = group.for_each(rule_params)
        rule |= {name: rule[name] + step * x for name, x in noise.items()}
        same = torch.Generator(device).manual_seed(seed)
        lives.append(live_trial(trial, rule, num_updates, same))
    ahead, behind = (last_fifth(curve_of(counts)) for counts in lives)
    worth = signed_ranks((ahead - behind).nan_to_num())
    gradient = group.for_each({name: torch.zeros_like(p) for name, p in rule_params.items()})
    gradient |= {name: -worth.reshape(-1, *[1] * (x.dim() - 1)) * x for name, x in noise.items()}
    episodes = tree.map(torch.add, *(counts[-1] for counts in lives))
    loss = -torch.stack([ahead, behind]).nanmean(0)
    return WindowResult(state, loss, gradient, episodes, num_born=2 * group.num_agents)


def signed_ranks(differences: Tensor) -> Tensor:
    """From -1 to 1, by size alone: the scale of returns and outliers do not matter. [N]"""
    order = differences.abs().argsort(stable=True).argsort(stable=True)
    return differences.sign() * (order + 1) / len(differences)


def num_pairs(num_agents: Sequence[int]) -> list[int]:
    """Of each group."""
    if odd := [n for n in num_agents if n % 2]:
        raise DiscorlError(
            f"evolution: agents live in pairs, so a group of {odd[0]} will not do: give each of "
            "--tasks an even number of agents, as in catch:sampled*8"
        )
    return [n // 2 for n in num_agents]
