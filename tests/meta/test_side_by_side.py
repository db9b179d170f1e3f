"""Groups side by side in threads: the same bits as one after the other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from discorl.errors import EnvFailure
from discorl.meta import meta_step as module
from discorl.meta.crew import Crew
from discorl.meta.meta_step import Discovery, init_discovery, meta_step
from tests.builders import assert_bit_equal, rng
from tests.meta.population import tiny_config, tiny_groups

TASKS = ("catch:4x4*2", "bandit:3*3", "chain*2", "memory*2/8+lstm4")


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def lived(threads: int, **changes: Any) -> Discovery:
    """Three meta-steps, with births and replay."""
    replay = {"replay_capacity": 9, "num_replayed": 2}
    config = tiny_config(tasks=TASKS, lifetimes=(2, 4), **replay, **changes)
    torch.set_num_threads(threads)
    groups, params = tiny_groups(config)
    generators = [rng(i) for i, _ in enumerate(groups)]
    discovery = init_discovery(groups, params, config.meta_optimiser, generators)
    crew, num_born = Crew(), 0
    for _ in range(3):
        discovery, info = meta_step(groups, discovery, config.meta_optimiser, generators, crew=crew)
        num_born += sum(result.num_born for result in info.results)
    assert num_born > 3
    return discovery


@pytest.mark.parametrize(("memory", "threads"), [("plain", 4), ("recompute", 2)])
def test_the_number_of_threads_changes_no_bit(memory: str, threads: int) -> None:
    assert_bit_equal(lived(threads, memory=memory), lived(1, memory=memory))


def threads_of_groups(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> dict[str, bool]:
    """Whether each group lived in the calling thread, of a step with as many threads as groups."""
    honest, at_home = module.live_window, {}
    meeting = threading.Barrier(2)

    def watched(group: Any, *rest: Any) -> Any:
        at_home[group.name] = threading.current_thread() is threading.main_thread()
        if changes.get("meet"):
            meeting.wait(30.0)
        return honest(group, *rest)

    monkeypatch.setattr(module, "live_window", watched)
    config = tiny_config(**{k: v for k, v in changes.items() if k != "meet"})
    torch.set_num_threads(len(config.groups))
    groups, params = tiny_groups(config)
    generators = [rng(i) for i, _ in enumerate(groups)]
    start = init_discovery(groups, params, config.meta_optimiser, generators)
    meta_step(groups, start, config.meta_optimiser, generators)
    return at_home


def test_two_groups_live_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    at_home = threads_of_groups(monkeypatch, tasks=TASKS[:2], meet=True)
    assert sorted(at_home.values()) == [False, True]


def test_environments_that_are_not_on_tensors_stay_in_their_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tasks = ("catch:4x4*2", "gym:CartPole-v1*2", "bandit:3*2")
    assert threads_of_groups(monkeypatch, tasks=tasks)["gym:CartPole-v1"]


def test_forward_mode_derivatives_stay_in_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    at_home = threads_of_groups(monkeypatch, tasks=TASKS[:3], memory="mixed")
    assert all(at_home.values()) and len(at_home) == 3


def test_groups_share_neither_networks_nor_rules() -> None:
    groups, _ = tiny_groups(tiny_config(tasks=TASKS))
    for part in ("agent.net", "agent.rule", "agent.rule.net", "meta_value.net"):
        held = [_part(group.window, part) for group in groups]
        assert len({id(x) for x in held}) == len(groups), part


def _part(window: Any, path: str) -> Any:
    for name in path.split("."):
        window = getattr(window, name)
    return window


def test_a_failure_in_another_thread_is_raised_with_its_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = tiny_config(tasks=TASKS)
    groups, params = tiny_groups(config)
    generators = [rng(i) for i, _ in enumerate(groups)]
    start = init_discovery(groups, params, config.meta_optimiser, generators)

    def fails(*args: Any) -> Any:
        raise EnvFailure("it broke")

    for group in groups[1:]:
        monkeypatch.setattr(group.env, "step", fails)
    torch.set_num_threads(2)
    with pytest.raises(EnvFailure, match=r"in the group 'bandit:3', .* it broke"):
        meta_step(groups, start, config.meta_optimiser, generators)
