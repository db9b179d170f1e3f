"""Agents as files that need nothing of this package: torch.export and ONNX."""

from __future__ import annotations

import copy
import importlib
import inspect
import io
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector.utils import batch_space
from torch import Tensor, nn

from discorl import tree
from discorl.atomic import write_atomically
from discorl.deploy.policy import Policy, PolicyMemory
from discorl.envs.gymnasium.masks import KEY, without_mask
from discorl.envs.gymnasium.spaces import observation_leaves
from discorl.errors import DiscorlError
from discorl.nets.agent_net import AgentNet
from discorl.ops.masks import mask_logits

FORMATS = {".pt2": "torch.export", ".onnx": "ONNX"}
"""By the ending of a file's name."""
ABOUT = "discorl.json"
"""The entry that describes a policy: an extra file in a .pt2, a property of an .onnx."""
CHECKED = (1, 7)
"""Sizes of the batches that a new file has to get the agent's own actions for."""
ROUNDING = 1e-3
"""Actions may differ where the best two logits are this close: other programs round otherwise."""


class ExportedPolicy(nn.Module):
    """What a file holds: observations in, the environment's own actions and the logits out.

    ``observation`` has the structure of the environment's space, every array with the batch first.
    A policy with a memory also takes that and ``episode_start`` [B] bool, and returns what to
    remember as a third value. One with ``masks`` takes only actions that are allowed: by the
    observation's entry, if it has one, otherwise by ``action_mask`` [B, A] bool.
    """

    def __init__(self, policy: Policy, masks: bool = False) -> None:
        super().__init__()
        self.policy = policy
        self.space, in_observations = without_mask(policy.interface.observation_space, "the agent")
        self.is_mask_seen = masks and in_observations
        self.is_mask_given = masks and not in_observations
        if self.is_mask_seen:
            self.space = policy.interface.observation_space
        table = policy.interface.translate(np.arange(policy.net.num_actions))
        self.register_buffer("actions", torch.tensor(table))

    @property
    def mask_input(self) -> str | None:
        """The name of the input that says which actions are allowed, if there is one."""
        return _input_name(KEY) if self.is_mask_seen else KEY if self.is_mask_given else None

    def forward(
        self,
        observation: Any,
        memory: PolicyMemory | None = None,
        episode_start: Tensor | None = None,
        action_mask: Tensor | None = None,
    ) -> tuple[Any, ...]:
        arrays = []
        for leaf in self.policy.observing.shown:
            x = observation
            for key in leaf.path:
                x = x[key]
            arrays.append(x)
        if episode_start is None:
            episode_start = torch.zeros(arrays[0].shape[0], dtype=torch.bool)
        logits, after = self.policy(arrays, memory or {}, episode_start)
        if self.is_mask_seen:
            action_mask = observation[KEY] != 0
        logits = mask_logits(logits, action_mask)
        actions: Any = self.actions
        chosen = actions[logits.argmax(-1)]
        return (chosen, logits) if memory is None else (chosen, logits, after)


def export_policy(
    policy: Policy, path: Path | str, about: dict[str, Any], masks: bool = False
) -> Path:
    """Write a policy to a .pt2 or .onnx file, which takes the likeliest actions.

    ``about`` is what the file should say about where it comes from. With ``masks`` it takes the
    likeliest of those that are allowed.
    """
    path = Path(path)
    check_export_path(path)
    ours = ExportedPolicy(Policy(_acting_part(policy.net), policy.interface), masks).eval()
    about = about | _described(ours)
    with torch.no_grad(), _quiet():
        data, run = (_to_pt2 if path.suffix == ".pt2" else _to_onnx)(ours, about)
        for batch in CHECKED:
            _check_equal(ours, run, batch, path)
    try:
        write_atomically(path, data)
    except OSError as e:
        raise DiscorlError(f"cannot write {path}: {e.strerror}; choose another file") from None
    return path


def _acting_part(net: AgentNet) -> AgentNet:
    """A copy on the CPU, without the heads that only learning needs; they can be most of it."""
    net = copy.deepcopy(net).to("cpu")
    net.action_model = None
    for name in [name for name in net.flat_heads if name != "logits"]:
        del net.flat_heads[name]
    return net


