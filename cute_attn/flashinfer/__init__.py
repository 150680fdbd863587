"""FlashInfer's attention API, by the same names, on kernels of `cute_attn`.

    import cute_attn.flashinfer as flashinfer

Argument order, defaults, layouts and results (log-sum-exps to base 2) are those of FlashInfer
0.6.18. An option that is not supported raises NotImplementedError, which says what to do instead;
docs/flashinfer.md lists every name. What is no attention (norms, sampling, matrix products) is not
here.
"""

from __future__ import annotations

from cute_attn.flashinfer import (
    attention,
    cascade,
    decode,
    mla,
    page,
    pod,
    prefill,
    quantization,
    sparse,
)
from cute_attn.flashinfer.attention import BatchAttention, BatchAttentionWithAttentionSinkWrapper
from cute_attn.flashinfer.cascade import (
    BatchDecodeWithSharedPrefixPagedKVCacheWrapper,
    BatchPrefillWithSharedPrefixPagedKVCacheWrapper,
    MultiLevelCascadeAttentionWrapper,
    merge_state,
    merge_state_in_place,
    merge_states,
)
from cute_attn.flashinfer.decode import (
    BatchDecodeWithPagedKVCacheWrapper,
    CUDAGraphBatchDecodeWithPagedKVCacheWrapper,
    fast_decode_plan,
    single_decode_with_kv_cache,
)
from cute_attn.flashinfer.mla import BatchMLAPagedAttentionWrapper
from cute_attn.flashinfer.page import (
    append_paged_kv_cache,
    append_paged_mla_kv_cache,
    get_batch_indices_positions,
    get_seq_lens,
)
from cute_attn.flashinfer.pod import BatchPODWithPagedKVCacheWrapper, PODWithPagedKVCacheWrapper
from cute_attn.flashinfer.prefill import (
    BatchPrefillWithPagedKVCacheWrapper,
    BatchPrefillWithRaggedKVCacheWrapper,
    single_prefill_with_kv_cache,
    single_prefill_with_kv_cache_return_lse,
)
from cute_attn.flashinfer.quantization import packbits, segment_packbits
from cute_attn.flashinfer.sparse import (
    BlockSparseAttentionWrapper,
    VariableBlockSparseAttentionWrapper,
)
from cute_attn.flashinfer.unsupported import stand_ins

__all__ = [
    "BatchAttention",
    "BatchAttentionWithAttentionSinkWrapper",
    "BatchDecodeWithPagedKVCacheWrapper",
    "BatchDecodeWithSharedPrefixPagedKVCacheWrapper",
    "BatchMLAPagedAttentionWrapper",
    "BatchPODWithPagedKVCacheWrapper",
    "BatchPrefillWithPagedKVCacheWrapper",
    "BatchPrefillWithRaggedKVCacheWrapper",
    "BatchPrefillWithSharedPrefixPagedKVCacheWrapper",
    "BlockSparseAttentionWrapper",
    "CUDAGraphBatchDecodeWithPagedKVCacheWrapper",
    "MultiLevelCascadeAttentionWrapper",
    "PODWithPagedKVCacheWrapper",
    "VariableBlockSparseAttentionWrapper",
    "append_paged_kv_cache",
    "append_paged_mla_kv_cache",
    "attention",
    "cascade",
    "decode",
    "fast_decode_plan",
    "get_batch_indices_positions",
    "get_seq_lens",
    "merge_state",
    "merge_state_in_place",
    "merge_states",
    "mla",
    "packbits",
    "page",
    "pod",
    "prefill",
    "quantization",
    "segment_packbits",
    "single_decode_with_kv_cache",
    "single_prefill_with_kv_cache",
    "single_prefill_with_kv_cache_return_lse",
    "sparse",
]

__getattr__ = stand_ins(__name__)
