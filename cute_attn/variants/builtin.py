"""The built-in variants, in the language that is there for all. `&` combines them:
`causal() & sliding_window()`.
"""

from __future__ import annotations

import math
from typing import Any

from cute_attn.abi import UNBOUNDED
from cute_attn.variants.functions import (
    clamp,
    exp,
    exp2,
    log,
    maximum,
    sigmoid2_approx,
    tanh_approx,
    where,
)
from cute_attn.variants.scalar import Scalar
from cute_attn.variants.tensor import Tensor
from cute_attn.variants.variant import Variant

_LOG2_E = math.log2(math.e)


def full() -> Variant:
    """Every query sees every key of its request."""
    return Variant("full")


def causal() -> Variant:
    """A query sees keys up to its own position; the last query row sees the last key."""

    def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return kv_idx <= q_idx

    return Variant("causal", mask=causal)


def sliding_window(*, right: bool = False) -> Variant:
    """A query sees the `window_left` keys before its position and its own (W + 1 keys).

    Args:
        right: limit the keys behind its position as well, to `window_right`.
    """

    def sliding_window(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, window_left: Any) -> Any:
        return kv_idx >= q_idx - window_left

    def window_of_both_sides(
        b: Any, h: Any, q_idx: Any, kv_idx: Any, *, window_left: Any, window_right: Any
    ) -> Any:
        return (kv_idx >= q_idx - window_left) & (kv_idx <= q_idx + window_right)

    window_left = Scalar(
        "window_left", "i32", UNBOUNDED, "keys kept before the query's position", lower=0
    )
    window_right = Scalar(
        "window_right", "i32", UNBOUNDED, "keys kept behind the query's position", lower=0
    )
    if right:
        return Variant("windows", mask=window_of_both_sides, params=[window_left, window_right])
    return Variant("window", mask=sliding_window, params=[window_left])


def chunked_local() -> Variant:
    """A query sees the keys of its own chunk of `chunk_size` positions (Llama 4). Not causal by
    itself.
    """

    def chunked_local(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, chunk_size: Any) -> Any:
        start = q_idx - q_idx % chunk_size  # one division a row, none a key
        return (kv_idx >= start) & (kv_idx < start + chunk_size)

    chunk_size = Scalar("chunk_size", "i32", 8192, "positions of a chunk", lower=1)
    return Variant("chunked_local", mask=chunked_local, params=[chunk_size])


def prefix_lm() -> Variant:
    """Every query sees the first `prefix_length` keys, and those up to its own position."""

    def prefix_lm(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, prefix_length: Any) -> Any:
        return (kv_idx <= q_idx) | (kv_idx < prefix_length)

    prefix_length = Scalar("prefix_length", "i32", 0, "keys that every query sees", lower=0)
    return Variant("prefix_lm", mask=prefix_lm, params=[prefix_length])


def soft_cap() -> Variant:
    """Scores pass through cap * tanh(score / cap), before the mask (Gemma 2).

    tanh is `tanh_approx`: right to 2^-11 of a score, a quarter of what rounding a query or key to
    bf16 does to it, and 1.25 times the speed of the exact one. That is `functions.tanh`, in three
    lines of your own.
    """

    def soft_cap(
        score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, *, logits_soft_cap: Any
    ) -> Any:
        return logits_soft_cap * tanh_approx(score / logits_soft_cap)

    cap = Scalar("logits_soft_cap", "f32", 30.0, "bound of the scores", positive=True)
    return Variant("soft_cap", logits=soft_cap, params=[cap])


