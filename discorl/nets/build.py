"""The torso that suits an environment's observations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import nn

from discorl.errors import DiscorlError
from discorl.nets.conv import ConvTorso, ImpalaTorso, NatureTorso, image_shape
from discorl.nets.encoders import DictTorso, NetHackTorso
from discorl.nets.net_config import NetConfig
from discorl.nets.torsos import MLPTorso
from discorl.types import EnvSpec, ObservationSpec

LARGE_IMAGE = 64
"""Images whose shorter side has at least this many pixels get the IMPALA network."""
IMAGE_TORSOS = {"conv": ConvTorso, "nature": NatureTorso, "impala": ImpalaTorso}


def make_torso(spec: EnvSpec, net: NetConfig) -> tuple[nn.Module, int]:
    """A torso for the environment's observations, and the size of its embedding."""
    parts = spec.observations
    if parts is None:
        torso = _of_one(spec.observation_shape, spec.is_image, net)
    elif net.torso_kind == "auto" and {"glyphs", "blstats"} <= set(parts):
        torso = _nethack(parts, net)
    else:
        torso = _of_dict(parts, net)
    return torso, embedding_size(torso)


def embedding_size(torso: nn.Module) -> int:
    """The size that a torso says it has."""
    size = getattr(torso, "embedding_size", None)
    if not isinstance(size, int) or size < 1:
        raise DiscorlError(
            f"the torso {type(torso).__name__} does not say how large its embedding is: give it an "
            "embedding_size attribute"
        )
    return size


def _of_one(shape: Sequence[int], is_image: bool, net: NetConfig) -> nn.Module:
    kind = net.torso_kind
    if kind == "mlp" or (kind == "auto" and not is_image):
        return MLPTorso(math.prod(shape), net.torso)
    if kind == "auto":
        kind = "impala" if min(image_shape(shape)[1:]) >= LARGE_IMAGE else "conv"
    channels: dict[str, Any] = {"channels": net.channels} if net.channels else {}
    return IMAGE_TORSOS[kind](shape, **channels, dense=net.dense)


def _of_dict(parts: dict[str, ObservationSpec], net: NetConfig) -> nn.Module:
    if not parts:
        raise DiscorlError("the environment's Dict observations have no entries")
    torsos = {
        name: _of_one(part.shape, part.is_image, net)
        if part.is_image
        else MLPTorso(math.prod(part.shape), net.torso)
        for name, part in parts.items()
    }
    return DictTorso(torsos, [embedding_size(t) for t in torsos.values()], net.dense)


def _nethack(parts: dict[str, ObservationSpec], net: NetConfig) -> nn.Module:
    message = parts.get("message")
    channels: dict[str, Any] = {"channels": net.channels} if net.channels else {}
    return NetHackTorso(
        parts["glyphs"].shape,
        math.prod(parts["blstats"].shape),
        math.prod(message.shape) if message else 0,
        net.dense,
        **channels,
    )
