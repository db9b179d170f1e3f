"""Square roots that are right to the last bit."""

from __future__ import annotations

import torch
from torch import Tensor


def exact_sqrt(x: Tensor) -> Tensor:
    """The square root, correctly rounded, as the reference's compiler has it.

    On CPUs torch calls a library that is off in the last bit for about one float32 in 130, which
    the cancellation in ``signed_parabolic`` turns into two steps of the values.
    """
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return torch.sqrt(x)
    return torch.sqrt(x.double()).to(x.dtype)
