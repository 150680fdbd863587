"""Cases of hooks on scores and on finished rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from cute_attn import (
    Variant,
    alibi,
    attention_sinks,
    causal,
    chunked_local,
    custom_mask,
    document_mask,
    from_flex,
    full,
    pack_masks,
    prefix_lm,
    relative_bias,
    sigmoid_attention,
    sliding_window,
    soft_cap,
    tree_mask,
)
from cute_attn.variants import Hook, Scalar, Tensor, functions
from tests.gpu.variant_case import (
    DIM,
    HEADS,
    LONGEST,
    Dense,
    VariantCase,
    on,
    random,
    seen,
)


def _slopes(heads: int) -> torch.Tensor:
    """As in the ALiBi paper: a list for powers of two, extended for others."""

    def power(n: int) -> list[float]:
        start = 2.0 ** (-8.0 / n)
        return [start ** (i + 1) for i in range(n)]

    closest = 2 ** (heads.bit_length() - 1)
    slopes = power(closest) + power(2 * closest)[0::2][: heads - closest]
    return torch.tensor(slopes, dtype=torch.float64)[:, None, None]


def every_third(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, step: Any) -> Any:
    return (kv_idx <= q_idx) & ((q_idx - kv_idx) % step == 0)


def global_heads(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return (kv_idx <= q_idx) & ((h < 2) | (kv_idx > q_idx - 50) | (b == 1))


def flex(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return torch.where(q_idx >= kv_idx, score - 0.01 * (q_idx - kv_idx), -torch.inf)


def curved(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    bent = torch.nn.functional.silu(score) + torch.sin(kv_idx * 0.1) * torch.rsqrt(h + 1)
    return bent + torch.sigmoid(score) * torch.log2(1 + torch.abs(q_idx - kv_idx)) + b


def curved_on_tensors(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    bent = s / (1 + (-s).exp()) + (j * 0.1).sin() / (h + 1.0).sqrt()
    return bent + s.sigmoid() * (1 + (i - j).abs()).log2() + b


def slopes_of_heads(s: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, *, slopes: Any) -> Any:
    return s - slopes[h] * (q_idx - kv_idx)


def any_keys(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, allowed: Any) -> Any:
    return allowed[q_idx, kv_idx]


def prefixes(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, prefix: Any) -> Any:
    return (kv_idx <= q_idx) | (kv_idx < prefix[b])


def gated(out: Any, b: Any, h: Any, q_idx: Any, d: Any, *, gate: Any, shift: float = 0.2) -> Any:
    return out * gate[h, d] + 0.1 * (q_idx % 5) + shift * b


def gated_on_tensors(out: Any, b: Any, h: Any, i: Any, d: Any) -> Any:
    return out * on(GATE, out)[h, d] + 0.1 * (i % 5) + 0.3 * b


def tempered(lse: Any, b: Any, h: Any, q_idx: Any) -> Any:
    return functions.maximum(lse, 0.25 * h) + 0.01 * (q_idx % 3) - 0.5 * b


def forgetting(s: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, *, forgotten: Any) -> Any:
    return s + (forgotten[b, h, q_idx] - forgotten[b, h, kv_idx])


def chosen(lists: torch.Tensor) -> Dense:
    """Key blocks of 50 by number, three for each block of queries; and the query's own key."""

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        block = kv_idx // 50
        return (lists[b, h, q_idx // 50] == block.unsqueeze(-1)).any(-1) | (q_idx == kv_idx)

    return mask


def apart(points: torch.Tensor) -> Dense:
    """By the distance of points in space."""

    def bias(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        way = points[q_idx] - points[kv_idx]
        return score - torch.sqrt((way * way).sum(-1) + 0.01)

    return bias


def relu_squared(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    positive = functions.maximum(score, 0.0)
    return positive * positive


def padded(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, kept: Any) -> Any:
    return kept[b, kv_idx]


def windows(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, window: Any) -> Any:
    return (kv_idx <= q_idx) & (kv_idx > q_idx - window[h])


def sinks(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, first: int = 4, window: int = 64) -> Any:
    return (kv_idx <= q_idx) & ((kv_idx < first) | (kv_idx > q_idx - window))


def gap(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, begin: int = 0, end: int = 0) -> Any:
    return (kv_idx < begin) | (kv_idx >= end)


def late(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, first: int = 0) -> Any:
    return (kv_idx <= q_idx) & (q_idx >= first)


def scattered(b: Any, i: Any, j: Any) -> Any:
    """Pairs of a mask without a rule, with keys that nobody sees and queries that see none."""
    hidden = ((j > 150) & (j < 290)) | (i % 97 == 5)
    return ((7 * i + 13 * j + 5 * b) % 11 < 6) & ~hidden


def packed_masks(q_len: list[int], kv_len: list[int]) -> dict[str, torch.Tensor]:
    """The tensors of `custom_mask` for `scattered`."""
    masks = [
        scattered(b, torch.arange(kv - q, kv)[:, None], torch.arange(kv))
        for b, (q, kv) in enumerate(zip(q_len, kv_len, strict=True))
    ]
    return {name: torch.from_numpy(x) for name, x in pack_masks(masks).items()}


def drafts(i: Any, j: Any) -> Any:
    """A tree: each draft follows the one before the last, but for the first ones."""
    return (j <= i) & ((i - j) % 2 == 0)


def trees(q_len: list[int], kv_len: list[int]) -> dict[str, torch.Tensor]:
    """The tensors of `tree_mask` for `drafts`."""
    at = torch.arange(max(q_len))
    tree = drafts(at[:, None], at).repeat(len(q_len), 1, 1)
    begin = torch.tensor(kv_len, dtype=torch.int32) - torch.tensor(q_len, dtype=torch.int32)
    return {"tree": tree, "tree_begin": begin}


def packed_trees(q_len: list[int], kv_len: list[int]) -> dict[str, torch.Tensor]:
    """With bits, in rows that are longer than they need be."""
    found = trees(q_len, kv_len)
    bits = np.packbits(found["tree"].numpy(), axis=-1, bitorder="little")
    return {**found, "tree": torch.nn.functional.pad(torch.from_numpy(bits), (0, 3))}


def in_tree(b: Any, h: Any, i: Any, j: Any) -> Any:
    begin = i.min()  # the queries are the last keys
    return (j < begin) | drafts(i - begin, j - begin)


STEP = Scalar("step", "i32", 3, "distance of visible keys", lower=1)
EVEN = Hook("even", "kv_idx % 2 == 0", lambda b, h, q_idx, kv_idx: kv_idx % 2 == 0)
SLOPES = torch.linspace(0.01, 0.06, HEADS)
DOCUMENTS = (random(4, 3, LONGEST) > 2).cumsum(-1).int()
BIAS = random(5, HEADS, 33)
ALLOWED = random(6, LONGEST, LONGEST) > 0
SINK = torch.tensor([-40.0, 40.0, 0.0, 1.0, -2.0, 3.0, 5.0, 8.0])
GATE = random(8, HEADS, DIM)
FEW_DOCUMENTS = (
    torch.arange(LONGEST, dtype=torch.int32).div(150, rounding_mode="floor").repeat(3, 1)
)
KEPT = torch.arange(LONGEST).sub(torch.tensor([[200], [100], [0]])).abs() > 90
WINDOWS = torch.tensor([3, 500, 40, 90, 1, 0, 200, 70], dtype=torch.int32)
# Running sums of logarithms of forget gates, by head and position.
FORGOTTEN = torch.nn.functional.logsigmoid(random(10, 3, HEADS, LONGEST) + 2).cumsum(-1)
LISTS = random(11, 3, HEADS, 8, 8).argsort(-1)[..., :3].int()
POINTS = random(12, LONGEST, 3)
PREFIX = torch.tensor([90, 0, 170], dtype=torch.int32)


SCORE_CASES = {
    "causal": VariantCase(causal(), seen),
    "window": VariantCase(
        causal() & sliding_window(),
        lambda b, h, i, j: (j <= i) & (i - j < 71),
        scalars={"window_left": 70},
    ),
    "both_sides": VariantCase(
        sliding_window(right=True),
        lambda b, h, i, j: (i - j < 71) & (j - i < 21),
        scalars={"window_left": 70, "window_right": 20},
    ),
    "chunks": VariantCase(
        causal() & chunked_local(),
        lambda b, h, i, j: (j <= i) & (i.div(100, rounding_mode="floor") == j // 100),
        scalars={"chunk_size": 100},
    ),
    "prefix": VariantCase(
        prefix_lm(), lambda b, h, i, j: (j <= i) | (j < 210), scalars={"prefix_length": 210}
    ),
    "soft_cap": VariantCase(
        causal() & soft_cap(),
        seen,
        lambda s, b, h, i, j: 1.5 * (s / 1.5).tanh(),
        scalars={"logits_soft_cap": 1.5},
    ),
    "alibi": VariantCase(
        causal() & alibi(HEADS), seen, lambda s, b, h, i, j: s + on(_slopes(HEADS), s) * (j - i)
    ),
    "dilated": VariantCase(
        Variant("dilated", mask=every_third, params=[STEP]),
        lambda b, h, i, j: (j <= i) & ((i - j) % 4 == 0),
        scalars={"step": 4},
    ),
    "by_head": VariantCase(
        Variant("by_head", mask=global_heads),
        lambda b, h, i, j: (j <= i) & ((h < 2) | (i - j < 50) | (b == 1)),
    ),
    "flex": VariantCase(
        Variant("flex", logits=flex), seen, lambda s, b, h, i, j: s - 0.01 * (i - j)
    ),
    "curved": VariantCase(Variant("curved", logits=curved), None, curved_on_tensors),
    "text": VariantCase(
        causal() & Variant("even", mask=EVEN), lambda b, h, i, j: (j <= i) & (j % 2 == 0)
    ),
    "slopes": VariantCase(
        Variant("slopes", logits=slopes_of_heads, params=[Tensor("slopes", "f32", 1)]),
        None,
        lambda s, b, h, i, j: s - on(SLOPES, s)[h] * (i - j),
        tensors={"slopes": SLOPES},
    ),
    "documents": VariantCase(
        causal() & document_mask(),
        lambda b, h, i, j: (j <= i) & (on(DOCUMENTS, i)[b][i] == on(DOCUMENTS, i)[b][j]),
        tensors={"document": DOCUMENTS},
    ),
    "few_documents": VariantCase(
        causal() & document_mask(),
        lambda b, h, i, j: (j <= i) & (i.div(150, rounding_mode="floor") == j // 150),
        tensors={"document": FEW_DOCUMENTS},
    ),
    # Not causal, with requests whose first or last keys are hidden.
    "padded": VariantCase(
        Variant("padded", mask=padded, params=[Tensor("kept", "bool", 2)]) & soft_cap(),
        lambda b, h, i, j: on(KEPT, i)[b][j],
        lambda s, b, h, i, j: 1.5 * (s / 1.5).tanh(),
        scalars={"logits_soft_cap": 1.5},
        tensors={"kept": KEPT},
    ),
    # One head sees nothing.
    "windows_by_head": VariantCase(
        Variant("windows", mask=windows, params=[Tensor("window", "i32", 1)]),
        lambda b, h, i, j: (j <= i) & (i - j < on(WINDOWS, i)[h]),
        tensors={"window": WINDOWS},
    ),
    "custom": VariantCase(
        custom_mask(), lambda b, h, i, j: scattered(b, i, j), of_lengths=packed_masks
    ),
    "custom_causal": VariantCase(
        causal() & custom_mask(),
        lambda b, h, i, j: (j <= i) & scattered(b, i, j),
        of_lengths=packed_masks,
    ),
    "tree": VariantCase(tree_mask(), in_tree, of_lengths=trees),
    "packed_tree": VariantCase(tree_mask(packed=True), in_tree, of_lengths=packed_trees),
    "relative": VariantCase(
        causal() & relative_bias(16),
        seen,
        lambda s, b, h, i, j: s + on(BIAS, s)[h, (i - j).clamp(-16, 16) + 16],
        # A slice of a wider table: its rows are strided.
        tensors={"bias": torch.nn.functional.pad(BIAS, (0, 3))[:, :33]},
    ),
    "dense": VariantCase(
        Variant("dense", mask=any_keys, params=[Tensor("allowed", "bool", 2)]),
        lambda b, h, i, j: on(ALLOWED, i)[i, j],
        tensors={"allowed": ALLOWED},
    ),
    "prefixes": VariantCase(
        Variant("prefixes", mask=prefixes, params=[Tensor("prefix", "i32", 1)]),
        lambda b, h, i, j: (j <= i) | (j < int(PREFIX[b])),
        tensors={"prefix": PREFIX},
    ),
    "sinks": VariantCase(
        causal() & attention_sinks(),
        seen,
        state=lambda lse, b, h, i: torch.logaddexp(lse, on(SINK, lse)[h]),
        tensors={"sink": SINK},
    ),
    "tempered": VariantCase(
        Variant("tempered", row_state=tempered, output=gated, params=[Tensor("gate", "f32", 2)]),
        state=lambda lse, b, h, i: lse.clamp(min=0.25 * h) + 0.01 * (i % 3) - 0.5 * b,
        finish=gated_on_tensors,
        scalars={"shift": 0.3},
        tensors={"gate": GATE},
    ),
    "sigmoid": VariantCase(
        causal() & sigmoid_attention(LONGEST),
        seen,
        lambda s, b, h, i, j: 1 / (1 + LONGEST * (-s).exp()),
        softmax=False,
    ),
    "linear": VariantCase(Variant("linear", softmax=False), softmax=False),
    "squares": VariantCase(
        sliding_window()
        & Variant(
            "squares",
            logits=relu_squared,
            output=gated,
            softmax=False,
            params=[Tensor("gate", "f32", 2)],
        ),
        lambda b, h, i, j: i - j < 71,
        lambda s, b, h, i, j: s.relu() ** 2,
        finish=gated_on_tensors,
        softmax=False,
        scalars={"window_left": 70, "shift": 0.3},
        tensors={"gate": GATE},
    ),
    "all_hooks": VariantCase(
        causal()
        & soft_cap()
        & attention_sinks()
        & Variant("gated", output=gated, params=[Tensor("gate", "f32", 2)]),
        seen,
        lambda s, b, h, i, j: 1.5 * (s / 1.5).tanh(),
        state=lambda lse, b, h, i: torch.logaddexp(lse, on(SINK, lse)[h]),
        finish=gated_on_tensors,
        scalars={"logits_soft_cap": 1.5, "shift": 0.3},
        tensors={"sink": SINK, "gate": GATE},
    ),
    "first_and_near": VariantCase(
        Variant("sinks", mask=sinks),
        lambda b, h, i, j: (j <= i) & ((j < 20) | (i - j < 60)),
        scalars={"first": 20, "window": 60},
    ),
    "sinks_chunks": VariantCase(
        Variant("sinks", mask=sinks) & chunked_local() & soft_cap(),
        lambda b, h, i, j: (
            (j <= i) & ((j < 20) | (i - j < 60)) & (i.div(150, rounding_mode="floor") == j // 150)
        ),
        lambda s, b, h, i, j: 1.5 * (s / 1.5).tanh(),
        scalars={"first": 20, "window": 60, "chunk_size": 150, "logits_soft_cap": 1.5},
    ),
    # Pieces of a split tile without a visible key.
    "gap": VariantCase(
        Variant("gap", mask=gap),
        lambda b, h, i, j: (j < 70) | (j >= 310),
        scalars={"begin": 70, "end": 310},
    ),
    # Items without one, and rows beside others that have some.
    "late": VariantCase(
        Variant("late", mask=late), lambda b, h, i, j: (j <= i) & (i >= 250), scalars={"first": 250}
    ),
    "nothing": VariantCase(
        Variant("late", mask=late), lambda b, h, i, j: (j <= i) & (i >= 999), scalars={"first": 999}
    ),
    "full": VariantCase(full()),
    "forgetting": VariantCase(
        causal() & Variant("forgetting", logits=forgetting, params=[Tensor("forgotten", "f32", 3)]),
        seen,
        lambda s, b, h, i, j: s + (on(FORGOTTEN, s)[b, h, i] - on(FORGOTTEN, s)[b, h, j]).double(),
        tensors={"forgotten": FORGOTTEN},
    ),
    "live": VariantCase(
        (causal() & sliding_window() & soft_cap()).live(),
        lambda b, h, i, j: (j <= i) & (i - j < 71),
        lambda s, b, h, i, j: 1.5 * (s / 1.5).tanh(),
        scalars={"window_left": 70, "logits_soft_cap": 1.5},
    ),
    "live_prefix": VariantCase(
        prefix_lm().live(), lambda b, h, i, j: (j <= i) | (j < 210), scalars={"prefix_length": 210}
    ),
    "live_rows": VariantCase(
        Variant(
            "tempered", row_state=tempered, output=gated, params=[Tensor("gate", "f32", 2)]
        ).live(),
        state=lambda lse, b, h, i: lse.clamp(min=0.25 * h) + 0.01 * (i % 3) - 0.5 * b,
        finish=gated_on_tensors,
        scalars={"shift": 0.3},
        tensors={"gate": GATE},
    ),
    "flex_rows": VariantCase(
        from_flex(apart(POINTS), chosen(LISTS)),
        lambda b, h, i, j: chosen(on(LISTS, i))(b, h, i, j),
        lambda s, b, h, i, j: apart(on(POINTS, s).double())(s, b, h, i, j),
        tensors={"points": POINTS, "lists": LISTS},
    ),
}
