"""Continuous batching: requests of a `PagedAttentionCache`, and leave to be one of its backends.

Transformers reads its cache in two ways. Where all requests decode and all layers see all keys, a
block table says where pages are: new keys are appended to them and the kernels read them in place.
Otherwise it gathers the keys of all requests, one after the other.
"""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
import torch

from cute_attn.api import BlockTableKV, append_paged_kv
from cute_attn.integrations.transformers.name import NAME
from cute_attn.integrations.transformers.planned import Scores, kind_of, scalars_of, tensors_of
from cute_attn.integrations.transformers.steps import CAUSAL, Band, Ints, Step, ragged_step

_PACKAGE = "transformers.generation.continuous_batching"
_OURS = "_takes_cute_attn"


class _Last:
    """The value derived last from a tensor; layers of one forward pass ask for the same."""

    def __init__(self) -> None:
        self._of: tuple[Any, ...] = ()
        self._tensors: tuple[weakref.ref[torch.Tensor], ...] = ()
        self._value: Any = None

    def get(self, make: Callable[[], Any], tensors: tuple[torch.Tensor, ...], *more: Any) -> Any:
        """`make()`, or what it gave when it was asked for the same, unchanged tensors."""
        of = (*map(_version, tensors), *more)
        same = len(self._tensors) == len(tensors) and all(
            ref() is x for ref, x in zip(self._tensors, tensors, strict=True)
        )
        if None in of or of != self._of or not same:
            self._value = make()
            self._of, self._tensors = of, tuple(map(weakref.ref, tensors))
        return self._value


def _version(x: torch.Tensor) -> int | None:
    """Grows with every change of the tensor's memory; None: cannot be known."""
    return None if x.is_inference() else x._version


_STEPS: dict[Band, _Last] = {}
_TABLES = _Last()


def lengths_of(cu_seq_lens_q: torch.Tensor, cu_seq_lens_k: torch.Tensor, band: Band) -> Step:
    """The step of a padding-free batch. Waits for the GPU once per forward pass.

    Args:
        cu_seq_lens_q, cu_seq_lens_k: (requests + 1,) row pointers of queries and keys.
        band: what a query may see.
    """
    last = _STEPS.setdefault(band, _Last())

    def make() -> Step:
        return ragged_step(_on_host(cu_seq_lens_q), _on_host(cu_seq_lens_k), band)

    step: Step = last.get(make, (cu_seq_lens_q, cu_seq_lens_k))
    return step


def decode_pages(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scores: Scores,
    given: dict[str, Any],
) -> torch.Tensor:
    """Appends a key of each request to its pages, and attends to them.

    Args:
        query: (1, num_qo_heads, requests, head_dim).
        key, value: (1, num_kv_heads, requests, head_dim), to be appended.
        scores: what is done with scores.
        given: `k_cache`, `v_cache` (pages, page_size, num_kv_heads, head_dim), `block_table`
            (requests, pages of a request) int32, `cu_seq_lens_k` (requests + 1,) with the new keys.

    Returns:
        (1, requests, num_qo_heads, head_dim_vo).
    """
    k_cache, v_cache, table = (given[name] for name in ("k_cache", "v_cache", "block_table"))
    pointer: torch.Tensor = given["cu_seq_lens_k"]

    def make() -> tuple[BlockTableKV, torch.Tensor, torch.Tensor]:
        lengths = np.diff(_on_host(pointer))
        requests = np.where(lengths > 0, np.arange(lengths.size), -1)  # others pad the batch
        numbers = np.stack((requests, np.maximum(lengths - 1, 0))).astype(np.int32)
        place = torch.from_numpy(numbers).to(query.device)
        kv_format = BlockTableKV(table, lengths, int(k_cache.shape[1]))
        return kv_format, place[0], place[1]

    rows = query[0].transpose(0, 1)
    kv_format, requests, positions = _TABLES.get(
        make, (pointer,), table.data_ptr(), tuple(table.shape), _version(table)
    )
    count = kv_format.num_requests
    new_keys, new_values = (x[0].transpose(0, 1)[:count].contiguous() for x in (key, value))
    append_paged_kv(new_keys, new_values, requests, positions, k_cache, v_cache, kv_format)
    caches = k_cache.transpose(1, 2), v_cache.transpose(1, 2)
    kind = kind_of(CAUSAL, query, *caches, scores)
    if kind.place != ("pages", kv_format):
        kind.step = None
        tensors = tensors_of(kind, scores)
        scalars = scalars_of(CAUSAL, scores.softcap)
        kind.batch.plan(np.arange(count + 1), kv_format, scalars=scalars, tensors=tensors)
        kind.place = ("pages", kv_format)
    out: torch.Tensor = kind.batch.run(
        rows[:count].detach(), *caches, tensors=tensors_of(kind, scores)
    )
    if count < rows.shape[0]:
        out = torch.cat((out, out.new_zeros((rows.shape[0] - count, *out.shape[1:]))))
    return out.unsqueeze(0)


def allow_continuous_batching() -> None:
    """Lets the managers of Transformers take this implementation.

    They know their backends by name: "sdpa" and eager, for which they make dense masks, and names
    with "flash" in them, which they load themselves. Three of their functions are replaced by ones
    that answer for this name as for FlashAttention and leave all others to the originals.
    """
    api, cache, initialization = (
        importlib.import_module(f"{_PACKAGE}.{name}")
        for name in ("continuous_api", "cache", "initialization")
    )
    for module in (api, cache):
        _replace(module, "is_flash_attention_requested", _requested)
    _replace(initialization, "ensure_decode_fast_path_is_available", _fast_path)


def _replace(module: Any, name: str, around: Callable[[Callable[..., Any], Any], Any]) -> None:
    original = getattr(module, name)
    if hasattr(original, _OURS):
        return
    replacement = wraps(original)(around(original, module))
    setattr(replacement, _OURS, True)
    setattr(module, name, replacement)


def _requested(original: Callable[..., bool], module: Any) -> Callable[..., bool]:
    def is_requested(
        config: Any = None, requested_attention_implementation: str | None = None, **more: Any
    ) -> bool:
        name = requested_attention_implementation
        if config is not None:
            name = config._attn_implementation
        return name == NAME or original(config, requested_attention_implementation, **more)

    return is_requested


def _fast_path(original: Callable[..., None], module: Any) -> Callable[..., None]:
    def ensure(config: Any, cb_config: Any, *more: Any, **named: Any) -> None:
        if config._attn_implementation != NAME:
            original(config, cb_config, *more, **named)
            return
        allocators = module.ATTN_TYPE_TO_ALLOCATOR
        kinds = module.group_layers_by_attn_type(config)
        if not all(allocators[kind].supports_block_table for kind in kinds):
            cb_config.max_blocks_per_request = 0

    return ensure


def _on_host(pointer: torch.Tensor) -> Ints:
    if pointer.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "lengths are read on the host, which a CUDA graph cannot do: set use_cuda_graph=False"
            " in ContinuousBatchingConfig"
        )
    return pointer.cpu().numpy().astype(np.int64)
