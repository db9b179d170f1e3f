"""Settings of an agent's network, checked as they are made.

The text under a field is its help on the command line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from discorl.bounds import MAX_WIDTH, check_at_least, check_widths
from discorl.errors import DiscorlError

TorsoKind = Literal["auto", "mlp", "conv", "nature", "impala"]


@dataclass(frozen=True)
class NetConfig:
    """The agent's network."""

    torso: tuple[int, ...] = (512, 512)
    """Layer widths of the MLP on the observation."""
    action_lstm: int = 128
    """Size of the LSTM that steps once for each action."""
    head_hidden: tuple[int, ...] = (128,)
    """Hidden layer widths of the per-action heads."""
    torso_kind: TorsoKind = "auto"
    """mlp; or, for images, conv (small ones), nature or impala. auto picks impala for images of 64
    pixels or more, conv for smaller ones, and the MLP for everything else."""
    channels: tuple[int, ...] = ()
    """Channels of the convolutions; empty for the usual ones of that kind."""
    dense: int = 256
    """Width of the layer after the convolutions, or after several encoders."""
    core_lstm: int = 0
    """Size of an LSTM between torso and heads, a memory across time steps; 0 for none."""
    zero_values: bool = False
    """Start with values of exactly 0 instead of the reference's random ones. With bins up to 300
    those can be far off, and in long episodes bootstrapping keeps them off for a long time."""

    def __post_init__(self) -> None:
        if not self.torso:
            raise DiscorlError("net: torso needs a layer")
        check_widths("net: ", self, "torso", "head_hidden", "channels")
        check_at_least(1, "net: ", self, "action_lstm", "dense", most=MAX_WIDTH)
        check_at_least(0, "net: ", self, "core_lstm", most=MAX_WIDTH)
