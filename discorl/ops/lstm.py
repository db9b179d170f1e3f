"""The steps of an LSTM: through time, and on one-hot actions. Gates are in the order i, g, f, o."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from discorl.ops import native
from discorl.ops.affine import add_product
from discorl.types import LSTMState


def lstm_step(gates: Tensor, cell: Tensor) -> LSTMState:
    """One step from the summed gate inputs. ``gates`` [..., 4H], ``cell`` [..., H]"""
    i, g, f, o = gates.chunk(4, -1)
    cell = torch.addcmul(torch.sigmoid(f) * cell, torch.sigmoid(i), torch.tanh(g))
    return LSTMState(torch.sigmoid(o) * torch.tanh(cell), cell)


def unroll(
    gates: Tensor, weight: Tensor, reset: Tensor, state: LSTMState
) -> tuple[Tensor, LSTMState]:
    """From the first step to the last, with a state of zeros wherever ``reset`` is true.

    ``gates`` [T, B, 4H] are the inputs' share, ``weight`` [H, 4H] is the hidden state's, ``reset``
    [T, B], ``state`` [B, H] -> hidden states [T, B, H] and the last state.
    """
    keep = (~reset).to(gates.dtype).unsqueeze(-1)
    hidden, state = _steps(zip(gates.unbind(), keep.unbind(), strict=True), weight, state)
    return torch.stack(hidden), state


def unroll_backward(gates: Tensor, weight: Tensor, reset: Tensor) -> Tensor:
    """From the last step to the first, beginning with zeros. -> hidden states [T, B, H]"""
    if native.apply_even_compiled(gates, weight):
        return torch.ops.discorl.lstm_unroll_backward(gates, weight, reset)
    keep = (~reset).to(gates.dtype).unsqueeze(-1)
    zeros = gates.new_zeros(gates.shape[1], len(weight))
    pairs = zip(gates.unbind()[::-1], keep.unbind()[::-1], strict=True)
    hidden, _ = _steps(pairs, weight, LSTMState(zeros, zeros))
    return torch.stack(hidden[::-1])


def _steps(
    pairs: Iterable[tuple[Tensor, Tensor]], weight: Tensor, state: LSTMState
) -> tuple[list[Tensor], LSTMState]:
    """Through (gates, keep) of each step: the hidden states, and the last state."""
    outputs = []
    for gates, keep in pairs:
        hidden, cell = state.hidden * keep, state.cell * keep
        state = lstm_step(add_product(gates, hidden, weight), cell)
        outputs.append(state.hidden)
    return outputs, state


def after_action(gates: Tensor, cell: Tensor, of_action: Tensor, actions: Tensor) -> Tensor:
    """The hidden state after the action of each row. -> [N, H]

    ``gates`` [N, 4H] and ``cell`` [N, H] are the state's, ``of_action`` [A, 4H] is what each action
    adds to the gates, ``actions`` [N].
    """
    if native.in_use(cell, gates):
        return _AfterAction.apply(gates, cell, of_action, actions)
    # Contiguous: in the other layout their gradient is a product that takes four times as long.
    one_hot = _one_hot(actions, of_action)
    return lstm_step(add_product(gates, one_hot, of_action.contiguous()), cell).hidden


def after_actions(gates: Tensor, cell: Tensor, of_action: Tensor, actions: Tensor) -> Tensor:
    """The hidden state after each of M actions. ``actions`` [N, M] -> [N, M, H]"""
    if native.apply_to(cell, gates):
        return torch.ops.discorl.lstm_after_actions(gates, cell, of_action, actions)
    added = _one_hot(actions, of_action) @ of_action
    return lstm_step(gates.unsqueeze(1) + added, cell.unsqueeze(1)).hidden


def after_every_action(gates: Tensor, cell: Tensor, of_action: Tensor) -> Tensor:
    """The hidden state after each action. -> [N, A, H]"""
    if native.apply_to(cell, gates):
        every = torch.arange(len(of_action), device=cell.device).expand(len(cell), -1)
        return after_actions(gates, cell, of_action, every)
    return lstm_step(gates.unsqueeze(1) + of_action, cell.unsqueeze(1)).hidden


def _one_hot(actions: Tensor, of_action: Tensor) -> Tensor:
    return nn.functional.one_hot(actions, len(of_action)).to(of_action.dtype)


class _AfterAction(Function):
    """``after_action`` by kernels, with the gradient written out."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        ctx.save_for_backward(*inputs)
        *state, actions = inputs
        return torch.ops.discorl.lstm_after_actions(*state, actions.unsqueeze(1)).squeeze(1)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, None]:
        gates, cell, of_action, actions = ctx.saved_tensors
        of_gates, of_cell = torch.ops.discorl.lstm_after_action_backward(
            grads[0], gates, cell, of_action, actions
        )
        one_hot = _one_hot(actions, of_action)
        return of_gates, of_cell, torch.ops.discorl.mm(one_hot.T, of_gates), None
