"""The meta-network: from experience to targets for the agent's predictions.

A trajectory LSTM runs backward over each trajectory; a lifetime LSTM takes one step for each
update of the agent, and gates what the trajectory LSTM says. A rule can do without some of this:
the parts that it lacks have no parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from discorl.nets.linear import MLP, Linear
from discorl.nets.lstm import LSTM
from discorl.nets.meta_features import (
    Embeddings,
    Experience,
    action_features,
    num_constants,
    step_features,
)
from discorl.ops.masks import mask_logits, mean_over_actions
from discorl.ops.moments import MeanFn
from discorl.ops.softmax import mlp, softmax_linear
from discorl.ops.step_means import live_mean_of_steps
from discorl.types import Layers, LSTMState, Params

OUTPUT_INIT_STD = 0.3
GATE_INIT_STD = 1.0


@dataclass(frozen=True)
class MetaNetSizes:
    """Widths of the meta-network; the defaults are Disco103's."""

    prediction: int = 600
    """Size of y and z, and of their targets; 0 if there are none."""
    hidden: int = 256
    """Trajectory LSTM."""
    embedding: tuple[int, ...] = (16, 1)
    """MLP that embeds y, and another that embeds z."""
    action_channels: tuple[int, ...] = (16, 2)
    """Blocks that embed the inputs of each action."""
    policy_channels: tuple[int, ...] = (16,)
    """Blocks before the policy target."""
    lifetime_hidden: int = 128
    """Lifetime LSTM; 0 if there is none."""
    lifetime_embedding: tuple[int, ...] = (16,)
    """MLP on the lifetime LSTM's inputs."""
    lifetime_prediction_embedding: tuple[int, ...] = (16, 1)
    """Like ``embedding``, for the lifetime LSTM's own copies."""
    lifetime_action_channels: tuple[int, ...] = (16, 2)
    """Like ``action_channels``, for the lifetime LSTM's own copies."""

    @property
    def has_predictions(self) -> bool:
        """Whether there are y and z."""
        return self.prediction > 0

    @property
    def has_lifetime(self) -> bool:
        """Whether there is a lifetime LSTM."""
        return self.lifetime_hidden > 0

    def limited_to(self, *, predictions: bool, lifetime: bool) -> MetaNetSizes:
        """The same network without y and z, or without the lifetime LSTM."""
        sizes = self
        if not predictions:
            sizes = replace(sizes, prediction=0, embedding=(), lifetime_prediction_embedding=())
        if not lifetime:
            sizes = replace(
                sizes,
                lifetime_hidden=0,
                lifetime_embedding=(),
                lifetime_prediction_embedding=(),
                lifetime_action_channels=(),
            )
        return sizes


class MetaOutput(NamedTuple):
    """Targets as logits, and the lifetime LSTM's next state."""

    pi: Tensor  # [S, B, A]
    y: Tensor | None  # [S, B, Y]
    z: Tensor | None  # [S, B, Y]
    lifetime_input: Tensor | None  # [S, B, 1]
    lifetime_rnn: LSTMState | None
    log_strength: Tensor | None = None  # [S, B, 1], for a rule with a prior
    more_trust: Tensor | None = None  # [S, B, 1], likewise


