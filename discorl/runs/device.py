"""The device a run uses."""

from __future__ import annotations

import torch

from discorl.errors import DiscorlError


def choose_device(name: str) -> torch.device:
    """``auto`` takes CUDA, then MPS, then the CPU; anything else is taken at its word."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as e:
        reason = str(e).splitlines()[0]
        raise DiscorlError(
            f"cannot use device '{name:.40}' ({reason:.300}); try --device auto"
        ) from None
    return device
