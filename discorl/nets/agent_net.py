"""The agent's network: torso, heads of the state, and an action model for heads of each action."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from discorl import tree
from discorl.errors import DiscorlError
from discorl.nets.action_model import ActionModel
from discorl.nets.linear import MLP, Linear
from discorl.nets.lstm import LSTM
from discorl.nets.reading import as_reading, joined, read_taken, reads_actions, to_action_order
from discorl.ops.rows import in_blocks
from discorl.types import (
    AgentOutput,
    DiscoPredictions,
    Heads,
    Layers,
    LSTMState,
    Observation,
    Predictions,
    Reader,
    ReadUnroll,
    Rollout,
    TimeStep,
    Unroll,
    ValuePredictions,
)

HEAD_INIT_STD = 0.01


class _Parts(NamedTuple):
    """Rows that predictions are made of: N = (T-1) * B of them, and B of the last time step."""

    last: Tensor  # [B, D], embedding
    root: tuple[Tensor, Tensor] | None  # [N, H] and [N, 4H]; None without an action model
    taken: Tensor  # [N], actions
    heads: dict[str, Tensor]  # y, and those of the taken action, [N, ...]


class AgentNet(nn.Module):
    """A torso of any kind, optionally an LSTM ``core``, and the heads that a rule asks for.

    It follows the contract in ``agents/network.py``. Its memory is the state of the core.
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
        """With ``zero_values`` the last layer of v and q starts at 0."""
        super().__init__()
        if core is not None and core.num_inputs != embedding_size:
            raise DiscorlError(
                f"the core takes {core.num_inputs} inputs, but the torso gives {embedding_size}: "
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

    @property
    def value_layer(self) -> str | None:
        """The layer that says v, or q; None if there is neither."""
        if "v" in self.flat_heads:
            return "flat_heads.v"
        if self.action_model is None or "q" not in self.action_model.heads:
            return None
        last = len(cast("MLP", self.action_model.heads["q"]).layers) - 1
        return f"action_model.heads.q.layers.{last}"

    @property
    def has_independent_rows(self) -> bool:
        """Whether each state's predictions depend on its observation alone, in all layers of ours:
        a core mixes time steps, and a torso that is not ours could mix anything."""
        return self.core is None and type(self.torso).__module__.startswith("discorl.")

    def forward(self, observation: Observation) -> AgentOutput:
        """Every head, without memory."""
        return self.output(observation)

    def initial_memory(self, batch: int) -> LSTMState | None:
        """The core's state before an agent's first step."""
        return None if self.core is None else self.core.zero_state(batch)

    def step(self, now: TimeStep, memory: LSTMState | None) -> tuple[Tensor, LSTMState | None]:
        """Logits [B, A] to act from, and the next memory; the core forgets where episodes begin."""
        embedding = self.torso(now.observation)
        if self.core is not None:
            reset = (now.discount == 0).unsqueeze(0)
            hidden, memory = self.core.unroll(embedding.unsqueeze(0), reset, self._state(memory))
            embedding = hidden.squeeze(0)
        return self.flat_heads["logits"](embedding), memory

    def is_for_acting(self, name: str) -> bool:
        """Whether ``step`` reads the parameter of that name."""
        return name.startswith(("torso.", "core.", "flat_heads.logits."))

    def output(self, observation: Observation, memory: LSTMState | None = None) -> AgentOutput:
        """Every head for every action. [N, ...] -> [N, ...]

        A core takes its step from ``memory`` [N, H], the state after the step before.
        """
        embedding = self.torso(observation)
        if self.core is not None:
            embedding = self.core.step(embedding, self._state(memory)).hidden
        out = {name: head(embedding) for name, head in self.flat_heads.items()}
        if self.action_model is not None:
            cell, gates = self.action_model.root_state(embedding)
            hidden = self.action_model.transition_all(cell, gates)
            out |= {name: head(hidden) for name, head in self.action_model.heads.items()}
        return AgentOutput(**out)

    def unroll(self, rollout: Rollout, reader: Reader | None, *, differentiable: bool) -> Unroll:
        """The predictions that the loss trains, and the rule's reading of every state and action.

        Only what is among the predictions needs a graph. The last time step and the actions not
        taken are merely read, and carry gradients only if ``differentiable``, which the
        meta-gradient needs.
        """
        predictions, parts = self._predict(rollout, of_actions=reader is not None)
        if parts is None or reader is None:
            return Unroll(predictions)
        with torch.set_grad_enabled(differentiable):
            of_actions = self._read_others(parts, reader)
            of_actions = joined(of_actions, self._read_every_action(parts.last, reader))
            of_states = ()
            if read_y := reader.y:
                of_states = in_blocks(lambda y: read_y(y, ()), parts.heads["y"])
                of_states = joined(of_states, read_y(parts.last, self._y_head()))
            reading = as_reading(of_states, of_actions, reader, len(rollout.actions))
        return ReadUnroll(predictions, reading)

    def predict(self, rollout: Rollout) -> Predictions:
        """The predictions of ``unroll`` alone, without the rule's reading."""
        of_actions = self.action_model is not None or "v" not in self.flat_heads
        return self._predict(rollout, of_actions)[0]

    def read(self, rollout: Rollout, reader: Reader) -> ReadUnroll:
        """Logits, and the rule's reading of all states and actions: what a target network is for.

        ``aux_pi`` and other heads that the rule does not read are not computed.
        """
        num_steps = len(rollout.actions)
        embedding, _ = self._embed(rollout)
        logits = self.flat_heads["logits"](embedding).unflatten(0, (num_steps, -1))
        of_states = ()
        if read_y := reader.y:
            of_states = in_blocks(lambda x: read_y(x, self._y_head()), embedding)
        of_actions = self._read_every_action(embedding, reader)
        return ReadUnroll(Predictions(logits), as_reading(of_states, of_actions, reader, num_steps))

    def validate(self, rollout: Rollout) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Logits and y [T, B, ...], and z of the taken actions [T-1, B, Y], for the meta-loss."""
        actions, shape = rollout.actions, rollout.actions.shape
        embedding, _ = self._embed(rollout)
        logits = self.flat_heads["logits"](embedding).unflatten(0, shape)
        if "y" not in self.flat_heads:
            return logits, None, None
        assert self.action_model is not None
        y = self.flat_heads["y"](embedding).unflatten(0, shape)
        state = self.action_model.root_state(embedding[: actions[:-1].numel()])
        hidden = self.action_model.transition(*state, actions[:-1].flatten())
        return logits, y, self.action_model.heads["z"](hidden).unflatten(0, (-1, shape[1]))

    def memory_after(self, rollout: Rollout) -> LSTMState | None:
        """The core's state after the last step."""
        return self._embed(rollout)[1]

    def _embed(self, rollout: Rollout) -> tuple[Tensor, LSTMState | None]:
        """What the heads see, and the core's last state. [T * B, D], [B, H]"""
        embedding = self.torso(tree.map(lambda x: x.flatten(0, 1), rollout.observations))
        if self.core is None:
            return embedding, None
        x = embedding.unflatten(0, rollout.actions.shape)
        state = tree.index(rollout.memory, 0)
        state = self.core.zero_state(x.shape[1]) if state is None else state
        hidden, state = self.core.unroll(x, rollout.discounts == 0, state)
        return hidden.flatten(0, 1), state

    def _predict(self, rollout: Rollout, of_actions: bool) -> tuple[Predictions, _Parts | None]:
        """The predictions, and what those of actions are made of, if wanted."""
        num_steps, batch = rollout.actions.shape
        embedding, _ = self._embed(rollout)
        bootstrapped = {
            name: self.flat_heads[name](embedding).unflatten(0, (num_steps, batch))
            for name in ("logits", "v")
            if name in self.flat_heads
        }
        if not of_actions:
            kind = ValuePredictions if "v" in bootstrapped else Predictions
            return kind(**bootstrapped), None

        trained, last = embedding.split([len(embedding) - batch, batch])
        taken, root = rollout.actions[:-1].flatten(), None
        heads = {"y": self.flat_heads["y"](trained)} if "y" in self.flat_heads else {}
        if self.action_model is not None:
            root = self.action_model.root_state(trained)
            hidden = self.action_model.transition(*root, taken)
            heads |= {name: head(hidden) for name, head in self.action_model.heads.items()}
        learnt = {
            name if name == "y" else f"{name}_a": x.unflatten(0, (num_steps - 1, batch))
            for name, x in heads.items()
        }
        predictions = DiscoPredictions(bootstrapped["logits"], **learnt)
        return predictions, _Parts(last, root, taken, heads)

    def _state(self, memory: LSTMState | None) -> LSTMState:
        if memory is None:
            raise DiscorlError(
                "a network with a core needs its memory: start with initial_memory(batch)"
            )
        return memory

    def _read_every_action(self, embedding: Tensor, reader: Reader) -> tuple[Tensor, ...]:
        """The rule's reading of all actions. [N, D] -> [N, A, ...] each"""
        model = self.action_model
        if model is None or not reads_actions(reader):
            return ()

        def read(cell: Tensor, gates: Tensor) -> tuple[Tensor, ...]:
            readings = self._read(model.transition_all(cell, gates).flatten(0, 1), reader)
            return tuple(x.unflatten(0, (-1, self.num_actions)) for x in readings)

        return in_blocks(read, *model.root_state(embedding), rows_each=self.num_actions)

    def _read_others(self, parts: _Parts, reader: Reader) -> tuple[Tensor, ...]:
        """Add the reading of the other actions to that of the taken ones. -> [N, A, ...] each"""
        model, num_others = self.action_model, self.num_actions - 1
        if model is None or parts.root is None or not reads_actions(reader):
            return ()
        of_taken = read_taken(parts.heads, reader)
        of_taken, taken = tuple(x.unsqueeze(1) for x in of_taken), parts.taken.unsqueeze(1)
        if num_others == 0:
            return of_taken

        def read(cell: Tensor, gates: Tensor, actions: Tensor) -> tuple[Tensor, ...]:
            hidden = model.transition_some(cell, gates, actions)
            readings = self._read(hidden.flatten(0, 1), reader)
            return tuple(x.unflatten(0, (-1, num_others)) for x in readings)

        # The taken action first, then the others in cyclic order.
        turns = torch.arange(1, self.num_actions, device=taken.device)
        others = (taken + turns) % self.num_actions
        of_others = in_blocks(read, *parts.root, others, rows_each=num_others)
        return to_action_order(joined(of_taken, of_others, 1), taken, self.num_actions)

    def _read(self, hidden: Tensor, reader: Reader) -> tuple[Tensor, ...]:
        """Read z and q of (state, action) pairs, one after the other so that both fit the cache."""
        assert self.action_model is not None
        heads = self.action_model.heads
        of_z = reader.z(hidden, _layers(heads["z"])) if reader.z else ()
        return of_z + ((reader.q(hidden, _layers(heads["q"])),) if reader.q else ())

    def _y_head(self) -> Layers:
        return _layers(self.flat_heads["y"])


def _layers(head: nn.Module) -> Layers:
    assert isinstance(head, Linear | MLP)
    return head.as_layers()
