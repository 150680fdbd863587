"""Block-sparse patterns from and to the sparse arrays of SciPy and torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from cute_attn.api import checks
from cute_attn.formats import BlockSparseKV

LIBRARIES = ("scipy", "torch")


def from_sparse(array: Any) -> BlockSparseKV:
    """The pattern of a sparse array: the blocks that it stores are those that queries see.

    Args:
        array: (query rows, keys): `scipy.sparse.bsr_array` or `csr_array` (blocks of one element),
            or a torch tensor of layout sparse_bsr or sparse_csr, on the host. Which numbers it
            holds does not matter, but what is 0 is not seen: with zeros in stored blocks the
            pattern has a mask, which the variant `custom_mask` reads.

    Raises:
        TypeError: it is none of these.
        ValueError: it stores a block twice.
    """
    if isinstance(array, torch.Tensor):
        layouts = (torch.sparse_bsr, torch.sparse_csr)
        if array.layout not in layouts:
            raise TypeError(
                f"array is a tensor of layout {array.layout}; it takes sparse_bsr or sparse_csr"
            )
        if array.device.type != "cpu":
            raise TypeError(f"array is on device {array.device}; it takes one on the host")
        if array.dim() != 2:
            raise ValueError(f"array has {array.dim()} dimensions; it takes (query rows, keys)")
        pointer, indices = array.crow_indices().numpy(), array.col_indices().numpy()
        values = array.values()
        stored = values.float().numpy() if values.dtype != torch.bool else values.numpy()
        block = tuple(int(n) for n in values.shape[1:]) or (1, 1)
    elif getattr(array, "format", None) in ("bsr", "csr") and hasattr(array, "indptr"):
        pointer, indices, stored = array.indptr, array.indices, array.data
        block = tuple(int(n) for n in getattr(array, "blocksize", (1, 1)))
    else:
        raise TypeError(
            f"array is a {type(array).__name__}; it takes scipy.sparse.bsr_array or csr_array, or"
            " a torch tensor of layout sparse_bsr or sparse_csr"
        )
    seen = (stored != 0).reshape(-1, *block)
    kept = seen.any(axis=(1, 2))
    if not kept.all():
        pointer = np.concatenate(([0], np.cumsum(kept)))[pointer]
        indices, seen = indices[kept], seen[kept]
    rows, columns = (int(n) for n in array.shape)
    mask = None if seen.all() else seen
    return BlockSparseKV(pointer, indices, (block[0], block[1]), rows, columns, mask=mask)


def to_sparse(kv: BlockSparseKV, library: str = "scipy") -> Any:
    """The pattern as a sparse array: 1 where a query sees a key, 0 where a block's mask hides it.

    Args:
        kv: its column blocks on the host.
        library: "scipy": a `scipy.sparse.bsr_array` of booleans (needs SciPy); "torch": a tensor of
            layout sparse_bsr, float32.

    Raises:
        TypeError: kv is no BlockSparseKV, or its column blocks are on a device.
        ValueError: the last block row is short, which such arrays have not.
    """
    checks.one_of("library", library, LIBRARIES)
    if not isinstance(kv, BlockSparseKV):
        raise TypeError(f"kv is a {type(kv).__name__}; it takes a BlockSparseKV")
    if not kv.table_on_host:
        raise TypeError("the column blocks of kv are on a device; it takes them on the host")
    rows, columns = kv.block_size
    num_rows = int(kv.qo_indptr[-1])
    if num_rows % rows:
        raise ValueError(
            f"kv has {num_rows} query rows in blocks of {rows}; sparse arrays take whole blocks"
        )
    pointer = np.append(kv.kv_start, kv.kv_start[-1] + kv.kv_len[-1] // columns)
    indices, shape = kv.page_table[: pointer[-1]], (num_rows, kv.num_rows)
    seen = kv.mask
    if seen is None:
        seen = np.ones((len(indices), rows, columns), np.bool_)
    if library == "torch":
        columns_of = torch.from_numpy(indices.astype(np.int64))
        return torch.sparse_bsr_tensor(
            torch.from_numpy(pointer),
            columns_of,
            torch.from_numpy(seen).float(),
            shape,
            check_invariants=True,
        )
    from scipy.sparse import bsr_array

    return bsr_array((seen, indices, pointer), shape=shape)
