"""Any module as the network that ``update_agent`` trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from discorl import tree
from discorl.ops.rows import block_size, in_blocks
from discorl.own_agent.checks import check_graph
from discorl.own_agent.contract import (
    Form,
    check_output,
    check_state,
    form_of,
    forward_once,
    initial_state,
    reset_where,
)
from discorl.types import (
    AgentOutput,
    DiscoPredictions,
    Heads,
    Memory,
    Observation,
    Predictions,
    Reader,
    Reading,
    ReadUnroll,
    Rollout,
    TimeStep,
    Unroll,
    ValuePredictions,
)


class ModuleNet(nn.Module):
    """Makes a module with a plain ``forward`` into a ``Network``.

    For an equal network it gives the same numbers as ``AgentNet``. It cannot skip heads that are
    not needed: a forward pass computes them all. Parameters carry the prefix ``module.``.
    """

    def __init__(self, module: nn.Module, heads: Heads, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.module = module
        self.form = form_of(module)
        self.num_actions = heads.flat["logits"]
        self.head_sizes = heads
        self.dtype = dtype

    def initial_memory(self, batch: int) -> Memory:
        """The agent's memory before its first step."""
        if self.form is Form.FEEDFORWARD:
            return None
        return initial_state(self.module, batch, self._device())

    def step(self, now: TimeStep, memory: Memory) -> tuple[Tensor, Memory]:
        """Logits [B, A] to act from, and the next memory, which resets where episodes begin."""
        if self.form is not Form.FEEDFORWARD:
            fresh = self.initial_memory(len(now.discount))
            memory = reset_where(now.discount == 0, fresh, memory)
        out, memory = self._once(now.observation, memory)
        return out["logits"], memory

    def output(self, observation: Observation, memory: Memory = None) -> AgentOutput:
        """Every head for every action. [N, ...] -> [N, ...]"""
        return AgentOutput(**self._once(observation, memory)[0])

    def unroll(self, rollout: Rollout, reader: Reader | None, *, differentiable: bool) -> Unroll:
        """The predictions that the loss trains, and the rule's reading of every state and action.

        Of the per-action heads, only those of the taken action carry a gradient to the loss. The
        reading has a graph only if ``differentiable``.
        """
        out, _ = self.heads_of(rollout)
        if torch.is_grad_enabled() and any(p.requires_grad for p in self.parameters()):
            check_graph(out)
        predictions = _predictions(out, rollout)
        if reader is None:
            return Unroll(predictions)
        with torch.set_grad_enabled(differentiable and torch.is_grad_enabled()):
            return ReadUnroll(predictions, _read(out, reader))

    def predict(self, rollout: Rollout) -> Predictions:
        """The predictions of ``unroll`` alone, without the rule's reading."""
        return _predictions(self.heads_of(rollout)[0], rollout)

    def read(self, rollout: Rollout, reader: Reader) -> ReadUnroll:
        """Logits, and the rule's reading of all states and actions, for the target network."""
        if self.form is not Form.FEEDFORWARD:
            out, _ = self.heads_of(rollout)
            return ReadUnroll(Predictions(out["logits"]), _read(out, reader))

        # A few rows at a time: only a few numbers of z and q are kept.
        shape = rollout.actions.shape
        rows = tree.map(lambda x: x.flatten(0, 1), rollout.observations)
        step = block_size(self.num_actions)
        blocks = []
        for start in range(0, shape.numel(), step):
            out, _ = self._once(tree.index(rows, slice(start, start + step)))
            blocks.append((out["logits"], _read(out, reader)))
        joined = tree.map(lambda *xs: torch.cat(xs).unflatten(0, shape), *blocks)
        return ReadUnroll(Predictions(joined[0]), joined[1])

    def validate(self, rollout: Rollout) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Logits and y [T, B, ...], and z of the taken actions [T-1, B, Y], for the meta-loss."""
        out, _ = self.heads_of(rollout)
        if "y" not in out:
            return out["logits"], None, None
        return out["logits"], out["y"], _of_taken(out["z"][:-1], rollout.actions[:-1])

    def memory_after(self, rollout: Rollout) -> Memory:
        """The agent's memory after the last step."""
        return self.heads_of(rollout)[1]

    def heads_of(self, rollout: Rollout) -> tuple[dict[str, Tensor], Memory]:
        """Every head at every step [T, B, ...], checked, and the memory after the last."""
        shape, reset = rollout.actions.shape, rollout.discounts == 0
        if self.form is Form.FEEDFORWARD:
            out, _ = self._once(tree.map(lambda x: x.flatten(0, 1), rollout.observations))
            return {name: x.unflatten(0, shape) for name, x in out.items()}, None
        if self.form is Form.SEQUENCE:
            out = self.module(rollout.observations, reset.to(self.dtype))
            return self._checked(out, tuple(shape)), None
        # Step by step, resetting the memory where an episode begins.
        fresh = memory = self.initial_memory(shape[1])
        if rollout.memory is not None:  # in the containers that it has today
            stored = iter(tree.leaves(rollout.memory))
            memory = tree.map(lambda _: next(stored)[0], fresh)
        steps = []
        for t in range(shape[0]):
            memory = reset_where(reset[t], fresh, memory)
            out, memory = self._once(tree.index(rollout.observations, t), memory)
            steps.append(out)
        return {name: torch.stack([out[name] for out in steps]) for name in steps[0]}, memory

    def _once(
        self, observation: Observation, memory: Memory = None
    ) -> tuple[dict[str, Tensor], Memory]:
        """One pass over a batch. [N, ...]"""
        output, memory = forward_once(self.module, self.form, observation, memory)
        batch = len(tree.leaves(observation)[0])
        check_state(memory, batch)
        return self._checked(output, (batch,)), memory

    def _checked(self, output: Any, batch: tuple[int, ...]) -> dict[str, Tensor]:
        return check_output(output, self.head_sizes, batch, self.dtype, self._device())

    def _device(self) -> torch.device:
        return next(self.module.parameters()).device


def _predictions(out: dict[str, Tensor], rollout: Rollout) -> Predictions:
    """What the loss trains, of every head at every step."""
    if "v" in out:
        return ValuePredictions(out["logits"], out["v"])
    taken = {
        f"{name}_a": _of_taken(out[name][:-1], rollout.actions[:-1])
        for name in ("z", "q", "aux_pi")
        if name in out
    }
    y = out["y"][:-1] if "y" in out else None
    return DiscoPredictions(out["logits"], y=y, **taken)


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

    def rows(x: Tensor, read: Callable[[Tensor], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        return tuple(r.unflatten(0, x.shape[:-1]) for r in in_blocks(read, x.flatten(0, -2)))

    read_y, read_z, read_q = reader
    y = rows(out["y"], lambda x: read_y(x, ())) if read_y else ()
    z = rows(out["z"], lambda x: read_z(x, ())) if read_z else ()
    q_value = rows(out["q"], lambda x: (read_q(x, ()),))[0] if read_q else None
    return Reading(y, z, q_value)
