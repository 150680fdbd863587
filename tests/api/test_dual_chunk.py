"""Dual-chunk attention of examples/ on the CPU, in every phase and KV format."""

from __future__ import annotations

import pytest
import torch

from cute_attn import RaggedKV
from tests.gpu import dual_chunk
from tests.gpu.variant_case import LENGTHS
from tests.gpu.variant_cases import PAGE_SIZES

CPU = torch.device("cpu")


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("phase", LENGTHS)
def test_against_a_dense_formula(phase: str, page_size: int | None) -> None:
    out, lse, expected, expected_lse = dual_chunk.outputs(phase, page_size, CPU, torch.float32)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=5e-6)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-5, atol=5e-6)


def test_plans_skip_the_chunks_of_the_others() -> None:
    """Of 32 chunks in two heads, each pair of chunks is read by one part alone."""
    attention = dual_chunk.example().DualChunkAttention(
        64, 100, 2, 2, 16, dtype=torch.float32, device="cpu"
    )
    attention.plan([0, 2048], RaggedKV([0, 2048]))
    block = 64 * 2 * 16 * 4  # bytes of 64 keys and values
    read = [part.explain().kv_bytes / block for part in attention.parts]
    assert read == [32 * 2, 31 * 2, 31 * 30 // 2 * 2]