def alibi(num_qo_heads: int) -> Variant:
    """ALiBi (Press, Smith, Lewis, 2022): head h adds slope_h (kv_idx - q_idx) to its scores.

    With p the largest power of two up to `num_qo_heads`, the slopes are 2^(-8 (h + 1) / p); heads
    from p on take every second slope of 2 p heads.

    Raises:
        ValueError: num_qo_heads is below 1.
    """
    if num_qo_heads < 1:
        raise ValueError(f"num_qo_heads is {num_qo_heads}; it takes 1 or more")

    def alibi(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, *, alibi_heads: Any) -> Any:
        exponent = where(h < alibi_heads, h + 1, h - alibi_heads + 0.5)
        slope = exp2(-8.0 / alibi_heads * exponent)
        return score + slope * (kv_idx - q_idx)

    power = 1 << (num_qo_heads.bit_length() - 1)
    heads = Scalar("alibi_heads", "i32", power, "largest power of two of heads", lower=1)
    return Variant("alibi", logits=alibi, params=[heads])


def document_mask() -> Variant:
    """A query sees the keys of its own document. Not causal by itself.

    Reads tensor `document` (requests, positions): a number for each position, equal within one
    document.
    """

    def document_mask(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, document: Any) -> Any:
        return document[b, q_idx] == document[b, kv_idx]

    document = Tensor("document", "i32", 2, "(requests, positions), numbers of documents")
    return Variant("document", mask=document_mask, params=[document])


def relative_bias(reach: int) -> Variant:
    """Scores get a bias that depends on head and distance.

    Reads tensor `bias` (query heads, 2 reach + 1): the bias at distance q_idx - kv_idx is in column
    q_idx - kv_idx + reach; distances beyond `reach` take the outermost columns.

    Raises:
        ValueError: reach is negative.
    """

    def relative_bias(
        score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, *, bias: Any, bias_reach: Any
    ) -> Any:
        distance = clamp(q_idx - kv_idx, -bias_reach, bias_reach)
        return score + bias[h, distance + bias_reach]

    columns = Scalar("bias_reach", "i32", reach, "largest distance in the table", lower=0)
    bias = Tensor("bias", "f32", 2, "(query heads, 2 bias_reach + 1)")
    return Variant("relative_bias", logits=relative_bias, params=[bias, columns])


def attention_sinks() -> Variant:
    """Every query head has a learned logit that takes part in the softmax and has no value
    (gpt-oss, 2025): the output is divided by the sum of the exponentials of scores and sink.

    Reads tensor `sink` (query heads,). The log-sum-exp includes the sink: results of this variant
    over parts of the keys are not to be merged. A row that sees no key has output 0.
    """

    def attention_sinks(lse: Any, b: Any, h: Any, q_idx: Any, *, sink: Any) -> Any:
        base = clamp(maximum(lse, sink[h]), -3e38, 3e38)  # no -inf - -inf
        return base + log(exp(lse - base) + exp(sink[h] - base))

    sink = Tensor("sink", "f32", 1, "(query heads,), logits")
    return Variant("sinks", row_state=attention_sinks, params=[sink])


def head_scales() -> Variant:
    """Every query head has a factor of its scores and one of its output: scales of quantised
    queries, keys and values, whose products with the numbers are what was meant.

    Reads tensors `score_scale` (scale of q times scale of k) and `value_scale`, both (query
    heads,). The log-sum-exp is that of the scaled scores.
    """

    def of_scores(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, *, score_scale: Any) -> Any:
        return score * score_scale[h]

    def of_values(out: Any, b: Any, h: Any, q_idx: Any, d: Any, *, value_scale: Any) -> Any:
        return out * value_scale[h]

    scales = [Tensor(name, "f32", 1, "(query heads,)") for name in ("score_scale", "value_scale")]
    return Variant("head_scales", logits=of_scores, output=of_values, params=scales)


def sigmoid_attention(keys: int) -> Variant:
    """Weights are sigmoid(score + sigmoid_bias), and nothing normalises them (FlashSigmoid:
    Ramapuram et al., "Theory, Analysis, and Best Practices for Sigmoid Self-Attention", 2024).

    On GPUs a weight has a relative error of up to 1.4e-4 (`functions.sigmoid2_approx`) before it is
    rounded to the dtype of the values. There is no log-sum-exp.

    Args:
        keys: the usual length n; the scalar `sigmoid_bias` is -log(n) if no other is given, with
            which weights begin at 1 / n, as those of a softmax do.

    Raises:
        ValueError: keys is below 1.
    """
    if keys < 1:
        raise ValueError(f"keys is {keys}; it takes 1 or more")

    def sigmoid_attention(
        score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, *, sigmoid_bias: Any
    ) -> Any:
        return sigmoid2_approx(score * _LOG2_E + sigmoid_bias * _LOG2_E)

    bias = Scalar("sigmoid_bias", "f32", -math.log(keys), "added to scores")
    return Variant("sigmoid", logits=sigmoid_attention, softmax=False, params=[bias])


