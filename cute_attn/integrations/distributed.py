"""Attention over several ranks of `torch.distributed`: heads by rank, or keys by rank.

Tensor parallelism needs no exchange within attention: `shard_heads` says which heads are a rank's,
`gather_heads` puts outputs together. With keys by rank (sequence-parallel KV) every rank attends to
its own keys, and the states of all ranks are merged exactly by log-sum-exp: `KVParallelAttention`,
or `merge_over_ranks` behind any call that returns a log-sum-exp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from cute_attn.api import BatchAttention, PagedKV, RaggedKV, merge_states


class HeadShard(NamedTuple):
    """Heads of one rank: slices of all query heads and of all KV heads."""

    qo: slice
    kv: slice


def shard_heads(
    num_qo_heads: int, num_kv_heads: int, rank: int | None = None, world_size: int | None = None
) -> HeadShard:
    """Which heads a rank has under tensor parallelism.

    KV heads are divided over the ranks; with more ranks than KV heads, several ranks have the same
    one, and its query heads are divided over them.

    Args:
        num_qo_heads, num_kv_heads: of the model.
        rank, world_size: default: of the default process group.

    Raises:
        ValueError: heads do not divide over the ranks.
    """
    rank = dist.get_rank() if rank is None else rank
    world = dist.get_world_size() if world_size is None else world_size
    if not 0 <= rank < world:
        raise ValueError(f"rank is {rank}; it takes 0 .. {world - 1}, below world_size")
    if num_qo_heads < 1 or num_kv_heads < 1 or num_qo_heads % num_kv_heads:
        raise ValueError(
            f"num_qo_heads is {num_qo_heads} and num_kv_heads {num_kv_heads}; the first takes a"
            " multiple of the second"
        )
    if num_kv_heads % world and world % num_kv_heads:
        raise ValueError(
            f"num_kv_heads is {num_kv_heads}; {world} ranks take a multiple or a divisor of"
            " world_size"
        )
    if num_qo_heads % world:
        raise ValueError(f"num_qo_heads is {num_qo_heads}; {world} ranks take a multiple")
    own, kv_heads = num_qo_heads // world, max(num_kv_heads // world, 1)
    first = rank * num_kv_heads // world
    return HeadShard(slice(rank * own, (rank + 1) * own), slice(first, first + kv_heads))


def gather_heads(out: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """Outputs of all ranks' heads, on every rank.

    Args:
        out: (q_tokens, own query heads, head_dim_vo), of one shape on all ranks.
        group: the ranks; default: all.

    Returns:
        (q_tokens, num_qo_heads, head_dim_vo), heads in the order of ranks.
    """
    return torch.cat(_gathered(out, group).unbind(), dim=1)


def merge_over_ranks(
    out: torch.Tensor, lse: torch.Tensor, group: dist.ProcessGroup | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The state over the keys of all ranks, of states over each rank's own keys.

    Exact, and in the order of ranks: all ranks get the same bits. Every rank sends its whole state
    to the others once: (world_size - 1) x (head_dim_vo x bytes of an element + 4) bytes for each
    row and head.

    Args:
        out: (q_tokens, num_heads, head_dim_vo), normalised, bf16, fp16 or float32.
        lse: (q_tokens, num_heads) float32, natural logarithm; -inf where a rank has no key.
        group: the ranks; default: all.

    Returns:
        out and lse, of the same shapes and dtypes.

    Raises:
        TypeError, ValueError: as `merge_states`.
    """
    if dist.get_world_size(group) == 1:
        return out, lse
    return merge_states(_gathered(out, group), _gathered(lse, group))


