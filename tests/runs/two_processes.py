"""What each process of tests/runs/test_distributed.py runs, under torchrun."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from discorl import tree
from discorl.agents.update import update_agent
from discorl.runs import distributed
from discorl.runs.checkpoint import save
from discorl.types import Rollout
from tests.builders import (
    RULES,
    disturbed,
    double,
    random_rollout,
    random_rule_params,
    rng,
    small_agent,
    with_target_params,
)

BATCH, NUM_UPDATES = 8, 4


def uneven_rollout(seed: int) -> Rollout:
    """In the second half of the batch most steps begin an episode, so masks differ."""
    rollout = double(random_rollout(batch=BATCH, seed=seed))
    often = torch.rand(rollout.discounts.shape, generator=rng(seed)) > 0.3
    rollout.discounts[:, BATCH // 2 :][often[:, BATCH // 2 :]] = 0
    return rollout


def learn(name: str, first: int, last: int) -> tuple[object, list[float]]:
    """Some updates on that part of the batches; the state, and loss and gradient norm of each."""
    rule = RULES[name]()
    agent = small_agent(rule)
    rule_params = double(random_rule_params(rule))
    state = double(agent.init_state(rng()))
    if state.rule.target_params is not None:
        state = with_target_params(state, disturbed(state.params))
    said = []
    for seed in range(NUM_UPDATES):
        part = tree.index(uneven_rollout(seed), (slice(None), slice(first, last)))
        state, info = update_agent(agent, rule_params, state, part, across=distributed.mean)
        parts = [info.losses[k] for k in sorted(info.losses)]
        said += torch.stack([info.loss, info.gradient_norm, *parts]).tolist()
    return state, said


def check_messages(ranks: distributed.Ranks) -> None:
    """Trees go around, and gradients pass a mean."""
    own = {"rank": ranks.rank, "x": torch.full((3,), float(ranks.rank))}
    assert distributed.broadcast(own)["rank"] == 0
    everyones = distributed.gather(own)
    assert (everyones is None) == (ranks.rank != 0)
    if everyones is not None:
        assert [t["rank"] for t in everyones] == list(range(ranks.size))
    own = distributed.scatter(everyones)
    assert own["rank"] == ranks.rank
    assert own["x"].tolist() == [float(ranks.rank)] * 3
    assert distributed.total(ranks.rank + 1) == sum(range(1, ranks.size + 1))
    assert distributed.any_of(ranks.rank == 1, False, True) == (ranks.size > 1, False, True)

    x = torch.tensor([1.0 + ranks.rank], requires_grad=True)
    y = distributed.mean(x * x)
    y.backward(torch.tensor([1.0 + 2 * ranks.rank]))
    assert y.item() == sum((1 + r) ** 2 for r in range(ranks.size)) / ranks.size
    upstream = sum(1.0 + 2 * r for r in range(ranks.size)) / ranks.size
    assert x.grad is not None and x.grad.item() == 2 * (1 + ranks.rank) * upstream


def main(out: Path) -> None:
    ranks = distributed.start("cpu")
    check_messages(ranks)
    share = ranks.shard(BATCH, "batch")
    for name in RULES:
        state, said = learn(name, ranks.rank * share, (ranks.rank + 1) * share)
        save(out / f"{name}-{ranks.rank}.dc", {"state": state, "said": said})
    distributed.stop()


if __name__ == "__main__":
    assert os.environ["WORLD_SIZE"] == "2"
    main(Path(sys.argv[1]))
