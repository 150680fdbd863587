"""Hugging Face Transformers with `attn_implementation="cute_attn"`.

    from cute_attn.integrations.transformers import register

    register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="cute_attn")

docs/transformers.md says what works.
"""

from __future__ import annotations

from cute_attn.integrations.transformers.batching import allow_continuous_batching
from cute_attn.integrations.transformers.layer import attention_forward
from cute_attn.integrations.transformers.masks import attention_mask
from cute_attn.integrations.transformers.name import NAME

__all__ = ["NAME", "register"]


def register() -> str:
    """Adds the attention implementation "cute_attn" to Transformers; again is the same as once.

    Returns:
        the name, for `attn_implementation=` and `model.set_attn_implementation()`.

    Raises:
        ImportError: Transformers is not installed, or is a version that lacks what this needs.
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise ImportError(
            "cute_attn.integrations.transformers needs Transformers:"
            " pip install 'cute-attn[transformers]'"
        ) from error
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, attention_mask)
    allow_continuous_batching()
    return NAME
