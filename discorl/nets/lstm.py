"""An LSTM from plain tensor operations, so that double backward and vmap go through it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from discorl.nets.linear import Linear
from discorl.ops import native
from discorl.ops.affine import linear
from discorl.types import LSTMState


def lstm_step(gates: Tensor, cell: Tensor) -> LSTMState:
    """One step from the summed gate inputs. ``gates`` [..., 4H] in the order i, g, f, o."""
    i, g, f, o = gates.chunk(4, -1)
    cell = torch.addcmul(torch.sigmoid(f) * cell, torch.sigmoid(i), torch.tanh(g))
    return LSTMState(torch.sigmoid(o) * torch.tanh(cell), cell)


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
        return nn.functional.linear(x, self.gates.weight[:, : self.num_inputs], self.bias())

    def hidden_gates(self, hidden: Tensor) -> Tensor:
        """The hidden state's share of the gates."""
        return linear(hidden, self.gates.weight[:, self.num_inputs :])

    def step(self, x: Tensor, state: LSTMState) -> LSTMState:
        """One step."""
        return lstm_step(self.input_gates(x) + self.hidden_gates(state.hidden), state.cell)

    def unroll(self, x: Tensor, reset: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        """Run from the first step to the last, with a state of zeros wherever ``reset`` is true.

        ``x`` [T, B, I], ``reset`` [T, B], ``state`` [B, H] -> hidden states [T, B, H] and the last
        state. The inputs of all steps are projected in one product.
        """
        projected = self.input_gates(x)
        keep = (~reset).to(x.dtype).unsqueeze(-1)
        weight = self.gates.weight[:, self.num_inputs :].T  # once: its gradient is a whole kernel
        outputs = []
        for gates_t, keep_t in zip(projected.unbind(), keep.unbind(), strict=True):
            hidden, cell = state.hidden * keep_t, state.cell * keep_t
            state = lstm_step(torch.addmm(gates_t, hidden, weight), cell)
            outputs.append(state.hidden)
        return torch.stack(outputs), state

    def unroll_backward(self, x: Tensor, reset: Tensor) -> Tensor:
        """Run from the last step to the first, starting anew where ``reset`` [S, B] is true.

        ``x`` [S, B, I] -> hidden states [S, B, H]. The inputs of all steps are projected in one
        product; only the recurrence is left to the loop.
        """
        projected = self.input_gates(x)
        weight = self.gates.weight[:, self.num_inputs :].T
        if native.apply_even_compiled(projected, weight):
            return torch.ops.discorl.lstm_unroll_backward(projected, weight, reset)
        keep = (~reset).to(x.dtype).unsqueeze(-1)
        state = self.zero_state(x.shape[1])
        outputs = []
        for gates_t, keep_t in zip(projected.unbind()[::-1], keep.unbind()[::-1], strict=True):
            hidden, cell = state.hidden * keep_t, state.cell * keep_t
            state = lstm_step(torch.addmm(gates_t, hidden, weight), cell)
            outputs.append(state.hidden)
        return torch.stack(outputs[::-1])
