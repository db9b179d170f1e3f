"""disco-torch, from the package index, through its own trainer and rollout collector.

Runs in a virtual environment of its own. The package leaves the agent and the environment to its
user. Here the loop is that of its README, and the agent works through its input as the one that its
authors publish (DiscoMLPAgent in their examples): step by step, and in a step action by action
(each from the same state, where theirs goes on from the action before). With --fast-agent it is
one that we wrote to be fast: all time steps and actions in one pass. Catch is vectorised NumPy.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import os
import sys
from importlib.metadata import version

import numpy as np
import torch
from disco_torch import DiscoTrainer, collect_rollout
from torch import Tensor, nn

from benchmarks.worker import CAPACITY, COLUMNS, LEARNING_RATE, NUM_ENVS, ROWS, B, Job, T, serve

CPU = torch.device("cpu")
PREDICTION_SIZE, NUM_BINS = 600, 601

FAST_AGENT = "--fast-agent" in sys.argv[1:]

# Its rollouts of n steps carry n + 1 observations; the others learn from T observations in all.
ROLLOUT_STEPS = T - 1
LOOP_STEPS = T - 1 if FAST_AGENT else T  # its README's loop acts for T, and learns from T + 1


class Agent(nn.Module):
    """The reference's network: torso 512/512, one LSTM step of 128 for each action, heads 128."""

    def __init__(self, num_actions: int) -> None:
        super().__init__()
        self.torso = nn.Sequential(
            nn.Linear(ROWS * COLUMNS, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU()
        )
        self.flat = nn.ModuleDict(
            {"logits": nn.Linear(512, num_actions), "y": nn.Linear(512, PREDICTION_SIZE)}
        )
        self.root = nn.Linear(512, 128)
        self.lstm = nn.LSTMCell(num_actions, 128)
        sizes = {"z": PREDICTION_SIZE, "q": NUM_BINS, "aux_pi": num_actions}
        self.per_action = nn.ModuleDict(
            {
                name: nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, size))
                for name, size in sizes.items()
            }
        )

    def forward(self, observations: Tensor, should_reset: Tensor) -> dict[str, Tensor]:
        """[T, B, ...]; there is no memory over time, so nothing to reset."""
        return _stack([self.outputs(x) for x in observations])

    def forward_step(self, observation: Tensor, lstm_state):
        return self.outputs(observation), lstm_state

    def init_lstm_state(self, batch: int, device: torch.device) -> tuple[Tensor, Tensor]:
        return torch.zeros(batch, 1, device=device), torch.zeros(batch, 1, device=device)

    def outputs(self, observation: Tensor) -> dict[str, Tensor]:
        """Every head, for every action where it depends on one. [N, D] -> [N, (A,) ...]"""
        embedding = self.torso(observation)
        out = {name: head(embedding) for name, head in self.flat.items()}
        cell = self.root(embedding)
        return out | self.of_actions(torch.tanh(cell), cell)

    def of_actions(self, hidden: Tensor, cell: Tensor) -> dict[str, Tensor]:
        """Action by action, each one-hot. [N, 128] -> [N, A, ...]"""
        outputs = []
        for action in torch.eye(self.lstm.input_size):
            after, _ = self.lstm(action.expand(len(cell), -1), (hidden, cell))
            outputs.append({name: head(after) for name, head in self.per_action.items()})
        return _stack(outputs, 1)


class FastAgent(Agent):
    """All time steps and all actions in one pass."""

    def forward(self, observations: Tensor, should_reset: Tensor) -> dict[str, Tensor]:
        out = self.outputs(observations.flatten(0, 1))
        return {name: x.unflatten(0, observations.shape[:2]) for name, x in out.items()}

    def of_actions(self, hidden: Tensor, cell: Tensor) -> dict[str, Tensor]:
        # A one-hot action times the input weights is one of their columns.
        of_state = nn.functional.linear(hidden, self.lstm.weight_hh, self.lstm.bias_hh)
        gates = of_state.unsqueeze(1) + (self.lstm.weight_ih.t() + self.lstm.bias_ih)
        i, f, g, o = gates.chunk(4, -1)
        cell = f.sigmoid() * cell.unsqueeze(1) + i.sigmoid() * g.tanh()
        hidden = o.sigmoid() * cell.tanh()
        return {name: head(hidden) for name, head in self.per_action.items()}


