"""Any module as the network that ``update_agent`` trains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from discorl import tree
from discorl.nets.agent_net import ROWS_PER_BLOCK
from discorl.own_agent.checks import check_graph
from discorl.own_agent.contract import (
    Form,
    check_output,
    check_state,
    form_of,
    initial_state,
    reset_where,
    split_output,
)
from discorl.types import (
    AgentOutput,
    DiscoPredictions,
    Heads,
    Predictions,
    Reader,
    Reading,
    ReadUnroll,
    Unroll,
    ValuePredictions,
)

TAKEN_ACTION_HEADS = {"z": "z_a", "q": "q_a", "aux_pi": "aux_pi_a"}


@dataclass(frozen=True)
class Inputs:
    """What an agent needs to go through a rollout again; stands in for its observations."""

    observations: Any  # tensors [T, B, ...]
    reset: Tensor  # [T, B], whether the memory starts anew before step t
    state: tuple[Tensor, ...] | None = None  # the memory before the first step, each [1, B, ...]


class ModuleNet(nn.Module):
    """Offers what ``AgentNet`` offers, by way of a module's plain ``forward``.

    It takes the same methods through ``functional_call``, and for an equal network gives the same
    numbers. What it cannot do is leave out heads that nobody asked for: a forward pass computes
    them all. Parameters carry the prefix ``module.``.
    """

    def __init__(self, module: nn.Module, heads: Heads, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.module = module
        self.form = form_of(module)
        self.num_actions = heads.flat["logits"]
        self.head_sizes = heads
        self.dtype = dtype

    def forward(self, *args: Any, method: str = "output", **kwargs: Any) -> Any:
        """Call the method of that name."""
        return getattr(self, method)(*args, **kwargs)

    def bind(self, fn: Callable[[ModuleNet], Any]) -> Any:
        """Call ``fn`` with this network: for many calls with the same parameters."""
        return fn(self)

    def policy(self, observation: Any) -> Tensor:
        """Logits alone, for acting without memory. [B, ...] -> [B, A]"""
        return self._rows(observation)["logits"]

    def output(self, observation: Any) -> AgentOutput:
        """Every head for every action, without memory. [N, ...] -> [N, ...]"""
        return AgentOutput(**self._rows(observation))

    def unroll(
        self,
        observations: Inputs | Any,
        actions: Tensor,
        reader: Reader | None,
        *,
        differentiable: bool,
    ) -> Unroll:
        """The predictions that the loss trains, and the rule's reading of every state and action.

        Of the heads of each action only the taken one's carry a gradient to the loss. The reading
        has a graph only if ``differentiable``.
        """
        out = self._steps(observations)
        if torch.is_grad_enabled() and any(p.requires_grad for p in self.parameters()):
            check_graph(out)
        bootstrapped = {name: out[name] for name in ("logits", "v") if name in out}
        if reader is None:
            kind = ValuePredictions if "v" in bootstrapped else Predictions
            return Unroll(kind(**bootstrapped))
        learnt = {"y": out["y"][:-1]}
        for name, taken in TAKEN_ACTION_HEADS.items():
            learnt[taken] = _of_taken(out[name][:-1], actions[:-1])
        with torch.set_grad_enabled(differentiable and torch.is_grad_enabled()):
            reading = _read(out, reader)
        return ReadUnroll(DiscoPredictions(out["logits"], **learnt), reading)

    def read_all(self, observations: Inputs | Any, reader: Reader) -> Unroll:
        """Logits, and the rule's reading of all states and actions, for the target network."""
        inputs = _as_inputs(observations)
        if self.form is not Form.FEEDFORWARD:
            out = self._steps(inputs)
            return ReadUnroll(Predictions(out["logits"]), _read(out, reader))

        # Some rows at a time: of z and q only a few numbers are kept.
        shape = inputs.reset.shape
        rows = tree.map(lambda x: x.flatten(0, 1), inputs.observations)
        step = max(1, ROWS_PER_BLOCK // self.num_actions)
        blocks = []
        for start in range(0, shape.numel(), step):
            out = self._rows(tree.index(rows, slice(start, start + step)))
            blocks.append((out["logits"], _read(out, reader)))
        joined = tree.map(lambda *xs: torch.cat(xs).unflatten(0, shape), *blocks)
        return ReadUnroll(Predictions(joined[0]), joined[1])

    def validate(
        self, observations: Inputs | Any, actions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Logits and y [T, B, ...], and z of the taken actions [T-1, B, Y], for the meta-loss."""
        out = self._steps(observations)
        return out["logits"], out["y"], _of_taken(out["z"][:-1], actions[:-1])

    def heads_of(self, observations: Inputs | Any) -> dict[str, Tensor]:
        """Every head at every step, checked. [T, B, ...]"""
        return self._steps(observations)

    def _steps(self, observations: Inputs | Any) -> dict[str, Tensor]:
        """Every head at every step. [T, B, ...]"""
        inputs = _as_inputs(observations)
        shape = tuple(inputs.reset.shape)
        if self.form is Form.FEEDFORWARD:
            out = self._rows(tree.map(lambda x: x.flatten(0, 1), inputs.observations))
            return {name: x.unflatten(0, shape) for name, x in out.items()}
        if self.form is Form.SEQUENCE:
            reset = inputs.reset.to(self.dtype)
            return self._checked(self.module(inputs.observations, reset), shape)
        return self._in_time(inputs)

    def _rows(self, observation: Any) -> dict[str, Tensor]:
        """One pass of an agent without memory. [N, ...]"""
        output, _ = split_output(self.module(observation), has_state=False)
        return self._checked(output, (len(tree.leaves(observation)[0]),))

    def _in_time(self, inputs: Inputs) -> dict[str, Tensor]:
        """Step by step, with the memory set back where an episode begins."""
        num_steps, batch = inputs.reset.shape
        fresh = initial_state(self.module, batch, inputs.reset.device)
        state = fresh
        if inputs.state is not None:
            stored = iter([x[0] for x in inputs.state])
            state = tree.map(lambda _: next(stored), fresh)
        steps = []
        for t in range(num_steps):
            state = reset_where(inputs.reset[t], fresh, state)
            result = self.module(tree.index(inputs.observations, t), state)
            output, state = split_output(result, has_state=True)
            check_state(state, batch)
            steps.append(self._checked(output, (batch,)))
        return {name: torch.stack([out[name] for out in steps]) for name in steps[0]}

    def _checked(self, output: Any, batch: tuple[int, ...]) -> dict[str, Tensor]:
        device = next(self.module.parameters()).device
        return check_output(output, self.head_sizes, batch, self.dtype, device)


def _as_inputs(observations: Inputs | Any) -> Inputs:
    """Observations alone are one stretch of experience, with no episode beginning in it."""
    if isinstance(observations, Inputs):
        return observations
    first = tree.leaves(observations)[0]
    return Inputs(observations, torch.zeros(first.shape[:2], dtype=torch.bool, device=first.device))


def _of_taken(x: Tensor, actions: Tensor) -> Tensor:
    """x[..., a, :] for each action a. [T, B, A, D] -> [T, B, D]

    Picked as rows of a matrix: the gradient then is one addition of whole rows.
    """
    num_actions = x.shape[2]
    first = torch.arange(actions.numel(), device=actions.device) * num_actions
    rows = x.flatten(0, 2).index_select(0, first + actions.flatten())
    return rows.unflatten(0, actions.shape)


def _read(out: dict[str, Tensor], reader: Reader) -> Reading:
    """The rule's reading of y, z and q; each embedding is computed once."""
    states, pairs = out["y"].shape[:-1], out["z"].shape[:-1]
    y = _in_blocks(lambda x: reader.y(x, ()), out["y"].flatten(0, -2), states)
    z = _in_blocks(lambda x: reader.z(x, ()), out["z"].flatten(0, -2), pairs)
    q = _in_blocks(lambda x: (reader.q(x, ()),), out["q"].flatten(0, -2), pairs)
    return Reading(*y, *z, *q)


def _in_blocks(
    fn: Callable[[Tensor], tuple[Tensor, ...]], rows: Tensor, shape: tuple[int, ...]
) -> list[Tensor]:
    """Apply ``fn`` to blocks of rows that fit the cache, join, and give them their shape back."""
    blocks = [fn(block) for block in rows.split(ROWS_PER_BLOCK)]
    return [torch.cat(parts).unflatten(0, shape) for parts in zip(*blocks, strict=True)]
