from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from discorl.errors import DiscorlError
from discorl.rules.values import ValueHead


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"num_bins": 1}, "needs at least 2 bins, not 1: raise num_bins"),
        ({"num_bins": 0}, "needs at least 2 bins, not 0"),
        ({"num_bins": -5}, "needs at least 2 bins, not -5"),
        ({"max_abs": 0.0}, "above 0 and at most 1e\\+09, not 0.0: set max_abs_value"),
        ({"max_abs": -3.0}, "above 0 and at most 1e\\+09, not -3.0"),
        ({"max_abs": math.inf}, "above 0 and at most 1e\\+09, not inf"),
        ({"max_abs": math.nan}, "above 0 and at most 1e\\+09, not nan"),
    ],
)
def test_bins_that_stand_for_nothing_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(DiscorlError, match=words):
        ValueHead(**changes)


def test_two_bins_are_enough() -> None:
    head = ValueHead(num_bins=2, max_abs=1.0, squashed=False)
    assert head.value(torch.tensor([[-50.0, 50.0], [0.0, 0.0]])).tolist() == [1.0, 0.0]
