"""The meta-network: from experience to targets for the agent's predictions.

A trajectory LSTM runs backward over each trajectory; a lifetime LSTM takes one step for each
update of the agent, and gates what the trajectory LSTM says.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from discorl.nets.linear import MLP, Linear
from discorl.nets.lstm import LSTM
from discorl.nets.meta_features import Embeddings, Experience, action_features, step_features
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
    """Size of y and z, and of their targets."""
    hidden: int = 256
    """Trajectory LSTM."""
    embedding: tuple[int, ...] = (16, 1)
    """MLP that embeds y, and another that embeds z."""
    action_channels: tuple[int, ...] = (16, 2)
    """Blocks that embed the inputs of each action."""
    policy_channels: tuple[int, ...] = (16,)
    """Blocks before the policy target."""
    lifetime_hidden: int = 128
    """Lifetime LSTM."""
    lifetime_embedding: tuple[int, ...] = (16,)
    """MLP on the lifetime LSTM's inputs."""
    lifetime_prediction_embedding: tuple[int, ...] = (16, 1)
    """Like ``embedding``, for the lifetime LSTM's own copies."""
    lifetime_action_channels: tuple[int, ...] = (16, 2)
    """Like ``action_channels``, for the lifetime LSTM's own copies."""


class MetaOutput(NamedTuple):
    """Targets as logits, and the lifetime LSTM's next state."""

    pi: Tensor  # [S, B, A]
    y: Tensor  # [S, B, Y]
    z: Tensor  # [S, B, Y]
    lifetime_input: Tensor  # [S, B, 1]
    lifetime_rnn: LSTMState


class ActionBlocks(nn.Module):
    """Layers that all actions share, however many: relu(Linear(x, mean of x over actions))."""

    def __init__(self, num_inputs: int, channels: tuple[int, ...]) -> None:
        super().__init__()
        widths = [num_inputs, *channels]
        self.layers = nn.ModuleList(Linear(2 * m, n) for m, n in pairwise(widths))

    def forward(self, x: Tensor, common: Tensor | None = None) -> Tensor:
        """``x`` [..., A, C] -> [..., A, C'].

        ``common`` [..., H] stands before ``x`` in the input of the first layer. Being the same for
        all actions it equals its mean, so it is projected once by the sum of both weights.
        """
        for layer in self.layers:
            assert isinstance(layer, Linear)
            num_common = 0 if common is None else common.shape[-1]
            first, mean_first = layer.weight.chunk(2, 1)
            x_mean = nn.functional.linear(x.mean(-2), mean_first[:, num_common:], layer.bias)
            if common is not None:
                both = first[:, :num_common] + mean_first[:, :num_common]
                x_mean = x_mean + nn.functional.linear(common, both)
            own = nn.functional.linear(x, first[:, num_common:])
            x = torch.relu(own + x_mean.unsqueeze(-2))
            common = None
        return x


class Embedder(nn.Module):
    """Embeds predictions and actions, and lays them out as the inputs of an LSTM."""

    def __init__(self, prediction: int, embedding: tuple[int, ...], channels: tuple[int, ...]):
        super().__init__()
        self.y = MLP(prediction, embedding)
        self.z = MLP(prediction, embedding)
        self.actions = ActionBlocks(7 + 2 * embedding[-1], channels)
        self.num_features = 9 + 14 * embedding[-1] + 2 * channels[-1]

    def features(self, seen: Experience, embeddings: Embeddings) -> tuple[Tensor, Tensor]:
        """Inputs of each step [S, B, F], and the embedding of each action [S, B, A, C]."""
        action_embedding = self.actions(action_features(seen, embeddings))
        return step_features(seen, embeddings, action_embedding), action_embedding


