"""A memory task: a cue is shown once and asked for later."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from discorl.envs.tasks import sampling as draw
from discorl.envs.tasks.sampling import IntRange
from discorl.envs.tasks.task import Task, in_order, later_step
from discorl.errors import DiscorlError
from discorl.types import EnvSpec, TimeStep


class MemorySettings(NamedTuple):
    """Parameters of a task."""

    length: Tensor  # [B]
    actions: Tensor | None  # [B, A], the cue that each action answers, if they are shuffled


class MemoryState(NamedTuple):
    """Steps since the cue, and the cue. Each [B]."""

    time: Tensor
    cue: Tensor
    settings: MemorySettings


class Memory(Task[MemorySettings, MemoryState]):
    """The cue is seen at time 0 only; at time ``length`` the right answer is rewarded with 1.

    A wrong one costs 1; actions before it do nothing. Observed are the cue (one-hot), whether the
    question is asked, and ``num_bits`` random bits. No policy without a memory does better than
    chance.
    """

    def __init__(
        self,
        num_envs: int,
        length: IntRange = 8,
        num_cues: int = 2,
        num_bits: int = 0,
        num_actions: int | None = None,
        device: torch.device | str = "cpu",
        *,
        shuffle_actions: bool = False,
        task_seed: int = 0,
    ) -> None:
        """``num_actions`` is the number of cues, or more to have useless ones."""
        num_actions = num_cues if num_actions is None else num_actions
        draw.check_range("the length of a memory task", length, 1, 1_000_000)
        draw.check_count("num_cues", num_cues, 2, 10_000)
        draw.check_count("num_bits", num_bits, 0, 10_000)
        if num_actions < num_cues:
            raise DiscorlError(
                f"{num_actions} actions cannot answer {num_cues} cues: give num_actions of "
                f"{num_cues} or more"
            )
        spec = EnvSpec(
            observation_shape=(num_cues + 1 + num_bits,),
            num_actions=num_actions,
            success_return=1.0,
        )
        super().__init__(num_envs, device, task_seed, spec)
        self._length, self._num_cues, self._num_bits = length, num_cues, num_bits
        self._shuffle_actions = shuffle_actions
        self._cues = torch.eye(num_cues + 1, device=self.device)[:, :-1]  # the last shows nothing

    def _draw(self, num: int, generator: torch.Generator) -> MemorySettings:
        return MemorySettings(
            length=draw.integers(self._length, (num,), generator),
            actions=draw.shuffle(self._shuffle_actions, num, self.spec.num_actions, generator),
        )

    def _begin(self, s: MemorySettings, generator: torch.Generator) -> tuple[MemoryState, Tensor]:
        random = self._random(generator)
        state = MemoryState(torch.zeros_like(s.length), self._new_cue(random), s)
        return state, self._observe(state, random)

    def step(
        self, state: MemoryState, actions: Tensor, generator: torch.Generator
    ) -> tuple[MemoryState, TimeStep]:
        s, random = state.settings, self._random(generator)
        answer = in_order(s.actions, actions)
        ended = state.time >= s.length
        reward = ended * (2.0 * (answer == state.cue) - 1.0)
        state = MemoryState(
            torch.where(ended, 0, state.time + 1),
            torch.where(ended, self._new_cue(random), state.cue),
            s,
        )
        return state, later_step(self._observe(state, random), reward, ended)

    def _random(self, generator: torch.Generator) -> Tensor:
        """Of the next cue, and of the bits."""
        return self._chances(generator, 1 + self._num_bits)

    def _new_cue(self, random: Tensor) -> Tensor:
        return (random[:, 0] * self._num_cues).long()

    def _observe(self, state: MemoryState, random: Tensor) -> Tensor:
        shown = self._cues[torch.where(state.time == 0, state.cue, self._num_cues)]
        asked = (state.time == state.settings.length).float()
        return torch.cat([shown, asked[:, None], (random[:, 1:] < 0.5).float()], 1)
