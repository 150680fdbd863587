"""Names of FlashInfer's attention API that are not served: calling one says what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

_MLA = (
    "absorbed MLA is BatchMLAPagedAttentionWrapper; the expanded form, with keys of 192 and values"
    " of 128 elements, BatchPrefillWithRaggedKVCacheWrapper.plan(head_dim_qk=192, head_dim_vo=128)"
)
_OTHER_GPUS = (
    "it calls kernels for other GPUs; BatchDecodeWithPagedKVCacheWrapper and"
    " BatchPrefillWithPagedKVCacheWrapper serve those that cute_attn has kernels for"
)
_JIT = (
    "variants are Python functions: cute_attn.BatchAttention(variant=cute_attn.Variant(...)),"
    " docs/variants.md"
)
_FP4 = "caches are float16 or bfloat16: append_paged_kv_cache"

INSTEAD = {
    "BatchDecodeMlaWithPagedKVCacheWrapper": _MLA,
    "cudnn_batch_decode_with_kv_cache": _OTHER_GPUS,
    "cudnn_batch_prefill_with_kv_cache": _OTHER_GPUS,
    "fmha_varlen": _OTHER_GPUS,
    "nvfp4_quantize_append_paged_kv_cache": _FP4,
    "nvfp4_quantize_append_paged_kv_cache_with_slot_mapping": _FP4,
    "single_decode_with_kv_cache_with_jit_module": _JIT,
    "single_prefill_with_kv_cache_with_jit_module": _JIT,
    "trtllm_batch_context_with_kv_cache": _OTHER_GPUS,
    "trtllm_batch_decode_with_kv_cache": _OTHER_GPUS,
    "trtllm_batch_decode_with_kv_cache_mla": _MLA,
    "trtllm_fmha_v2_prefill": _OTHER_GPUS,
    "trtllm_ragged_attention_deepseek": _OTHER_GPUS,
    "xqa": _OTHER_GPUS,
    "xqa_batch_decode_with_kv_cache": _OTHER_GPUS,
    "xqa_mla": _MLA,
}


def stand_ins(module: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module: names that are not served raise NotImplementedError when they
    are called, not where they are imported; others are no attributes."""

    def get(name: str) -> Any:
        if name not in INSTEAD:
            raise AttributeError(
                f"module {module!r} has no attribute {name!r}: here is FlashInfer's attention API"
                " (docs/flashinfer.md)"
            )
        return refusal(name)

    return get


def refusal(name: str) -> Any:
    """What stands for a name that is not served: a callable that raises NotImplementedError."""
    instead = INSTEAD[name]

    def refused(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"cute_attn.flashinfer has no {name}: {instead}")

    refused.__name__ = refused.__qualname__ = name
    refused.__doc__ = f"Raises NotImplementedError: {instead}."
    return refused