class MetaNet(nn.Module):
    """The rule's network, of any size and for any number of actions."""

    def __init__(self, sizes: MetaNetSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.trajectory = Embedder(sizes.prediction, sizes.embedding, sizes.action_channels)
        self.trajectory_rnn = LSTM(self.trajectory.num_features, sizes.hidden)
        self.lifetime_gate = Linear(sizes.lifetime_hidden, sizes.hidden, GATE_INIT_STD)
        self.lifetime_input = Linear(sizes.hidden, 1, OUTPUT_INIT_STD)
        self.y_target = Linear(sizes.hidden, sizes.prediction, OUTPUT_INIT_STD)
        self.z_target = Linear(sizes.hidden, sizes.prediction, OUTPUT_INIT_STD)
        self.policy_blocks = ActionBlocks(
            sizes.hidden + sizes.action_channels[-1], sizes.policy_channels
        )
        self.policy_target = Linear(sizes.policy_channels[-1], 1, OUTPUT_INIT_STD)

        self.lifetime = Embedder(
            sizes.prediction, sizes.lifetime_prediction_embedding, sizes.lifetime_action_channels
        )
        num_inputs = self.lifetime.num_features + 1 + sizes.lifetime_prediction_embedding[-1]
        self.lifetime_mlp = MLP(num_inputs, sizes.lifetime_embedding)
        self.lifetime_rnn = LSTM(sizes.lifetime_embedding[-1], sizes.lifetime_hidden)

    def forward(self, *args, method: str = "targets", **kwargs):
        """Call the method of that name (see ``AgentNet.forward``)."""
        return getattr(self, method)(*args, **kwargs)

    def targets(
        self,
        seen: Experience,
        embeddings: Embeddings,
        lifetime_embeddings: Embeddings,
        lifetime_rnn: LSTMState,
        across: MeanFn,
    ) -> MetaOutput:
        """pi-hat, y-hat and z-hat for every step, and the lifetime LSTM's step."""
        features, action_embedding = self.trajectory.features(seen, embeddings)
        x = self.trajectory_rnn.unroll_backward(features, seen.is_terminal)
        x = x * self.lifetime_gate(lifetime_rnn.hidden)

        y_hat = self.y_target(x)
        z_hat = self.z_target(x)
        pi_hat = self.policy_target(self.policy_blocks(action_embedding, common=x)).squeeze(-1)
        lifetime_input = self.lifetime_input(x)

        features, _ = self.lifetime.features(seen, lifetime_embeddings)
        told = torch.cat([features, lifetime_input, self.lifetime.y(torch.softmax(y_hat, -1))], -1)
        pooled = across(live_mean_of_steps(self.lifetime_mlp(told), seen.is_dead))
        lifetime_rnn = self.lifetime_rnn.step(pooled, lifetime_rnn)
        return MetaOutput(pi_hat, y_hat, z_hat, lifetime_input, lifetime_rnn)


class PairedMLP:
    """Two MLPs on one input, the softmax of logits; their wide first layers are one product."""

    def __init__(self, params: Params, first: str, second: str) -> None:
        self._layers = [_layers(params, name) for name in (first, second)]
        (weight_a, bias_a), (weight_b, bias_b) = (layers[0] for layers in self._layers)
        self._sizes = [len(weight_a), len(weight_b)]
        # [Y, few]: fast in this layout
        self._weight = torch.cat([weight_a, weight_b]).T.contiguous()
        self._bias = torch.cat([bias_a, bias_b])

    def __call__(self, x: Tensor, layers: Layers = ()) -> tuple[Tensor, Tensor]:
        """The embeddings of logits [R, Y], or of the logits that ``layers`` make of ``x``."""
        hidden = softmax_linear(x, layers, self._weight, self._bias)
        outputs = []
        for part, (_, *later) in zip(hidden.split(self._sizes, -1), self._layers, strict=True):
            outputs.append(mlp(torch.relu(part), later) if later else part)
        return outputs[0], outputs[1]


def _layers(params: Params, module: str) -> Layers:
    """The layers of the MLP of that name."""
    weights = [k for k in params if k.startswith(f"{module}.layers.") and k.endswith(".weight")]
    names = (f"{module}.layers.{i}" for i in range(len(weights)))
    return [(params[f"{name}.weight"], params[f"{name}.bias"]) for name in names]
