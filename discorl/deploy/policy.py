"""A trained agent as one module: raw observations and a memory in, actions out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from discorl import tree
from discorl.deploy.observations import Observing, torch_dtype
from discorl.envs.gymnasium.interface import Interface
from discorl.envs.gymnasium.spaces import Leaf, OneHot
from discorl.errors import DiscorlError
from discorl.nets.agent_net import AgentNet
from discorl.types import LSTMState, TimeStep

PolicyMemory = dict[str, Tensor]
"""What a policy remembers, by name and with the batch first: its frames and its network's state."""
CORE, FRAMES = ("hidden", "cell"), "frames"


class Policy(nn.Module):
    """Everything between an environment's observation and the choice of an action."""

    def __init__(self, net: AgentNet, interface: Interface) -> None:
        super().__init__()
        self.net = net
        self.interface = interface
        self.observing = Observing(interface)

    def initial_memory(self, batch: int) -> PolicyMemory:
        """The memory before the first step; empty for a policy that needs none."""
        frames = self.observing.initial_frames(batch)
        memory = {_frames_name(name): x for name, x in frames.items()}
        if (state := self.net.initial_memory(batch)) is not None:
            memory |= dict(zip(CORE, state, strict=True))
        return memory

    def forward(
        self, arrays: list[Tensor], memory: PolicyMemory, starts: Tensor
    ) -> tuple[Tensor, PolicyMemory]:
        """Logits [B, A] and the memory after this step.

        ``arrays`` [B, ...] are those of an observation in the order of ``observing.shown``;
        ``starts`` [B] is true where an episode begins, and what was before is forgotten.
        """
        names = [leaf.name for leaf in self.observing.shown]
        frames = {n: memory[_frames_name(n)] for n in names if _frames_name(n) in memory}
        observation, frames = self.observing(arrays, frames, starts)
        after = {_frames_name(name): x for name, x in frames.items()}
        state = None
        device = next(self.net.parameters()).device
        if device.type != "cpu":
            observation, starts = tree.to(observation, device), starts.to(device)
        if self.net.core is not None:
            state = LSTMState(*(memory[name] for name in CORE))
        discount = (~starts).float()
        logits, state = self.net.step(TimeStep(observation, discount, discount), state)
        if state is not None:
            after |= dict(zip(CORE, state, strict=True))
        return logits, after

    def read(self, observation: Any) -> tuple[list[Tensor], bool]:
        """The arrays of an observation, or of a batch of them, and whether it is a single one."""
        arrays = [_find(leaf, observation) for leaf in self.observing.shown]
        sizes = {
            _batch_of(leaf, x, self.interface)
            for leaf, x in zip(self.observing.shown, arrays, strict=True)
        }
        if len(sizes) > 1:
            raise DiscorlError(
                f"the parts of the observation are batches of different sizes: {sorted(sizes)}"
            )
        is_single = sizes == {-1}
        if is_single:
            arrays = [x[np.newaxis] for x in arrays]
        for leaf, x in zip(self.observing.shown, arrays, strict=True):
            _check_values(leaf, x)
        tensors = [
            torch.tensor(x.astype(leaf.dtype, copy=False), dtype=torch_dtype(leaf))
            for leaf, x in zip(self.observing.shown, arrays, strict=True)
        ]
        return tensors, is_single

    def check_memory(self, memory: Any, batch: int) -> PolicyMemory:
        """Raise if a memory is not one that this policy returned for so many observations."""
        expected = self.initial_memory(batch)
        shapes = {name: x.shape for name, x in expected.items()}
        is_ours = isinstance(memory, dict) and all(isinstance(x, Tensor) for x in memory.values())
        if not is_ours or {name: x.shape for name, x in memory.items()} != shapes:
            raise DiscorlError(
                f"the memory is not of {batch} such observation(s): pass what the last call "
                "returned, or None where all episodes begin"
            )
        return memory


def _frames_name(leaf: str) -> str:
    return f"{FRAMES}/{leaf}" if leaf else FRAMES


def _find(leaf: Leaf, observation: Any) -> np.ndarray:
    """An array of an observation; tensors are welcome, too."""
    hint = _hint(observation)
    for key in leaf.path:
        try:
            observation = observation[key]
        except (LookupError, TypeError, ValueError):
            raise DiscorlError(
                f"the observation has no '{leaf.name}': give what agent.observation_space "
                f"describes{hint}"
            ) from None
    if isinstance(observation, Tensor):
        observation = observation.detach().cpu().numpy()
    try:
        array = np.asarray(observation)
    except ValueError:  # rows of different lengths
        array = np.empty(0, object)
    if array.dtype.kind not in "biuf":
        raise DiscorlError(f"{_named(leaf)} is not an array of numbers{hint}")
    return array


def _hint(observation: Any) -> str:
    """For those who pass all that ``reset`` returns."""
    is_pair = isinstance(observation, tuple) and [type(x) for x in observation[1:]] == [dict]
    return " (if env.reset() returned this, give only the first of the two)" if is_pair else ""


def _batch_of(leaf: Leaf, x: np.ndarray, interface: Interface) -> int:
    """How many observations an array is of; -1 for one without an axis for the batch."""
    if x.shape == leaf.shape:
        return -1
    if x.ndim == len(leaf.shape) + 1 and x.shape[1:] == leaf.shape and len(x):
        return len(x)
    hint = ""
    if interface.frame_stack is not None:
        hint = "; it is a single frame: the agent stacks the last ones itself"
    raise DiscorlError(
        f"{_named(leaf)} has the shape {x.shape}, but it should be {leaf.shape}, or (batch, "
        f"*{leaf.shape}) for several{hint}"
    )


def _check_values(leaf: Leaf, x: np.ndarray) -> None:
    """Raise for what a cast to the space's type would hide."""
    if x.dtype.kind == "f":
        if leaf.dtype.kind in "iub":
            raise DiscorlError(
                f"{_named(leaf)} has fractions ({x.dtype}), but its space has {leaf.dtype}: give "
                "it as the environment shows it, neither scaled nor normalised"
            )
        if not np.isfinite(x).all():
            raise DiscorlError(f"{_named(leaf)} is NaN or infinite")
    if isinstance(leaf.convert, OneHot):
        numbers = x.reshape(len(x), -1).astype(np.int64) - leaf.convert.starts
        if ((numbers < 0) | (numbers >= leaf.convert.sizes)).any():
            raise DiscorlError(f"{_named(leaf)} is outside of its Discrete space: {x!s:.60}")


def _named(leaf: Leaf) -> str:
    return f"observation '{leaf.name}'" if leaf.name else "the observation"
