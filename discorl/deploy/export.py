"""Agents as files that need nothing of this package: torch.export and ONNX."""

from __future__ import annotations

import copy
import importlib
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
from discorl.errors import DiscorlError
from discorl.nets.agent_net import AgentNet

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
    remember as a third value.
    """

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy
        table = policy.interface.translate(np.arange(policy.net.num_actions))
        self.register_buffer("actions", torch.tensor(table))

    def forward(
        self,
        observation: Any,
        memory: PolicyMemory | None = None,
        episode_start: Tensor | None = None,
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
        actions: Any = self.actions
        chosen = actions[logits.argmax(-1)]
        return (chosen, logits) if memory is None else (chosen, logits, after)


def export_policy(policy: Policy, path: Path | str, about: dict[str, Any]) -> Path:
    """Write a policy to a .pt2 or .onnx file, which takes the likeliest actions.

    ``about`` is what the file should say about where it comes from.
    """
    path = Path(path)
    check_export_path(path)
    ours = ExportedPolicy(Policy(_acting_part(policy.net), policy.interface)).eval()
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


def example_inputs(policy: Policy, batch: int) -> tuple[Any, ...]:
    """Observations at random, and a memory and starts if the policy has one."""
    space = policy.interface.observation_space
    many = batch_space(space, batch)
    many.seed(batch)
    observation = _as_tensors(space, many.sample())
    memory = policy.initial_memory(batch)
    if not memory:
        return (observation,)
    generator = torch.Generator().manual_seed(batch)

    def random(x: Tensor) -> Tensor:
        return (torch.rand(x.shape, generator=generator) * 2).to(x)

    memory = {name: random(x) for name, x in memory.items()}
    return observation, memory, torch.arange(batch) % 3 == 1


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
            for leaf in policy.observing.shown
        ],
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


def _program(exported: ExportedPolicy) -> tuple[Any, tuple[Any, ...]]:
    """The policy traced for batches of any size, and the inputs that it was traced with."""
    inputs = example_inputs(exported.policy, 2)
    batch = torch.export.Dim("batch", min=1)
    shapes = tree.map(lambda x: {0: batch}, inputs)
    return torch.export.export(exported, inputs, dynamic_shapes=shapes), inputs


def _to_pt2(exported: ExportedPolicy, about: dict[str, Any]) -> tuple[bytes, Any]:
    program, _ = _program(exported)
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files={ABOUT: json.dumps(about)})
    return buffer.getvalue(), program.module()


def _to_onnx(exported: ExportedPolicy, about: dict[str, Any]) -> tuple[bytes, Any]:
    import onnxruntime

    program, inputs = _program(exported)
    names = [one["name"] for one in about["observations"] + about["memory"]]
    names += ["episode_start"] if about["memory"] else []
    made: Any = torch.onnx.export(
        program, inputs, input_names=names, output_names=about["outputs"], verbose=False
    )
    model = made.model_proto
    for key, text in {ABOUT: json.dumps(about)}.items():
        model.metadata_props.add(key=key, value=text)
    data = model.SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])

    def run(*inputs: Any) -> tuple[Any, ...]:
        given = dict(zip(names, (x.numpy() for x in tree.leaves(inputs)), strict=True))
        action, logits, *memory = map(torch.from_numpy, session.run(None, given))
        return action, logits, *memory

    return data, run


def _check_equal(ours: ExportedPolicy, theirs: Any, batch: int, path: Path) -> None:
    """Raise if the file would act differently; where two actions are as good, it may."""
    inputs = example_inputs(ours.policy, batch)
    (action, *numbers), (other, *others) = tree.leaves(ours(*inputs)), tree.leaves(theirs(*inputs))
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
