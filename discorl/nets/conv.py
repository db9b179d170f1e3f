"""Torsos for images, channels first: a small one, the Nature CNN and the IMPALA residual net.

They end in a dense layer with a relu. All their operations have a double backward and a vmap rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from discorl.errors import DiscorlError
from discorl.nets.linear import Linear
from discorl.nets.torsos import network_input
from discorl.ops.convolution import by_kernel, convolve

NATURE_LAYERS = ((8, 4), (4, 2), (3, 1))
"""Kernel and stride of each convolution."""
NATURE_MIN_PIXELS = 36
SMALL_PIXELS = 16
"""The small torso halves an image that is larger than this."""


class Conv2d(nn.Conv2d):
    """A convolution with the initialisation of ``Linear``."""

    def reset_parameters(self) -> None:
        """Draw new weights."""
        std = 1 / math.sqrt(self.weight[0].numel())
        nn.init.trunc_normal_(self.weight, std=std, a=-2 * std, b=2 * std)
        assert self.bias is not None
        nn.init.zeros_(self.bias)

    def forward(
        self,
        input: Tensor,
        *,
        relu_first: bool = False,
        plus: Tensor | None = None,
        then_relu: bool = False,
        then_pool: bool = False,
    ) -> Tensor:
        """See ``convolve``."""
        assert self.bias is not None
        return convolve(
            input,
            self.weight,
            self.bias,
            *self._geometry,
            relu_first=relu_first,
            plus=plus,
            then_relu=then_relu,
            then_pool=then_pool,
        )

    def takes_bytes(self, images: Tensor) -> bool:
        """Whether ``forward`` reads these images of bytes as they are."""
        return by_kernel(images, self.weight, *self._geometry, is_first=True)

    @property
    def _geometry(self) -> tuple[int, int]:
        return self.stride[0], int(self.padding[0])


def image_shape(shape: Sequence[int]) -> tuple[int, int, int]:
    """Channels, height and width; an image of two dimensions has one channel."""
    if len(shape) not in (2, 3):
        raise DiscorlError(
            f"observations of shape {tuple(shape)} are not images (channels, height, width): "
            "use --net.torso-kind mlp or auto"
        )
    channels, height, width = (1, *shape) if len(shape) == 2 else shape
    return channels, height, width


def as_image(observation: Tensor, first: Conv2d) -> Tensor:
    """[N, C, H, W] or [N, H, W] -> [N, C, H, W], as the first layer takes it."""
    x = observation.unsqueeze(1) if observation.dim() == 3 else observation
    if x.dtype == torch.uint8 and first.takes_bytes(x):
        return x
    # Channels last in memory: convolutions on a CPU run up to twice as fast. Written with permute
    # because vmap does not know memory formats. Bytes are quicker to move than what they become.
    return network_input(x.permute(0, 2, 3, 1).contiguous(), first).permute(0, 3, 1, 2)


class ConvStack(nn.Module):
    """Convolutions with a relu each, then a dense layer; subclasses say which."""

    def __init__(self, layers: Sequence[Conv2d], num_features: int, dense: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.dense = Linear(num_features, dense)
        self.embedding_size = dense

    def forward(self, observation: Tensor) -> Tensor:
        x = as_image(observation, cast("Conv2d", self.layers[0]))
        for layer in self.layers:
            x = layer(x, then_relu=True)
        return torch.relu(self.dense(x.flatten(1)))


class ConvTorso(ConvStack):
    """3x3 convolutions that keep small boards whole, for MinAtar and MiniGrid."""

    def __init__(
        self, shape: Sequence[int], channels: Sequence[int] = (16, 32), dense: int = 128
    ) -> None:
        num_inputs, *size = image_shape(shape)
        layers: list[Conv2d] = []
        for m, n in pairwise([num_inputs, *channels]):
            stride = 2 if max(size) > SMALL_PIXELS else 1
            layers.append(Conv2d(m, n, 3, stride, padding=1))
            size = [math.ceil(pixels / stride) for pixels in size]
        super().__init__(layers, channels[-1] * math.prod(size), dense)


class NatureTorso(ConvStack):
    """The three convolutions of DQN's Nature paper."""

    def __init__(
        self, shape: Sequence[int], channels: Sequence[int] = (32, 64, 64), dense: int = 512
    ) -> None:
        num_inputs, *size = image_shape(shape)
        if min(size) < NATURE_MIN_PIXELS:
            raise DiscorlError(
                f"the Nature network needs images of at least {NATURE_MIN_PIXELS} pixels, not "
                f"{size[0]}x{size[1]}: use --net.torso-kind conv"
            )
        if len(channels) != len(NATURE_LAYERS):
            raise DiscorlError(
                f"the Nature network has 3 convolutions: pass 3 channels, not {len(channels)}"
            )
        layers: list[Conv2d] = []
        for m, n, (kernel, stride) in zip(
            [num_inputs, *channels], channels, NATURE_LAYERS, strict=False
        ):
            layers.append(Conv2d(m, n, kernel, stride))
            size = [(pixels - kernel) // stride + 1 for pixels in size]
        super().__init__(layers, channels[-1] * math.prod(size), dense)


class ResidualUnit(nn.Module):
    """Two convolutions beside the identity."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = Conv2d(channels, channels, 3, padding=1)
        self.second = Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x, relu_first=True, then_relu=True), plus=x)


class ImpalaBlock(nn.Module):
    """A convolution, a pooling that halves the image, and two residual units."""

    def __init__(self, num_inputs: int, channels: int) -> None:
        super().__init__()
        self.conv = Conv2d(num_inputs, channels, 3, padding=1)
        self.units = nn.ModuleList(ResidualUnit(channels) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x, then_pool=True)
        for unit in self.units:
            x = unit(x)
        return x


class ImpalaTorso(nn.Module):
    """The residual network of IMPALA.

    The defaults suit a laptop; the paper's Atari agent has channels 256, 384, 384, 256 and a dense
    layer of 768.
    """

    def __init__(
        self, shape: Sequence[int], channels: Sequence[int] = (16, 32, 32), dense: int = 256
    ) -> None:
        super().__init__()
        num_inputs, *size = image_shape(shape)
        self.blocks = nn.ModuleList(ImpalaBlock(m, n) for m, n in pairwise([num_inputs, *channels]))
        for _ in channels:
            size = [math.ceil(pixels / 2) for pixels in size]
        self.dense = Linear(channels[-1] * math.prod(size), dense)
        self.embedding_size = dense

    def forward(self, observation: Tensor) -> Tensor:
        x = as_image(observation, cast("ImpalaBlock", self.blocks[0]).conv)
        for block in self.blocks:
            x = block(x)
        return torch.relu(self.dense(torch.relu(x).flatten(1)))