def _stack(outputs: list[dict[str, Tensor]], dim: int = 0) -> dict[str, Tensor]:
    return {name: torch.stack([x[name] for x in outputs], dim) for name in outputs[0]}


class Catch:
    """A ball falls; the paddle should be under it when it lands."""

    def __init__(self) -> None:
        self.rng, self.index = np.random.default_rng(0), np.arange(NUM_ENVS)
        self.row = np.zeros(NUM_ENVS, int)
        self.column = self.rng.integers(COLUMNS, size=NUM_ENVS)
        self.paddle = np.full(NUM_ENVS, COLUMNS // 2)

    def observe(self) -> np.ndarray:
        board = np.zeros((NUM_ENVS, ROWS, COLUMNS), np.float32)
        board[self.index, self.row, self.column] = 1
        board[self.index, ROWS - 1, self.paddle] = 1
        return board

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        self.paddle = (self.paddle + actions - 1).clip(0, COLUMNS - 1)
        self.row = self.row + 1
        landed = self.row == ROWS - 1
        rewards = np.where(landed, np.where(self.paddle == self.column, 1.0, -1.0), 0.0)
        self.row = np.where(landed, 0, self.row)
        self.column = np.where(landed, self.rng.integers(COLUMNS, size=NUM_ENVS), self.column)
        self.paddle = np.where(landed, COLUMNS // 2, self.paddle)
        return self.observe(), rewards, landed.astype(np.float32)


def make_trainer(num_actions: int) -> tuple[Agent, DiscoTrainer]:
    torch.manual_seed(0)
    np.random.seed(0)
    agent = (FastAgent if FAST_AGENT else Agent)(num_actions)
    trainer = DiscoTrainer(
        agent,
        device=CPU,
        lr=LEARNING_RATE,
        replay_capacity=CAPACITY,
        batch_size=B,
        weights_path=os.environ["DISCORL_DISCO103"],
    )
    return agent, trainer


def train() -> Job:
    """Its README's loop."""
    agent, trainer = make_trainer(3)
    env = Catch()
    observation, lstm_state = env.observe(), agent.init_lstm_state(NUM_ENVS, CPU)

    def step() -> int:
        nonlocal observation, lstm_state
        rollout, observation, lstm_state = collect_rollout(
            agent, env.step, observation, lstm_state, LOOP_STEPS, CPU
        )
        return trainer.step(rollout)["num_grad_steps_this_call"]

    while not step():
        pass
    return Job(step)


def learn(num_actions: int = 3) -> Job:
    """One update on a batch that stays the same: the trainer's step without its replay."""
    agent, trainer = make_trainer(num_actions)
    shape = (ROLLOUT_STEPS + 1, B)
    observations = torch.randn(*shape, ROWS * COLUMNS)
    with torch.no_grad():
        agent_out = agent(observations, torch.zeros(shape))
    batch = {
        "observations": observations,
        "actions": torch.randint(num_actions, shape),
        "rewards": torch.randn(ROLLOUT_STEPS, B),
        "discounts": 0.997 * (torch.rand(ROLLOUT_STEPS, B) > 0.1),
        "agent_out": agent_out,
    }
    return Job(lambda: trainer._gradient_step(batch))


def replay_sample() -> Job:
    """A batch from the trainer's replay, filled with rollouts as they are collected."""
    agent, trainer = make_trainer(3)
    env, state = Catch(), agent.init_lstm_state(NUM_ENVS, CPU)
    rollout, _, _ = collect_rollout(agent, env.step, env.observe(), state, ROLLOUT_STEPS, CPU)
    buffer = trainer._buffer
    while len(buffer) < CAPACITY:
        copies = {name: _clone(x) for name, x in rollout.items()}
        buffer.add(copies)
    stored = sum(_num_bytes(x) for trajectory in buffer.buffer for x in trajectory.values())
    figures = {"bytes_per_transition": stored / (CAPACITY * T)}
    return Job(lambda: buffer.sample(B), figures)


def _clone(x):
    return {name: y.clone() for name, y in x.items()} if isinstance(x, dict) else x.clone()


def _num_bytes(x) -> int:
    return sum(map(_num_bytes, x.values())) if isinstance(x, dict) else x.numel() * x.element_size()


if __name__ == "__main__":
    serve(
        {w.__name__: w for w in (train, learn, replay_sample)},
        {
            "disco-torch": version("disco-torch"),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
        },
    )
