"""The action-conditional part of an agent: one LSTM step for each action, then a head each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from discorl.nets.linear import MLP, Linear
from discorl.nets.lstm import LSTM, lstm_step
from discorl.ops import native
from discorl.ops.after_action import hidden_after_action


class ActionModel(nn.Module):
    """Predicts from a state embedding what follows each action.

    The embedding becomes an LSTM state; each action, one-hot, is one step from it. The state is
    the same for all actions, so its share of the gates is computed once.
    """

    def __init__(
        self,
        num_inputs: int,
        num_actions: int,
        heads: dict[str, int],
        lstm_size: int,
        head_hidden: Sequence[int],
        init_std: dict[str, float] | None = None,
    ) -> None:
        """``init_std`` is that of the last layer of the heads it names."""
        super().__init__()
        self.num_actions = num_actions
        self.root = Linear(num_inputs, lstm_size)
        self.lstm = LSTM(num_actions, lstm_size)
        std = init_std or {}
        self.heads = nn.ModuleDict(
            {
                name: MLP(lstm_size, [*head_hidden, size], std.get(name))
                for name, size in heads.items()
            }
        )

    def root_state(self, embedding: Tensor) -> tuple[Tensor, Tensor]:
        """Cell and gate inputs before any action. ``embedding`` [N, D] -> [N, H], [N, 4H]"""
        cell = self.root(embedding)
        return cell, self.lstm.hidden_gates(torch.tanh(cell))

    def transition(self, cell: Tensor, gates: Tensor, actions: Tensor) -> Tensor:
        """The hidden state after an action. ``actions`` [N] -> [N, H]"""
        if native.in_use(cell, gates):
            return hidden_after_action(gates, cell, self._action_gates(), actions)
        # Contiguous: in the other layout their gradient is a product that takes four times as long.
        action_gates = self._action_gates().contiguous()
        gates = torch.addmm(gates, self._one_hot(actions, cell), action_gates)
        return lstm_step(gates, cell).hidden

    def transition_some(self, cell: Tensor, gates: Tensor, actions: Tensor) -> Tensor:
        """The hidden state after each of M actions. ``actions`` [N, M] -> [N, M, H]"""
        if native.apply_to(cell, gates):
            action_gates = self._action_gates()
            return torch.ops.discorl.lstm_after_actions(gates, cell, action_gates, actions)
        of_action = self._one_hot(actions, cell) @ self._action_gates()
        return lstm_step(gates.unsqueeze(1) + of_action, cell.unsqueeze(1)).hidden

    def transition_all(self, cell: Tensor, gates: Tensor) -> Tensor:
        """The hidden state after each action. [N, A, H]"""
        if native.apply_to(cell, gates):
            every = torch.arange(self.num_actions, device=cell.device).expand(len(cell), -1)
            return self.transition_some(cell, gates, every)
        return lstm_step(gates.unsqueeze(1) + self._action_gates(), cell.unsqueeze(1)).hidden

    def _one_hot(self, actions: Tensor, like: Tensor) -> Tensor:
        return nn.functional.one_hot(actions, self.num_actions).to(like.dtype)

    def _action_gates(self) -> Tensor:
        """What a one-hot action adds to the gates, bias included. [A, 4H]"""
        return self.lstm.gates.weight[:, : self.num_actions].T + self.lstm.bias()
