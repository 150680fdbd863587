"""The public calls, and what they take. `cute_attn` re-exports everything here, lazily."""

from cute_attn.api import one_shot_op  # noqa: F401  # registers an operator
from cute_attn.api.append import RoPE, append_paged_kv
from cute_attn.api.batch import BatchAttention
from cute_attn.api.composite import CompositeAttention
from cute_attn.api.dispatch import Problem, choose, supports
from cute_attn.api.flex import from_flex
from cute_attn.api.hook_cost import hook_instructions
from cute_attn.api.kernel import Kernel, build, warmup
from cute_attn.api.mla import BatchMLA, append_paged_mla
from cute_attn.api.one_shot import attention, single_decode, single_prefill
from cute_attn.api.quantize import quantize_e4m3, rotate_heads
from cute_attn.api.sparse_arrays import from_sparse, to_sparse
from cute_attn.api.states import merge_states
from cute_attn.api.templates import register_template
from cute_attn.api.trace import Trace
from cute_attn.api.tuner import Tuning, tune
from cute_attn.codegen.spec import KernelSpec, Tile, UnsupportedSpecError
from cute_attn.formats import (
    BlockSparseKV,
    BlockTableKV,
    DeviceKV,
    Level,
    LevelsKV,
    PagedKV,
    PerHeadKV,
    RaggedKV,
    from_radix,
    to_radix,
)
from cute_attn.tuning import TuneStep
from cute_attn.variants import (
    LinearScaling,
    Llama3Scaling,
    TraceError,
    Variant,
    YarnScaling,
    alibi,
    attention_sinks,
    causal,
    chunked_local,
    custom_mask,
    document_mask,
    full,
    head_scales,
    pack_masks,
    prefix_lm,
    qk_norm,
    relative_bias,
    rope,
    sigmoid_attention,
    sliding_window,
    soft_cap,
    streaming_llm,
    tree_mask,
)

__all__ = [
    "BatchAttention",
    "BatchMLA",
    "BlockSparseKV",
    "BlockTableKV",
    "CompositeAttention",
    "DeviceKV",
    "Kernel",
    "KernelSpec",
    "Level",
    "LevelsKV",
    "LinearScaling",
    "Llama3Scaling",
    "PagedKV",
    "PerHeadKV",
    "Problem",
    "RaggedKV",
    "RoPE",
    "Tile",
    "Trace",
    "TraceError",
    "TuneStep",
    "Tuning",
    "UnsupportedSpecError",
    "Variant",
    "YarnScaling",
    "alibi",
    "append_paged_kv",
    "append_paged_mla",
    "attention",
    "attention_sinks",
    "build",
    "causal",
    "choose",
    "chunked_local",
    "custom_mask",
    "document_mask",
    "from_flex",
    "from_radix",
    "from_sparse",
    "full",
    "head_scales",
    "hook_instructions",
    "merge_states",
    "pack_masks",
    "prefix_lm",
    "qk_norm",
    "quantize_e4m3",
    "register_template",
    "relative_bias",
    "rope",
    "rotate_heads",
    "sigmoid_attention",
    "single_decode",
    "single_prefill",
    "sliding_window",
    "soft_cap",
    "streaming_llm",
    "supports",
    "to_radix",
    "to_sparse",
    "tree_mask",
    "tune",
    "warmup",
]
