"""From an environment's own observations to what a network sees, with tensors alone.

``envs/gymnasium`` does the same with NumPy as agents train; here it can become part of a file that
runs without this package. Tests compare the two bit for bit.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from discorl.envs.gymnasium.interface import Interface
from discorl.envs.gymnasium.normalise import MAX_ABS
from discorl.envs.gymnasium.spaces import Cast, Leaf, OneHot, observation_leaves
from discorl.types import Observation


class Observing(nn.Module):
    """Stacks frames, arranges images, writes numbers as one-hot vectors, and normalises."""

    def __init__(self, interface: Interface) -> None:
        super().__init__()
        self.leaves = interface.leaves
        self.stack = interface.frame_stack
        self.shown = list(interface.leaves)
        """The arrays of what the environment itself shows: of single frames, if they are stacked"""
        if self.stack is not None:
            self.shown = observation_leaves(self.stack.space, "the environment", "auto")
        self._is_single = not self.leaves[0].path
        for i, leaf in enumerate(self.leaves):
            if leaf.name in interface.scales:
                mean, deviation = interface.scales[leaf.name]
                self.register_buffer(f"mean_{i}", torch.tensor(mean, dtype=torch.float64))
                self.register_buffer(f"deviation_{i}", torch.tensor(deviation, dtype=torch.float64))

    def initial_frames(self, batch: int) -> dict[str, Tensor]:
        """The stacks before the first frame, by the name of their leaf; empty if there are none."""
        if self.stack is None:
            return {}
        return {
            leaf.name: torch.zeros((batch, *leaf.shape), dtype=torch_dtype(leaf))
            for leaf in self.leaves
        }

    def forward(
        self, arrays: list[Tensor], frames: dict[str, Tensor], starts: Tensor
    ) -> tuple[Observation, dict[str, Tensor]]:
        """The network's observation, and the stacks with these frames in them.

        ``arrays`` [B, ...] are those of ``shown``, ``starts`` [B] says where an episode begins.
        """
        if self.stack is not None:
            frames = {
                leaf.name: self._push(leaf, frames[leaf.name], x, starts)
                for leaf, x in zip(self.shown, arrays, strict=True)
            }
            arrays = list(frames.values())
        seen = {
            leaf.name: self._normalise(i, _converted(leaf, x))
            for i, (leaf, x) in enumerate(zip(self.leaves, arrays, strict=True))
        }
        return (seen[""] if self._is_single else seen), frames

    def _push(self, shown: Leaf, frames: Tensor, newest: Tensor, starts: Tensor) -> Tensor:
        """The stack with the newest frame in place of the oldest."""
        assert self.stack is not None
        axis = 1
        if len(shown.shape) == 2:
            newest = newest.unsqueeze(1)
        elif len(shown.shape) > 2:
            axis = 1 + self.stack.channel_axis
        starts = starts.reshape(-1, *(1,) * (frames.dim() - 1))
        frames = torch.where(starts, torch.zeros_like(frames), frames)
        size = newest.shape[axis]
        younger = frames.narrow(axis, size, frames.shape[axis] - size)
        return torch.cat([younger, newest.to(frames.dtype)], axis)

    def _normalise(self, place: int, x: Tensor) -> Tensor:
        mean = getattr(self, f"mean_{place}", None)
        if mean is None:
            return x
        scaled = (x.double() - mean) / getattr(self, f"deviation_{place}")
        return scaled.clamp(-MAX_ABS, MAX_ABS).float()


def torch_dtype(leaf: Leaf) -> torch.dtype:
    """The type of a leaf's array as a tensor."""
    return getattr(torch, leaf.dtype.name)


def _converted(leaf: Leaf, x: Tensor) -> Tensor:
    """What ``leaf.convert`` does."""
    how = leaf.convert
    if isinstance(how, OneHot):
        numbers = x.reshape(x.shape[0], len(how.sizes)).long() - torch.as_tensor(how.starts)
        parts = [
            numbers[:, i : i + 1] == torch.arange(int(size)) for i, size in enumerate(how.sizes)
        ]
        return torch.cat(parts, 1).float()
    x = x.to(getattr(torch, how.dtype.name))
    if isinstance(how, Cast):
        return x
    if x.dim() == 3:
        return x.unsqueeze(1)
    x = x.movedim(-1, -3) if how.is_last else x
    return x.flatten(1, 2) if x.dim() == 5 else x
