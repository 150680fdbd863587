"""The public calls, and what they take. `cute_attn` re-exports everything here, lazily."""

from cute_attn.api.append import RoPE, append_paged_kv
from cute_attn.api.batch import BatchAttention
from cute_attn.api.dispatch import Problem, choose, supports
from cute_attn.api.flex import from_flex
from cute_attn.api.kernel import Kernel, build, warmup
from cute_attn.api.one_shot import attention, single_decode, single_prefill
from cute_attn.api.states import merge_states
from cute_attn.codegen.spec import KernelSpec, Tile, UnsupportedSpecError
from cute_attn.formats import BlockSparseKV, BlockTableKV, DeviceKV, PagedKV, RaggedKV
from cute_attn.variants import (
    TraceError,
    Variant,
    alibi,
    causal,
    chunked_local,
    custom_mask,
    document_mask,
    full,
    pack_masks,
    prefix_lm,
    relative_bias,
    sliding_window,
    soft_cap,
    tree_mask,
)

__all__ = [
    "BatchAttention",
    "BlockSparseKV",
    "BlockTableKV",
    "DeviceKV",
    "Kernel",
    "KernelSpec",
    "PagedKV",
    "Problem",
    "RaggedKV",
    "RoPE",
    "Tile",
    "TraceError",
    "UnsupportedSpecError",
    "Variant",
    "alibi",
    "append_paged_kv",
    "attention",
    "build",
    "causal",
    "choose",
    "chunked_local",
    "custom_mask",
    "document_mask",
    "from_flex",
    "full",
    "merge_states",
    "pack_masks",
    "prefix_lm",
    "relative_bias",
    "single_decode",
    "single_prefill",
    "sliding_window",
    "soft_cap",
    "supports",
    "tree_mask",
    "warmup",
]
