"""Rule files: npz archives of float32 arrays under the reference's names.

The public Disco103 file has this form, and the reference can load what we write. What the arrays
do not say (value bins, loss weights, provenance) is a JSON text in the archive's comment, which
other readers ignore. A rule that lacks a part lacks its arrays. Nothing is ever unpickled.
"""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy

from discorl.atomic import atomic_file
from discorl.bounded import parse_json
from discorl.errors import DiscorlError
from discorl.nets.meta_net import MetaNet, MetaNetSizes
from discorl.npz import read_npz
from discorl.types import Params

MAX_FILE_BYTES = 256 * 2**20
MAX_ARRAYS = 1000

# Ours -> the reference's, for layers by their number i, which conv1_d omits if it is 0.
_NAMES = {
    "trajectory.y": "lstm/mlp/~/linear_{i}",
    "trajectory.z": "lstm/mlp_1/~/linear_{i}",
    "trajectory.actions": "lstm/sequential/conv1_d{_i}",
    "trajectory_rnn.gates": "lstm/lstm/linear",
    "lifetime.y": "lstm/~/meta_lstm/~unroll/mlp/~/linear_{i}",
    "lifetime.z": "lstm/~/meta_lstm/~unroll/mlp_1/~/linear_{i}",
    "lifetime.actions": "lstm/~/meta_lstm/~unroll/sequential/conv1_d{_i}",
    "lifetime_mlp": "lstm/~/meta_lstm/~unroll/mlp_2/~/linear_{i}",
    "lifetime_rnn.gates": "lstm/~/meta_lstm/~unroll/lstm/linear",
    "lifetime_gate": "lstm/linear",
    "lifetime_input": "lstm/linear_1",
    "y_target": "lstm/linear_2",
    "z_target": "lstm/linear_3",
    "policy_blocks": "lstm/sequential_1/conv1_d{_i}",
    "policy_target": "lstm/linear_4",
    "prior_strength": "lstm/prior_strength",  # ours alone, as is the next
    "prior_trust": "lstm/prior_trust",
}


_PREDICTIONS = (
    *("trajectory.y.layers.0", "trajectory.z.layers.0", "lifetime.y.layers.0"),
    *("lifetime.z.layers.0", "y_target", "z_target"),
)
_LIFETIME = (
    *("lifetime.y.layers.0", "lifetime.z.layers.0", "lifetime.actions.layers.0"),
    *("lifetime_mlp.layers.0", "lifetime_rnn.gates", "lifetime_gate", "lifetime_input"),
)


def reference_name(name: str) -> str:
    """The reference's name for one of our rule parameters."""
    module, leaf = name.rsplit(".", 1)
    module, _, layer = module.partition(".layers.")
    theirs = _NAMES[module].format(i=layer, _i="" if layer == "0" else f"_{layer}")
    return f"{theirs}/{leaf[0]}"  # w or b


def _reference_shape(name: str, parameter: torch.Tensor) -> tuple[int, ...]:
    """Weights are [in, out] in the reference, and [1, in, out] in blocks of actions."""
    is_block = parameter.dim() == 2 and "conv1_d" in reference_name(name)
    return (*(1,) * is_block, *parameter.shape[::-1])


def params_to_arrays(params: Params) -> dict[str, np.ndarray]:
    """Rule parameters under the names and in the layout of the reference."""
    arrays = {}
    for name, tensor in params.items():
        array = tensor.detach().cpu().float().numpy().T.reshape(_reference_shape(name, tensor))
        arrays[reference_name(name)] = np.ascontiguousarray(array)
    return arrays


