"""From a configuration to an agent: schedules, weight decay, replay; and runs that use them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from discorl.agents.update import update_agent
from discorl.envs.tasks.catch import Catch
from discorl.rules import PolicyGradient
from discorl.runs.distributed import Ranks
from discorl.runs.files import load_params
from discorl.training import build
from discorl.training.build import learning_rate, make_agent, make_optimiser, make_replay
from discorl.training.config import NetConfig, OptimiserConfig, TrainConfig
from discorl.training.rule_choice import choose_rule
from discorl.training.train import train
from discorl.types import EnvSpec, TimeStep
from tests.builders import random_rollout, rng, write_small_rule


def rates(config: TrainConfig, *counts: int) -> list[float]:
    schedule = learning_rate(config)
    assert callable(schedule)
    return [float(schedule(torch.tensor(float(n)))) for n in counts]


def config(**changes: Any) -> TrainConfig:
    start = TrainConfig(
        steps=100,
        num_envs=2,
        rollout_length=5,
        updates_per_step=2,
        optimiser=OptimiserConfig(learning_rate=1.0, schedule="cosine", warmup_steps=200),
    )
    return replace(start, **changes)


def test_warm_up_is_in_environment_steps_and_the_fall_ends_with_the_run() -> None:
    """200 environment steps are 20 training steps of 10, so 40 updates; the run has 200."""
    got = rates(config(), 0, 19, 39, 40, 120, 200)
    assert got == pytest.approx([1 / 40, 0.5, 1.0, 1.0, 0.5, 0.0], abs=1e-6)


def test_warm_up_to_a_constant() -> None:
    constant = OptimiserConfig(learning_rate=1.0, warmup_steps=200)
    assert rates(config(optimiser=constant), 0, 19, 39, 40, 5000) == pytest.approx(
        [1 / 40, 0.5, 1.0, 1.0, 1.0]
    )
    plain = OptimiserConfig(learning_rate=0.5)
    assert learning_rate(config(optimiser=plain)) == 0.5


def test_weight_decay_is_decoupled_and_not_clipped() -> None:
    """Adam's first step is 1, clipped to 0.5; the decay of 0.1 * 30 joins after the clip."""
    c = OptimiserConfig(learning_rate=0.1, max_abs_update=0.5, weight_decay=0.1)
    transform = make_optimiser(config(optimiser=c))
    params = {"x": torch.tensor([30.0])}
    updates, _ = transform.update({"x": torch.tensor([2.0])}, transform.init(params), params)
    torch.testing.assert_close(updates["x"], torch.tensor([-0.1 * (0.5 + 3.0)]))


def test_the_schedule_moves_the_agent() -> None:
    """The first of 40 updates of warm-up makes a 40th of the step."""
    sizes = []
    for optimiser in (config().optimiser, OptimiserConfig(learning_rate=1.0)):
        agent = make_agent(config(optimiser=optimiser), EnvSpec((4,), 3), PolicyGradient())
        _, info = update_agent(agent, {}, agent.init_state(rng()), random_rollout())
        sizes.append(float(info.update_norm))
    assert 40 * sizes[0] == pytest.approx(sizes[1], rel=1e-5)


def test_settings_reach_the_agent_and_the_replay() -> None:
    c = config(
        burn_in=2,
        frame_stack=4,
        replay_transitions=500,
        mask_episode_starts=False,
        net=NetConfig(core_lstm=7),
    )
    agent = make_agent(c, EnvSpec((4,), 3), choose_rule(replace(c, rule="actor-critic")).rule)
    assert agent.burn_in == 2
    assert not agent.rule.mask_episode_starts
    assert agent.net.core.hidden_size == 7  # type: ignore[union-attr]
    replay = make_replay(c, Ranks(0, 1, torch.device("cpu")))
    assert replay.capacity == 100
    assert replay.frame_stack == 4


# --- runs -----------------------------------------------------------------------------------------

SMALL_NET = NetConfig(torso=(16,), channels=(3, 4), dense=12, action_lstm=5, head_hidden=(6,))


def run_config(tmp_path: Path, **changes: Any) -> TrainConfig:
    start = TrainConfig(
        task="catch:5x4",
        rule=str(write_small_rule(tmp_path / "rule.npz")),
        steps=4,
        num_envs=3,
        rollout_length=7,
        batch_size=4,
        replay_transitions=70,
        replay_share=0.5,
        log_every=1,
        out=tmp_path / "run",
        progress="none",
        device="cpu",
        net=SMALL_NET,
        optimiser=OptimiserConfig(1e-3, schedule="cosine", warmup_steps=21, weight_decay=0.1),
    )
    return replace(start, **changes)


