"""Acts with exported policies, as somebody would who has only the files and not this package.

python use_policy.py FOLDER..., each with policy.pt2, policy.onnx and seen.npz (see test_export.py);
writes the actions of both to acted.npz.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.modules["discorl"] = None  # pyright: ignore[reportArgumentType] - importing it is an error


def with_torch(folder: Path, seen: list[list[np.ndarray]], starts: list[np.ndarray]) -> np.ndarray:
    import torch

    extra: dict[str, Any] = {"discorl.json": ""}
    policy = torch.export.load(folder / "policy.pt2", extra_files=extra).module()
    about = json.loads(extra["discorl.json"])
    memory = {
        one["name"].removeprefix("memory/"): torch.zeros(
            len(starts[0]), *one["shape"], dtype=getattr(torch, one["dtype"])
        )
        for one in about["memory"]
    }
    acted = []
    for arrays, start in zip(seen, starts):
        tensors = [torch.from_numpy(x) for x in arrays]
        observation = tensors[0] if len(tensors) == 1 else tuple(tensors)
        if memory:
            action, _, memory = policy(observation, memory, torch.from_numpy(start))
        else:
            action, _ = policy(observation)
        acted.append(action.numpy())
    return np.stack(acted)


def with_onnx(folder: Path, seen: list[list[np.ndarray]], starts: list[np.ndarray]) -> np.ndarray:
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / "policy.onnx")
    about = json.loads(session.get_modelmeta().custom_metadata_map["discorl.json"])
    memory = {
        one["name"]: np.zeros((len(starts[0]), *one["shape"]), one["dtype"])
        for one in about["memory"]
    }
    acted = []
    for arrays, start in zip(seen, starts):
        given = dict(zip([one["name"] for one in about["observations"]], arrays))
        if memory:
            given |= memory | {"episode_start": start}
        action, _, *after = session.run(None, given)
        memory = dict(zip(memory, after))
        acted.append(action)
    return np.stack(acted)


for folder in map(Path, sys.argv[1:]):
    with np.load(folder / "seen.npz") as saved:
        *arrays, starts = (saved[name] for name in saved.files)
    seen = [list(step) for step in zip(*arrays)]
    np.savez(
        folder / "acted.npz",
        pt2=with_torch(folder, seen, list(starts)),
        onnx=with_onnx(folder, seen, list(starts)),
    )
try:
    import discorl  # noqa: F401
except ImportError:
    print("without discorl")
