"""The kernels on processors that have less than this one, by switching off what it has more."""

from __future__ import annotations

import pytest
import torch

from tests.builders import run_python
from tests.compiler import needs_compiler

IMITATE = {
    "all": "",
    "oneDNN for AVX2": "os.environ['ONEDNN_MAX_CPU_ISA'] = 'AVX2'",
    "AVX2": "os.environ['ATEN_CPU_CAPABILITY'] = 'avx2'",
    "no vectors": "os.environ['ATEN_CPU_CAPABILITY'] = 'default'",
    "AVX-512 without BF16": "import torch; torch.cpu._is_avx512_bf16_supported = lambda: False",
}
"""What a process does first to have no more than that."""

PRODUCTS = """
import torch
from functools import partial
from discorl.agents.agent import Agent
from discorl.ops import native
from tests.builders import GOLDEN
from tests.golden import learner
from tests.golden.replay import replay
print(native.bf16_gain() > 0)
a, b = torch.randn(40, 90), torch.randn(90, 60)
rounded = a.bfloat16().double() @ b.bfloat16().double()
assert (torch.ops.discorl.mm(a, b) - a.double() @ b.double()).abs().max() < 1e-4
assert (torch.ops.discorl.mm(a, b, True) - rounded).abs().max() < 1e-4
learner.Agent = partial(Agent, native=True)
assert not (failures := replay(GOLDEN / "disco_small_learner.npz").failures), failures
"""

TESTS = """
import pytest, sys
files = ["test_native.py", "test_bf16.py", "test_convolution.py"]
files = [*(f"tests/ops/{name}" for name in files), "tests/agents/test_rows_left_out.py"]
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *files]))
"""


@needs_compiler
@pytest.mark.parametrize("kind", ["all", "oneDNN for AVX2", "AVX2"])
def test_products_and_golden_numbers(kind: str) -> None:
    """bf16 is the same everywhere, and nothing to be gained where the processor lacks it."""
    done = run_python("-c", f"import os; {IMITATE[kind]}\n{PRODUCTS}")
    assert done.returncode == 0, done.stderr
    has_bf16 = torch.cpu._is_avx512_bf16_supported() and kind != "AVX2"
    assert done.stdout.strip() == str(has_bf16)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["AVX2", "no vectors", "AVX-512 without BF16"])
def test_everything_about_kernels(kind: str) -> None:
    done = run_python("-c", f"import os; {IMITATE[kind]}\n{TESTS}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
