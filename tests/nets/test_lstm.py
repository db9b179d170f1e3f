from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

from discorl.nets.lstm import LSTM
from discorl.types import LSTMState
from tests.builders import rng


def randomised(lstm: LSTM, seed: int = 0) -> LSTM:
    """In float64, with a bias that is not zero."""
    generator = rng(seed)
    with torch.no_grad():
        for p in lstm.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    return lstm.double()


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=rng(seed), dtype=torch.float64)


def torch_cell(lstm: LSTM) -> nn.LSTMCell:
    """PyTorch's cell of the same function: its gates are i, f, g, o, its forget bias is + 1."""
    n, size = lstm.num_inputs, lstm.hidden_size
    cell = nn.LSTMCell(n, size).double()

    def permute(x: Tensor) -> Tensor:
        i, g, f, o = x.chunk(4)
        return torch.cat([i, f, g, o])

    with torch.no_grad():
        cell.weight_ih.copy_(permute(lstm.gates.weight[:, :n]))
        cell.weight_hh.copy_(permute(lstm.gates.weight[:, n:]))
        bias = permute(lstm.gates.bias).clone()
        bias[size : 2 * size] += 1
        cell.bias_ih.copy_(bias)
        cell.bias_hh.zero_()
    return cell


def test_step_is_that_of_torch() -> None:
    lstm = randomised(LSTM(3, 4))
    state = LSTMState(normal(5, 4, seed=1), normal(5, 4, seed=2))
    x = normal(5, 3)
    hidden, cell = torch_cell(lstm)(x, tuple(state))
    got = lstm.step(x, state)
    torch.testing.assert_close(got.hidden, hidden)
    torch.testing.assert_close(got.cell, cell)


def test_unroll_backward_is_the_cell_run_from_the_end() -> None:
    """It starts anew at every reset: what follows the end of an episode is not of this episode."""
    lstm = randomised(LSTM(3, 4))
    cell = torch_cell(lstm)
    x = normal(6, 2, 3)
    reset = torch.zeros(6, 2, dtype=torch.bool)
    reset[3, 0] = reset[0, 1] = reset[5, 1] = True
    expected = torch.zeros(6, 2, 4, dtype=torch.float64)
    for b in range(2):
        state = (torch.zeros(1, 4).double(), torch.zeros(1, 4).double())
        for t in reversed(range(6)):
            if reset[t, b]:
                state = (torch.zeros(1, 4).double(), torch.zeros(1, 4).double())
            state = cell(x[t, b].unsqueeze(0), state)
            expected[t, b] = state[0]
    torch.testing.assert_close(lstm.unroll_backward(x, reset), expected.detach())


def test_unroll_backward_sees_nothing_past_a_reset() -> None:
    lstm = randomised(LSTM(3, 4))
    x = normal(5, 1, 3).requires_grad_()
    reset = torch.tensor([[False], [False], [True], [False], [False]])
    out = lstm.unroll_backward(x, reset)
    (grad,) = torch.autograd.grad(out[1].sum(), x)
    assert grad.abs().sum((1, 2)).gt(0).tolist() == [False, True, True, False, False]


