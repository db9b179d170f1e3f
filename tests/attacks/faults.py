"""Environments that misbehave, each in one way, at one moment."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any, Literal, NoReturn

import gymnasium
import numpy as np
from gymnasium import spaces

Moment = Literal["make", "space", "reset", "step", "close"]


class Unspeakable(Exception):  # noqa: N818
    """An error that cannot be printed, or sent to another process."""

    def __init__(self) -> None:
        super().__init__(lambda: None)

    def __str__(self) -> str:
        raise ValueError("no words")


class NotAnException(BaseException):
    """What ``except Exception`` lets through."""


@dataclass(frozen=True)
class Fault:
    """Something that an environment does wrong."""

    name: str
    moment: Moment
    act: Callable[[Any], Any]
    """Takes what the environment should have returned and returns something else, if it returns."""
    at: int = 1
    """In which call."""
    only_async: bool = False
    """It would take the whole process with it."""
    is_tolerable: bool = False
    """The run may also go on."""


class Walk(gymnasium.Env):
    """A short walk, until its fault."""

    def __init__(self, fault: Fault | None = None) -> None:
        self.observation_space: Any = spaces.Box(-1, 1, (3,), np.float32)
        self.action_space: Any = spaces.Discrete(2)
        self._fault = fault
        self._calls: dict[str, int] = {}
        self._place = 0
        if fault and fault.moment == "space":
            fault.act(self)
        self._or_not("make", None)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        super().reset(seed=seed)
        self._place = 0
        return self._or_not("reset", (self._show(), {}))

    def step(self, action: Any) -> Any:
        self._place += 1 + int(action)
        # What an environment shows last before a reset is not looked at: that would hide a fault.
        ended = self._place > 5 and not self._is_due("step", self._calls.get("step", 0) + 1)
        return self._or_not("step", (self._show(), 0.1 * int(action), ended, False, {}))

    def close(self) -> None:
        self._or_not("close", None)

    def _show(self) -> np.ndarray:
        return np.array([self._place, 1, 0], np.float32) / 10

    def _or_not(self, moment: Moment, right: Any) -> Any:
        """What should be returned, or what the fault makes of it."""
        self._calls[moment] = self._calls.get(moment, 0) + 1
        if self._fault and self._is_due(moment, self._calls[moment]):
            return self._fault.act(right)
        return right

    def _is_due(self, moment: Moment, call: int) -> bool:
        fault = self._fault
        return fault is not None and (fault.moment, fault.at) == (moment, call)


def make(fault: Fault | None) -> Any:
    """An environment, or whatever the fault makes of the factory."""
    if fault and fault.name in FACTORIES:
        return FACTORIES[fault.name]()
    return Walk(fault)


def _throw(error: Any, right: Any) -> NoReturn:
    raise error() if isinstance(error, type) else error


def _call(function: Callable[[], Any], right: Any) -> Any:
    function()
    return right


def _item(index: int, value: Any, right: Any) -> Any:
    """One of the values that are returned is another."""
    changed = list(right)
    changed[index] = value(right[index]) if callable(value) else value
    return tuple(changed)


def _other(value: Any, right: Any) -> Any:
    return value(right) if callable(value) else value


def _set(name: str, value: Any, env: Any) -> None:
    setattr(env, name, value)


def _hang() -> None:
    time.sleep(3600)


def _exit() -> None:
    os._exit(3)


def _segfault() -> None:
    ctypes.string_at(0)


def _signal(number: int) -> None:
    os.kill(os.getpid(), number)


ERRORS: dict[str, Any] = {
    "lines": ZeroDivisionError("the wheels\ncame \x1b[31moff\x07"),
    "memory": MemoryError,
    "recursion": RecursionError("too deep"),
    "stop": StopIteration,
    "disk": OSError(28, "No space left on device"),
    "assert": AssertionError,
    "unspeakable": Unspeakable,
    "exit": SystemExit,
    "exit-0": SystemExit(0),
    "exit-text": SystemExit("good\nbye"),
    "base": NotAnException("beyond"),
    "eof": EOFError,
    "pipe": BrokenPipeError(32, "Broken pipe"),
    "surrogate": ValueError("half \ud800 a character"),
}
OBSERVATIONS: dict[str, Any] = {
    "short": lambda x: x[:2],
    "long": lambda x: np.zeros(7, np.float32),
    "flat": np.float32(0),
    "deep": lambda x: x[None, None],
    "none": None,
    "text": "three",
    "dict": lambda x: {"a": x},
    "ragged": [[1], [2, 3], 4],
    "objects": lambda x: np.array([None, "a", 1], object),
    "texts": lambda x: np.array(["a", "b", "c"]),
    "nan": lambda x: x * np.float32("nan"),
    "inf": lambda x: x + np.float32("inf"),
}
TOLERABLE_OBSERVATIONS: dict[str, Any] = {
    "list": lambda x: x.tolist(),
    "doubles": lambda x: x.astype(np.float64),
    "integers": lambda x: x.astype(np.int64),
    "complex": lambda x: x.astype(np.complex64),
    "far": lambda x: x * np.float32(1e30),
}
REWARDS: dict[str, Any] = {
    "nan": float("nan"),
    "inf": float("-inf"),
    "none": None,
    "text": "much",
    "pair": np.zeros(2),
    "complex": 1j,
    "list": [1.0],
}
TOLERABLE_REWARDS: dict[str, Any] = {
    "bool": True,
    "decimal": Decimal(1),
    "one": np.ones(1),
    "huge": 10**400,
    "far": 1e30,
}
STEPS: dict[str, Any] = {
    "four": lambda x: x[:4],
    "six": lambda x: (*x, None),
    "none": None,
    "number": 3,
}
TOLERABLE_STEPS: dict[str, Any] = {
    "ended-none": partial(_item, 2, None),
    "ended-text": partial(_item, 2, "no"),
    "ended-array": partial(_item, 2, np.zeros(3, bool)),
    "cut-number": partial(_item, 3, 2.5),
    "info-none": partial(_item, 4, None),
    "info-list": partial(_item, 4, [1, 2]),
    "info-keys": partial(_item, 4, {1: 2, None: 3}),
    "info-final": partial(_item, 4, {"final_obs": "gone", "_final_obs": 7}),
    "info-lambda": partial(_item, 4, {"f": lambda: 0}),
    "info-ragged": partial(_item, 4, {"a": [[1], [2, 3]]}),
}
RESETS: dict[str, Any] = {"alone": lambda x: x[0], "three": lambda x: (*x, 1), "none": None}
SPACES: dict[str, Any] = {
    "none": ("observation_space", None),
    "text": ("observation_space", "box"),
    "no-actions": ("action_space", None),
    "words": ("observation_space", spaces.Text(5)),
    "empty": ("observation_space", spaces.Box(-1, 1, (0,), np.float32)),
    "sequence": ("observation_space", spaces.Sequence(spaces.Discrete(3))),
    "graph": ("action_space", spaces.Text(3)),
}
FACTORIES: dict[str, Callable[[], Any]] = {
    "make-none": lambda: None,
    "make-class": lambda: Walk,
    "make-array": lambda: np.zeros(3),
}
LATE = 13
"""The third step of a run with rollouts of five."""
MOMENTS: tuple[tuple[Moment, int], ...] = (
    *(("make", 1), ("reset", 1), ("reset", 3), ("step", 1), ("step", LATE)),
)


def _faults() -> list[Fault]:
    found = [Fault(name, "make", lambda x: x) for name in FACTORIES]
    for moment, at in MOMENTS:
        for name, error in ERRORS.items():
            found.append(Fault(f"{moment}-{at}-{name}", moment, partial(_throw, error), at))
        found.append(Fault(f"{moment}-{at}-os-exit", moment, partial(_call, _exit), at))
        if moment == "make":
            continue  # Gymnasium makes one in this process even if there are workers
        for name, act in (("segfault", _segfault), ("kill", partial(_signal, signal.SIGKILL))):
            found.append(Fault(f"{moment}-{at}-{name}", moment, partial(_call, act), at, True))
    for name, act in (("hang", _hang), ("stopped", partial(_signal, signal.SIGSTOP))):
        found.append(Fault(f"step-{LATE}-{name}", "step", partial(_call, act), LATE, True))
    found += [Fault(f"space-{k}", "space", partial(_set, *v)) for k, v in SPACES.items()]
    found += [Fault(f"reset-{k}", "reset", partial(_other, v), 3) for k, v in RESETS.items()]
    for many, spared in ((OBSERVATIONS, False), (TOLERABLE_OBSERVATIONS, True)):
        for k, v in many.items():
            act, late = partial(_item, 0, v), {"at": LATE, "is_tolerable": spared}
            found.append(Fault(f"observation-{k}", "step", act, **late))
            found.append(Fault(f"reset-observation-{k}", "reset", act, 3, is_tolerable=spared))
    for many, spared in ((REWARDS, False), (TOLERABLE_REWARDS, True)):
        for k, v in many.items():
            act = partial(_item, 1, v)
            found.append(Fault(f"reward-{k}", "step", act, LATE, is_tolerable=spared))
    for many, spared in ((STEPS, False), (TOLERABLE_STEPS, True)):
        for k, v in many.items():
            act = partial(_other, v)
            found.append(Fault(f"step-{k}", "step", act, LATE, is_tolerable=spared))
    closing = {"raise": partial(_throw, ERRORS["lines"]), "exit": partial(_throw, SystemExit)}
    found += [Fault(f"close-{k}", "close", v, is_tolerable=True) for k, v in closing.items()]
    silent = partial(_call, lambda: sys.stdout.close())
    found.append(Fault("silence", "step", silent, LATE, is_tolerable=True))
    return found


FAULTS = _faults()
