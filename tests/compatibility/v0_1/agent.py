"""An agent and an environment as a user wrote them for version 0.1, whose training was saved."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import discorl

RULE = "disco-mini"
NUM_ACTIONS, LENGTH = 3, 4


class Heads(nn.Module):
    """A layer for each head of the rule."""

    def __init__(self, num_inputs: int, rule: discorl.DiscoUpdateRule) -> None:
        super().__init__()
        sizes = rule.heads(NUM_ACTIONS)
        self.shapes = {k: (n,) for k, n in sizes.flat.items()}
        self.shapes |= {k: (NUM_ACTIONS, n) for k, n in sizes.per_action.items()}
        self.layers = nn.ModuleDict(
            {k: nn.Linear(num_inputs, int(np.prod(s))) for k, s in self.shapes.items()}
        )

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {k: layer(x).unflatten(-1, self.shapes[k]) for k, layer in self.layers.items()}


class Plain(nn.Module):
    """Without memory."""

    def __init__(self, rule: discorl.DiscoUpdateRule) -> None:
        super().__init__()
        self.torso, self.heads = nn.Linear(LENGTH, 3), Heads(3, rule)

    def forward(self, obs: Tensor) -> dict[str, Tensor]:
        return self.heads(torch.tanh(self.torso(obs)))


class Recurrent(nn.Module):
    """With memory."""

    def __init__(self, rule: discorl.DiscoUpdateRule) -> None:
        super().__init__()
        self.cell, self.heads = nn.LSTMCell(LENGTH, 3), Heads(3, rule)

    def initial_state(self, batch_size: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(batch_size, 3), torch.zeros(batch_size, 3)

    def forward(self, obs: Tensor, state: Any) -> tuple[dict[str, Tensor], Any]:
        hidden, cell = self.cell(obs, state)
        return self.heads(hidden), (hidden, cell)


KINDS = {"plain": Plain, "recurrent": Recurrent}


def make_trainer(kind: str, seed: int) -> discorl.DiscoTrainer:
    """A new trainer of a new agent."""
    torch.manual_seed(seed)
    rule = discorl.DiscoUpdateRule(RULE)
    return discorl.DiscoTrainer(
        KINDS[kind](rule),
        rule=rule,
        lr=0.01,
        replay_capacity=6,
        batch_size=4,
        replay_ratio=2,
        seed=seed,
    )


def walk(trainer: discorl.DiscoTrainer, num_steps: int) -> list[dict[str, float]]:
    """Train from the left end of a corridor; returns the logs of each step."""
    places = np.zeros(2, int)

    def step_fn(actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        places[:] = np.clip(places + actions - 1, 0, LENGTH - 1)
        dones = places == LENGTH - 1
        places[dones] = 0
        return np.eye(LENGTH, dtype=np.float32)[places], dones.astype(np.float32), dones

    obs: Any = np.eye(LENGTH, dtype=np.float32)[places]
    state, previous, logs = None, None, []
    for _ in range(num_steps):
        previous, obs, state = discorl.collect_rollout(
            trainer.agent,
            step_fn,
            obs,
            state,
            rollout_len=5,
            generator=trainer.generator,
            previous=previous,
        )
        logs.append(trainer.step(previous))
    return logs
