"""`Step`: which query and key rows of a layer's tensors are requests, and what a query may see.

A step is made once per forward pass, from lengths on the host, and serves all layers of its kind.
Tensors of Transformers are (batch, heads, length, head_dim); padded rows are left out, so what is
planned are the true, ragged lengths.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Band:
    """Keys that a query may see by distance.

    Attributes:
        left: keys before its own that it sees; None: all.
        right: keys behind its own that it sees; None: all, 0: causal.
    """

    left: int | None = None
    right: int | None = None


CAUSAL = Band(None, 0)
FULL = Band()


@dataclass(frozen=True, eq=False)
class Step:
    """The requests of a forward pass, for layers that see the same keys.

    Attributes:
        qo_indptr: (requests + 1,) query rows of each request, among those that are used.
        query_rows: (rows,) which of the batch * q_len rows are used, in order; None: the first
            qo_indptr[-1].
        kv_len: (requests,) keys of each request.
        first: first key of request i in batch row i, where each request is one row's consecutive
            keys, and all begin at this one; None: `key_rows` says where they are.
        key_rows: (2, keys) batch row and column of each key, request after request, or None.
        band: what a query may see; the last query of a request stands at its last key.
        bits: (requests, q_len, keys) truth values, of what a query sees, instead of a band.
        ndim: 4, as of the masks that Transformers passes on as they are.
    """

    qo_indptr: Ints
    query_rows: Ints | None
    kv_len: Ints
    first: int | None
    key_rows: Ints | None
    band: Band = CAUSAL
    bits: torch.Tensor | None = None
    ndim: int = 4

    @property
    def ragged(self) -> bool:
        """Whether the keys are all in batch row 0, request after request, from `first` on."""
        return self.first is None and self.key_rows is None


def indptr(lengths: Ints) -> Ints:
    """(n + 1,) row pointer of (n,) lengths."""
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)))


@lru_cache(maxsize=128)
def even_step(batch: int, q_len: int, kv_len: int, band: Band) -> Step:
    """Requests of equal lengths, without padding."""
    return Step(
        qo_indptr=np.arange(batch + 1, dtype=np.int64) * q_len,
        query_rows=None,
        kv_len=np.full(batch, kv_len, np.int64),
        first=0,
        key_rows=None,
        band=band,
    )


def padded_step(valid: Bools, q_len: int, band: Band) -> Step | None:
    """Requests with padding, wherever it is.

    Args:
        valid: (batch, keys), False: padding. Without a band all queries are used, and may be other
            rows than the keys; with one they are the last q_len of them.
        q_len: query rows of each request.
        band: what a query may see.

    Returns:
        the step, or None: a band of distances over keys with gaps has to be a mask.
    """
    batch, keys = valid.shape
    if valid.all():
        return even_step(batch, q_len, keys, band)
    kv_len = valid.sum(axis=1, dtype=np.int64)
    begin = valid.argmax(axis=1)
    end = np.where(kv_len > 0, keys - valid[:, ::-1].argmax(axis=1), begin)
    gaps = bool((end - begin != kv_len).any())
    if gaps and (band.left is not None or band.right not in (None, 0)):
        return None
    qo_indptr, query_rows = np.arange(batch + 1, dtype=np.int64) * q_len, None
    if band != FULL:
        used = valid[:, keys - q_len :]
        if not used.all():
            qo_indptr, query_rows = indptr(used.sum(axis=1)), np.flatnonzero(used)
    live = begin[kv_len > 0]
    if not gaps and (live == live[:1]).all():
        first = int(live[0]) if live.size else 0
        return Step(qo_indptr, query_rows, kv_len, first, None, band)
    return Step(qo_indptr, query_rows, kv_len, None, np.stack(np.nonzero(valid)), band)


def packed_step(sequence: Ints, band: Band) -> Step:
    """Several sequences one after the other in each batch row, without padding.

    Args:
        sequence: (batch, length) number of the sequence, constant within one.
        band: what a query may see of its own sequence.
    """
    batch, length = sequence.shape
    ends = np.ones((batch, length), bool)
    ends[:, :-1] = sequence[:, 1:] != sequence[:, :-1]
    pointer = np.concatenate((np.zeros(1, np.int64), np.flatnonzero(ends) + 1))
    rows = None if batch == 1 else np.stack(np.nonzero(np.ones_like(ends)))
    return Step(pointer, None, np.diff(pointer), None, rows, band)


def ragged_step(qo_indptr: Ints, kv_indptr: Ints, band: Band) -> Step:
    """Requests one after the other in one batch row, as row pointers say (padding-free batches)."""
    return Step(qo_indptr, None, np.diff(kv_indptr), None, None, band)


def masked_step(mask: torch.Tensor) -> Step:
    """Requests whose queries see what a mask says.

    Args:
        mask: (batch, q_len, keys) bool.
    """
    batch, q_len, keys = (int(n) for n in mask.shape)
    if batch * -(-q_len * keys // 8) >= 1 << 28:
        raise ValueError(
            f"attention_mask has {batch} x {q_len} x {keys} pairs of query and key; 2^31 fit"
        )
    pointer = np.arange(batch + 1, dtype=np.int64) * q_len
    lengths = np.full(batch, keys, np.int64)
    return Step(pointer, None, lengths, 0, None, FULL, bits=mask)
