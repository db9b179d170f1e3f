"""Torsos for observations of several parts: dicts of anything, and NetHack's screen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from discorl.nets.conv import Conv2d
from discorl.nets.linear import MLP, Linear
from discorl.nets.torsos import network_input
from discorl.ops.squash import signed_log1p

NUM_GLYPHS = 6000
"""NetHack's Learning Environment knows 5976."""
PIECE = 64
"""Size of the embeddings of NetHack's status line and message."""


class DictTorso(nn.Module):
    """Encodes each entry with its own torso and mixes the embeddings."""

    def __init__(self, torsos: Mapping[str, nn.Module], sizes: Sequence[int], dense: int) -> None:
        super().__init__()
        self.names = tuple(torsos)
        # A list, because a ModuleDict does not allow all names.
        self.torsos = nn.ModuleList(torsos.values())
        self.mix = Linear(sum(sizes), dense)
        self.embedding_size = dense

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        parts = [
            torso(observation[name]) for name, torso in zip(self.names, self.torsos, strict=True)
        ]
        # The heads are linear: without these two relus, entries could not influence each other.
        return torch.relu(self.mix(torch.relu(torch.cat(parts, -1))))


class NetHackTorso(nn.Module):
    """Reads NetHack's ``glyphs`` [H, W], ``blstats`` [S] and, if it has one, ``message`` [L].

    Glyphs are ids of things, so each gets a learnt vector. The map is seen twice: whole but
    coarse, and sharp around the player, whose position is in the first two ``blstats``. Stacks of
    k screens are [k, H, W], [k * S] and [k * L], the newest last; all are centred on the player's
    current position.
    """

    def __init__(
        self,
        glyphs: Sequence[int],
        num_stats: int,
        message_length: int = 0,
        dense: int = 256,
        channels: Sequence[int] = (16, 32, 32),
        glyph_size: int = 16,
        crop: int = 9,
    ) -> None:
        super().__init__()
        *stack, height, width = glyphs
        self.num_screens = stack[0] if stack else 1
        self.crop = crop
        self.glyphs = nn.Embedding(NUM_GLYPHS, glyph_size)
        widths = [glyph_size * self.num_screens, *channels]
        self.map = nn.ModuleList(
            Conv2d(m, n, 3, 2, padding=1) for m, n in zip(widths, channels, strict=False)
        )
        self.near = Conv2d(widths[0], channels[-1], 3, padding=1)
        self.stats = MLP(num_stats, (PIECE, PIECE))
        self.characters = nn.Embedding(256, 8) if message_length else None
        self.message = Linear(8 * message_length, PIECE) if message_length else None
        scale = 2 ** len(channels)
        cells = math.ceil(height / scale) * math.ceil(width / scale) + crop**2
        num_pieces = 2 if message_length else 1
        self.mix = Linear(cells * channels[-1] + num_pieces * PIECE, dense)
        self.embedding_size = dense

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        glyphs, stats = observation["glyphs"].long(), observation["blstats"]
        if glyphs.dim() == 3:
            glyphs = glyphs.unsqueeze(1)  # [N, k, H, W]
        far = self._embed(glyphs)
        for layer in self.map:
            far = torch.relu(layer(far))
        now = stats.unflatten(1, (self.num_screens, -1))[:, -1]
        near = self.near(self._embed(crop_around(glyphs, now[:, 0], now[:, 1], self.crop)))
        parts = [far.flatten(1), near.flatten(1)]
        # Some numbers are small and some are scores; the logarithm brings both into range.
        parts.append(self.stats(signed_log1p(network_input(stats, self.stats))))
        if self.characters is not None and self.message is not None:
            text = self.characters(observation["message"].long())
            parts.append(self.message(text.flatten(1)))
        return torch.relu(self.mix(torch.relu(torch.cat(parts, -1))))

    def _embed(self, glyphs: Tensor) -> Tensor:
        """[N, k, H, W] -> [N, k * E, H, W]"""
        return self.glyphs(glyphs).permute(0, 1, 4, 2, 3).flatten(1, 2)


def crop_around(board: Tensor, column: Tensor, row: Tensor, size: int) -> Tensor:
    """The ``size`` x ``size`` cells around a place on each of the boards [N, k, H, W].

    Cells beyond the edge are zeros.
    """
    margin = size // 2
    padded = nn.functional.pad(board, (margin, margin, margin, margin))
    offsets = torch.arange(size, device=board.device)
    height, width = board.shape[2:]
    rows = row.long().clamp(0, height - 1).unsqueeze(-1) + offsets  # [N, size]
    columns = column.long().clamp(0, width - 1).unsqueeze(-1) + offsets
    batch = torch.arange(board.shape[0], device=board.device).reshape(-1, 1, 1, 1)
    layer = torch.arange(board.shape[1], device=board.device).reshape(-1, 1, 1)
    return padded[batch, layer, rows[:, None, :, None], columns[:, None, None, :]]
