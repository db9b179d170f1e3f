"""Presets: functions that return a configuration, all of it overridable."""

from __future__ import annotations

from discorl.config import NetConfig, OptimiserConfig, TrainConfig


def catch(task: str = "catch") -> TrainConfig:
    """The reference's evaluation on Catch."""
    return TrainConfig(task=task)


def gymnasium(task: str) -> TrainConfig:
    """Classic control and the like: more environments, a smaller network and learning rate."""
    return TrainConfig(
        task=task,
        steps=700,
        num_envs=16,
        net=NetConfig(torso=(128, 128), action_lstm=64, head_hidden=(64,)),
        optimiser=OptimiserConfig(learning_rate=5e-3),
    )


def for_task(task: str) -> TrainConfig:
    """The preset that a task starts from."""
    return gymnasium(task) if task.startswith("gym:") else catch(task)
