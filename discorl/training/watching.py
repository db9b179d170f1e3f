"""Everything that looks at a run while it trains: evaluations, goals, and the user's callback."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discorl.bounds import MAX_COUNT, check_between
from discorl.envs.base import Env, is_tensor_env
from discorl.errors import DiscorlError
from discorl.runs.metrics import Row
from discorl.runs.program import Asked
from discorl.training.build import make_copies
from discorl.training.callback import Callback, RunView, call
from discorl.training.checkup import (
    POLICIES,
    Best,
    Checkup,
    Checkups,
    Policy,
    check_same_spaces,
)
from discorl.training.trained_agent import LoadedAgent, net_with_params

if TYPE_CHECKING:
    from discorl.training.train import Training


@dataclass(frozen=True)
class Watchers:
    """Who else looks at a run, besides the settings."""

    callback: Callback | None = None
    """Called after each training step, in the first process."""
    eval_env: Any = None
    """Environments for evaluations, if they are not to be made like those of training."""


class Watching:
    """Looks at a training run between its steps, in the first process; the others do not look.

    None of it draws from the random numbers of training: with or without it, agents are the same.
    """

    def __init__(self, program: Training, watchers: Watchers, resumed: Path | None) -> None:
        self._program, self._callback = program, watchers.callback
        self._eval_env, self._resumed = watchers.eval_env, resumed
        self._checkups = Checkups(self._make_env, program.config.seed)
        self._view = RunView(self)
        self._asked = Asked()
        self._saved: Best | None = None
        self.folder = Path()
        if program.ranks.is_first and program.config.eval_every:
            self._checkups.open(program.config.eval_episodes)

    @property
    def program(self) -> Training:
        """The run."""
        return self._program

    def begin_step(self, folder: Path) -> None:
        """Before a step: the best agent of a run that is resumed is as the checkpoint has it."""
        self.folder = folder
        self.save_best()

    def scores(self) -> Row:
        """For a row of metrics: the scores of an evaluation, if one is due."""
        config, step = self._program.config, self._program.state.step
        is_due = config.eval_every > 0 and step % config.eval_every == 0
        return self.check_up().row() if is_due and self._program.ranks.is_first else {}

    def look(self, folder: Path, row: Row | None) -> None:
        """After a step: let the callback look."""
        self._asked = Asked()
        if self._callback is not None and self._program.ranks.is_first:
            self._view.show(folder, row)
            failure = call(self._callback, self._view)
            self._asked = replace(self._asked, failure=failure)

    def ask(self, stop: str = "", checkpoint: bool = False) -> None:
        """The callback asks for something, besides what it has asked for before."""
        before = self._asked
        self._asked = Asked(stop or before.stop, checkpoint or before.checkpoint)

    def asked(self) -> Asked:
        """What the callback asked for, or the settings."""
        if not self._program.ranks.is_first or self._asked.stop:
            return self._asked
        return replace(self._asked, stop=self._goal_reached())

    def _goal_reached(self) -> str:
        config, state = self._program.config, self._program.state
        goal, latest = config.stop_at_return, state.seen.latest
        if goal is not None and latest is not None and latest >= goal:
            return f"the mean return is {latest:.6g}, and --stop-at-return {goal:g}"
        if config.max_minutes is not None and state.seconds >= 60 * config.max_minutes:
            return f"--max-minutes {config.max_minutes:g} are over"
        return ""

    def check_up(self, episodes: int | None = None, policy: Policy | None = None) -> Checkup:
        """Evaluate the agent as it is now, and keep it if it is the best so far."""
        program, config, state = self._program, self._program.config, self._program.state
        episodes = config.eval_episodes if episodes is None else episodes
        check_between(1, MAX_COUNT, "episodes", episodes)
        chosen = policy or config.eval_policy
        if chosen not in ("both", *POLICIES):
            raise DiscorlError(f"policy must be {' or '.join(POLICIES)}, not {chosen!r:.40}")
        memory = state.env_memory.state_dict()
        played = self._checkups.play(
            self.agent(), memory, episodes, POLICIES if chosen == "both" else (chosen,)
        )
        checkup = Checkup(state.step, program.env_steps, episodes, *played)
        state.seen.judge(checkup, state.agent.params, memory)
        self.save_best()
        return checkup

    def agent(self) -> LoadedAgent:
        """A copy of the agent as it is now."""
        program = self._program
        params = {k: p.detach().clone() for k, p in program.state.agent.params.items()}
        net = net_with_params(program.env.spec, program.agent.rule, program.config.net, params)
        device = program.ranks.device
        return LoadedAgent(
            *(self.folder, program.config, program.choice.name, net.to(device).eval(), device),
            env_memory=program.state.env_memory.state_dict(),
            env=program.users_env,
        )

    def save_best(self) -> None:
        """Write the best agent, unless it is there already."""
        best = self._program.state.seen.best
        if best is not None and best is not self._saved and self._program.ranks.is_first:
            best.save(self.folder)
            self._saved = best

    def close(self) -> None:
        """End what the evaluations' environments run."""
        self._checkups.close()

    def _make_env(self, num_envs: int) -> Env:
        """Environments for evaluations; a user's own must be made again, or given by the user."""
        program, source = self._program, self._eval_env
        if source is None and (source := program.users_env) is not None:
            if is_tensor_env(program.env):
                return program.env  # all that changes is in the states
            if not callable(source) and not isinstance(source, str):  # a name can be made again
                raise DiscorlError(
                    "evaluations need environments of their own, and a ready one cannot be copied: "
                    "pass eval_env=, or a function that makes the environment as env="
                )
        device = program.ranks.device
        env = make_copies(num_envs, program.config, device, source, self._resumed)
        check_same_spaces(env, program.env)
        return env