def _gathered(x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """(world_size, *x.shape), rank by rank."""
    parts = x.new_empty((dist.get_world_size(group), *x.shape))
    dist.all_gather(list(parts.unbind()), x.contiguous(), group=group)
    return parts


def split_keys(
    kv_lens: Sequence[int], q_lens: Sequence[int], world_size: int, *, multiple: int = 1
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """How many keys of each request every rank has: ranges that follow each other, about equal, the
    last of which holds at least the request's query tokens (all causal masks then lie in it).

    Args:
        kv_lens, q_lens: tokens of each request.
        world_size: ranks.
        multiple: ranges but the last are multiples of it, e.g. of the page size.

    Returns:
        (world_size, num_requests) numbers of keys.

    Raises:
        ValueError: an argument is wrong.
    """
    if world_size < 1 or multiple < 1:
        raise ValueError(
            f"world_size is {world_size} and multiple {multiple}; they take at least 1"
        )
    keys, queries = np.asarray(kv_lens, np.int64), np.asarray(q_lens, np.int64)
    if keys.shape != queries.shape or keys.ndim != 1 or min(keys.min(initial=0), 0) < 0:
        raise ValueError(
            f"kv_lens has shape {keys.shape} and q_lens {queries.shape}; they take a length of each"
            " request, at least 0"
        )
    most = np.maximum(keys - queries, 0)  # before the last rank
    ends = [
        np.minimum(keys * rank // world_size, most) // multiple * multiple
        for rank in range(1, world_size)
    ]
    return np.diff(np.stack([np.zeros_like(keys), *ends, keys]), axis=0)


class KVParallelAttention:
    """`BatchAttention` of requests whose keys are divided over ranks, queries on all of them.

    Each rank holds a range of every request's keys, in rank order; the last rank's ranges hold at
    least as many keys as the request has query tokens (`split_keys`). A rank may hold none.

        attention = KVParallelAttention(32, 8, 128)
        attention.plan(qo_indptr, own_kv_format)
        out, lse = attention.run(q, own_cache)      # the same bits on all ranks

    Args:
        num_qo_heads, num_kv_heads, head_dim: as for `BatchAttention`.
        causal: rows see keys up to their own position; else all.
        group: the ranks; default: all.
        options: others of `BatchAttention`, but `variant`.

    Attributes:
        attention: the `BatchAttention` of this rank's keys.

    Raises:
        TypeError, ValueError, DriverError: as `BatchAttention`.
    """

    def __init__(
        self,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        causal: bool = True,
        group: dist.ProcessGroup | None = None,
        **options: Any,
    ) -> None:
        if "variant" in options:
            raise TypeError(
                "variant is given; keys by rank take causal=True or False: a mask of other"
                " positions would need each rank's own"
            )
        self._group = group
        last = dist.get_rank(group) == dist.get_world_size(group) - 1
        # Rows see all keys before the last rank's, which begin at the first query at the latest.
        self._masks = causal and last
        self.attention = BatchAttention(
            num_qo_heads,
            num_kv_heads,
            head_dim,
            variant="causal" if self._masks else "full",
            **options,
        )

    def plan(self, qo_indptr: Any, kv_format: PagedKV | RaggedKV) -> KVParallelAttention:
        """Plans a step.

        Args:
            qo_indptr: (num_requests + 1,) query rows, the same on all ranks.
            kv_format: this rank's keys of each request.

        Raises:
            ValueError: the last rank has fewer keys of a request than it has query tokens, and
                causal is True; others as `BatchAttention.plan`.
        """
        if self._masks:
            short = np.diff(np.asarray(qo_indptr)) > np.asarray(kv_format.kv_len)
            if short.any():
                at = int(short.argmax())
                raise ValueError(
                    f"kv_format has {int(kv_format.kv_len[at])} keys of request {at}, which has"
                    f" {int(np.diff(np.asarray(qo_indptr))[at])} query tokens; the last rank takes"
                    " at least as many (split_keys)"
                )
        self.attention.plan(qo_indptr, kv_format)
        return self

    def run(
        self, q: torch.Tensor, k: Any, v: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attention of the planned step, for one layer; all ranks must call it.

        Args:
            q: (q_tokens, num_qo_heads, head_dim), the same on all ranks.
            k, v: this rank's keys and values, as for `BatchAttention.run`.

        Returns:
            out (q_tokens, num_qo_heads, head_dim_vo) and lse (q_tokens, num_qo_heads) float32 over
            the keys of all ranks.
        """
        out, lse = self.attention.run(q, k, v, return_lse=True)
        return merge_over_ranks(out, lse, self._group)
