"""How many threads torch computes with: as many as help, which on a busy machine is often one.

Threads of one operation wait for each other. If another process takes a core away, they wait for
the scheduler instead, hundreds of times a step, and two threads can be ten times slower than one.
So the number is found by timing real steps, at the start and again when they slow down.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from discorl.errors import DiscorlError

Threads = int | Literal["auto"]

MAX_THREADS = 4096
SMALL = 0.02
"""A step of this many seconds is all overhead: a second thread cannot speed it up."""
STEPS_PER_TRIAL = 2
GAIN = 0.95
"""More threads are worth it if they take at most this share of the time."""
SLOW = 1.5
"""A step this many times slower than expected is slow, and ``PATIENCE`` of them in a row mean that
the machine, or the work, is no longer what it was."""
PATIENCE = 3
FIRST_WAIT, LONGEST_WAIT = 30.0, 600.0
"""Seconds between checks on whether the cores are free again; each check that changes nothing
doubles the wait."""


def check_threads(threads: Threads) -> None:
    """Raise unless this is auto or a number of threads."""
    if threads != "auto" and not (isinstance(threads, int) and 1 <= threads <= MAX_THREADS):
        raise DiscorlError(
            f"threads must be auto, or at least 1 and at most {MAX_THREADS}, not {threads!r:.24}"
        )


class ThreadTuner:
    """Chooses the number of threads for steps of about equal work.

        with ThreadTuner() as threads:
            for rollout in rollouts:
                with threads.step():
                    trainer.step(rollout)

    While open, it sets ``torch.set_num_threads``, which affects the whole process, to at most the
    number that was set before: one per core, or OMP_NUM_THREADS. Afterwards it puts that back.
    """

    def __init__(
        self, threads: Threads = "auto", clock: Callable[[], float] = time.monotonic
    ) -> None:
        check_threads(threads)
        self._clock = clock
        self._before = torch.get_num_threads()
        self._candidates = _candidates(self._before) if threads == "auto" else [threads]
        self._is_fixed = len(self._candidates) == 1
        self._times: dict[int, float] = {}
        """The fastest step for each number tried in the current trial."""
        self._trial: list[int] = []
        self._expected = 0.0
        self._num_slow = 0
        self._wait, self._look_at = FIRST_WAIT, 0.0

    def __enter__(self) -> ThreadTuner:
        self._begin_trial()
        return self

    def __exit__(self, *error: object) -> None:
        torch.set_num_threads(self._before)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Time what happens inside, and choose the number of threads for the next step."""
        start = self._clock()
        yield
        if not self._is_fixed:
            self._observe(self._clock() - start)

    def _begin_trial(self) -> None:
        self._trial = [n for n in self._candidates for _ in range(STEPS_PER_TRIAL)]
        self._times = {}
        torch.set_num_threads(self._trial[0])

    def _observe(self, seconds: float) -> None:
        if self._trial:
            self._observe_trial(self._trial.pop(0), seconds)
            return
        self._num_slow = self._num_slow + 1 if seconds > SLOW * self._expected else 0
        if self._num_slow >= PATIENCE:
            self._wait = FIRST_WAIT
            self._begin_trial()
        elif self._expected > SMALL and self._clock() >= self._look_at:
            self._begin_trial()

    def _observe_trial(self, tried: int, seconds: float) -> None:
        self._times[tried] = min(seconds, self._times.get(tried, seconds))
        best = min(self._times, key=lambda n: (self._times[n], n))
        # Even more threads would be slower still, and each step tried might take ten times as long.
        is_lost = tried != best and seconds > SLOW * self._times[best]
        if self._trial and not is_lost and self._times[best] > SMALL:
            torch.set_num_threads(self._trial[0])
        else:
            self._decide()

    def _decide(self) -> None:
        chosen = 1
        for n in sorted(self._times):
            if self._times[n] <= GAIN * self._times[chosen]:
                chosen = n
        self._expected = self._times[chosen]
        self._num_slow = 0
        self._trial = []
        self._look_at = self._clock() + self._wait
        self._wait = min(2 * self._wait, LONGEST_WAIT)
        torch.set_num_threads(chosen)


def _candidates(most: int) -> list[int]:
    """1, 2, 4 ... and ``most`` itself."""
    powers = [2**i for i in range(most.bit_length()) if 2**i < most]
    return [*powers, most]
