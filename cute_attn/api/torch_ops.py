"""Torch operators, for `torch.compile` and exported graphs.

    torch.ops.cute_attn.run(batch.handle, q, k, v, out, lse)               # writes out and lse
    torch.ops.cute_attn.forward(batch.handle, q, k, v, return_lse) -> (out, lse)
    torch.ops.cute_attn.merge_states(v, lse) -> (out, lse)
    torch.ops.cute_attn.append_paged_kv(key, value, batch_indices, positions, k_cache, v_cache,
                                        block_tables)                     # writes the caches

`torch.ops.cute_attn.attention` is in `one_shot_op`. A plan cannot pass through a graph, so
`BatchAttention` objects are named by integers: a traced model holds the handle, plan() goes on as
before between its calls. There is no backward: tensors that require grad are refused, when a model
is traced and when it runs. (`Library.define` and `impl` cost half of what `torch.library.custom_op`
does per call.)
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any, Protocol

import torch

from cute_attn.api import checks
from cute_attn.api.append import RoPE, append_paged_kv
from cute_attn.api.states import merge_states
from cute_attn.formats import BlockTableKV

_torch_library: Any = torch.library  # torch annotates it only in part
LIBRARY = _torch_library.Library("cute_attn", "FRAGMENT")
LIBRARY.define(
    "run(int handle, Tensor q, Tensor k, Tensor? v, Tensor(a!) out, Tensor(b!)? lse) -> ()"
)
LIBRARY.define(
    "forward(int handle, Tensor q, Tensor k, Tensor? v, bool return_lse=False) -> (Tensor, Tensor)"
)
LIBRARY.define("merge_states(Tensor v, Tensor lse) -> (Tensor, Tensor)")
LIBRARY.define(
    "append_paged_kv(Tensor key, Tensor value, Tensor batch_indices, Tensor positions,"
    " Tensor(a!) k_cache, Tensor(b!)? v_cache, Tensor block_tables, *, str kv_layout='NHD',"
    " str? rope_style=None, float rope_theta=10000.0, float rope_scale=1.0) -> ()"
)


class Runs(Protocol):
    """What a handle stands for: a `BatchAttention`."""

    @property
    def num_qo_heads(self) -> int:
        """Query heads."""

    @property
    def head_dim_vo(self) -> int:
        """Elements of an output row."""

    def run(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor | None = None,
        *,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
    ) -> Any:
        """See `BatchAttention.run`."""


_objects: weakref.WeakValueDictionary[int, Runs] = weakref.WeakValueDictionary()
_handles = itertools.count(1)


def register(batch: Runs) -> int:
    """A handle for `batch`, valid as long as the object lives."""
    handle = next(_handles)
    _objects[handle] = batch
    return handle


def implement(name: str, run: Any, fake: Any) -> None:
    """Gives operator `name` what it does, on CPU and CUDA tensors, and what it does while traced.

    Args:
        name: as defined in `LIBRARY`.
        run: of tensors.
        fake: of tensors without numbers: shapes, strides and dtypes of the results.
    """
    for device in ("CPU", "CUDA"):
        LIBRARY.impl(name, run, device)
    _torch_library.register_fake(f"cute_attn::{name}", fake, lib=LIBRARY)


def refuse_gradients(**tensors: torch.Tensor | None) -> None:
    """Raises RuntimeError for tensors that require grad, while grad mode is on."""
    if torch.is_grad_enabled():
        checks.no_gradients(**tensors)


def _of(handle: int) -> Runs:
    batch = _objects.get(handle)
    if batch is None:
        raise ValueError(f"handle is {handle}; it takes the handle of a living BatchAttention")
    return batch


def _run(
    handle: int,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor | None,
) -> None:
    _of(handle).run(q, k, v, out=out, lse=lse)


def _run_fake(
    handle: int,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor | None,
) -> None:
    """Nothing but `out` and `lse` changes, and their sizes do not."""
    refuse_gradients(q=q, k=k, v=v)


def _forward(
    handle: int,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor | None,
    return_lse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    result = _of(handle).run(q, k, v, return_lse=return_lse)
    return result if return_lse else (result, q.new_empty(0, dtype=torch.float32))


def _forward_fake(
    handle: int,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor | None,
    return_lse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    refuse_gradients(q=q, k=k, v=v)
    batch = _of(handle)
    rows = (q.shape[0], batch.num_qo_heads)
    lse = q.new_empty(rows if return_lse else 0, dtype=torch.float32)
    dtype = checks.out_dtype(q.dtype)
    return q.new_empty((*rows, batch.head_dim_vo), dtype=dtype), lse


def _merge_states_fake(v: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    refuse_gradients(v=v, lse=lse)
    return v.new_empty(v.shape[1:]), lse.new_empty(lse.shape[1:])


def _append_paged_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    batch_indices: torch.Tensor,
    positions: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor | None,
    block_tables: torch.Tensor,
    *,
    kv_layout: str = "NHD",
    rope_style: str | None = None,
    rope_theta: float = 10000.0,
    rope_scale: float = 1.0,
) -> None:
    """`block_tables` (requests, max_pages) int32 holds page numbers, of pages that are written."""
    page_size = int(k_cache.shape[-3 if kv_layout == "NHD" else -2])
    seq_lens = [page_size * int(block_tables.shape[1])] * int(block_tables.shape[0])
    if block_tables.device.type == "cpu":  # where page numbers that are in use are looked at
        seq_lens = [0] * len(seq_lens)
        for request, position in zip(batch_indices.tolist(), positions.tolist(), strict=True):
            if 0 <= request < len(seq_lens):
                seq_lens[request] = max(seq_lens[request], position + 1)
    kv_format = BlockTableKV(block_tables, seq_lens, page_size)
    rope = None if rope_style is None else RoPE(rope_style, rope_theta, rope_scale)
    append_paged_kv(
        key,
        value,
        batch_indices,
        positions,
        k_cache,
        v_cache,
        kv_format,
        kv_layout=kv_layout,
        rope=rope,
    )


def _append_paged_kv_fake(
    key: torch.Tensor,
    value: torch.Tensor,
    batch_indices: torch.Tensor,
    positions: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor | None,
    block_tables: torch.Tensor,
    *,
    kv_layout: str = "NHD",
    rope_style: str | None = None,
    rope_theta: float = 10000.0,
    rope_scale: float = 1.0,
) -> None:
    """Nothing but the caches changes, and their sizes do not."""
    refuse_gradients(key=key, value=value, k_cache=k_cache, v_cache=v_cache)


implement("run", _run, _run_fake)
implement("forward", _forward, _forward_fake)
implement("merge_states", merge_states, _merge_states_fake)
implement("append_paged_kv", _append_paged_kv, _append_paged_kv_fake)
