"""Independent pieces of work, side by side in threads of this process.

The threads of one operation wait for each other at its end, and small operations are hardly faster
with two of them. Threads that each have work of their own need not wait: torch's operations let go
of Python's lock, and the way back through a graph never takes it. So the threads that torch may use
are shared out among pieces of work, as far as there are enough.

What a piece of work gives does not depend on the thread that does it. It must share nothing that
changes with the others: no generator, and no module, as calling one with parameters of your own
(``torch.func.functional_call``) puts them into the module for as long as the call takes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Sequence
from threading import Thread
from typing import Generic, TypeVar

import torch

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Crew:
    """Does work on keys, the longest first, as it remembers from the last time."""

    def __init__(self) -> None:
        self._seconds: dict[Hashable, float] = {}

    def run(
        self, work: Callable[[K], T], keys: Sequence[K], at_home: Collection[K] = ()
    ) -> list[T]:
        """``work`` of every key, in the order of the keys.

        Keys ``at_home`` stay in the calling thread, which does them first, and then its share. If
        work fails, none is begun after that, and the first failure in the order of keys is raised.
        """
        threads = torch.get_num_threads()
        away = [key for key in keys if key not in at_home]
        num_workers, threads_each = shared_out(threads, len(away), bool(at_home))
        if num_workers == 1:
            return [work(key) for key in keys]
        away.sort(key=lambda key: -self._seconds.get(key, 0.0))
        shift = _Shift(work, deque(away), threads_each, self._seconds)
        helpers = [Thread(target=shift.work_to_the_end) for _ in range(num_workers - 1)]
        try:
            for helper in helpers:
                helper.start()
            shift.work_to_the_end([key for key in keys if key in at_home])
        finally:
            shift.is_over = True  # if this thread was interrupted, the others finish what they have
            for helper in helpers:
                helper.join()
            torch.set_num_threads(threads)
        for key in keys:
            if key in shift.failures:
                raise shift.failures[key]
        return [shift.results[key] for key in keys]


def shared_out(threads: int, num_away: int, someone_at_home: bool) -> tuple[int, int]:
    """How many workers there are, and how many of torch's ``threads`` each has."""
    num_workers = max(1, min(threads, num_away + someone_at_home))
    return num_workers, max(1, threads // num_workers)


class _Shift(Generic[K, T]):
    """What the workers share until all work is done."""

    def __init__(
        self,
        work: Callable[[K], T],
        waiting: deque[K],
        threads_each: int,
        seconds: dict[Hashable, float],
    ) -> None:
        self._work, self._waiting, self._seconds = work, waiting, seconds
        self._threads_each = threads_each
        self.results: dict[K, T] = {}
        self.failures: dict[K, BaseException] = {}
        self.is_over = False

    def work_to_the_end(self, own: Sequence[K] = ()) -> None:
        """Do one's ``own`` work, then what is waiting."""
        torch.set_num_threads(self._threads_each)  # of the operations in this thread
        for key in own:
            self._do(key)
        while True:
            try:
                key = self._waiting.popleft()
            except IndexError:
                return
            self._do(key)

    def _do(self, key: K) -> None:
        if self.is_over:
            return
        start = time.monotonic()
        try:
            self.results[key] = self._work(key)
        except BaseException as e:
            self.failures[key] = e
            self.is_over = True
        self._seconds[key] = time.monotonic() - start