@contextmanager
def _quiet() -> Iterator[None]:
    """Torch's exporters warn about their own insides, and about packages that nobody needs here."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def check_export_path(path: Path) -> None:
    """Raise if nothing could be written there."""
    if path.suffix not in FORMATS:
        raise DiscorlError(
            f"an exported policy's name must end in {' or '.join(FORMATS)}, not {path.name}"
        )
    if not path.absolute().parent.is_dir():
        raise DiscorlError(f"cannot write {path.name}: there is no folder {path.absolute().parent}")
    if path.suffix == ".onnx":
        for package in ("onnx", "onnxscript", "onnxruntime"):
            try:
                importlib.import_module(package)
            except ImportError:
                raise DiscorlError(
                    f"ONNX needs the package {package}, which is not installed: "
                    "pip install 'discorl[onnx]', or export a .pt2"
                ) from None


Inputs = tuple[tuple[Any, ...], dict[str, Tensor]]
"""What a policy is called with, by place and by name."""


def example_inputs(exported: ExportedPolicy, batch: int) -> Inputs:
    """Observations at random; a memory, starts and masks if the policy takes them."""
    many = batch_space(exported.space, batch)
    many.seed(batch)
    observation = _as_tensors(exported.space, many.sample())
    generator = torch.Generator().manual_seed(batch)

    def random(x: Tensor) -> Tensor:
        return (torch.rand(x.shape, generator=generator) * 2).to(x)

    named = {}
    if exported.is_mask_given:
        shape = (batch, exported.policy.net.num_actions)
        named[KEY] = torch.rand(shape, generator=generator) < 0.5
    memory = {name: random(x) for name, x in exported.policy.initial_memory(batch).items()}
    if not memory:
        return (observation,), named
    return (observation, memory, torch.arange(batch) % 3 == 1), named


def _as_tensors(space: gymnasium.Space, x: Any) -> Any:
    """A batch in plain dicts and tuples."""
    if isinstance(space, gymnasium.spaces.Dict):
        return {key: _as_tensors(part, x[key]) for key, part in space.spaces.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return tuple(_as_tensors(part, x[i]) for i, part in enumerate(space.spaces))
    return torch.tensor(np.asarray(x, space.dtype))


def _described(exported: ExportedPolicy) -> dict[str, Any]:
    """What somebody who has only the file needs to know to call it."""
    policy = exported.policy
    memory = policy.initial_memory(1)
    return {
        "observations": [
            {"name": _input_name(leaf.name), "shape": list(leaf.shape), "dtype": leaf.dtype.name}
            for leaf in observation_leaves(exported.space, "the agent", "auto")
        ],
        "action_mask": exported.mask_input,
        "memory": [
            {"name": f"memory/{name}", "shape": list(x.shape[1:]), "dtype": _dtype_name(x)}
            for name, x in memory.items()
        ],
        "actions": str(policy.interface.action_space),
        "outputs": _output_names(memory),
    }


def _input_name(leaf: str) -> str:
    return f"observation/{leaf}" if leaf else "observation"


def _dtype_name(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def _output_names(memory: PolicyMemory) -> list[str]:
    return ["action", "logits", *(f"next_memory/{name}" for name in memory)]


def _program(exported: ExportedPolicy) -> Any:
    """The policy traced for batches of any size."""
    inputs, named = example_inputs(exported, 2)
    batch = torch.export.Dim("batch", min=1)
    places = inspect.signature(exported.forward).parameters
    shapes = tree.map(lambda x: {0: batch}, dict(zip(places, inputs, strict=False)) | named)
    return torch.export.export(exported, inputs, named, dynamic_shapes=shapes)


def _to_pt2(exported: ExportedPolicy, about: dict[str, Any]) -> tuple[bytes, Any]:
    program = _program(exported)
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files={ABOUT: json.dumps(about)})
    return buffer.getvalue(), program.module()


def _to_onnx(exported: ExportedPolicy, about: dict[str, Any]) -> tuple[bytes, Any]:
    import onnxruntime

    names = [one["name"] for one in about["observations"] + about["memory"]]
    names += ["episode_start"] if about["memory"] else []
    names += [KEY] if exported.is_mask_given else []
    made: Any = torch.onnx.export(
        _program(exported), input_names=names, output_names=about["outputs"], verbose=False
    )
    model = made.model_proto
    for key, text in {ABOUT: json.dumps(about)}.items():
        model.metadata_props.add(key=key, value=text)
    data = model.SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])

    def run(*inputs: Any, **named: Tensor) -> tuple[Any, ...]:
        given = dict(zip(names, (x.numpy() for x in tree.leaves((inputs, named))), strict=True))
        action, logits, *memory = map(torch.from_numpy, session.run(None, given))
        return action, logits, *memory

    return data, run


def _check_equal(ours: ExportedPolicy, theirs: Any, batch: int, path: Path) -> None:
    """Raise if the file would act differently; where two actions are as good, it may."""
    inputs, named = example_inputs(ours, batch)
    action, *numbers = tree.leaves(ours(*inputs, **named))
    other, *others = tree.leaves(theirs(*inputs, **named))
    top = numbers[0].topk(min(2, numbers[0].shape[1])).values
    is_clear = top[:, 0] - top[:, -1] > ROUNDING
    is_same = (action == other).reshape(batch, -1).all(1)
    are_close = all(
        torch.allclose(x.double(), y.double(), rtol=ROUNDING, atol=ROUNDING)
        for x, y in zip(numbers, others, strict=True)
    )
    if not are_close or not bool(is_same[is_clear].all()):
        raise DiscorlError(
            f"{path} would not act as the agent does, so it was not written: please report this"
        )
