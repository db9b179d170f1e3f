"""Rule files: npz archives of float32 arrays under the reference's names.

The public Disco103 file has this form, and the reference can load what we write. What the arrays
do not tell (value bins, loss weights, provenance) is a JSON text in the archive's comment, which
other readers ignore. Nothing is ever unpickled.
"""

from __future__ import annotations

import io
import json
import math
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy

from discorl.atomic import atomic_file
from discorl.errors import DiscorlError
from discorl.nets.meta_net import MetaNet, MetaNetSizes
from discorl.types import Params

MAX_FILE_BYTES = 256 * 2**20
MAX_ARRAYS = 1000

# Ours -> the reference's. A trailing {i} numbers the layers of an MLP or of action blocks.
_MLP_NAMES = {
    "trajectory.y": "lstm/mlp",
    "trajectory.z": "lstm/mlp_1",
    "lifetime.y": "lstm/~/meta_lstm/~unroll/mlp",
    "lifetime.z": "lstm/~/meta_lstm/~unroll/mlp_1",
    "lifetime_mlp": "lstm/~/meta_lstm/~unroll/mlp_2",
}
_BLOCK_NAMES = {
    "trajectory.actions": "lstm/sequential",
    "lifetime.actions": "lstm/~/meta_lstm/~unroll/sequential",
    "policy_blocks": "lstm/sequential_1",
}
_LINEAR_NAMES = {
    "trajectory_rnn.gates": "lstm/lstm/linear",
    "lifetime_rnn.gates": "lstm/~/meta_lstm/~unroll/lstm/linear",
    "lifetime_gate": "lstm/linear",
    "lifetime_input": "lstm/linear_1",
    "y_target": "lstm/linear_2",
    "z_target": "lstm/linear_3",
    "policy_target": "lstm/linear_4",
}


def reference_name(name: str) -> str:
    """The reference's name of one of our rule parameters."""
    module, leaf = name.rsplit(".", 1)
    suffix = {"weight": "w", "bias": "b"}[leaf]
    if module in _LINEAR_NAMES:
        return f"{_LINEAR_NAMES[module]}/{suffix}"
    module, layer = module.rsplit(".layers.", 1)
    if module in _MLP_NAMES:
        return f"{_MLP_NAMES[module]}/~/linear_{layer}/{suffix}"
    number = "" if layer == "0" else f"_{layer}"
    return f"{_BLOCK_NAMES[module]}/conv1_d{number}/{suffix}"


def params_to_arrays(params: Params) -> dict[str, np.ndarray]:
    """Rule parameters as the reference lays them out: [in, out], and [1, in, out] for blocks."""
    arrays = {}
    for name, tensor in params.items():
        array = tensor.detach().cpu().float().numpy()
        if name.endswith(".weight"):
            array = array.T
            if any(name.startswith(block) for block in _BLOCK_NAMES):
                array = array[None]
        arrays[reference_name(name)] = np.ascontiguousarray(array)
    return arrays


def arrays_to_params(arrays: dict[str, np.ndarray]) -> tuple[MetaNetSizes, Params]:
    """Check the arrays of a rule and convert them. Raises an error naming what is wrong."""
    sizes = infer_sizes(arrays)
    with torch.device("meta"):
        net = MetaNet(sizes)
    expected = {reference_name(name): (name, p) for name, p in net.named_parameters()}
    missing = sorted(set(expected) - set(arrays))
    if missing:
        raise DiscorlError(f"array missing from the rule file: {_listed(missing)}")
    extra = sorted(set(arrays) - set(expected))
    if extra:
        raise DiscorlError(f"array that no rule has: {_listed(extra)}")

    params = {}
    for their_name, (name, parameter) in expected.items():
        array = arrays[their_name]
        shape = tuple(parameter.shape[::-1])
        if name.endswith(".weight") and any(name.startswith(b) for b in _BLOCK_NAMES):
            shape = (1, *shape)
        if array.shape != shape:
            raise DiscorlError(
                f"array {their_name} has shape {list(array.shape)}, but the others imply "
                f"{list(shape)}"
            )
        if not np.isfinite(array).all():
            raise DiscorlError(f"array {their_name} contains NaN or infinity")
        matrix = array.reshape(array.shape[-2:]).T if array.ndim > 1 else array
        params[name] = torch.from_numpy(np.array(matrix, dtype=np.float32, order="C"))
    return sizes, params


