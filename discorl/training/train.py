"""Training one agent: act, store, sample, learn."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from discorl import tree
from discorl.agents.acting import act, check_rollout
from discorl.agents.burn_in import without_burn_in
from discorl.agents.first_values import begin_values_at, mean_value
from discorl.agents.update import update_agent
from discorl.envs.base import close_env, is_tensor_env
from discorl.envs.suites import default_settings
from discorl.errors import DiscorlError
from discorl.ops.moments import alone
from discorl.runs import distributed
from discorl.runs.changes import check_changes
from discorl.runs.config_file import from_json
from discorl.runs.curves import plot_curve
from discorl.runs.distributed import Ranks
from discorl.runs.files import save_params
from discorl.runs.metrics import Row, is_due
from discorl.runs.program import Asked, Diverged, RunResult
from discorl.runs.run import run
from discorl.training.build import (
    PYTHON_ENV,
    check_env_is_given,
    compiled,
    make_agent,
    make_environment,
)
from discorl.training.callback import Callback
from discorl.training.checkup import checkup_table
from discorl.training.config import MAY_CHANGE, TrainConfig
from discorl.training.divergence import LossGuard, explain, extremes, most_extreme
from discorl.training.kernels import how_to_compute
from discorl.training.keywords import settings_of
from discorl.training.rule_choice import check_same_rule, choose_rule, resolved_rule
from discorl.training.state import new_state, restore_state, snapshot
from discorl.training.stats import replay_age
from discorl.training.watching import Watchers, Watching


def train(
    config: TrainConfig | str = "catch",
    console: Console | None = None,
    env: Any = None,
    callback: Callback | None = None,
    eval_env: Any = None,
    **settings: Any,
) -> RunResult:
    """Train an agent and leave a run folder: config.json, metrics.jsonl, curve.png, agent.npz.

    ``config`` is a ``TrainConfig``, or the name of a task, which stands for the same settings as on
    the command line. ``settings`` are fields of ``TrainConfig`` that should be others:
    ``train("gym:CartPole-v1", rule="disco103", env_steps=200_000, out="runs/x")``. Of a group, a
    mapping changes some: ``optimiser={"learning_rate": 1e-3}``.

    ``env`` replaces the environment that ``config.task`` names: a function that makes a
    ``gymnasium.Env``, a ready ``gymnasium.vector.VectorEnv``, or an environment of our own kind.
    To evaluate the agent or to resume the run, give it again.
    Ctrl-C ends the run early, and so does an environment that fails; what was learnt is kept, and
    ``resume`` continues from it. Started by torchrun, the processes share the environments and the
    batch.

    ``callback`` is called after each training step with a ``RunView``: it may look at counters,
    metrics and the agent, and ask to evaluate, to checkpoint or to stop. If it fails, the run stops
    and keeps what was learnt. Evaluations, its own and those of ``config.eval_every``, take place
    in environments like ``env``, or in ``eval_env``, which can be the same kinds of things.
    """
    config = settings_of(config, settings)
    with distributed.joined(config.device, config.timeout_minutes) as ranks:
        return run(Training(config, ranks, env, Watchers(callback, eval_env)), console)


def resume(
    config: TrainConfig,
    console: Console | None = None,
    env: Any = None,
    skip_replay: bool = False,
    callback: Callback | None = None,
    eval_env: Any = None,
) -> RunResult:
    """Continue the run in ``config.out`` from its last checkpoint; ``env``, ``callback`` and
    ``eval_env`` as for ``train``.

    ``config`` is what ``read_config`` gave; ``training.config.MAY_CHANGE`` lists what may differ.
    With environments on tensors the result is the same, bit for bit, as that of a run that was
    never interrupted. Others, such as Gymnasium's, start new episodes, unless ``exact_resume`` is
    on in ``config.env``.

    A run that diverged goes back to its last good checkpoint. With ``skip_replay`` it keeps the
    newest agent instead, and starts with an empty replay. Rewards of another scale need one, too.
    """
    with distributed.joined(config.device, config.timeout_minutes) as ranks:
        program = Training(config, ranks, env, Watchers(callback, eval_env), skip_replay)
        return run(program, console, resume=True, even_diverged=skip_replay)


class Training:
    """The program: each step acts in every environment, then makes some updates."""

    kind, unit, result = "train", "step", "agent.npz"

    def __init__(
        self,
        config: TrainConfig,
        ranks: Ranks,
        env: Any = None,
        watchers: Watchers | None = None,
        skip_replay: bool = False,
    ) -> None:
        self.config, self.ranks = config, ranks
        self.row_every: Sequence[int] = [n for n in (config.log_every, config.eval_every) if n]
        self.users_env = env
        self._watchers = watchers or Watchers()
        self._skip_replay = skip_replay

    def begin(self, before: dict[str, Any] | None = None) -> str:
        """Environment (the user's if there is one), rule, agent and newborn state."""
        config, ranks = self.config, self.ranks
        if before and (size := before.get("num_processes", 1)) != ranks.size:
            raise DiscorlError(
                f"{config.out} is a run of {size} process(es), not {ranks.size}: "
                f"use torchrun --nproc-per-node {size}"
            )
        if before and config.out:
            check_env_is_given(config.out, before, self.users_env)
        config = self._completed(config)
        resumed = config.out if before else None
        self.env = make_environment(config, ranks, self.users_env, resumed)
        config = replace(config, num_envs=self.env.num_envs * ranks.size)
        self.config = config = replace(config, env_steps=None)  # they are known as steps from now
        self._before = self._completed(from_json(TrainConfig, before)) if before else config
        self.choice = choose_rule(config)
        if before:
            check_same_rule(self.choice, before)
            check_changes(config.out, self._before, config, MAY_CHANGE)
        self.config = config = how_to_compute(config, ranks, before)
        agent = make_agent(config, self.env.spec, self.choice.rule)
        self.agent = compiled(agent, config, ranks)
        self.rule_params = tree.to(self.choice.params, ranks.device)
        self.batch_size = ranks.shard(config.batch_size, "batch_size")
        self.num_fresh = ranks.share(config.num_fresh)
        self._first_updates = -(-self.batch_size // self.env.num_envs)  # the step that has them
        self.across = distributed.mean if ranks.size > 1 else alone
        self._guard = LossGuard(config.max_loss)
        self.state = new_state(config, self.agent, self.env, ranks)
        self._watching = Watching(self, self._watchers, resumed)
        self.name = f"{config.task.replace(':', '-')}-{self.choice.name}"
        self.success_name = self.env.spec.success_name
        about = f"Training on {config.task} with {self.choice.name} on {ranks.device}"
        return f"{self.choice.note}\n{about}" if self.choice.note else about

    def _completed(self, config: TrainConfig) -> TrainConfig:
        """With the options of the task's suite, which may be left open, for config.json."""
        if self.users_env is not None or config.env.suite is not None:
            return config
        return replace(config, env=replace(config.env, suite=default_settings(config.task)))

    def step(self, folder: Path) -> None:
        """Act; store what was seen; learn from a sample of what is stored."""
        self._watching.begin_step(folder)
        state, config = self.state, self.config
        state.env_memory.is_ahead = True
        try:
            with self.agent.acting():
                rollout, after = act(
                    self.agent.net,
                    state.agent.params,
                    self.env,
                    state.acting,
                    config.rollout_length,
                    bootstrap=self.agent.rule if config.env.truncation == "bootstrap" else None,
                )
        finally:
            self._check_losses()  # of the step before
        check_rollout(rollout)
        state.acting, state.env_memory.is_ahead = after, False
        state.replay.add(rollout)
        state.episodes.observe(rollout)
        state.step += 1
        if len(state.replay) >= self.batch_size:
            if config.estimate_values and state.step == self._first_updates:
                seen = state.replay.take(state.replay.slots())
                value = mean_value(seen, self.agent.rule.returns.discount, self.across)
                state.agent = begin_values_at(value, self.agent, state.agent)
            self._learn()

    def _learn(self) -> None:
        state, agent = self.state, self.agent
        self._guard.begin(state.step, state.agent)
        last = self.config.updates_per_step - 1
        for i in range(last + 1):
            slots = state.replay.draw(self.batch_size, state.sample_rng, self.num_fresh)
            batch = state.replay.take(slots)
            state.agent, info = update_agent(
                agent, self.rule_params, state.agent, batch, across=self.across
            )
            self._guard.watch(info, slots)
            state.updates.observe(info)
            if i == last and is_due(state.step, self.row_every):
                learnt_from = without_burn_in(batch, agent.burn_in)
                said = agent.rule.diagnostics(info.predictions, info.targets, learnt_from)
                state.updates.diagnose(said)

    def _check_losses(self) -> None:
        """If learning has gone wrong, go back to the agent from before and say why."""
        if found := self._guard.check():
            self.state.agent = found.last_good
            self.state.updates.clear()
            own = {str(self.ranks.rank): extremes(found, self.state.replay)}
            said = explain(
                found,
                self._guard,
                most_extreme(distributed.merge(own).values()),
                self.config.optimiser.learning_rate,
                rewards_can_be_scaled=not is_tensor_env(self.env),
            )
            raise Diverged(f"{said}. The agent is as it was before that step")

    def row(self) -> Row:
        """Episodes, losses, and what the rule says about itself."""
        self._check_losses()
        state, config = self.state, self.config
        row = {
            "env_steps": self.env_steps,
            "episodes": distributed.total(state.episodes.num_episodes),
            **state.episodes.summary(distributed.mean),
            **state.updates.summary(distributed.mean),
            "replay/age": replay_age(
                self.ranks.size * len(state.replay),
                config.num_envs,
                config.num_fresh,
                config.batch_size,
            ),
        }
        if not config.eval_every:
            state.seen.latest = row.get("return", state.seen.latest)
        return row | self._watching.scores()

    @property
    def env_steps(self) -> int:
        """Environment steps done, in all processes."""
        return self.state.step * self.config.env_steps_per_step

    def position(self) -> int:
        """In environment steps."""
        return self.env_steps

    def watch(self, folder: Path, row: Row | None) -> None:
        """Show the run to the callback."""
        self._watching.look(folder, row)

    def asked(self) -> Asked:
        """What the callback asked for, or the settings."""
        return self._watching.asked()

    def snapshot(self) -> dict[str, Any] | None:
        """Everything that changes, of all processes."""
        self._check_losses()
        return snapshot(self.state, self.config.reward_settings)

    def restore(self, content: dict[str, Any] | None) -> str:
        """Set the newborn state to a checkpoint's."""
        is_exact, has_replay, differs = restore_state(
            *(self.state, content, self.agent, self.env),
            *(self.config, self._before, self._skip_replay),
        )
        notes = []
        if not has_replay and not self._skip_replay:
            notes.append("The rewards have another scale now, so the replay starts empty")
        if not is_exact:
            rest = "; the rest is exact" if has_replay else ""
            why = "These environments cannot be saved, so they"
            if differs:
                why = f"The episodes were played again, but {differs}: the environments"
            notes.append(f"{why} start new episodes{rest}")
        return "\n".join(notes)

    def finish(self, folder: Path, rows: Iterable[Row]) -> str:
        """The agent, what its environments have learnt about their observations, and the curve."""
        if self.ranks.is_first:
            save_params(folder / "agent.npz", self.state.agent.params)
            if env_memory := self.state.env_memory.state_dict():
                save_params(folder / "env.npz", env_memory)
            title = f"{self.config.task}, {self.choice.name}, seed {self.config.seed}"
            plot_curve(folder / "curve.png", rows, title, self.success_name)
        close_env(self.env)
        self._watching.close()
        return f"Curve: {folder / 'curve.png'}{self._about_best(folder, rows)}"

    def _about_best(self, folder: Path, rows: Iterable[Row]) -> str:
        """The evaluations, and where the best agent is."""
        if (best := self.state.seen.best) is None:
            return ""
        self._watching.begin_step(folder)  # a run that is resumed at its end takes no step
        found = f"Best agent: of step {best.checkup.step}, mean return {best.checkup.score:.6g}"
        return f"\n{checkup_table(rows)}\n{found}\nTo play it: discorl evaluate {folder} --best"

    def settings(self) -> dict[str, Any]:
        """The configuration with everything that was left open now filled in."""
        device = self.ranks.device
        # With several processes each has a device of that type.
        used = str(device) if self.ranks.size == 1 else device.type
        rule = {"rule": self.choice.name, "resolved_rule": resolved_rule(self.choice)}
        given = {} if self.users_env is None else {PYTHON_ENV: True}
        return dataclasses.asdict(self.config) | {"device": used} | rule | given