@pytest.mark.parametrize("core", [0, 6])
@pytest.mark.parametrize("kind", ["mlp", "conv", "impala"])
def test_networks_of_every_kind_run(kind: Any, core: int, tmp_path: Path) -> None:
    net = replace(SMALL_NET, torso_kind=kind, core_lstm=core)
    result = train(run_config(tmp_path, net=net, burn_in=2 if core else 0))
    assert "loss" in result.metrics[-1]
    names = load_params(result.folder / "agent.npz")
    assert ("core.gates.weight" in names) == bool(core)


@dataclass(frozen=True)
class Film:
    """The state of Catch, and its last frames."""

    catch: Any
    stack: Tensor


class StackedCatch(Catch):
    """Catch as the last 3 frames of a film, zeros before an episode."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.spec = EnvSpec(
            (3, *self.spec.observation_shape[-2:]), 3, is_image=True, observation_dtype=torch.uint8
        )

    def reset(self, generator: torch.Generator, settings: Any = None) -> Any:
        state, timestep = super().reset(generator, settings)
        return self._film(state, timestep, None)

    def step(self, state: Any, actions: Tensor, generator: torch.Generator) -> Any:
        inner, timestep = super().step(state.catch, actions, generator)
        return self._film(inner, timestep, state.stack)

    def _film(self, state: Any, timestep: TimeStep, stack: Tensor | None) -> tuple[Film, TimeStep]:
        frame = (255 * timestep.observation).to(torch.uint8).unsqueeze(1)
        if stack is None:
            stack = torch.zeros_like(frame).repeat(1, 3, 1, 1)
        stack = stack * (timestep.discount != 0).reshape(-1, 1, 1, 1)
        stack = torch.cat([stack[:, 1:], frame], 1)
        return Film(state, stack), replace(timestep, observation=stack)


@pytest.mark.parametrize("core", [0, 6])
def test_storing_frames_once_changes_nothing(
    core: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same run, to the last bit, with stacks kept whole and with single frames."""
    monkeypatch.setattr(build, "make_env", lambda _, n, *more: StackedCatch(n, 5, 4))
    params = []
    for frame_stack in (1, 3):
        result = train(
            run_config(
                tmp_path,
                out=tmp_path / str(frame_stack),
                frame_stack=frame_stack,
                steps=8,
                net=replace(SMALL_NET, core_lstm=core),
            )
        )
        params.append(load_params(result.folder / "agent.npz"))
    assert "torso.layers.0.weight" in params[0], "auto takes convolutions for images"
    for name, p in params[0].items():
        assert torch.equal(p, params[1][name]), name


class Recall:
    """Shows a cue, then nothing for two steps; then the action should name the cue."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.spec = EnvSpec((3,), 2, success_return=1.0)

    def reset(self, generator: torch.Generator) -> Any:
        cue = torch.randint(2, (self.num_envs,), generator=generator)
        zeros = torch.zeros(self.num_envs)
        return (cue, 0), TimeStep(self._show(cue, 0), zeros, zeros + 1)

    def step(self, state: Any, actions: Tensor, generator: torch.Generator) -> Any:
        cue, time = state
        if time < 3:
            zeros = torch.zeros(self.num_envs)
            return (cue, time + 1), TimeStep(self._show(cue, time + 1), zeros, zeros + 1)
        new = torch.randint(2, (self.num_envs,), generator=generator)
        reward = (actions == cue).float()
        return (new, 0), TimeStep(self._show(new, 0), reward, torch.zeros_like(reward))

    def _show(self, cue: Tensor, time: int) -> Tensor:
        shown = torch.zeros(self.num_envs, 3)
        if time == 0:
            shown[torch.arange(self.num_envs), cue] = 1.0
        shown[:, 2] = float(time == 3)
        return shown


@pytest.mark.parametrize("core", [0, 16])
def test_a_core_remembers_what_a_torso_cannot(
    core: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without memory half of the episodes succeed, by chance."""
    monkeypatch.setattr(build, "make_env", lambda _, n, *more: Recall(n))
    actor_critic = replace(TrainConfig().actor_critic, entropy_cost=0.01, num_bins=None)
    result = train(
        run_config(
            tmp_path,
            rule="actor-critic",
            steps=150,
            num_envs=16,
            rollout_length=9,
            batch_size=16,
            replay_transitions=16 * 9,
            replay_share=0.5,
            log_every=50,
            net=replace(SMALL_NET, core_lstm=core),
            optimiser=OptimiserConfig(1e-2),
            actor_critic=actor_critic,
        )
    )
    success = result.metrics[-1]["success"]
    assert success > 0.9 if core else success < 0.65