def infer_sizes(arrays: dict[str, np.ndarray]) -> MetaNetSizes:
    """The widths of the meta-network that these arrays belong to."""

    def outputs(name: str) -> int:
        if name not in arrays:
            raise DiscorlError(f"array missing from the rule file: {name}")
        return arrays[name].shape[-1]

    def widths(pattern: str) -> tuple[int, ...]:
        matches = [re.fullmatch(pattern, name) for name in arrays]
        layers = sorted(int(m.group(1) or 0) for m in matches if m)
        if layers != list(range(len(layers))) or not layers:
            raise DiscorlError(f"array missing from the rule file: a layer of {pattern}")
        names = {int(m.group(1) or 0): m.string for m in matches if m}
        return tuple(outputs(names[i]) for i in layers)

    def mlp(module: str) -> tuple[int, ...]:
        return widths(re.escape(_MLP_NAMES[module]) + r"/~/linear_(\d+)/b")

    def blocks(module: str) -> tuple[int, ...]:
        return widths(re.escape(_BLOCK_NAMES[module]) + r"/conv1_d(?:_(\d+))?/b")

    def linear(module: str) -> int:
        return outputs(_LINEAR_NAMES[module] + "/b")

    for name, array in arrays.items():
        if array.ndim == 0 or 0 in array.shape:
            raise DiscorlError(f"array {name} has shape {list(array.shape)}, empty or a scalar")
    return MetaNetSizes(
        prediction=linear("y_target"),
        hidden=linear("lifetime_gate"),
        embedding=mlp("trajectory.y"),
        action_channels=blocks("trajectory.actions"),
        policy_channels=blocks("policy_blocks"),
        lifetime_hidden=linear("lifetime_rnn.gates") // 4,
        lifetime_embedding=mlp("lifetime_mlp"),
        lifetime_prediction_embedding=mlp("lifetime.y"),
        lifetime_action_channels=blocks("lifetime.actions"),
    )


def read_archive(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays and comment of a rule file, checked before anything is believed."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise DiscorlError(f"no such rule file: {path}") from None
    except OSError as e:
        raise DiscorlError(f"cannot read the rule file {path}: {e.strerror}") from None
    if path.is_dir():
        raise DiscorlError(f"{path} is a folder; give the .npz file in it")
    if size > MAX_FILE_BYTES:
        raise DiscorlError(f"{path} is {size} bytes, more than any rule ({MAX_FILE_BYTES})")
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
            if len(infos) > MAX_ARRAYS:
                raise DiscorlError(f"{path} has {len(infos)} entries, more than any rule")
            arrays: dict[str, np.ndarray] = {}
            budget = MAX_FILE_BYTES
            for info in infos:
                name = info.filename.removesuffix(".npy")
                if name in arrays:
                    raise DiscorlError(f"{path}: array {name} is there twice")
                arrays[name] = _read_array(archive, info, name, path, budget)
                budget -= arrays[name].nbytes
            comment = archive.comment
    except DiscorlError:
        raise
    except OSError as e:
        raise DiscorlError(f"cannot read the rule file {path}: {e.strerror or e}") from None
    except Exception as e:  # zipfile raises a dozen kinds on damaged archives
        raise DiscorlError(f"{path} is not a rule file, or is damaged: {e}") from None
    return arrays, _parse_comment(comment, path)


def _read_array(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str, path: Path, budget: int
) -> np.ndarray:
    """One array, without trusting its header."""
    if not info.filename.endswith(".npy"):
        raise DiscorlError(f"{path}: entry {info.filename} is not an array")
    if info.file_size > budget:
        raise DiscorlError(f"{path}: array {name} claims {info.file_size} bytes: oversized")
    try:
        with archive.open(info) as stream:
            data = stream.read(info.file_size + 1)
    except Exception as e:
        raise DiscorlError(f"{path}: array {name} is damaged or truncated: {e}") from None
    buffer = io.BytesIO(data)
    try:
        version = npy.read_magic(buffer)
        read_header = {
            (1, 0): npy.read_array_header_1_0,
            (2, 0): npy.read_array_header_2_0,
        }[version]
        shape, fortran_order, dtype = read_header(buffer)
    except Exception as e:
        raise DiscorlError(f"{path}: array {name} has a broken header: {e}") from None
    if dtype != np.dtype("<f4"):
        raise DiscorlError(f"{path}: array {name} has type {dtype}, but rules are float32")
    if not 1 <= len(shape) <= 3 or min(shape) < 1:
        raise DiscorlError(f"{path}: array {name} has shape {list(shape)}, which no rule has")
    payload = memoryview(data)[buffer.tell() :]
    if len(payload) != 4 * math.prod(shape):
        raise DiscorlError(
            f"{path}: array {name} has {len(payload)} bytes where its shape {list(shape)} needs "
            f"{4 * math.prod(shape)}: truncated or oversized"
        )
    array = np.frombuffer(payload, dtype)
    return array.reshape(shape, order="F" if fortran_order else "C")


def _parse_comment(comment: bytes, path: Path) -> dict[str, Any]:
    if not comment:
        return {}
    try:
        parsed = json.loads(comment)
    except (ValueError, RecursionError):
        raise DiscorlError(f"{path}: the archive's comment is not a rule's settings") from None
    if not isinstance(parsed, dict):
        raise DiscorlError(f"{path}: the archive's comment is not a rule's settings")
    return parsed


def write_archive(path: Path, params: Params, comment: dict[str, Any]) -> None:
    """Write a rule file atomically; equal rules give equal bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in sorted(params_to_arrays(params).items()):
            buffer = io.BytesIO()
            npy.write_array(buffer, array, version=(1, 0), allow_pickle=False)
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, buffer.getvalue())
        archive.comment = json.dumps(comment, sort_keys=True).encode()


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"
