"""The attention function that Transformers calls in every layer."""

from __future__ import annotations

from typing import Any

import torch

from cute_attn.integrations.transformers.batching import decode_pages, lengths_of
from cute_attn.integrations.transformers.masks import step_of_dense
from cute_attn.integrations.transformers.name import untraced
from cute_attn.integrations.transformers.planned import Scores, attend
from cute_attn.integrations.transformers.steps import CAUSAL, FULL, Band, Step, even_step

_UNKNOWN = ("position_bias",)
"""Arguments of other attention functions that change results and are not taken."""


@untraced
def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | Step | None = None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one layer, for an `AttentionInterface`.

    Args:
        module: the layer; `is_causal` of it counts where no mask and no argument says so.
        query: (batch, num_qo_heads, q_len, head_dim), bf16 or fp16 (on the CPU also float32).
        key, value: (batch, num_kv_heads, keys, head_dim); read where they are, padded or not.
        attention_mask: what `masks.attention_mask` has made, a mask of four dimensions, or None.
        dropout: has to be 0.
        scaling: of the scores; default 1 / sqrt(head_dim).
        sliding_window: keys that a query sees, its own among them, where no mask says it.
        softcap: bound of the scores.
        s_aux: (num_qo_heads,) logits of attention sinks.
        is_causal: see `module`.
        kwargs: `cu_seq_lens_q`, `cu_seq_lens_k` (requests + 1,) int32 of padding-free batches, and
            `block_table`, `k_cache`, `v_cache` of continuous batching; others are left alone.

    Returns:
        (batch, q_len, num_qo_heads, head_dim), 0 for padded queries, and None.

    Raises:
        ValueError: naming an argument that is not taken.
        RuntimeError: a tensor requires grad while grad mode is on.
        TypeError, UnsupportedSpecError: no kernel for this dtype, head_dim or device.
    """
    if dropout:
        raise ValueError(
            f"dropout is {dropout}; it takes 0: call model.eval(), or train with another"
            " attn_implementation"
        )
    if kwargs.get("output_attentions"):
        raise ValueError("output_attentions is True; weights are never stored, use 'eager'")
    for name in _UNKNOWN:
        if kwargs.get(name) is not None:
            raise ValueError(f"{name} is given; it is not taken, use another attn_implementation")
    if is_causal is None:
        is_causal = bool(getattr(module, "is_causal", True))
    scores = Scores(scaling, softcap or None, s_aux)
    band = CAUSAL if is_causal else FULL
    if sliding_window is not None and is_causal:
        band = Band(int(sliding_window) - 1, 0)
    batch, q_len = int(query.shape[0]), int(query.shape[2])
    if kwargs.get("block_table") is not None:
        return decode_pages(query, key, value, scores, kwargs), None
    if isinstance(attention_mask, Step):
        step = attention_mask
    elif attention_mask is not None:
        step = step_of_dense(attention_mask, batch)
    elif kwargs.get("cu_seq_lens_q") is not None:
        step = lengths_of(kwargs["cu_seq_lens_q"], kwargs["cu_seq_lens_k"], band)
    else:
        step = even_step(batch, q_len, int(key.shape[2]), band)
    return attend(step, query, key, value, scores), None
