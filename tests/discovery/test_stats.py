"""Statistics of a population: a group never hides another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from discorl.discovery.discover import discover
from discorl.discovery.stats import metric_names
from tests.meta.population import tiny_config

REPEATED = ("catch:4x4*2/8", "bandit:3*3", "catch:4x4*2/6")


@pytest.mark.parametrize(
    "entries, names",
    [
        (("catch:5x5*4", "grid:random-small@7*12/64x64"), ["catch:5x5", "grid:random-small@7"]),
        (("catch:5x5/64", "mdp:10x4"), ["catch:5x5", "mdp:10x4"]),
        (REPEATED, ["catch:4x4*2/8", "bandit:3", "catch:4x4*2/6"]),
        (("catch", "catch*4", "chain"), ["catch", "catch*4", "chain"]),
        (("catch*4", "chain", "catch*4"), ["catch*4", "chain", "catch*4#2"]),
        ((), []),
    ],
)
def test_each_group_has_a_name_of_its_own(entries: tuple[str, ...], names: list[str]) -> None:
    assert metric_names(entries) == names


def test_groups_on_one_task_are_told_apart(tmp_path: Path) -> None:
    config = tiny_config(tasks=REPEATED, held_out=("catch:5x4/8", "catch:5x4/6"), steps=1)
    config = replace(config, eval_updates=3, eval_agents=2, out=tmp_path / "run")
    (row,) = discover(config).metrics
    assert {k for k in row if k.startswith("meta_loss/")} == {
        *("meta_loss/catch:4x4*2/8", "meta_loss/bandit:3", "meta_loss/catch:4x4*2/6"),
    }
    held_out = {k for k in row if k.startswith("held_out/")}
    assert held_out == {"held_out/catch:5x4/8", "held_out/catch:5x4/6"}
