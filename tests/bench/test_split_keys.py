"""Attention to a long cache by parts of its keys is attention.

With `TRITON_INTERPRET=1`, Triton and NumPy < 2.4 it runs on a CPU, slowly: `pytest -m gpu -W ignore FILE`.
"""

import os

import pytest
import torch

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("batch", "length"), [(1, 1), (2, 127), (3, 128), (1, 5000)])
def test_it_is_attention(batch, length, dtype):
    pytest.importorskip("triton")
    from torchcram.bench import split_keys

    torch.manual_seed(0)
    query = 3 * torch.randn(batch, 4, 1, 64, device=DEVICE, dtype=dtype)
    key, value = (torch.randn(batch, 4, length, 64, device=DEVICE, dtype=dtype) for _ in range(2))
    found = split_keys.attend(query, key, value)
    true = torch.nn.functional.scaled_dot_product_attention(*(x.double() for x in (query, key, value)))
    error = float((found.double() - true).norm() / true.norm())
    assert error < (1e-2 if dtype == torch.bfloat16 else 1e-5)
