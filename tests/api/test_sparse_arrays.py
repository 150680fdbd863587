"""Patterns from and to sparse arrays, and attention by them."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import oracle
import pytest
import torch

from cute_attn import BatchAttention, BlockSparseKV, PagedKV, from_sparse, to_sparse

sparse = pytest.importorskip("scipy.sparse")


def pattern(rows: int, columns: int, block: tuple[int, int]) -> np.ndarray:
    """A dense 0-1 array of whole blocks; the second block row is empty."""
    seen = np.random.default_rng(rows).random((rows // block[0], columns // block[1])) < 0.4
    seen[1] = False
    return np.kron(seen, np.ones(block)).astype(np.float32)


def arrays(dense: np.ndarray, block: tuple[int, int]) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch: sparse layouts are in beta
        made = [sparse.bsr_array(dense, blocksize=block), torch.tensor(dense).to_sparse_bsr(block)]
        if block == (1, 1):
            made += [sparse.csr_array(dense), torch.tensor(dense).to_sparse_csr()]
    return made


@pytest.mark.parametrize("block", [(1, 1), (4, 8), (3, 1), (1, 16), (12, 16)])
def test_there_and_back(block: tuple[int, int]) -> None:
    dense = pattern(48, 64, block)
    for array in arrays(dense, block):
        kv = from_sparse(array)
        assert kv.block_size == block
        assert np.array_equal(to_sparse(kv).toarray(), dense)
        assert np.array_equal(to_sparse(kv, "torch").to_dense().numpy(), dense)


def test_attention_by_a_pattern() -> None:
    dense = pattern(48, 64, (4, 8))
    kv = from_sparse(sparse.bsr_array(dense, blocksize=(4, 8)))
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(48, 4, 16, generator=generator)
    k, v = (torch.randn(64, 2, 16, generator=generator) for _ in range(2))
    made = BatchAttention(4, 2, 16, dtype=torch.float32, variant="full", device="cpu")
    out, lse = made.plan(None, kv).run(q, k, v, return_lse=True)
    want, want_lse = oracle.attend(q, k, v, mask=lambda i, j: dense[i - 16, j] > 0)
    assert np.abs(out.double().numpy() - want).max() < 1e-5
    assert np.array_equal(np.isneginf(lse.numpy()), np.isneginf(want_lse))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: from_sparse(np.ones((2, 2))), TypeError, "array is a ndarray"),
        (lambda: from_sparse(torch.ones(2, 2)), TypeError, "layout torch.strided"),
        (
            lambda: from_sparse(sparse.bsr_array(np.eye(4), blocksize=(2, 2))),
            ValueError,
            "array stores zeros",
        ),
        (lambda: to_sparse(PagedKV([0], [], [], 1)), TypeError, "kv is a PagedKV"),
        (
            lambda: to_sparse(BlockSparseKV([0, 1, 1], [0], (2, 1), 3, 1)),
            ValueError,
            "3 query rows in blocks of 2",
        ),
        (
            lambda: to_sparse(BlockSparseKV([0, 1], [0], (1, 1), 1, 1), "jax"),
            ValueError,
            "library is 'jax'",
        ),
    ],
)
def test_bad_input(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
