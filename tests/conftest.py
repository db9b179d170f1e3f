"""Settings for the whole suite."""

from __future__ import annotations

import os

import pytest
import torch

from discorl.errors import DiscorlError
from discorl.rules.store import DISCO103_ENV, find_disco103
from discorl.training.kernels import VARIABLE
from tests.browser import chromium as chromium
from tests.browser import visit as visit


def pytest_configure() -> None:
    # Nearly everything here is small: further threads only wait for each other, which on a busy
    # machine makes tests ten times slower.
    torch.set_num_threads(1)
    # Tests that are not about the kernels are the same with and without a compiler.
    os.environ[VARIABLE] = "off"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs the public weights where they are not to be found."""
    try:
        found = find_disco103()
    except DiscorlError as e:
        raise pytest.UsageError(str(e)) from None
    if found:
        return
    reason = f"needs Disco103: set {DISCO103_ENV} to disco_103.npz, or run 'discorl rules fetch'"
    for item in items:
        if item.get_closest_marker("disco103"):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def _same_every_time() -> None:
    """Networks that a test builds without a generator are the same in every run."""
    torch.manual_seed(0)
