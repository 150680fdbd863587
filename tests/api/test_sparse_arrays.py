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


@pytest.mark.parametrize("block", [(1, 1), (4, 8), (3, 16)])
def test_stored_zeros_are_hidden(block: tuple[int, int]) -> None:
    dense = pattern(48, 64, block)
    dense[np.random.default_rng(1).random(dense.shape) < 0.4] = 0
    whole = np.kron(pattern(48, 64, block)[:: block[0], :: block[1]], np.ones(block)) != 0
    for array in arrays(np.where(whole, 1.0, 0.0).astype(np.float32), block):
        if isinstance(array, torch.Tensor):
            seen = torch.tensor(dense)
            values = array.values()
            at = torch.repeat_interleave(
                torch.arange(len(array.crow_indices()) - 1), array.crow_indices().diff()
            )
            tiles = seen.reshape(48 // block[0], block[0], 64 // block[1], block[1])
            values[:] = tiles.permute(0, 2, 1, 3)[at, array.col_indices()].reshape(values.shape)
        else:
            array = array.copy()
            at = np.repeat(np.arange(array.indptr.size - 1), np.diff(array.indptr))
            tiles = dense.reshape(48 // block[0], block[0], 64 // block[1], block[1])
            array.data[:] = tiles.transpose(0, 2, 1, 3)[at, array.indices].reshape(array.data.shape)
        kv = from_sparse(array)
        assert (kv.mask is None) == (block == (1, 1))
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
