"""The agent's network: torso, heads of the state, and an action model for heads of each action."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from discorl import tree
from discorl.errors import DiscorlError
from discorl.nets.action_model import ActionModel
from discorl.nets.linear import MLP, Linear
from discorl.nets.lstm import LSTM
from discorl.ops import native
from discorl.types import (
    AgentOutput,
    DiscoPredictions,
    Heads,
    Layers,
    LSTMState,
    Observation,
    Predictions,
    Reader,
    Reading,
    ReadUnroll,
    Unroll,
    ValuePredictions,
)

HEAD_INIT_STD = 0.01
ROWS_PER_BLOCK = 2048
"""Rows of y, z and q that are worked through at a time, so that they stay in the cache."""


class _Parts(NamedTuple):
    """Rows that predictions are made of: N = (T-1) * B of them, and B of the last time step."""

    last: Tensor  # [B, D], embedding
    cell: Tensor  # [N, H]
    gates: Tensor  # [N, 4H]
    taken: Tensor  # [N], actions
    y: Tensor  # [N, Y]
    heads: dict[str, Tensor]  # of the taken action, [N, ...]


class AgentNet(nn.Module):
    """A torso of any kind, an LSTM ``core`` if wanted, and the heads that a rule asks for.

    With a core the network remembers: pass it ``resets`` (true at the first step of an episode)
    and the ``core_state`` before the first step, zeros if it is None.

    Call it through ``torch.func.functional_call(net, params, args, {"method": ...})``: ``forward``
    hands over to the method of that name, so that one set of parameters serves all of them.
    """

    def __init__(
        self,
        torso: nn.Module,
        embedding_size: int,
        num_actions: int,
        heads: Heads,
        lstm_size: int = 128,
        head_hidden: Sequence[int] = (128,),
        core: LSTM | None = None,
        *,
        zero_values: bool = False,
    ) -> None:
        """With ``zero_values`` the last layer of v and q begins at 0."""
        super().__init__()
        if core is not None and core.num_inputs != embedding_size:
            raise DiscorlError(
                f"the core takes {core.num_inputs} numbers, but the torso gives {embedding_size}: "
                f"use LSTM({embedding_size}, {core.hidden_size})"
            )
        self.num_actions = num_actions
        self.head_sizes = heads
        self.torso = torso
        self.core = core
        embedding_size = embedding_size if core is None else core.hidden_size
        zeros: dict[str, float] = {"v": 0.0, "q": 0.0} if zero_values else {}
        self.flat_heads = nn.ModuleDict(
            {
                name: Linear(embedding_size, n, zeros.get(name, HEAD_INIT_STD))
                for name, n in heads.flat.items()
            }
        )
        self.action_model = (
            ActionModel(
                embedding_size, num_actions, heads.per_action, lstm_size, head_hidden, zeros
            )
            if heads.per_action
            else None
        )

    def forward(self, *args, method: str = "output", **kwargs):
        """Call the method of that name."""
        return getattr(self, method)(*args, **kwargs)

    def bind(self, fn: Callable[[AgentNet], Any]) -> Any:
        """Call ``fn`` with this network: for many calls with the same parameters."""
        return fn(self)

    def policy(self, observation: Observation) -> Tensor:
        """Logits alone, for acting without a core. [B, ...] -> [B, A]"""
        self._refuse_core("act")
        return self.flat_heads["logits"](self.torso(observation))

    def zero_state(self, batch: int) -> LSTMState | None:
        """The core's state before an agent's first step; None without a core."""
        return None if self.core is None else self.core.zero_state(batch)

    def act(
        self, observation: Observation, reset: Tensor, core_state: LSTMState | None
    ) -> tuple[Tensor, LSTMState | None]:
        """Logits and the core's next state. [B, ...], [B], [B, H] -> [B, A], [B, H]"""
        embedding, core_state = self.embed(
            tree.map(lambda x: x.unsqueeze(0), observation), reset.unsqueeze(0), core_state
        )
        return self.flat_heads["logits"](embedding), core_state

    def embed(
        self,
        observations: Observation,
        resets: Tensor | None = None,
        core_state: LSTMState | None = None,
    ) -> tuple[Tensor, LSTMState | None]:
        """What the heads see, and the core's last state. [T, B, ...] -> [T * B, D], [B, H]"""
        embedding = self.torso(tree.map(lambda x: x.flatten(0, 1), observations))
        if self.core is None:
            return embedding, None
        if resets is None:
            raise DiscorlError("a core must know where episodes begin: pass resets=discounts == 0")
        x = embedding.unflatten(0, resets.shape)
        state = self.core.zero_state(x.shape[1]) if core_state is None else core_state
        hidden, state = self.core.unroll(x, resets, state)
        return hidden.flatten(0, 1), state

    def output(self, observation: Observation, core_state: LSTMState | None = None) -> AgentOutput:
        """Every head for every action. [N, ...] -> [N, ...]

        A core takes its step from ``core_state`` [N, H], the state after the step before.
        """
        embedding = self.torso(observation)
        if self.core is not None and core_state is not None:
            embedding = self.core.step(embedding, core_state).hidden
        else:
            self._refuse_core("unroll")
        out = {name: head(embedding) for name, head in self.flat_heads.items()}
        if self.action_model is not None:
            cell, gates = self.action_model.root_state(embedding)
            hidden = self.action_model.transition_all(cell, gates)
            out |= {name: head(hidden) for name, head in self.action_model.heads.items()}
        return AgentOutput(**out)

    def unroll(
        self,
        observations: Observation,
        actions: Tensor,
        reader: Reader | None,
        *,
        differentiable: bool,
        resets: Tensor | None = None,
        core_state: LSTMState | None = None,
    ) -> Unroll:
        """The predictions that the loss trains, and the rule's reading of every state and action.

        ``observations`` [T, B, ...], ``actions`` [T, B]. Only what is among the predictions needs
        a graph. The last time step and the actions not taken are merely read, and carry gradients
        only if ``differentiable``, which the meta-gradient needs.
        """
        reads = reader is not None
        predictions, parts = self._predict(observations, actions, resets, core_state, reads)
        if parts is None or reader is None:
            return Unroll(predictions)
        last, cell, gates, taken, y, heads = parts
        with torch.set_grad_enabled(differentiable):
            of_taken = _in_blocks(
                lambda z, q: (*reader.z(z, ()), reader.q(q, ())), heads["z"], heads["q"]
            )
            of_actions = self._read_others(cell, gates, taken, of_taken, reader)
            of_actions = _cat(of_actions, self._read_every_action(last, reader))
            of_states = _in_blocks(lambda y: reader.y(y, ()), y)
            of_states = _cat(of_states, reader.y(last, self._y_head()))
        return ReadUnroll(predictions, _reading(of_states, of_actions, len(actions)))

    def predict(
        self,
        observations: Observation,
        actions: Tensor,
        resets: Tensor | None = None,
        core_state: LSTMState | None = None,
    ) -> Predictions:
        """The predictions of ``unroll`` alone, without the rule's reading."""
        return self._predict(observations, actions, resets, core_state, of_actions=True)[0]

    def read_all(
        self,
        observations: Observation,
        reader: Reader,
        resets: Tensor | None = None,
        core_state: LSTMState | None = None,
    ) -> Unroll:
        """Logits, and the rule's reading of all states and actions: what a target network is for.

        ``aux_pi`` and whatever else nobody reads is not computed.
        """
        num_steps = len(tree.leaves(observations)[0])
        embedding, _ = self.embed(observations, resets, core_state)
        logits = self.flat_heads["logits"](embedding).unflatten(0, (num_steps, -1))
        of_states = _in_blocks(lambda x: reader.y(x, self._y_head()), embedding)
        of_actions = self._read_every_action(embedding, reader)
        return ReadUnroll(Predictions(logits), _reading(of_states, of_actions, num_steps))

    def validate(
        self,
        observations: Observation,
        actions: Tensor,
        resets: Tensor | None = None,
        core_state: LSTMState | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Logits and y [T, B, ...], and z of the taken actions [T-1, B, Y], for the meta-loss."""
        assert self.action_model is not None
        shape = actions.shape
        embedding, _ = self.embed(observations, resets, core_state)
        logits = self.flat_heads["logits"](embedding).unflatten(0, shape)
        y = self.flat_heads["y"](embedding).unflatten(0, shape)
        state = self.action_model.root_state(embedding[: actions[:-1].numel()])
        hidden = self.action_model.transition(*state, actions[:-1].flatten())
        return logits, y, self.action_model.heads["z"](hidden).unflatten(0, (-1, shape[1]))

    def _predict(
        self,
        observations: Observation,
        actions: Tensor,
        resets: Tensor | None,
        core_state: LSTMState | None,
        of_actions: bool,
    ) -> tuple[Predictions, _Parts | None]:
        """The predictions, and what those of actions are made of, if wanted and there are any."""
        num_steps, batch = actions.shape
        embedding, _ = self.embed(observations, resets, core_state)
        bootstrapped = {
            name: self.flat_heads[name](embedding).unflatten(0, (num_steps, batch))
            for name in ("logits", "v")
            if name in self.flat_heads
        }
        if self.action_model is None or not of_actions:
            kind = ValuePredictions if "v" in bootstrapped else Predictions
            return kind(**bootstrapped), None

        trained, last = embedding.split([len(embedding) - batch, batch])
        y = self.flat_heads["y"](trained)
        cell, gates = self.action_model.root_state(trained)
        taken = actions[:-1].flatten()
        hidden = self.action_model.transition(cell, gates, taken)
        heads = {name: head(hidden) for name, head in self.action_model.heads.items()}
        by_row = {"y": y} | {f"{name}_a": x for name, x in heads.items()}
        learnt = {name: x.unflatten(0, (num_steps - 1, batch)) for name, x in by_row.items()}
        predictions = DiscoPredictions(bootstrapped["logits"], **learnt)
        return predictions, _Parts(last, cell, gates, taken, y, heads)

    def _refuse_core(self, instead: str) -> None:
        if self.core is not None:
            raise DiscorlError(f"a network with a core needs its state: call '{instead}' instead")

    def _read_every_action(self, embedding: Tensor, reader: Reader) -> tuple[Tensor, ...]:
        """The rule's reading of all actions. [N, D] -> [N, A, ...] each"""
        model = self.action_model
        assert model is not None

        def read(cell: Tensor, gates: Tensor) -> tuple[Tensor, ...]:
            readings = self._read(model.transition_all(cell, gates).flatten(0, 1), reader)
            return tuple(x.unflatten(0, (-1, self.num_actions)) for x in readings)

        rows = max(1, ROWS_PER_BLOCK // self.num_actions)
        return _in_blocks(read, *model.root_state(embedding), rows=rows)

    def _read_others(
        self,
        cell: Tensor,
        gates: Tensor,
        taken: Tensor,
        of_taken: tuple[Tensor, ...],
        reader: Reader,
    ) -> tuple[Tensor, ...]:
        """Add the reading of the other actions to that of the taken ones [N]. -> [N, A, ...]"""
        model, num_others = self.action_model, self.num_actions - 1
        assert model is not None
        of_taken, taken = tuple(x.unsqueeze(1) for x in of_taken), taken.unsqueeze(1)
        if num_others == 0:
            return of_taken

        def read(cell: Tensor, gates: Tensor, actions: Tensor) -> tuple[Tensor, ...]:
            hidden = model.transition_some(cell, gates, actions)
            readings = self._read(hidden.flatten(0, 1), reader)
            return tuple(x.unflatten(0, (-1, num_others)) for x in readings)

        # The taken action first, then the others in cyclic order.
        turns = torch.arange(1, self.num_actions, device=taken.device)
        others = (taken + turns) % self.num_actions
        rows = max(1, ROWS_PER_BLOCK // num_others)
        of_others = _in_blocks(read, cell, gates, others, rows=rows)
        return _to_action_order(_cat(of_taken, of_others, 1), taken, self.num_actions)

    def _read(self, hidden: Tensor, reader: Reader) -> tuple[Tensor, ...]:
        """Read z and q of (state, action) pairs, one after the other so that both fit the cache."""
        assert self.action_model is not None
        heads = self.action_model.heads
        z, q = (_layers(heads[name]) for name in ("z", "q"))
        return *reader.z(hidden, z), reader.q(hidden, q)

    def _y_head(self) -> Layers:
        return _layers(self.flat_heads["y"])


def check_heads(net: nn.Module, required: Heads) -> None:
    """Raise if the network lacks a head that the rule needs, or has it in another size."""
    present: Heads | None = getattr(net, "head_sizes", None)
    if present is None:
        raise DiscorlError(
            "the agent network does not say which heads it has; build it with "
            "discorl.nets.AgentNet(torso, ..., heads=rule.heads(num_actions))"
        )
    for kind in ("flat", "per_action"):
        have, need = getattr(present, kind), getattr(required, kind)
        for name, size in need.items():
            if name not in have:
                raise DiscorlError(
                    f"the agent network lacks the head '{name}' (size {size}) that the rule needs; "
                    "build the network with heads=rule.heads(num_actions)"
                )
            if have[name] != size:
                raise DiscorlError(
                    f"the agent network's head '{name}' has size {have[name]}, but the rule needs "
                    f"{size}; build the network with heads=rule.heads(num_actions)"
                )


def _layers(head: nn.Module) -> Layers:
    assert isinstance(head, Linear | MLP)
    return head.as_layers()


def _in_blocks(
    fn: Callable[..., tuple[Tensor, ...]], *inputs: Tensor, rows: int = ROWS_PER_BLOCK
) -> tuple[Tensor, ...]:
    """Apply ``fn`` to blocks of rows and join what it returns; kernels make blocks themselves."""
    if native.apply_to(inputs[0]):
        return fn(*inputs)
    blocks = [fn(*block) for block in zip(*(x.split(rows) for x in inputs), strict=True)]
    return tuple(torch.cat(parts) for parts in zip(*blocks, strict=True))


def _cat(first: tuple[Tensor, ...], second: tuple[Tensor, ...], dim: int = 0) -> tuple[Tensor, ...]:
    return tuple(torch.cat(pair, dim) for pair in zip(first, second, strict=True))


def _reading(
    of_states: tuple[Tensor, ...], of_actions: tuple[Tensor, ...], num_steps: int
) -> Reading:
    """Rows [N, ...] as [T, B, ...]."""
    return Reading(*(x.unflatten(0, (num_steps, -1)) for x in (*of_states, *of_actions)))


def _to_action_order(
    readings: tuple[Tensor, ...], taken: Tensor, num_actions: int
) -> tuple[Tensor, ...]:
    """From taken-first cyclic order [N, A, ...] to the actions' own. ``taken`` [N, 1]"""
    place = (torch.arange(num_actions, device=taken.device) - taken) % num_actions

    def reorder(x: Tensor) -> Tensor:
        return x.gather(1, place.reshape(*place.shape, *(1,) * (x.dim() - 2)).expand_as(x))

    return tuple(reorder(x) for x in readings)