def custom_mask(*, per_head: bool = False) -> Variant:
    """A query sees what a mask of its own says, a bit for each (query, key) of a request.

    The layout is that of packed custom masks in FlashInfer: the rows of a request's mask follow one
    another without a gap, those of the next request begin at a byte. `pack_masks` makes it. Reads
    tensors `mask_bits` (bytes), `mask_begin` (requests) the first byte of each, `mask_query`
    (requests) the position of its first query, kv_len - q_len, and `mask_keys` (requests) its keys,
    the bits of a row. All together have less than 2^31 bits. Those of a sparse pattern
    (`BlockSparseKV` with a mask) come from the pattern.

    Args:
        per_head: every query head has a mask of its own: `mask_begin`, `mask_query` and `mask_keys`
            are (requests, query heads).
    """
    if per_head:
        return _custom_mask_of_heads()

    def custom_mask(
        b: Any,
        h: Any,
        q_idx: Any,
        kv_idx: Any,
        *,
        mask_bits: Any,
        mask_begin: Any,
        mask_query: Any,
        mask_keys: Any,
    ) -> Any:
        row = 8 * mask_begin[b] + (q_idx - mask_query[b]) * mask_keys[b]
        return mask_bits[row + kv_idx]

    tensors = [
        Tensor("mask_bits", "bits", 1, "(bytes), eight (query, key) pairs each"),
        Tensor("mask_begin", "i32", 1, "(requests), first byte of the mask"),
        Tensor("mask_query", "i32", 1, "(requests), position of the first query"),
        Tensor("mask_keys", "i32", 1, "(requests), keys"),
    ]
    return Variant("custom_mask", mask=custom_mask, params=tensors)


def _custom_mask_of_heads() -> Variant:
    def custom_mask(
        b: Any,
        h: Any,
        q_idx: Any,
        kv_idx: Any,
        *,
        mask_bits: Any,
        mask_begin: Any,
        mask_query: Any,
        mask_keys: Any,
    ) -> Any:
        row = 8 * mask_begin[b, h] + (q_idx - mask_query[b, h]) * mask_keys[b, h]
        return mask_bits[row + kv_idx]

    tensors = [
        Tensor("mask_bits", "bits", 1, "(bytes), eight (query, key) pairs each"),
        Tensor("mask_begin", "i32", 2, "(requests, query heads), first byte of the mask"),
        Tensor("mask_query", "i32", 2, "(requests, query heads), position of the first query"),
        Tensor("mask_keys", "i32", 2, "(requests, query heads), keys"),
    ]
    return Variant("custom_mask_of_heads", mask=custom_mask, params=tensors)


def tree_mask(*, packed: bool = False) -> Variant:
    """Speculative decoding: the queries of a request are a tree of drafts, whose keys are its last
    ones; all keys before them are seen.

    Reads tensors `tree` (requests, queries, queries): whether a query sees the key of another one,
    padded to the largest tree; and `tree_begin` (requests): the position of the first query, which
    is the number of keys before the tree.

    Args:
        packed: `tree` has bits, (requests, queries, bytes of a row).
    """

    def tree_mask(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, tree: Any, tree_begin: Any) -> Any:
        begin = tree_begin[b]
        return (kv_idx < begin) | tree[b, q_idx - begin, kv_idx - begin]

    tensors = [
        Tensor("tree", "bits" if packed else "bool", 3, "(requests, queries, queries)"),
        Tensor("tree_begin", "i32", 1, "(requests), position of the first query"),
    ]
    return Variant("tree", mask=tree_mask, params=tensors)
