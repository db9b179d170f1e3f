"""What an agent sees of an environment and does in it, in the environment's own terms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import gymnasium
import numpy as np

from discorl.envs.gymnasium.normalise import Scale
from discorl.envs.gymnasium.spaces import Cast, Leaf, Path
from discorl.types import EnvSpec, ObservationSpec


@dataclass(frozen=True)
class FrameStack:
    """An observation is the last few frames, the newest last; before an episode's first: zeros."""

    space: gymnasium.Space
    """Of one frame, or of a Dict whose arrays are stacked each by itself."""
    num_frames: int
    channel_axis: int = 0
    """Of a frame with channels, 0 or 2: the axis to stack along. Others get one in front."""


@dataclass(frozen=True)
class Interface:
    """How an environment's own observations reach a network, and what its choices are called."""

    space: gymnasium.Space
    """Of observations, frames stacked."""
    action_space: gymnasium.Space
    leaves: tuple[Leaf, ...]
    """The arrays of an observation."""
    translate: Callable[[np.ndarray], np.ndarray]
    """Numbers of actions [B] -> a batch of the environment's own actions."""
    frame_stack: FrameStack | None = None
    """How frames are stacked, if the environment's wrappers do it."""
    scales: dict[str, Scale] = field(default_factory=dict)
    """What vectors are normalised by, by the name of their leaf."""

    @property
    def observation_space(self) -> gymnasium.Space:
        """Of what the environment itself shows: a single frame if frames are stacked."""
        return self.frame_stack.space if self.frame_stack else self.space


class SpacesOnly(gymnasium.Env):
    """The spaces of an environment that is in use elsewhere."""

    def __init__(self, env: gymnasium.Env) -> None:
        self.observation_space, self.action_space = env.observation_space, env.action_space


def plain_interface(spec: EnvSpec) -> Interface:
    """That of an environment on tensors, which shows and takes what the network does."""
    parts = spec.observations
    if parts is None:
        leaf = _plain_leaf("", (), ObservationSpec(spec.observation_shape, spec.observation_dtype))
        space, leaves = _box(leaf), [leaf]
    else:
        leaves = [_plain_leaf(name, (name,), part) for name, part in parts.items()]
        space = gymnasium.spaces.Dict({leaf.name: _box(leaf) for leaf in leaves})
    actions = gymnasium.spaces.Discrete(spec.num_actions)
    return Interface(space, actions, tuple(leaves), lambda numbers: numbers)


def _plain_leaf(name: str, path: Path, part: ObservationSpec) -> Leaf:
    dtype = np.dtype(str(part.dtype).removeprefix("torch."))
    return Leaf(name, path, part.shape, dtype, part, Cast(dtype))


def _box(leaf: Leaf) -> gymnasium.spaces.Box:
    low, high = -np.inf, np.inf
    if leaf.dtype.kind in "iu":
        low, high = np.iinfo(leaf.dtype).min, np.iinfo(leaf.dtype).max
    return gymnasium.spaces.Box(low, high, leaf.shape, leaf.dtype.type)
