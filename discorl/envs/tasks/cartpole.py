"""Cart-pole: keep a pole upright on a cart; the dynamics of Gymnasium's CartPole-v1 on tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from discorl.envs.tasks import sampling as draw
from discorl.envs.tasks.sampling import IntRange, Range
from discorl.envs.tasks.task import Step, Task, in_order, later_step
from discorl.types import EnvSpec

SECONDS_PER_STEP = 0.02
MAX_POSITION = 2.4
MAX_ANGLE = 12 * 2 * math.pi / 360


class CartPoleSettings(NamedTuple):
    """Parameters of a task, each [B] but for the orders."""

    gravity: Tensor
    cart_mass: Tensor
    pole_mass: Tensor
    half_length: Tensor  # of the pole
    force: Tensor
    horizon: Tensor
    actions: Tensor | None  # [B, 2], what each action does, if they are shuffled
    observations: Tensor | None  # [B, 4], the order of what is observed, if it is shuffled


CONSTANTS = CartPoleSettings._fields[:5]
"""What is drawn uniformly."""


class CartPoleState(NamedTuple):
    """Position, velocity, angle and angular velocity [B, 4]; steps since the beginning [B]."""

    motion: Tensor
    time: Tensor
    settings: CartPoleSettings


@dataclass(eq=False)
class CartPole(Task[CartPoleSettings, CartPoleState]):
    """Actions: push left, push right. Every step is worth 1, the last one too.

    An episode ends when the cart or the pole leaves its limits, and at the horizon: that is an end
    like the other, where Gymnasium speaks of a truncation.
    """

    gravity: Range = 9.8
    cart_mass: Range = 1.0
    pole_mass: Range = 0.1
    half_length: Range = 0.5
    force: Range = 10.0
    horizon: IntRange = 500
    shuffle_actions: bool = False
    shuffle_observations: bool = False

    def _prepare(self) -> EnvSpec:
        for name in CONSTANTS:
            draw.check_range(name, getattr(self, name), 1e-6)
        draw.check_range("horizon", self.horizon, 1)
        success = 0.95 * self.horizon if isinstance(self.horizon, int) else None
        return EnvSpec(observation_shape=(4,), num_actions=2, success_return=success)

    def _draw(self, num: int, generator: Generator) -> CartPoleSettings:
        return CartPoleSettings(
            *(draw.uniform(getattr(self, name), (num,), generator) for name in CONSTANTS),
            horizon=draw.log_integers(self.horizon, (num,), generator),
            actions=draw.shuffle(self.shuffle_actions, num, 2, generator),
            observations=draw.shuffle(self.shuffle_observations, num, 4, generator),
        )

    def _begin(self, s: CartPoleSettings, generator: Generator) -> tuple[CartPoleState, Tensor]:
        state = CartPoleState(self._new_motion(generator), torch.zeros_like(s.horizon), s)
        return state, self._observe(state)

    def step(
        self, state: CartPoleState, actions: Tensor, generator: Generator
    ) -> Step[CartPoleState]:
        s = state.settings
        right = in_order(s.actions, actions)
        motion = _swing(state.motion, s, s.force * (2.0 * right - 1.0))
        time = state.time + 1
        fallen = (motion[:, 0].abs() > MAX_POSITION) | (motion[:, 2].abs() > MAX_ANGLE)
        ended = fallen | (time >= s.horizon)
        motion = torch.where(ended[:, None], self._new_motion(generator), motion)
        state = CartPoleState(motion, torch.where(ended, 0, time), s)
        return state, later_step(self._observe(state), torch.ones_like(s.force), ended)

    def _new_motion(self, generator: Generator) -> Tensor:
        return 0.1 * self._chances(generator, 4) - 0.05

    def _observe(self, state: CartPoleState) -> Tensor:
        order = state.settings.observations
        return state.motion if order is None else state.motion.gather(1, order)


def _swing(motion: Tensor, s: CartPoleSettings, force: Tensor) -> Tensor:
    """The motion one step later, by Euler's method."""
    _, velocity, angle, spin = motion.unbind(1)
    sine, cosine = angle.sin(), angle.cos()
    mass = s.cart_mass + s.pole_mass
    moment = s.pole_mass * s.half_length
    push = (force + moment * spin**2 * sine) / mass
    spin_rate = (s.gravity * sine - cosine * push) / (
        s.half_length * (4 / 3 - s.pole_mass * cosine**2 / mass)
    )
    acceleration = push - moment * spin_rate * cosine / mass
    rates = torch.stack([velocity, acceleration, spin, spin_rate], 1)
    return motion + SECONDS_PER_STEP * rates
