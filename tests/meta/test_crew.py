"""Work side by side: who does it, in which order, and what happens when it fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from discorl.meta.crew import Crew, shared_out

PATIENCE = 30.0
"""Seconds that one thread waits for another, if they do not meet."""


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def here() -> int:
    return threading.get_ident()


@pytest.mark.parametrize(
    ("threads", "away", "someone_at_home", "workers", "each"),
    [
        (1, 4, False, 1, 1),
        (2, 4, False, 2, 1),
        (2, 1, False, 1, 2),
        (2, 1, True, 2, 1),
        (2, 0, True, 1, 2),
        (8, 4, False, 4, 2),
        (8, 3, True, 4, 2),
        (7, 3, False, 3, 2),
        (4, 0, False, 1, 4),
    ],
)
def test_threads_are_shared_out(
    threads: int, away: int, someone_at_home: bool, workers: int, each: int
) -> None:
    assert shared_out(threads, away, someone_at_home) == (workers, each)


def test_two_pieces_of_work_go_on_at_a_time_and_results_keep_their_order() -> None:
    meeting = threading.Barrier(2)

    def work(key: str) -> tuple[str, int]:
        meeting.wait(PATIENCE)
        return key, here()

    done = Crew().run(work, ["a", "b", "c", "d"])
    assert [key for key, _ in done] == ["a", "b", "c", "d"]
    assert len({who for _, who in done}) == 2


def test_each_worker_has_its_share_of_torchs_threads_and_gives_them_back() -> None:
    torch.set_num_threads(4)
    meeting = threading.Barrier(2)

    def work(key: int) -> int:
        meeting.wait(PATIENCE)
        return torch.get_num_threads()

    assert Crew().run(work, [0, 1]) == [2, 2]
    assert torch.get_num_threads() == 4


def test_one_thread_and_one_piece_of_work_stay_where_they_are() -> None:
    assert Crew().run(lambda key: (here(), torch.get_num_threads()), [0]) == [(here(), 2)]
    torch.set_num_threads(1)
    assert set(Crew().run(lambda key: here(), range(3))) == {here()}


def test_work_at_home_is_done_by_the_caller_while_the_rest_goes_on() -> None:
    meeting = threading.Barrier(2)

    def work(key: int) -> int:
        if key in (1, 2):
            meeting.wait(PATIENCE)
        return here()

    who = Crew().run(work, range(4), at_home=[1, 3])
    assert who[1] == who[3] == here() != who[2]


def test_the_longest_comes_first_once_it_is_known() -> None:
    begun: list[int] = []
    crew = Crew()
    crew._seconds = {0: 1.0, 1: 3.0, 2: 2.0}
    lock = threading.Lock()

    def work(key: int) -> None:
        with lock:
            begun.append(key)

    torch.set_num_threads(2)
    crew.run(work, range(3))
    assert begun.index(0) > 0 and set(begun) == {0, 1, 2}
    assert crew._seconds.keys() == {0, 1, 2} and max(crew._seconds.values()) < 1.0


def test_the_first_failure_by_key_is_raised_and_nothing_is_begun_after_one() -> None:
    meeting, begun = threading.Barrier(2), []

    def work(key: int) -> None:
        begun.append(key)
        meeting.wait(PATIENCE)
        raise ValueError(f"of {key}")

    with pytest.raises(ValueError, match="of 0"):
        Crew().run(work, range(6))
    assert sorted(begun) == [0, 1]
    assert torch.get_num_threads() == 2


def test_an_interrupt_waits_for_work_that_is_under_way() -> None:
    meeting, finished = threading.Barrier(2), []
    caller = here()

    def work(key: int) -> None:
        meeting.wait(PATIENCE)
        if here() == caller:
            raise KeyboardInterrupt
        finished.append(key)

    with pytest.raises(KeyboardInterrupt):
        Crew().run(work, range(6))
    assert len(finished) == 1
