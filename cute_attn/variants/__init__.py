"""Attention variants: hooks on mask and logits as Python functions, traced to C++ and NumPy."""

from cute_attn.variants.analysis import EMPTY, FULL, PARTIAL
from cute_attn.variants.band import Band
from cute_attn.variants.builtin import (
    alibi,
    attention_sinks,
    causal,
    chunked_local,
    custom_mask,
    document_mask,
    full,
    head_scales,
    prefix_lm,
    relative_bias,
    sigmoid_attention,
    sliding_window,
    soft_cap,
    tree_mask,
)
from cute_attn.variants.errors import TraceError
from cute_attn.variants.hook import Hook
from cute_attn.variants.packed import pack_masks
from cute_attn.variants.positions import (
    LinearScaling,
    Llama3Scaling,
    YarnScaling,
    qk_norm,
    rope,
    streaming_llm,
)
from cute_attn.variants.scalar import Scalar
from cute_attn.variants.tensor import Tensor
from cute_attn.variants.variant import Variant

__all__ = [
    "EMPTY",
    "FULL",
    "PARTIAL",
    "Band",
    "Hook",
    "LinearScaling",
    "Llama3Scaling",
    "Scalar",
    "Tensor",
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
    "head_scales",
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
]
