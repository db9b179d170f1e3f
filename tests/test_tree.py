from __future__ import annotations

import torch

from discorl import tree
from discorl.types import Moments, TimeStep


def step(*numbers: float) -> TimeStep:
    return TimeStep(*(torch.tensor([x]) for x in numbers))


def test_map_keeps_structure_and_none() -> None:
    nested = {"a": (step(1, 2, 3), None), "b": torch.tensor([4.0])}
    doubled = tree.map(lambda x: 2 * x, nested)
    assert doubled == {"a": (step(2, 4, 6), None), "b": torch.tensor([8.0])}
    assert isinstance(doubled["a"][0], TimeStep)


def test_stack_and_index_are_inverse() -> None:
    steps = [step(1, 2, 3), step(4, 5, 6)]
    stacked = tree.stack(steps)
    assert stacked.reward.tolist() == [[2], [5]]
    assert [tree.index(stacked, i) for i in range(2)] == steps


def test_lerp_takes_the_weight_of_the_new() -> None:
    mixed = tree.lerp({"x": torch.tensor(1.0)}, {"x": torch.tensor(11.0)}, 0.1)
    torch.testing.assert_close(mixed["x"], torch.tensor(2.0))


def test_where_chooses_along_the_first_dimensions_even_in_place_of_nan() -> None:
    new = {"x": torch.tensor([[1.0, 2.0], [float("nan"), 4.0]]), "n": torch.tensor([5, 6])}
    mask = torch.tensor([True, False])
    kept = tree.where(mask, new)
    assert kept["x"].tolist() == [[1, 2], [0, 0]] and kept["n"].tolist() == [5, 0]
    other = {"x": -torch.ones(2, 2), "n": torch.tensor([7, 8])}
    mixed = tree.where(mask, new, other)
    assert mixed["x"].tolist() == [[1, 2], [-1, -1]] and mixed["n"].tolist() == [5, 8]
    assert tree.where(torch.tensor(False), {"x": torch.tensor(3.0)})["x"].shape == ()


def test_detach() -> None:
    x = torch.ones(1, requires_grad=True)
    moments = Moments(2 * x, x, x)
    assert not any(y.requires_grad for y in tree.leaves(tree.detach(moments)))


def test_is_finite() -> None:
    assert tree.is_finite({"a": torch.ones(2), "b": torch.tensor([1])})
    assert not tree.is_finite({"a": torch.ones(2), "b": torch.tensor([float("nan")])})