def arrays_to_params(
    arrays: dict[str, np.ndarray], sees_values: bool = True, has_prior: bool = False
) -> tuple[MetaNetSizes, Params]:
    """Check the arrays of a rule and convert them. Raises an error naming what is wrong."""
    sizes = infer_sizes(arrays)
    with torch.device("meta"):
        net = MetaNet(sizes, sees_values, has_prior)
    expected = {reference_name(name): (name, p) for name, p in net.named_parameters()}
    if missing := expected.keys() - arrays.keys():
        raise DiscorlError(f"arrays missing from the rule file: {_listed(missing)}")
    if extra := arrays.keys() - expected.keys():
        raise DiscorlError(f"unknown arrays in the rule file: {_listed(extra)}")

    params = {}
    for their_name, (name, parameter) in expected.items():
        array, shape = arrays[their_name], _reference_shape(name, parameter)
        if array.shape != shape:
            raise DiscorlError(
                f"array {their_name} has shape {list(array.shape)}, but the others imply "
                f"{list(shape)}"
            )
        if not np.isfinite(array).all():
            raise DiscorlError(f"array {their_name} contains NaN or infinity")
        ours = array.reshape(parameter.shape[::-1]).T
        params[name] = torch.from_numpy(np.array(ours, dtype=np.float32, order="C"))
    return sizes, params


def infer_sizes(arrays: dict[str, np.ndarray]) -> MetaNetSizes:
    """The widths of the meta-network that these arrays belong to.

    A part is missing if all of its arrays are. Where only some are, the file is damaged.
    """

    def width(module: str) -> int:
        name = reference_name(f"{module}.bias")
        if name not in arrays:
            raise DiscorlError(f"array missing from the rule file: {name}")
        return arrays[name].shape[-1]

    def widths(module: str) -> tuple[int, ...]:
        found = [width(f"{module}.layers.0")]
        while reference_name(f"{module}.layers.{len(found)}.bias") in arrays:
            found.append(width(f"{module}.layers.{len(found)}"))
        return tuple(found)

    def has_any(modules: tuple[str, ...]) -> bool:
        return any(
            reference_name(f"{module}.{leaf}") in arrays
            for module in modules
            for leaf in ("weight", "bias")
        )

    predictions, lifetime = has_any(_PREDICTIONS), has_any(_LIFETIME)
    both = predictions and lifetime
    return MetaNetSizes(
        prediction=width("y_target") if predictions else 0,
        hidden=width("lifetime_gate") if lifetime else width("trajectory_rnn.gates") // 4,
        embedding=widths("trajectory.y") if predictions else (),
        action_channels=widths("trajectory.actions"),
        policy_channels=widths("policy_blocks"),
        lifetime_hidden=width("lifetime_rnn.gates") // 4 if lifetime else 0,
        lifetime_embedding=widths("lifetime_mlp") if lifetime else (),
        lifetime_prediction_embedding=widths("lifetime.y") if both else (),
        lifetime_action_channels=widths("lifetime.actions") if lifetime else (),
    )


def read_archive(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays and comment of a rule file, checked before anything is believed."""
    try:
        arrays, comment = read_npz(path, "a rule file", MAX_FILE_BYTES, MAX_ARRAYS, _check_array)
    except FileNotFoundError:
        raise DiscorlError(f"no such rule file: {path}") from None
    except OSError as e:
        raise DiscorlError(f"cannot read the rule file {path}: {e.strerror or e}") from None
    try:
        settings = parse_json(comment or b"{}")
    except ValueError as e:
        raise DiscorlError(f"{path}: the archive's comment is not JSON: {e!s:.80}") from None
    if not isinstance(settings, dict):
        raise DiscorlError(f"{path}: the archive's comment is not a rule's settings")
    return arrays, settings


def _check_array(dtype: np.dtype, shape: tuple[int, ...]) -> None:
    if dtype != np.dtype("<f4"):
        raise ValueError(f"its type is {dtype}, but rules are float32")
    if not 1 <= len(shape) <= 3 or min(shape) < 1:
        raise ValueError(f"no rule has an array of shape {list(shape)}")


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


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)[:4]) + (" ..." if len(names) > 4 else "")
