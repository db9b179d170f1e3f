"""The number of threads, on a machine whose speed the test decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from discorl.errors import DiscorlError
from discorl.runs.threads import LONGEST_WAIT, Threads, ThreadTuner


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


class Machine:
    """Steps whose time depends on the number of threads."""

    def __init__(self, seconds: Callable[[int], float]) -> None:
        self.now = 0.0
        self.seconds = seconds
        self.tuner = ThreadTuner(clock=lambda: self.now)
        self.tuner.__enter__()

    def run(self, num_steps: int) -> list[int]:
        """The number of threads at each step."""
        used = []
        for _ in range(num_steps):
            with self.tuner.step():
                used.append(torch.get_num_threads())
                self.now += self.seconds(used[-1])
        return used


def quiet(threads: int) -> float:
    return 0.4 / threads


def busy(threads: int) -> float:
    return 0.4 if threads == 1 else 4.0


def test_a_quiet_machine_uses_its_cores() -> None:
    assert Machine(quiet).run(20)[8:] == [4] * 12


def test_a_busy_machine_uses_one_and_loses_one_step_to_find_out() -> None:
    used = Machine(busy).run(20)
    assert used == [1, 1, 2, *[1] * 17]


def test_threads_that_gain_nothing_are_not_used() -> None:
    assert Machine(lambda n: 0.4 - 0.001 * n).run(20)[8:] == [1] * 12


def test_small_steps_get_one_without_a_trial() -> None:
    assert Machine(lambda n: 0.01 / n).run(20) == [1] * 20


def test_a_neighbour_that_comes_is_noticed_within_a_few_steps() -> None:
    machine = Machine(quiet)
    machine.run(20)
    machine.seconds = busy
    assert machine.run(10)[-4:] == [1] * 4


def test_a_neighbour_that_leaves_is_noticed_and_looking_for_it_costs_little() -> None:
    machine = Machine(busy)
    machine.run(20)
    start = machine.now
    used = machine.run(5000)
    lost = sum(busy(n) - busy(1) for n in used)
    assert 0 < lost < 0.05 * (machine.now - start)
    machine.seconds = quiet
    start = machine.now
    while machine.run(1) != [4]:
        assert machine.now - start < LONGEST_WAIT + 10
    assert machine.run(20)[-5:] == [4] * 5


def test_more_work_than_before_starts_a_new_trial() -> None:
    """Acting alone is small; once the replay is full there is learning, too."""
    machine = Machine(lambda n: 0.01)
    assert set(machine.run(20)) == {1}
    machine.seconds = quiet
    assert machine.run(20)[-5:] == [4] * 5


def test_a_number_is_taken_at_its_word() -> None:
    with ThreadTuner(3) as tuner:
        for _ in range(10):
            with tuner.step():
                assert torch.get_num_threads() == 3


@pytest.mark.parametrize("threads", ["auto", 2])
def test_what_was_set_before_is_back_afterwards(threads: Threads) -> None:
    with ThreadTuner(threads) as tuner, tuner.step():
        assert torch.get_num_threads() < 4
    assert torch.get_num_threads() == 4


def test_one_core_is_never_touched() -> None:
    torch.set_num_threads(1)
    assert set(Machine(busy).run(10)) == {1}


@pytest.mark.parametrize("threads", [0, -1, 1.5, "two"])
def test_bad_numbers_are_refused(threads: object) -> None:
    with pytest.raises(DiscorlError, match="threads must be auto, or at least 1"):
        ThreadTuner(threads)  # pyright: ignore[reportArgumentType]