class ActionBlocks(nn.Module):
    """Layers that all actions share, however many: relu(Linear(x, mean of x over actions))."""

    def __init__(self, num_inputs: int, channels: tuple[int, ...]) -> None:
        super().__init__()
        widths = [num_inputs, *channels]
        self.layers = nn.ModuleList(Linear(2 * m, n) for m, n in pairwise(widths))

    def forward(
        self, x: Tensor, common: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """``x`` [..., A, C] -> [..., A, C']. Means are over the actions that ``mask`` allows.

        ``common`` [..., H] stands before ``x`` in the input of the first layer. Being the same for
        all actions it equals its mean, so it is projected once by the sum of both weights.
        """
        for layer in self.layers:
            assert isinstance(layer, Linear)
            num_common = 0 if common is None else common.shape[-1]
            first, mean_first = layer.weight.chunk(2, 1)
            mean = mean_over_actions(x, mask)
            x_mean = nn.functional.linear(mean, mean_first[:, num_common:], layer.bias)
            if common is not None:
                both = first[:, :num_common] + mean_first[:, :num_common]
                x_mean = x_mean + nn.functional.linear(common, both)
            own = nn.functional.linear(x, first[:, num_common:])
            x = torch.relu(own + x_mean.unsqueeze(-2))
            common = None
        return x


class Embedder(nn.Module):
    """Embeds predictions and actions, and lays them out as the inputs of an LSTM."""

    def __init__(
        self,
        prediction: int,
        embedding: tuple[int, ...],
        channels: tuple[int, ...],
        sees_values: bool,
    ) -> None:
        super().__init__()
        self.y = MLP(prediction, embedding) if prediction else None
        self.z = MLP(prediction, embedding) if prediction else None
        self.embedding_size = embedding[-1] if prediction else 0
        of_step, of_action = num_constants(sees_values)
        self.actions = ActionBlocks(of_action + 2 * self.embedding_size, channels)
        self.num_features = of_step + 14 * self.embedding_size + 2 * channels[-1]

    def features(self, seen: Experience, embeddings: Embeddings | None) -> tuple[Tensor, Tensor]:
        """Inputs of each step [S, B, F], and the embedding of each action [S, B, A, C]."""
        action_embedding = self.actions(action_features(seen, embeddings), mask=seen.mask_now)
        return step_features(seen, embeddings, action_embedding), action_embedding


class MetaNet(nn.Module):
    """The rule's network, of any size and for any number of actions."""

    def __init__(
        self, sizes: MetaNetSizes, sees_values: bool = True, has_prior: bool = False
    ) -> None:
        """Without ``sees_values`` nothing that comes from q is among its inputs.

        With a prior the network says what to add to it, and at first that is nothing.
        """
        super().__init__()
        self.sizes = sizes
        size, hidden, life = sizes.prediction, sizes.hidden, sizes.lifetime_hidden
        self.trajectory = Embedder(size, sizes.embedding, sizes.action_channels, sees_values)
        self.trajectory_rnn = LSTM(self.trajectory.num_features, hidden)
        output_std = 0.0 if has_prior else OUTPUT_INIT_STD
        self.lifetime_gate = Linear(life, hidden, GATE_INIT_STD) if life else None
        self.lifetime_input = Linear(hidden, 1, OUTPUT_INIT_STD) if life else None
        self.y_target = Linear(hidden, size, output_std) if size else None
        self.z_target = Linear(hidden, size, output_std) if size else None
        self.policy_blocks = ActionBlocks(hidden + sizes.action_channels[-1], sizes.policy_channels)
        self.policy_target = Linear(sizes.policy_channels[-1], 1, output_std)
        self.prior_strength = Linear(hidden + life, 1, 0.0) if has_prior else None
        self.prior_trust = Linear(hidden + life, 1, 0.0) if has_prior else None
        if not life:
            return
        self.lifetime = Embedder(
            size, sizes.lifetime_prediction_embedding, sizes.lifetime_action_channels, sees_values
        )
        num_inputs = self.lifetime.num_features + 1 + self.lifetime.embedding_size
        self.lifetime_mlp = MLP(num_inputs, sizes.lifetime_embedding)
        self.lifetime_rnn = LSTM(sizes.lifetime_embedding[-1], life)

    def forward(self, *args, method: str = "targets", **kwargs):
        """Call the method of that name (see ``AgentNet.forward``)."""
        return getattr(self, method)(*args, **kwargs)

    def targets(
        self,
        seen: Experience,
        embeddings: Sequence[Embeddings],
        lifetime_rnn: LSTMState | None,
        across: MeanFn,
    ) -> MetaOutput:
        """pi-hat, y-hat and z-hat for every step, and the lifetime LSTM's step.

        ``embeddings`` are those for the trajectory network, then those for the lifetime LSTM.
        """
        of_trajectory = embeddings[0] if embeddings else None
        features, action_embedding = self.trajectory.features(seen, of_trajectory)
        x = self.trajectory_rnn.unroll_backward(features, seen.is_terminal)
        if self.lifetime_gate is not None and lifetime_rnn is not None:
            x = x * self.lifetime_gate(lifetime_rnn.hidden)

        y_hat = None if self.y_target is None else self.y_target(x)
        z_hat = None if self.z_target is None else self.z_target(x)
        of_actions = self.policy_blocks(action_embedding, common=x, mask=seen.mask_now)
        pi_hat = mask_logits(self.policy_target(of_actions).squeeze(-1), seen.mask_now)
        of_prior = self._of_prior(x, lifetime_rnn)
        if self.lifetime_input is None or lifetime_rnn is None:
            return MetaOutput(pi_hat, y_hat, z_hat, None, None, *of_prior)

        lifetime_input = self.lifetime_input(x)
        features, _ = self.lifetime.features(seen, embeddings[1] if embeddings else None)
        told = [features, lifetime_input]
        if y_hat is not None and self.lifetime.y is not None:
            told.append(self.lifetime.y(torch.softmax(y_hat, -1)))
        told = self.lifetime_mlp(torch.cat(told, -1))
        pooled = across(live_mean_of_steps(told, seen.is_dead))
        lifetime_rnn = self.lifetime_rnn.step(pooled, lifetime_rnn)
        return MetaOutput(pi_hat, y_hat, z_hat, lifetime_input, lifetime_rnn, *of_prior)

    def _of_prior(self, x: Tensor, lifetime_rnn: LSTMState | None) -> tuple[Tensor | None, ...]:
        """Its strength and trust, from the trajectory [S, B, H] and the agent's life so far."""
        if self.prior_strength is None or self.prior_trust is None:
            return None, None
        if lifetime_rnn is not None:
            x = torch.cat([x, lifetime_rnn.hidden.expand(*x.shape[:-1], -1)], -1)
        return self.prior_strength(x), self.prior_trust(x)


class JoinedMLPs:
    """MLPs on one input, the softmax of logits; their wide first layers are one product."""

    def __init__(self, params: Params, *names: str) -> None:
        self._layers = [_layers(params, name) for name in names]
        weights, biases = zip(*(layers[0] for layers in self._layers), strict=True)
        self._sizes = [len(weight) for weight in weights]
        # [Y, few]: fast in this layout
        self._weight = torch.cat(weights).T.contiguous()
        self._bias = torch.cat(biases)

    def __call__(self, x: Tensor, layers: Layers = ()) -> tuple[Tensor, ...]:
        """The embeddings of logits [R, Y], or of the logits that ``layers`` make of ``x``."""
        hidden = softmax_linear(x, layers, self._weight, self._bias)
        outputs = []
        for part, (_, *later) in zip(hidden.split(self._sizes, -1), self._layers, strict=True):
            outputs.append(mlp(torch.relu(part), later) if later else part)
        return tuple(outputs)


def _layers(params: Params, module: str) -> Layers:
    """The layers of the MLP of that name."""
    weights = [k for k in params if k.startswith(f"{module}.layers.") and k.endswith(".weight")]
    names = (f"{module}.layers.{i}" for i in range(len(weights)))
    return [(params[f"{name}.weight"], params[f"{name}.bias"]) for name in names]
