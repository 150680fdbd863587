"""The options of an attention call, and the `cute_attn` variant that they come down to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cute_attn.api import (
    LinearScaling,
    Variant,
    alibi,
    attention_sinks,
    causal,
    checks,
    custom_mask,
    full,
    rope,
    sliding_window,
    soft_cap,
)
from cute_attn.flashinfer.arguments import POS_ENCODING_MODES
from cute_attn.variants import Scalar, Tensor
from cute_attn.variants import functions as f


@dataclass(frozen=True)
class Options:
    """Attributes are the arguments of these names, and:

    Attributes:
        masked: a custom mask says what a query sees, not `causal`.
        items: so do tensors of multi-item scoring.
        sinks: every query head has a logit that takes part in the softmax.
    """

    causal: bool = False
    window_left: int = -1
    logits_soft_cap: float = 0.0
    pos_encoding_mode: str = "NONE"
    sm_scale: float | None = None
    rope_scale: float = 1.0
    rope_theta: float = 1e4
    masked: bool = False
    items: bool = False
    sinks: bool = False

    @classmethod
    def checked(
        cls,
        *,
        causal: bool = False,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        pos_encoding_mode: str = "NONE",
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        masked: bool = False,
        items: bool = False,
        sinks: bool = False,
    ) -> Options:
        """From arguments as they are given.

        Raises:
            ValueError: naming the argument.
        """
        checks.one_of("pos_encoding_mode", pos_encoding_mode, POS_ENCODING_MODES)
        if logits_soft_cap is None:
            logits_soft_cap = 0.0
        if not 0 <= logits_soft_cap < math.inf:
            raise ValueError(
                f"logits_soft_cap is {logits_soft_cap}; it takes a positive number, or 0 for none"
            )
        return cls(
            causal=bool(causal) and not masked,
            window_left=max(int(window_left), -1),
            logits_soft_cap=float(logits_soft_cap),
            pos_encoding_mode=pos_encoding_mode,
            sm_scale=None if sm_scale is None else float(sm_scale),
            rope_scale=1.0 if rope_scale is None else float(rope_scale),
            rope_theta=1e4 if rope_theta is None else float(rope_theta),
            masked=masked,
            items=items,
            sinks=sinks,
        )

    def variant(self, num_qo_heads: int) -> Variant:
        """What kernels are made for; equal options give the same object."""
        return _variant(
            "custom" if self.masked else "items" if self.items else "causal" * self.causal,
            self.window_left >= 0,
            self.logits_soft_cap > 0,
            self.pos_encoding_mode,
            self.pos_encoding_mode == "ROPE_LLAMA" and self.rope_scale != 1,
            self.sinks,
            num_qo_heads if self.pos_encoding_mode == "ALIBI" else 0,
        )

    @property
    def scalars(self) -> dict[str, float | int]:
        """Values of the variant's scalars."""
        values: dict[str, float | int] = {}
        if self.window_left >= 0:
            values["window_left"] = self.window_left
        if self.logits_soft_cap > 0:
            values["logits_soft_cap"] = self.logits_soft_cap
        if self.pos_encoding_mode == "ROPE_LLAMA":
            values["rope_theta"] = self.rope_theta
            if self.rope_scale != 1:
                values["rope_factor"] = self.rope_scale
        return values


@lru_cache(maxsize=256)
def _variant(
    mask: str, window: bool, cap: bool, mode: str, stretched: bool, sinks: bool, alibi_heads: int
) -> Variant:
    parts = []
    if mask:
        parts.append({"custom": custom_mask, "items": item_mask, "causal": causal}[mask]())
    if window:
        parts.append(sliding_window())
    if mode == "ALIBI":
        parts.append(capped_alibi(alibi_heads) if cap else alibi(alibi_heads))
    elif cap:
        parts.append(soft_cap())
    if mode == "ROPE_LLAMA":
        parts.append(rope(scaling=LinearScaling(1.0) if stretched else None))
    if sinks:
        parts.append(attention_sinks())
    if not parts:
        return full()
    combined = parts[0]
    for part in parts[1:]:
        combined &= part
    return combined


def capped_alibi(num_qo_heads: int) -> Variant:
    """ALiBi, then the soft cap of the biased scores."""
    biased = alibi(num_qo_heads)
    cap = soft_cap()
    heads, bound = biased.scalars[0], cap.scalars[0]

    def capped_alibi(
        score: Any,
        b: Any,
        h: Any,
        q_idx: Any,
        kv_idx: Any,
        *,
        alibi_heads: Any,
        logits_soft_cap: Any,
    ) -> Any:
        exponent = f.where(h < alibi_heads, h + 1, h - alibi_heads + 0.5)
        slope = f.exp2(-8.0 / alibi_heads * exponent)
        return logits_soft_cap * f.tanh_approx((score + slope * (kv_idx - q_idx)) / logits_soft_cap)

    return Variant("capped_alibi", logits=capped_alibi, params=[heads, bound])


def item_mask() -> Variant:
    """Multi-item scoring: a prompt, then items that see the prompt and themselves, causally.

    Reads tensors `item_prefix` (requests,), the keys of the prompt, and `item_position` (requests,
    positions), of each token behind it the number of tokens since the last delimiter, which itself
    has 0.
    """

    def item_mask(
        b: Any, h: Any, q_idx: Any, kv_idx: Any, *, item_prefix: Any, item_position: Any
    ) -> Any:
        prefix = item_prefix[b]
        own = item_position[b, f.maximum(q_idx - prefix, 0)]
        return (kv_idx <= q_idx) & ((kv_idx < prefix) | (kv_idx > q_idx - own))

    tensors: list[Scalar | Tensor] = [
        Tensor("item_prefix", "i32", 1, "(requests), keys of the prompt"),
        Tensor("item_position", "i32", 2, "(requests, positions), tokens since a delimiter"),
    ]
    return Variant("items", mask=item_mask, params=tensors)
