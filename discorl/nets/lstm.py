"""An LSTM from plain tensor operations, so that double backward and vmap go through it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from discorl.nets.linear import Linear
from discorl.ops import lstm
from discorl.ops.affine import linear
from discorl.types import LSTMState


class LSTM(nn.Module):
    """An LSTM with one kernel over (input, hidden), as in Haiku: forget gate biased by +1."""

    def __init__(self, num_inputs: int, hidden_size: int) -> None:
        super().__init__()
        self.num_inputs = num_inputs
        self.hidden_size = hidden_size
        self.gates = Linear(num_inputs + hidden_size, 4 * hidden_size)

    def zero_state(self, *batch: int) -> LSTMState:
        """The state before the first step."""
        zeros = self.gates.weight.new_zeros(*batch, self.hidden_size)
        return LSTMState(zeros, zeros)

    def bias(self) -> Tensor:
        """The gates' bias, with 1 added to that of the forget gate. [4H]"""
        i, g, f, o = self.gates.bias.chunk(4)
        return torch.cat([i, g, f + 1, o])

    def input_gates(self, x: Tensor) -> Tensor:
        """The inputs' share of the gates and the bias, for any number of steps at once."""
        return linear(x, self.gates.weight[:, : self.num_inputs], self.bias())

    def hidden_gates(self, hidden: Tensor) -> Tensor:
        """The hidden state's share of the gates."""
        return linear(hidden, self.gates.weight[:, self.num_inputs :])

    def step(self, x: Tensor, state: LSTMState) -> LSTMState:
        """One step."""
        return lstm.lstm_step(self.input_gates(x) + self.hidden_gates(state.hidden), state.cell)

    def unroll(self, x: Tensor, reset: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        """Run from the first step to the last, with a state of zeros wherever ``reset`` is true.

        ``x`` [T, B, I], ``reset`` [T, B], ``state`` [B, H] -> hidden states [T, B, H] and the last
        state. The inputs of all steps are projected in one product.
        """
        return lstm.unroll(self.input_gates(x), self._hidden_weight(), reset, state)

    def unroll_backward(self, x: Tensor, reset: Tensor) -> Tensor:
        """Run from the last step to the first, starting from zeros where ``reset`` [S, B] is true.

        ``x`` [S, B, I] -> hidden states [S, B, H]. The inputs of all steps are projected in one
        product; only the recurrence is left to the loop.
        """
        return lstm.unroll_backward(self.input_gates(x), self._hidden_weight(), reset)

    def _hidden_weight(self) -> Tensor:
        """[H, 4H]; take it only once, because its gradient is a whole kernel."""
        return self.gates.weight[:, self.num_inputs :].T
