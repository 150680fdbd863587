"""cute_attn: generated CuTe attention kernels for LLM inference.

Python describes one attention case (architecture, dtypes, head sizes, KV-cache format, variant);
the generator prints a CuTe C++ kernel for exactly that case, NVRTC compiles it, and a
load-balancing scheduler says which thread block does which piece of work. Importing this package
is cheap: nothing heavy is loaded before it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cute_attn.api import (
        BatchAttention,
        BlockSparseKV,
        BlockTableKV,
        CompositeAttention,
        DeviceKV,
        Kernel,
        KernelSpec,
        Level,
        LevelsKV,
        Llama3Scaling,
        PagedKV,
        Problem,
        RaggedKV,
        RoPE,
        Tile,
        Trace,
        TraceError,
        TuneStep,
        Tuning,
        UnsupportedSpecError,
        Variant,
        YarnScaling,
        alibi,
        append_paged_kv,
        attention,
        attention_sinks,
        build,
        causal,
        choose,
        chunked_local,
        custom_mask,
        document_mask,
        from_flex,
        from_radix,
        from_sparse,
        full,
        hook_instructions,
        merge_states,
        pack_masks,
        prefix_lm,
        qk_norm,
        register_template,
        relative_bias,
        rope,
        sigmoid_attention,
        single_decode,
        single_prefill,
        sliding_window,
        soft_cap,
        streaming_llm,
        supports,
        to_radix,
        to_sparse,
        tree_mask,
        tune,
        warmup,
    )
    from cute_attn.export import Bundle, BundleError, export_bundle, load_bundle

__version__ = "0.1.0"

# Public name -> the module that defines it.
_HOMES = {
    "cute_attn.api": (
        "BatchAttention",
        "CompositeAttention",
        "Kernel",
        "Problem",
        "RoPE",
        "Trace",
        "TuneStep",
        "Tuning",
        "append_paged_kv",
        "attention",
        "build",
        "choose",
        "from_flex",
        "from_sparse",
        "hook_instructions",
        "merge_states",
        "register_template",
        "single_decode",
        "single_prefill",
        "supports",
        "to_sparse",
        "tune",
        "warmup",
    ),
    "cute_attn.export": ("Bundle", "BundleError", "export_bundle", "load_bundle"),
    "cute_attn.codegen.spec": ("KernelSpec", "Tile", "UnsupportedSpecError"),
    "cute_attn.formats": (
        "BlockSparseKV",
        "BlockTableKV",
        "DeviceKV",
        "Level",
        "LevelsKV",
        "PagedKV",
        "RaggedKV",
        "from_radix",
        "to_radix",
    ),
    "cute_attn.variants": (
        "Llama3Scaling",
        "TraceError",
        "Variant",
        "YarnScaling",
        "alibi",
        "attention_sinks",
        "causal",
        "chunked_local",
        "custom_mask",
        "document_mask",
        "full",
        "pack_masks",
        "prefix_lm",
        "qk_norm",
        "relative_bias",
        "rope",
        "sigmoid_attention",
        "sliding_window",
        "soft_cap",
        "streaming_llm",
        "tree_mask",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "BatchAttention",
    "BlockSparseKV",
    "BlockTableKV",
    "Bundle",
    "BundleError",
    "CompositeAttention",
    "DeviceKV",
    "Kernel",
    "KernelSpec",
    "Level",
    "LevelsKV",
    "Llama3Scaling",
    "PagedKV",
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
    "__version__",
    "alibi",
    "append_paged_kv",
    "attention",
    "attention_sinks",
    "build",
    "causal",
    "choose",
    "chunked_local",
    "custom_mask",
    "document_mask",
    "export_bundle",
    "from_flex",
    "from_radix",
    "from_sparse",
    "full",
    "hook_instructions",
    "load_bundle",
    "merge_states",
    "pack_masks",
    "prefix_lm",
    "qk_norm",
    "register_template",
    "relative_bias",
    "rope",
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


def __getattr__(name: str) -> Any:
    """Loads a public name at its first use (PEP 562)."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
