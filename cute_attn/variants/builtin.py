"""The built-in variants, in the language that is there for all. `&` combines them:
`causal() & sliding_window()`.
"""

from __future__ import annotations

from typing import Any

from cute_attn.abi import UNBOUNDED
from cute_attn.variants.functions import tanh
from cute_attn.variants.scalar import Scalar
from cute_attn.variants.variant import Variant


def full() -> Variant:
    """Every query sees every key of its request."""
    return Variant("full")


def causal() -> Variant:
    """A query sees keys up to its own position; the last query row sees the last key."""

    def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return kv_idx <= q_idx

    return Variant("causal", mask=causal)


def sliding_window() -> Variant:
    """A query sees the `window_left` keys before its position and its own (W + 1 keys)."""

    def sliding_window(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, window_left: Any) -> Any:
        return kv_idx >= q_idx - window_left

    window_left = Scalar(
        "window_left", "i32", UNBOUNDED, "keys kept before the query's position", lower=0
    )
    return Variant("window", mask=sliding_window, params=[window_left])


def soft_cap() -> Variant:
    """Scores pass through cap * tanh(score / cap), before the mask (Gemma 2)."""

    def soft_cap(
        score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, *, logits_soft_cap: Any
    ) -> Any:
        return logits_soft_cap * tanh(score / logits_soft_cap)

    cap = Scalar("logits_soft_cap", "f32", 30.0, "bound of the scores", positive=True)
    return Variant("soft_cap", logits=soft_cap, params=[cap])
