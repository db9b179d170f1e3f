from __future__ import annotations

import pytest
import torch

from discorl.envs.tasks.balance import START, Balance, BalanceSettings, BalanceState
from discorl.errors import DiscorlError
from tests.builders import rng

DOUBLING = BalanceSettings(
    drift=2 * torch.eye(1).expand(3, 1, 1),
    pushes=torch.tensor([[-0.5], [0.5]]).expand(3, 2, 1),
    horizon=torch.tensor([9, 9, 1]),
)


def test_a_step_by_hand() -> None:
    """The second copy leaves the limits, the third reaches its horizon."""
    env = Balance(3, num_dimensions=1, num_actions=2)
    start = BalanceState(
        torch.tensor([[0.375], [0.375], [0.0]]), torch.zeros(3).long(), settings=DOUBLING
    )
    state, now = env.step(start, torch.tensor([0, 1, 0]), rng())
    assert now.reward.tolist() == [1, 1, 1]
    assert now.discount.tolist() == [1, 0, 0]
    assert state.place[0].item() == 0.25 and state.time.tolist() == [1, 0, 0]
    assert (now.observation[1:].abs() <= START).all(), "these begin anew"


def test_drawn_systems_turn_grow_and_can_be_pushed_anywhere() -> None:
    env = Balance(1, 4, 3, growth=1.05, turn=(0.1, 0.3), force=0.1)
    settings = env.sample_settings(50, rng())
    lengths = torch.linalg.svdvals(settings.drift)
    torch.testing.assert_close(lengths, torch.full_like(lengths, 1.05))
    still = 1.05 * torch.eye(4)
    assert ((settings.drift - still).flatten(1).norm(dim=1) > 0.05).all()
    torch.testing.assert_close(settings.pushes.sum(1), torch.zeros(50, 4), atol=1e-6, rtol=0)
    sizes = settings.pushes.norm(dim=2).mean(1)
    torch.testing.assert_close(sizes, torch.full_like(sizes, 0.1))


def test_pushing_towards_the_middle_lasts_longer_than_chance() -> None:
    copies = 200
    env = Balance(copies, 2, 3)
    settings = env.sample_settings(copies, rng())

    def ends(towards_middle: bool) -> float:
        generator, count = rng(1), 0.0
        state, _ = env.reset(generator, settings)
        for _ in range(200):
            drifted = torch.einsum("bij,bj->bi", settings.drift, state.place)
            nearest = (drifted[:, None] + settings.pushes).norm(dim=2).argmin(1)
            drawn = torch.randint(3, (copies,), generator=generator)
            state, now = env.step(state, nearest if towards_middle else drawn, generator)
            count += float((now.discount == 0).sum())
        return count

    assert ends(towards_middle=True) < 0.6 * ends(towards_middle=False)


@pytest.mark.parametrize("bad", [{"growth": -1.0}, {"force": (0.2, 0.1)}, {"horizon": 0}])
def test_bad_settings(bad: dict) -> None:
    with pytest.raises(DiscorlError, match=next(iter(bad))):
        Balance(1, **bad)