def test_double_backward() -> None:
    lstm = randomised(LSTM(2, 2))
    reset = torch.tensor([[False], [True], [False]])
    params = {k: p.detach() for k, p in lstm.named_parameters()}

    class Unroll(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = lstm

        def forward(self, x: Tensor) -> Tensor:
            return self.lstm.unroll_backward(x, reset)

    net = Unroll()

    def f(x: Tensor, *leaves: Tensor) -> Tensor:
        named = {f"lstm.{k}": p for k, p in zip(params, leaves, strict=True)}
        return functional_call(net, named, (x,))

    inputs = [normal(3, 1, 2).requires_grad_()]
    inputs += [p.clone().requires_grad_() for p in params.values()]
    assert torch.autograd.gradcheck(f, inputs)
    assert torch.autograd.gradgradcheck(f, inputs)


def test_vmap_over_stacked_parameters() -> None:
    lstms = [randomised(LSTM(3, 4), seed) for seed in range(3)]
    params, _ = stack_module_state(lstms)  # pyright: ignore[reportArgumentType]

    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = lstms[0]

        def forward(self, x: Tensor) -> Tensor:
            return self.lstm.unroll_backward(x, torch.zeros(5, 2, dtype=torch.bool))

    net = Step()
    x = normal(5, 2, 3)
    named = {f"lstm.{k}": p for k, p in params.items()}
    together = torch.vmap(lambda p: functional_call(net, p, (x,)))(named)
    none = torch.zeros(5, 2, dtype=torch.bool)
    one_by_one = torch.stack([lstm.unroll_backward(x, none) for lstm in lstms])
    torch.testing.assert_close(together, one_by_one)


# --- forward in time ------------------------------------------------------------------------------


def test_unroll_is_the_cell_run_step_by_step() -> None:
    """It starts from zeros at every reset, also at one on the first step."""
    lstm = randomised(LSTM(3, 4))
    cell = torch_cell(lstm)
    x = normal(6, 2, 3)
    reset = torch.zeros(6, 2, dtype=torch.bool)
    reset[3, 0] = reset[0, 1] = reset[5, 1] = True
    start = LSTMState(normal(2, 4, seed=1), normal(2, 4, seed=2))
    expected = torch.zeros(6, 2, 4, dtype=torch.float64)
    last = torch.zeros(2, 4, dtype=torch.float64)
    for b in range(2):
        state = (start.hidden[b].unsqueeze(0), start.cell[b].unsqueeze(0))
        for t in range(6):
            if reset[t, b]:
                state = (torch.zeros(1, 4).double(), torch.zeros(1, 4).double())
            state = cell(x[t, b].unsqueeze(0), state)
            expected[t, b] = state[0].detach()
        last[b] = state[1].detach()
    hidden, final = lstm.unroll(x, reset, start)
    torch.testing.assert_close(hidden, expected)
    torch.testing.assert_close(final.hidden, expected[-1])
    torch.testing.assert_close(final.cell, last)


def test_unroll_in_two_pieces_is_the_whole() -> None:
    lstm = randomised(LSTM(3, 4))
    x, start = normal(6, 2, 3), LSTMState(normal(2, 4, seed=1), normal(2, 4, seed=2))
    reset = torch.rand(6, 2, generator=rng()) < 0.3
    whole, _ = lstm.unroll(x, reset, start)
    first, middle = lstm.unroll(x[:4], reset[:4], start)
    second, _ = lstm.unroll(x[4:], reset[4:], middle)
    torch.testing.assert_close(torch.cat([first, second]), whole)


def test_unroll_remembers_nothing_from_before_a_reset() -> None:
    lstm = randomised(LSTM(3, 4))
    x = normal(5, 1, 3).requires_grad_()
    reset = torch.tensor([[False], [False], [True], [False], [False]])
    out, _ = lstm.unroll(x, reset, lstm.zero_state(1))
    (grad,) = torch.autograd.grad(out[3].sum(), x)
    assert grad.abs().sum((1, 2)).gt(0).tolist() == [False, False, True, True, False]


def test_unroll_double_backward_and_vmap() -> None:
    lstm = randomised(LSTM(2, 2))
    reset = torch.tensor([[False], [True], [False]])

    class Unroll(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = lstm

        def forward(self, x: Tensor, hidden: Tensor, cell: Tensor) -> Tensor:
            return self.lstm.unroll(x, reset, LSTMState(hidden, cell))[0]

    net = Unroll()
    names = [k for k, _ in net.named_parameters()]

    def f(x: Tensor, hidden: Tensor, cell: Tensor, *leaves: Tensor) -> Tensor:
        named = dict(zip(names, leaves, strict=True))
        return functional_call(net, named, (x, hidden, cell))

    inputs = [normal(3, 1, 2), normal(1, 2, seed=1), normal(1, 2, seed=2)]
    inputs += [p.detach().clone() for p in lstm.parameters()]
    inputs = [x.requires_grad_() for x in inputs]
    assert torch.autograd.gradcheck(f, inputs)
    assert torch.autograd.gradgradcheck(f, inputs)

    x, hidden, cell, *leaves = (x.detach() for x in inputs)
    stacked = [torch.stack([p, 2 * p]) for p in leaves]
    together = torch.vmap(f, in_dims=(None, None, None, 0, 0))(x, hidden, cell, *stacked)
    apart = torch.stack([f(x, hidden, cell, *(p[i] for p in stacked)) for i in range(2)])
    torch.testing.assert_close(together, apart)
