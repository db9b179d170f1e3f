"""Randomness inside an agent, such as dropout, which only knows PyTorch's global generators."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def noise_from(source: torch.Generator | int, device: torch.device) -> Iterator[None]:
    """Random draws inside an agent come from ``source``; the global generators stay as they are.

    Without this a resumed run could not repeat what an agent with dropout did.
    """
    if isinstance(source, int):
        seed = source
    else:
        seed = int(torch.randint(2**62, (), generator=source, device=source.device))
    is_cuda = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if is_cuda else []):
        torch.default_generator.manual_seed(seed)
        if is_cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
