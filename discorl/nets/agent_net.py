"""The agent's network: torso, heads of the state, and an action model for heads of each action."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from discorl import tree
from discorl.errors import DiscorlError
from discorl.nets.action_model import ActionModel
from discorl.nets.linear import Linear
from discorl.types import ActionReading, AgentOutput, Heads, Predictions, Unroll

Reader = Callable[[Tensor, Tensor], ActionReading]
"""Reads z [R, Y] and q [R, K] of R (state, action) pairs into a few numbers for each."""

HEAD_INIT_STD = 0.01
ROWS_PER_BLOCK = 384
"""(State, action) pairs worked through at a time: z and q of a block stay in the cache."""


class AgentNet(nn.Module):
    """A torso of any kind with the heads that a rule asks for.

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
    ) -> None:
        super().__init__()
        self.num_actions = num_actions
        self.head_sizes = heads
        self.torso = torso
        self.flat_heads = nn.ModuleDict(
            {name: Linear(embedding_size, n, HEAD_INIT_STD) for name, n in heads.flat.items()}
        )
        self.action_model = (
            ActionModel(embedding_size, num_actions, heads.per_action, lstm_size, head_hidden)
            if heads.per_action
            else None
        )

    def forward(self, *args, method: str = "output", **kwargs):
        """Call the method of that name."""
        return getattr(self, method)(*args, **kwargs)

    def policy(self, observation: Tensor) -> Tensor:
        """Logits alone, for acting. [B, ...] -> [B, A]"""
        return self.flat_heads["logits"](self.torso(observation))

    def output(self, observation: Tensor) -> AgentOutput:
        """Every head for every action. [N, ...] -> [N, ...]"""
        embedding = self.torso(observation)
        out = {name: head(embedding) for name, head in self.flat_heads.items()}
        if self.action_model is not None:
            cell, gates = self.action_model.root_state(embedding)
            every_action = self._every_action(len(embedding), embedding.device)
            hidden = self.action_model.transition(cell, gates, every_action)
            out |= {name: head(hidden) for name, head in self.action_model.heads.items()}
        return AgentOutput(**out)

    def unroll(
        self, observations: Tensor, actions: Tensor, read: Reader | None, *, differentiable: bool
    ) -> Unroll:
        """The predictions that the loss trains, and the rule's reading of every action.

        ``observations`` [T, B, ...], ``actions`` [T, B]. Only the taken action's heads are part of
        the predictions, so only they need a graph; the other actions are merely read, and carry
        gradients only if ``differentiable``, which the meta-gradient needs.
        """
        embedding, out = self._flat_pass(observations)
        time_batch = actions.shape
        if self.action_model is None or read is None:
            return Unroll(_shaped(Predictions(**out), time_batch))

        cell, gates = self.action_model.root_state(embedding)
        taken = actions.reshape(-1, 1)
        hidden = self.action_model.transition(cell, gates, taken).squeeze(1)
        heads = {name: head(hidden) for name, head in self.action_model.heads.items()}
        predictions = Predictions(**out, **{f"{name}_a": x for name, x in heads.items()})

        with torch.set_grad_enabled(differentiable):
            # The taken action comes first, then the others in cyclic order.
            reading = tree.map(lambda x: x.unsqueeze(1), read(heads["z"], heads["q"]))
            if self.num_actions > 1:
                steps = torch.arange(1, self.num_actions, device=actions.device)
                others = (taken + steps) % self.num_actions
                rest = self._read_actions(cell, gates, others, read)
                reading = tree.map(lambda a, b: torch.cat([a, b], 1), reading, rest)
            reading = _to_action_order(reading, taken, self.num_actions)
        return _shaped(Unroll(predictions, reading), time_batch)

    def read_all(self, observations: Tensor, read: Reader) -> Unroll:
        """The rule's reading of every action, and logits and y: what is asked of a target network.

        ``aux_pi`` and whatever else nobody reads is not computed.
        """
        time_batch = observations.shape[:2]
        embedding, out = self._flat_pass(observations)
        assert self.action_model is not None
        cell, gates = self.action_model.root_state(embedding)
        every_action = self._every_action(len(embedding), embedding.device)
        reading = self._read_actions(cell, gates, every_action, read)
        return _shaped(Unroll(Predictions(**out), reading), time_batch)

    def _flat_pass(self, observations: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Embedding [N, D] and flat heads of a rollout's observations."""
        embedding = self.torso(observations.flatten(0, 1))
        return embedding, {name: head(embedding) for name, head in self.flat_heads.items()}

    def _read_actions(
        self, cell: Tensor, gates: Tensor, actions: Tensor, read: Reader
    ) -> ActionReading:
        """Read z and q of ``actions`` [N, M] in blocks of rows, never holding all of them."""
        assert self.action_model is not None
        num_actions = actions.shape[1]
        block = max(1, ROWS_PER_BLOCK // num_actions)
        readings = []
        for inputs in zip(cell.split(block), gates.split(block), actions.split(block), strict=True):
            hidden = self.action_model.transition(*inputs).flatten(0, 1)
            z = self.action_model.heads["z"](hidden)
            q = self.action_model.heads["q"](hidden)
            readings.append(read(z, q))
        reading = tree.map(lambda *xs: torch.cat(xs), *readings)
        return tree.map(lambda x: x.unflatten(0, (-1, num_actions)), reading)

    def _every_action(self, num_rows: int, device: torch.device) -> Tensor:
        return torch.arange(self.num_actions, device=device).expand(num_rows, -1)


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


def _shaped(unrolled, time_batch: torch.Size):
    """Rows [N, ...] back to [T, B, ...]."""
    return tree.map(lambda x: x.unflatten(0, tuple(time_batch)), unrolled)


def _to_action_order(reading: ActionReading, taken: Tensor, num_actions: int) -> ActionReading:
    """From taken-first cyclic order to the actions' own. ``taken`` [N, 1]"""
    place = (torch.arange(num_actions, device=taken.device) - taken) % num_actions

    def reorder(x: Tensor) -> Tensor:
        index = place.reshape(*place.shape, *(1,) * (x.dim() - 2)).expand_as(x)
        return x.gather(1, index)

    return tree.map(reorder, reading)
