"""Evaluations in the middle of a run: their scores, and the best agent so far."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from discorl.bounds import MAX_COUNT
from discorl.envs.base import Env, close_env
from discorl.errors import DiscorlError
from discorl.runs.files import save_params
from discorl.runs.metrics import Row
from discorl.training.agent_files import BEST, BEST_ENV
from discorl.training.evaluate import MAX_EPISODE_STEPS, Episodes, play
from discorl.training.trained_agent import LoadedAgent, learn_nothing
from discorl.types import Params

Policy = Literal["sampled", "greedy"]
POLICIES: tuple[Policy, ...] = ("sampled", "greedy")
PREFIX = "eval/"
"""Of the scores in metrics.jsonl."""
MAX_COPIES = 16
FIRST_SEED = 2**62
"""Of the environments' random numbers: beyond all seeds that training uses."""


@dataclass(frozen=True)
class Checkup:
    """What the agent of one training step scores."""

    step: int
    env_steps: int
    episodes: int
    """How many were played with each policy."""
    returns: dict[str, float]
    """The mean return of each policy, ``sampled`` or ``greedy``."""
    success: dict[str, float] = field(default_factory=dict)
    """The success rate of each policy, if the task has one."""

    @property
    def score(self) -> float:
        """The return that decides which agent is the best: of sampled actions if they were played,
        as in ``discorl evaluate``."""
        return self.returns.get("sampled", self.returns.get("greedy", math.nan))

    def row(self) -> Row:
        """The scores as metrics."""
        success = {f"{PREFIX}{name}_success": x for name, x in self.success.items()}
        return {f"{PREFIX}{name}": x for name, x in self.returns.items()} | success


class Checkups:
    """Plays episodes with the agent of a run, on environments that training never sees.

    All evaluations of a run play the same starts, so that two of them differ by their agents.
    """

    def __init__(self, make: Callable[[int], Env], seed: int) -> None:
        self._make = make
        self._seed = FIRST_SEED + seed
        self._env: Env | None = None

    def open(self, episodes: int) -> Env:
        """The environments; made for the first evaluation, or before it to see that they can be."""
        if self._env is None:
            self._env = self._make(min(episodes, MAX_COPIES))
        return self._env

    def play(
        self,
        agent: LoadedAgent,
        memory: dict[str, Any],
        episodes: int,
        policies: Sequence[Policy],
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Mean returns and success rates; ``memory`` is what the training's environments know."""
        env = self.open(episodes)
        learn_nothing(env, memory)
        played: dict[str, Episodes] = {
            name: play(agent, env, episodes, self._seed, name == "greedy", MAX_EPISODE_STEPS)
            for name in policies
        }
        returns = {name: float(np.mean(p.returns)) for name, p in played.items()}
        if (goal := env.spec.success_return) is None:
            return returns, {}
        return returns, {k: float(np.mean(np.array(p.returns) >= goal)) for k, p in played.items()}

    def close(self) -> None:
        """End what the environments run."""
        if self._env is not None:
            close_env(self._env)


@dataclass(frozen=True)
class Best:
    """The agent with the best score so far."""

    checkup: Checkup
    params: Params
    env_memory: dict[str, Any]

    def save(self, folder: Path) -> None:
        """As best.npz, like agent.npz, and what its environments knew then."""
        try:
            if self.env_memory:
                save_params(folder / BEST_ENV, self.env_memory)
            save_params(folder / BEST, self.params)
        except OSError as e:
            raise DiscorlError(
                f"cannot write {folder / BEST}: {e.strerror}; free some space, then use --resume"
            ) from None


class Seen:
    """What a run knows about how good it is: the state of everything that watches it."""

    def __init__(self) -> None:
        self.latest: float | None = None
        """The return that --stop-at-return waits for: of the last evaluation or the last row that
        had one."""
        self.best: Best | None = None

    def judge(self, checkup: Checkup, params: Params, env_memory: dict[str, Any]) -> None:
        """Take note of a score; the agent is the best if it is better than all before it."""
        self.latest = checkup.score
        if self.best is None or checkup.score > self.best.checkup.score:
            self.best = Best(checkup, params, env_memory)

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint, together with the best agent: a resumed run may not find it again."""
        if self.best is None:
            return {"latest": self.latest, "best": None}
        of_best = {"checkup": asdict(self.best.checkup), "params": dict(self.best.params)}
        return {"latest": self.latest, "best": of_best | {"env_memory": self.best.env_memory}}

    def load_state_dict(self, state: dict[str, Any], like: Params) -> None:
        """Go on from what ``state_dict`` returned; ``like`` are parameters of the same agent."""
        latest, best = state["latest"], state["best"]
        if not (latest is None or isinstance(latest, float)):
            raise ValueError(f"a return of {latest!r:.40}")
        self.latest = latest
        self.best = None if best is None else _best(best, like)


def _best(saved: dict[str, Any], like: Params) -> Best:
    checkup = Checkup(**saved["checkup"])
    counts = (checkup.step, checkup.env_steps, checkup.episodes)
    if not all(type(n) is int and 0 <= n <= MAX_COUNT for n in counts):
        raise ValueError(f"an evaluation at {counts!r:.40}")
    returns = checkup.returns
    if not returns or not all(type(x) is float and math.isfinite(x) for x in returns.values()):
        raise ValueError(f"returns of {returns!r:.40}")
    params, memory = dict(saved["params"]), dict(saved["env_memory"])
    if {k: p.shape for k, p in params.items()} != {k: p.shape for k, p in like.items()}:
        raise ValueError("the best agent has another network")
    if not all(isinstance(x, Tensor) for x in memory.values()):
        raise ValueError("the best agent's environments know no numbers")
    return Best(checkup, {k: p.to(like[k]) for k, p in params.items()}, memory)


def check_same_spaces(env: Env, training: Env) -> None:
    """Raise unless the agent can play there."""
    if env.spec != training.spec:
        raise DiscorlError(
            f"the evaluation's environment differs from the training's: {env.spec} instead of "
            f"{training.spec}; give eval_env= the same spaces"
        )


def checkup_table(rows: Iterable[Row], most: int = 12) -> str:
    """The evaluations of a run as text; of many, some, the last among them."""
    having = [row for row in rows if any(name.startswith(PREFIX) for name in row)]
    if not having:
        return ""
    names = [p for p in POLICIES if any(PREFIX + p in row for row in having)]
    stride = -(-len(having) // most)
    lines = [f"{'step':>9} {'env steps':>13}" + "".join(f" {p:>10}" for p in names)]
    for row in having[::-1][::stride][::-1]:
        scores = (row.get(PREFIX + p) for p in names)
        cells = (" " * 11 if x is None else f" {x:>10.3f}" for x in scores)
        lines.append(f"{row['step']:>9,} {row['env_steps']:>13,}" + "".join(cells))
    return "\n".join(["Mean returns of the evaluations:", *lines])
