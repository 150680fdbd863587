"""Prefill and append: single requests, and batches over paged and ragged keys."""

from cute_attn.flashinfer.prefill_paged import BatchPrefillWithPagedKVCacheWrapper
from cute_attn.flashinfer.prefill_ragged import BatchPrefillWithRaggedKVCacheWrapper
from cute_attn.flashinfer.single import (
    single_prefill_with_kv_cache,
    single_prefill_with_kv_cache_return_lse,
)
from cute_attn.flashinfer.unsupported import stand_ins

__all__ = [
    "BatchPrefillWithPagedKVCacheWrapper",
    "BatchPrefillWithRaggedKVCacheWrapper",
    "single_prefill_with_kv_cache",
    "single_prefill_with_kv_cache_return_lse",
]

__getattr__ = stand_ins(__name__)
