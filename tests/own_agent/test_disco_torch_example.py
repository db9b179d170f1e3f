"""The example of disco-torch's README runs with only the import line changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from discorl import DiscoRule
from tests.own_agent.own_agents import Outputs

NUM_STEPS = 34  # of 2 trajectories each: the replay holds a batch of 64 after 32

# As in that README, from the import to the end of the loop; YourAgent and YourEnv are below.
EXAMPLE = """
from discorl import DiscoTrainer, collect_rollout

agent = YourAgent(obs_dim=64, num_actions=3).to(device)
trainer = DiscoTrainer(agent, device=device, lr=0.01)

env = YourEnv(num_envs=2)
obs = env.obs()
lstm_state = agent.init_lstm_state(env.num_envs, device)

def step_fn(actions):
    rewards, dones = env.step(actions)
    return env.obs(), rewards, dones

for step in range(NUM_STEPS):
    rollout, obs, lstm_state = collect_rollout(
        agent, step_fn, obs, lstm_state, rollout_len=29, device=device,
    )
    logs = trainer.step(rollout)  # 1 gradient step per acting step

    if (step + 1) % 34 == 0:
        print(f"Step {step+1}: loss={logs['total_loss']:.4f}")
"""


class Falling:
    """Boards [B, 8, 8] with one mark that falls; the action moves it sideways."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.row = np.arange(num_envs) % 3
        self.column = np.full(num_envs, 3)

    def obs(self) -> np.ndarray:
        board = np.zeros((self.num_envs, 8, 8), np.float32)
        board[np.arange(self.num_envs), self.row, self.column] = 1
        return board

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.column = np.clip(self.column + actions - 1, 0, 7)
        self.row = self.row + 1
        dones = self.row == 8
        rewards = np.where(dones, self.column / 7, 0.0).astype(np.float32)
        self.row[dones], self.column[dones] = 0, 3
        return rewards, dones.astype(np.float32)


class AgentOfTheTable(nn.Module):
    """What the README's table asks for: ``forward(obs)`` returns the heads [B, ...]."""

    def __init__(self, obs_dim: int, num_actions: int) -> None:
        super().__init__()
        self.torso = nn.Linear(obs_dim, 32)
        self.heads = Outputs(32, DiscoRule().heads(num_actions))

    def init_lstm_state(self, batch_size: int, device: Any = None) -> tuple[Tensor, Tensor]:
        zeros = torch.zeros(batch_size, 1, device=device)
        return zeros, zeros

    def forward(self, obs: Tensor) -> dict[str, Tensor]:
        return self.heads(torch.relu(self.torso(obs)))


class AgentOfTheLibrary(AgentOfTheTable):
    """What disco-torch itself calls: sequences in ``forward``, single steps in ``forward_step``."""

    def forward_step(self, obs: Tensor, lstm_state: Any) -> tuple[dict[str, Tensor], Any]:
        return super().forward(obs), lstm_state

    def forward(self, obs_seq: Tensor, should_reset: Tensor) -> dict[str, Tensor]:  # pyright: ignore
        assert obs_seq.dim() == 3 and should_reset.shape == obs_seq.shape[:2]
        return super().forward(obs_seq)


class AgentWithMemory(AgentOfTheTable):
    """``forward(obs, lstm_state)`` returns heads and state."""

    def __init__(self, obs_dim: int, num_actions: int) -> None:
        super().__init__(obs_dim, num_actions)
        self.cell = nn.LSTMCell(obs_dim, 32)

    def init_lstm_state(self, batch_size: int, device: Any = None) -> tuple[Tensor, Tensor]:
        zeros = torch.zeros(batch_size, 32, device=device)
        return zeros, zeros

    def forward(self, obs: Tensor, state: Any) -> Any:  # pyright: ignore
        hidden, cell = self.cell(obs, state)
        return self.heads(hidden), (hidden, cell)


@pytest.mark.disco103
@pytest.mark.parametrize("agent_class", [AgentOfTheTable, AgentOfTheLibrary, AgentWithMemory])
def test_the_readme_example_runs(
    agent_class: type[nn.Module], capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {
        "YourAgent": agent_class,
        "YourEnv": Falling,
        "device": torch.device("cpu"),
        "NUM_STEPS": NUM_STEPS,
    }
    exec(EXAMPLE, names)

    logs = names["logs"]
    assert capsys.readouterr().out == f"Step 34: loss={logs['total_loss']:.4f}\n"
    assert logs["total_loss"] > 0
    counts = ("grad_steps", "acting_steps", "buffer_size", "num_grad_steps_this_call")
    assert [logs[name] for name in counts] == [3, 34, 68, 1]
    parts = ("pi_loss", "y_loss", "z_loss", "aux_loss", "q_loss")
    assert all(np.isfinite(logs[name]) for name in parts)
    assert names["obs"].shape == (2, 8, 8)
    rollout = names["rollout"]
    assert rollout.observations.shape == (30, 2, 64)  # flattened, as disco-torch does
    assert names["trainer"].diagnostics()["entropy"] > 0
