"""Attention variants: named hooks on mask and logits, with their C++ text and NumPy evaluation."""

from cute_attn.variants.builtin import causal, full, sliding_window, soft_cap
from cute_attn.variants.variant import Band, Hook, Scalar, Variant

__all__ = ["Band", "Hook", "Scalar", "Variant", "causal", "full", "sliding_window", "soft_cap"]
