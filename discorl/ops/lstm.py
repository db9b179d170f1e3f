"""The steps of an LSTM: through time, and on one-hot actions. Gates are in the order i, g, f, o."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from discorl.errors import DiscorlError
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
    if native.of_agents(gates, weight):
        return _Unroll.apply(gates, weight, reset)[0]
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
    if native.of_agents(cell, gates):
        return _AfterActions.apply(gates, cell, of_action, actions)
    added = _one_hot(actions, of_action) @ of_action
    return lstm_step(gates.unsqueeze(1) + added, cell.unsqueeze(1)).hidden


def after_every_action(gates: Tensor, cell: Tensor, of_action: Tensor) -> Tensor:
    """The hidden state after each action. -> [N, A, H]"""
    if native.apply_to(cell, gates) or native.of_agents(cell, gates):
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


class _OfAgents(Function):
    """Something inside of vmap by a kernel that takes the axis of agents.

    Its derivative is a kernel, too, so there is no second one: a meta-gradient passes only once.
    """

    @staticmethod
    def check_is_last() -> None:
        """Raise where the derivative is to be differentiated: torch would leave it out silently."""
        if torch.is_grad_enabled():
            raise DiscorlError(
                "the kernels for many agents have no second derivatives here: use --kernels off"
            )

    @classmethod
    def vmap_agents(cls, info: Any, in_dims: Any, *inputs: Tensor) -> Any:
        """The rule for vmap."""
        stacked = (
            x.expand(info.batch_size, *x.shape) if d is None else x.movedim(d, 0)
            for x, d in zip(inputs, in_dims, strict=True)
        )
        return cls.apply(*stacked)


class _AfterActions(_OfAgents):
    """``after_actions``. Inputs: gates [P, N, 4H], cell [P, N, H], of_action [P, A, 4H] and actions
    [P, N, M]."""

    @staticmethod
    def forward(gates: Tensor, cell: Tensor, of_action: Tensor, actions: Tensor) -> Tensor:
        num, choices = of_action.shape[:2]
        places = actions + choices * torch.arange(num, device=actions.device).reshape(-1, 1, 1)
        rows = (x.flatten(0, 1) for x in (gates, cell, of_action, places))
        return torch.ops.discorl.lstm_after_actions(*rows).unflatten(0, (num, -1))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, None]:
        _OfAgents.check_is_last()
        of_inputs = torch.ops.discorl.agents_after_actions_backward(grads[0], *ctx.saved_tensors)
        return *of_inputs, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Tensor) -> Any:
        return _AfterActions.vmap_agents(info, in_dims, *inputs), 0


class _Unroll(_OfAgents):
    """``unroll_backward``. Inputs: gates [P, S, B, 4H], weight [P, H, 4H], reset [P, S, B]."""

    @staticmethod
    def forward(gates: Tensor, weight: Tensor, reset: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return torch.ops.discorl.agents_unroll(gates, weight, reset)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, weight, reset = inputs
        hidden, cells, gates = output
        ctx.mark_non_differentiable(cells, gates)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(hidden, cells, gates, weight, reset)

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None]:
        _OfAgents.check_is_last()
        hidden, cells, gates, weight, reset = ctx.saved_tensors
        if grads[0] is None:
            return None, None, None
        of_gates = torch.ops.discorl.agents_unroll_backward(grads[0], gates, cells, weight, reset)
        # A step sees the hidden state of the one after it in time.
        seen = hidden[:, 1:] * ~reset[:, :-1].unsqueeze(-1)
        of_weight = torch.bmm(seen.flatten(1, 2).mT, of_gates[:, :-1].flatten(1, 2))
        return of_gates, of_weight, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Tensor) -> Any:
        return _Unroll.vmap_agents(info, in_dims, *inputs), (0, 0, 0)
