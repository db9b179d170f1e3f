"""What a user's agent looks like: the three forms of ``forward``, and what it must return.

Without memory (the usual case)::

    forward(obs [B, ...]) -> output

With memory. The state is a tensor, or a tuple or dict of tensors, each with the batch first::

    initial_state(batch_size) -> state
    forward(obs [B, ...], state) -> (output, state)

As in disco-torch, where observations arrive flattened, as float32 [B, D]::

    init_lstm_state(batch_size, device) -> state
    forward_step(obs [B, D], state) -> (output, state)
    forward(obs [T, B, D], should_reset [T, B]) -> output, of [T, B, ...]

``output`` is a dict or a ``discorl.AgentOutput``. For Disco103 it holds ``logits`` [B, A], ``y``
[B, 600], ``z`` [B, A, 600], ``q`` [B, A, 601] and ``aux_pi`` [B, A, A]; another rule's sizes are
``rule.heads(num_actions)``. Every row of the batch must be computed independently.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

from discorl import tree
from discorl.errors import DiscorlError
from discorl.types import AgentOutput, Heads

OVER_ACTIONS = ("logits", "aux_pi")
"""Heads that are distributions over actions; the sizes of the others are the rule's own."""


class Form(Enum):
    """Which of the contracts above an agent follows."""

    FEEDFORWARD = "forward(obs) -> output"
    RECURRENT = "forward(obs, state) -> (output, state)"
    SEQUENCE = "forward(obs, should_reset) -> output"


def form_of(agent: nn.Module) -> Form:
    """The contract that the agent's methods point to."""
    if _has(agent, "initial_state"):
        return Form.RECURRENT
    if _has(agent, "init_lstm_state"):
        if _has(agent, "forward_step"):
            return Form.SEQUENCE
        return Form.RECURRENT if _num_inputs(agent) > 1 else Form.FEEDFORWARD
    if _num_inputs(agent) > 1:
        raise DiscorlError(
            f"{type(agent).__name__}.forward takes {_num_inputs(agent)} arguments: an agent with "
            "memory also needs initial_state(batch_size), one without takes only the observation"
        )
    return Form.FEEDFORWARD


def flattens_observations(agent: nn.Module) -> bool:
    """Whether the agent wants float32 rows [B, D], as agents written for disco-torch do."""
    return _has(agent, "init_lstm_state") and not _has(agent, "initial_state")


def initial_state(agent: Any, batch_size: int, device: torch.device) -> Any:
    """The agent's memory before its first step."""
    if _has(agent, "initial_state"):
        state = agent.initial_state(batch_size)
    else:
        state = agent.init_lstm_state(batch_size, device)
    check_state(state, batch_size)
    return state


def check_state(state: Any, batch_size: int) -> None:
    """Raise unless every tensor of an agent's memory has the batch first."""
    for x in tree.leaves(state):
        if x.dim() == 0 or len(x) != batch_size:
            raise DiscorlError(
                f"the agent's state holds a tensor of shape {list(x.shape)}; its first dimension "
                f"must be the batch, here {batch_size} (transpose the states of nn.LSTM)"
            )


def reset_where(ended: Tensor, fresh: Any, state: Any) -> Any:
    """``fresh`` where ``ended`` [B] is true, else ``state``."""

    def choose(new: Tensor, old: Tensor) -> Tensor:
        return torch.where(ended.reshape(-1, *(1,) * (old.dim() - 1)), new, old)

    return tree.map(choose, fresh, state)


def forward_once(agent: Any, form: Form, observation: Any, state: Any) -> tuple[Any, Any]:
    """One pass over a batch: what the agent returns, and its next state."""
    if form is Form.FEEDFORWARD:
        output = agent(observation)
        if isinstance(output, tuple):
            raise DiscorlError(
                "the agent's forward returned a tuple; return just the dict of heads, or add "
                "initial_state(batch_size) if the agent has a memory"
            )
        return output, None
    forward = agent if form is Form.RECURRENT else agent.forward_step
    result = forward(observation, state)
    if not isinstance(result, tuple) or len(result) != 2:
        raise DiscorlError(
            f"the agent has memory, so its forward must return (output, state), not a "
            f"{type(result).__name__}"
        )
    return result


def check_output(
    output: Any, heads: Heads, batch: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> dict[str, Tensor]:
    """The heads that the rule needs, or an error that says which one is wrong and how.

    ``batch`` are the sizes before a head's own: [B], or [T, B].
    """
    found = _fields(output)
    letters = ["B"] if len(batch) == 1 else ["T", "B"]
    num_actions = heads.flat["logits"]
    wanted = {name: [size] for name, size in heads.flat.items()}
    wanted |= {name: [num_actions, size] for name, size in heads.per_action.items()}

    for name, sizes in wanted.items():
        last = "A" if name in OVER_ACTIONS else sizes[-1]
        need = _show([*letters, *["A"] * (len(sizes) - 1), last])
        here = [*batch, *sizes]
        x = found.get(name)
        if not isinstance(x, Tensor):
            what = "lacks" if x is None else f"has a {type(x).__name__} for"
            raise DiscorlError(
                f"the agent's output {what} the head '{name}': the rule needs a tensor {need}, "
                f"here {here}"
            )
        if list(x.shape) != here:
            raise DiscorlError(
                f"the agent's head '{name}' has shape {list(x.shape)}, but the rule needs {need}, "
                f"here {here}"
            )
        if x.dtype != dtype:
            raise DiscorlError(
                f"the agent's head '{name}' is {_dtype(x.dtype)}, but the rule computes in "
                f"{_dtype(dtype)}: convert it at the end of forward"
            )
        if x.device != device:
            raise DiscorlError(
                f"the agent's head '{name}' is on {x.device}, but its parameters are on {device}"
            )
    return {name: found[name] for name in wanted}


def policy_logits(output: Any, batch_size: int) -> Tensor:
    """The logits [B, A] of an output, to act from."""
    logits = _fields(output).get("logits")
    if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != batch_size:
        shape = list(logits.shape) if isinstance(logits, Tensor) else None
        what = f"has shape {shape}" if shape else "is missing"
        raise DiscorlError(
            f"the agent's head 'logits' {what}, but acting needs [B, A], with B = {batch_size}"
        )
    return logits


def _fields(output: Any) -> dict[str, Any]:
    if isinstance(output, AgentOutput):
        return dict(vars(output))
    if isinstance(output, Mapping):
        return dict(output)
    raise DiscorlError(
        f"the agent's forward returned a {type(output).__name__}; it must return a dict of heads "
        "(logits, y, z, q, aux_pi) or a discorl.AgentOutput"
    )


def _has(agent: nn.Module, method: str) -> bool:
    return callable(getattr(agent, method, None))


def _num_inputs(agent: nn.Module) -> int:
    """Number of required positional arguments of ``forward``."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(agent.forward).parameters.values()
    return sum(p.kind in kinds and p.default is p.empty for p in parameters)


def _show(sizes: list[Any]) -> str:
    return f"[{', '.join(map(str, sizes))}]"


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
