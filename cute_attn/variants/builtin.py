"""The built-in variants. `&` combines them: `causal() & sliding_window()`."""

from __future__ import annotations

from typing import Any

import numpy as np

from cute_attn.variants.variant import Band, Hook, Scalar, Variant


def full() -> Variant:
    """Every query sees every key of its request."""
    return Variant("full")


def causal() -> Variant:
    """A query sees keys up to its own position; the last query row sees the last key."""

    def evaluate(b: Any, h: Any, q_idx: Any, kv_idx: Any, **_: Any) -> Any:
        return kv_idx <= q_idx

    return Variant("causal", mask=Hook("causal", "kv_idx <= q_idx", evaluate), band=Band(right=0))


def sliding_window() -> Variant:
    """A query sees the `window_left` keys before its position and its own (W + 1 keys)."""

    def evaluate(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, window_left: int, **_: Any) -> Any:
        return kv_idx >= q_idx - window_left

    window_left = Scalar("window_left", "i32", 1 << 30, "keys kept before the query's position")
    return Variant(
        "window",
        mask=Hook("sliding window", "kv_idx >= q_idx - window_left", evaluate),
        scalars=(window_left,),
        band=Band(left="window_left"),
    )


def soft_cap() -> Variant:
    """Scores pass through cap * tanh(score / cap), before the mask (Gemma 2)."""

    def evaluate(
        score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, *, logits_soft_cap: float, **_: Any
    ) -> Any:
        return logits_soft_cap * np.tanh(score / logits_soft_cap)

    cap = Scalar("logits_soft_cap", "f32", 30.0, "bound of the scores", positive=True)
    text = "logits_soft_cap * fast_tanh(score * (1.0f / logits_soft_cap))"
    return Variant("soft_cap", logits=Hook("soft cap", text, evaluate), scalars=(cap,))
