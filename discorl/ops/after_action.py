"""An LSTM's step on a one-hot action, by kernels, with the gradient written out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def hidden_after_action(gates: Tensor, cell: Tensor, of_action: Tensor, actions: Tensor) -> Tensor:
    """The hidden state after the action of each row. -> [N, H]

    ``gates`` [N, 4H] and ``cell`` [N, H] are the state's, ``of_action`` [A, 4H] is what each action
    adds to the gates, ``actions`` [N]. Only for where ``native.in_use``.
    """
    return _AfterAction.apply(gates, cell, of_action, actions)


class _AfterAction(Function):
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
        one_hot = nn.functional.one_hot(actions, len(of_action)).to(of_gates.dtype)
        return of_gates, of_cell, torch.ops.discorl.mm(one_hot.T, of_gates), None
