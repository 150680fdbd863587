"""The public calls, and what they take. `cute_attn` re-exports everything here, lazily."""

from cute_attn.api.append import RoPE, append_paged_kv
from cute_attn.api.batch import BatchAttention
from cute_attn.api.dispatch import Problem, choose, supports
from cute_attn.api.kernel import Kernel, build, warmup
from cute_attn.api.one_shot import attention, single_decode, single_prefill
from cute_attn.api.states import merge_states
from cute_attn.codegen.spec import KernelSpec, Tile, UnsupportedSpecError
from cute_attn.formats import BlockSparseKV, BlockTableKV, DeviceKV, PagedKV, RaggedKV
from cute_attn.variants import Variant, causal, full, sliding_window, soft_cap

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
    "UnsupportedSpecError",
    "Variant",
    "append_paged_kv",
    "attention",
    "build",
    "causal",
    "choose",
    "full",
    "merge_states",
    "single_decode",
    "single_prefill",
    "sliding_window",
    "soft_cap",
    "supports",
    "warmup",
]
