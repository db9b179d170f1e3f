"""The action-conditional part of an agent: one LSTM step for each action, then a head each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from discorl.nets.linear import MLP, Linear
from discorl.nets.lstm import LSTM
from discorl.ops import lstm


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
        """``init_std`` is for the last layer of the heads it names."""
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
        return lstm.after_action(gates, cell, self._action_gates(), actions)

    def transition_some(self, cell: Tensor, gates: Tensor, actions: Tensor) -> Tensor:
        """The hidden state after each of M actions. ``actions`` [N, M] -> [N, M, H]"""
        return lstm.after_actions(gates, cell, self._action_gates(), actions)

    def transition_all(self, cell: Tensor, gates: Tensor) -> Tensor:
        """The hidden state after each action. [N, A, H]"""
        return lstm.after_every_action(gates, cell, self._action_gates())

    def _action_gates(self) -> Tensor:
        """What a one-hot action adds to the gates, bias included. [A, 4H]"""
        return self.lstm.gates.weight[:, : self.num_actions].T + self.lstm.bias()
