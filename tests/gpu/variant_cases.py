"""Variants and, for each, a dense formula in float64 that knows no `Variant`; run on any device."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from cute_attn import (
    BatchAttention,
    KernelSpec,
    PagedKV,
    Problem,
    RaggedKV,
    Variant,
    alibi,
    attention_sinks,
    causal,
    choose,
    chunked_local,
    custom_mask,
    document_mask,
    pack_masks,
    prefix_lm,
    qk_norm,
    relative_bias,
    rope,
    sigmoid_attention,
    sliding_window,
    soft_cap,
    streaming_llm,
    tree_mask,
)
from cute_attn.api.dispatch import tiles_per_sm
from cute_attn.scheduler.constants import H200
from cute_attn.variants import Hook, Scalar, Tensor, functions

HEADS, KV_HEADS, DIM, LONGEST = 8, 2, 64, 400
LENGTHS = {
    "prefill": ([300, 130], [300, 130]),
    "append": ([90, 33, 129], [400, 333, 129]),
    "decode": ([1, 1, 1], [400, 1, 138]),
}
"""(q_len, kv_len) of the requests."""
ROW_LENGTHS = {
    **LENGTHS,
    "empty": ([17, 40, 20], [0, 17, 138]),
    "empty_decode": ([1, 1, 2], [0, 138, 1]),
}
"""The same for hooks on rows, which rows without keys have as well."""

Dense = Callable[..., Any]


@dataclass
class VariantCase:
    """A variant.

    Attributes:
        variant: the program.
        keep: the mask of the dense formula, of (b, h, i, j); None: all.
        bend: the score of it, of (s, b, h, i, j); None: as it is.
        state: its log-sum-exp, of (lse, b, h, i); None: as it is.
        finish: its output, of (out, b, h, i, d); None: as it is.
        softmax: False: scores are weights.
        scalars, tensors: of the variant.
        of_lengths: further tensors, from (q_len, kv_len) of the requests.
        query, key, value: what becomes of rows in the dense formula, of (x, b, positions): x
            (heads, positions, dim); None: nothing.
        dim: head_dim.
        page_size: None: ragged.
    """

    variant: Variant
    keep: Dense | None = None
    bend: Dense | None = None
    state: Dense | None = None
    finish: Dense | None = None
    softmax: bool = True
    scalars: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    of_lengths: Callable[[list[int], list[int]], dict[str, torch.Tensor]] = lambda q, kv: {}
    query: Dense | None = None
    key: Dense | None = None
    value: Dense | None = None
    dim: int = DIM
    page_size: int | None = None


def random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


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


def turned(
    x: torch.Tensor,
    positions: torch.Tensor,
    *,
    layout: str = "half",
    theta: float = 10000.0,
    dim: int | None = None,
) -> torch.Tensor:
    """Rotary embedding, as complex numbers times e^(i position theta^(-2 k / dim))."""
    dim = dim or x.shape[-1]
    frequency = theta ** (-torch.arange(0, dim, 2, dtype=torch.float64, device=x.device) / dim)
    angle = positions.double()[..., None] * frequency
    head = x[..., :dim]
    shape = (*head.shape[:-1], 2, dim // 2) if layout == "half" else (*head.shape[:-1], dim // 2, 2)
    axis = -2 if layout == "half" else -1
    a, b = head.reshape(shape).unbind(axis)
    z = torch.complex(a, b) * torch.polar(torch.ones_like(angle), angle)
    pairs = torch.stack([z.real, z.imag], axis).reshape(head.shape)
    return torch.cat([pairs, x[..., dim:]], -1)


def rms(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, x.shape[-1:], _on(weight, x).double(), eps)


def channel_scale(x: Any, b: Any, h: Any, pos: Any, *, v_scale: Any) -> Any:
    return x * v_scale[h, x.index]


def gated(out: Any, b: Any, h: Any, q_idx: Any, d: Any, *, gate: Any, shift: float = 0.2) -> Any:
    return out * gate[h, d] + 0.1 * (q_idx % 5) + shift * b


def gated_on_tensors(out: Any, b: Any, h: Any, i: Any, d: Any) -> Any:
    return out * _on(GATE, out)[h, d] + 0.1 * (i % 5) + 0.3 * b


def tempered(lse: Any, b: Any, h: Any, q_idx: Any) -> Any:
    return functions.maximum(lse, 0.25 * h) + 0.01 * (q_idx % 3) - 0.5 * b


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
PREFIX = torch.tensor([90, 0, 170], dtype=torch.int32)
WEIGHTS = 1 + 0.3 * random(7, 2, 128)
V_SCALE = 1 + 0.5 * random(8, KV_HEADS, 128)
# Positions of some other order, as far as 10^5.
PLACES = (random(9, 3, LONGEST).argsort(-1) * 251).int()


def _seen(b: Any, h: Any, i: Any, j: Any) -> Any:
    return j <= i


def _on(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return tensor.to(like.device)


CASES = {
    "causal": VariantCase(causal(), _seen),
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
        _seen,
        lambda s, b, h, i, j: 1.5 * (s / 1.5).tanh(),
        scalars={"logits_soft_cap": 1.5},
    ),
    "alibi": VariantCase(
        causal() & alibi(HEADS), _seen, lambda s, b, h, i, j: s + _on(_slopes(HEADS), s) * (j - i)
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
        Variant("flex", logits=flex), _seen, lambda s, b, h, i, j: s - 0.01 * (i - j)
    ),
    "curved": VariantCase(Variant("curved", logits=curved), None, curved_on_tensors),
    "text": VariantCase(
        causal() & Variant("even", mask=EVEN), lambda b, h, i, j: (j <= i) & (j % 2 == 0)
    ),
    "slopes": VariantCase(
        Variant("slopes", logits=slopes_of_heads, params=[Tensor("slopes", "f32", 1)]),
        None,
        lambda s, b, h, i, j: s - _on(SLOPES, s)[h] * (i - j),
        tensors={"slopes": SLOPES},
    ),
    "documents": VariantCase(
        causal() & document_mask(),
        lambda b, h, i, j: (j <= i) & (_on(DOCUMENTS, i)[b][i] == _on(DOCUMENTS, i)[b][j]),
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
        lambda b, h, i, j: _on(KEPT, i)[b][j],
        lambda s, b, h, i, j: 1.5 * (s / 1.5).tanh(),
        scalars={"logits_soft_cap": 1.5},
        tensors={"kept": KEPT},
    ),
    # One head sees nothing.
    "windows_by_head": VariantCase(
        Variant("windows", mask=windows, params=[Tensor("window", "i32", 1)]),
        lambda b, h, i, j: (j <= i) & (i - j < _on(WINDOWS, i)[h]),
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
        _seen,
        lambda s, b, h, i, j: s + _on(BIAS, s)[h, (i - j).clamp(-16, 16) + 16],
        # A slice of a wider table: its rows are strided.
        tensors={"bias": torch.nn.functional.pad(BIAS, (0, 3))[:, :33]},
    ),
    "dense": VariantCase(
        Variant("dense", mask=any_keys, params=[Tensor("allowed", "bool", 2)]),
        lambda b, h, i, j: _on(ALLOWED, i)[i, j],
        tensors={"allowed": ALLOWED},
    ),
    "prefixes": VariantCase(
        Variant("prefixes", mask=prefixes, params=[Tensor("prefix", "i32", 1)]),
        lambda b, h, i, j: (j <= i) | (j < int(PREFIX[b])),
        tensors={"prefix": PREFIX},
    ),
    "sinks": VariantCase(
        causal() & attention_sinks(),
        _seen,
        state=lambda lse, b, h, i: torch.logaddexp(lse, _on(SINK, lse)[h]),
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
        _seen,
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
        _seen,
        lambda s, b, h, i, j: 1.5 * (s / 1.5).tanh(),
        state=lambda lse, b, h, i: torch.logaddexp(lse, _on(SINK, lse)[h]),
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
}
ROW_CASES = [name for name, x in CASES.items() if x.state or x.finish or not x.softmax]
"""Those that act on rows."""
PAGE_SIZES = (None, 1, 16)
"""Of their KV."""


PAGED = frozenset(list(CASES)[::2])
"""Those with pages of 16 keys; the others are ragged."""


def _vectors(variant: Variant, page_size: int | None, **rest: Any) -> VariantCase:
    keep = rest.pop("keep", _seen)
    return VariantCase(variant, keep, page_size=page_size, **rest)


def _turned(x: torch.Tensor, b: int, positions: torch.Tensor) -> torch.Tensor:
    return turned(x, positions)


def _turned_far(x: torch.Tensor, b: int, positions: torch.Tensor) -> torch.Tensor:
    return turned(x, positions, theta=500000.0)


def _partly(x: torch.Tensor, b: int, positions: torch.Tensor) -> torch.Tensor:
    return turned(x, positions, layout="interleaved", dim=32)


def _at_places(x: torch.Tensor, b: int, positions: torch.Tensor) -> torch.Tensor:
    return turned(x, _on(PLACES, x)[b, positions.clamp(min=0)])


def _with_sink(lse: torch.Tensor, b: int, h: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return torch.logaddexp(lse, _on(SINK, lse)[h])


def _norm_then_turned(n: int) -> Dense:
    return lambda x, b, i: turned(rms(x, WEIGHTS[n, : x.shape[-1]], 0.01), i)


NORM = {"q_norm_weight": WEIGHTS[0], "k_norm_weight": WEIGHTS[1]}
CASES |= {
    f"{name}_{page_size or 'ragged'}": _vectors(variant, page_size, **rest)
    for page_size in (None, 1, 16)
    for name, variant, rest in (
        (
            "rope",
            causal() & rope(),
            {"query": _turned_far, "key": _turned_far, "scalars": {"rope_theta": 5e5}, "dim": 128},
        ),
        ("rope_partly", causal() & rope(layout="interleaved", rotary_dim=32),
         {"query": _partly, "key": _partly}),
        ("rope_at", causal() & rope(positions=True),
         {"query": _at_places, "key": _at_places,
          "tensors": {"q_positions": PLACES, "k_positions": PLACES}}),
        (
            "qk_norm_rope",
            causal() & qk_norm() & rope(),
            {"query": _norm_then_turned(0), "key": _norm_then_turned(1), "tensors": NORM,
             "scalars": {"norm_eps": 0.01}, "dim": 128},
        ),
        (
            "streaming",
            streaming_llm(sinks=3, window=60),
            {"query": _turned, "key": _turned, "dim": 128,
             "keep": lambda b, h, i, j: (j <= i) & ((j < 3) | (i - j < 60))},
        ),
        (
            "values",
            causal()
            & Variant("values", value=channel_scale, params=[Tensor("v_scale", "f32", 2)]),
            {"value": lambda x, b, i: x * _on(V_SCALE, x)[:, None], "dim": 128,
             "tensors": {"v_scale": V_SCALE}},
        ),
        (
            "rope_sinks",
            causal() & rope() & attention_sinks(),
            {"query": _turned, "key": _turned, "dim": 128, "state": _with_sink,
             "tensors": {"sink": SINK}},
        ),
        (
            "rope_sigmoid",
            causal() & rope() & sigmoid_attention(LONGEST),
            {"query": _turned, "key": _turned, "softmax": False,
             "bend": lambda s, b, h, i, j: 1 / (1 + LONGEST * (-s).exp())},
        ),
        (
            "rope_prefix",
            prefix_lm() & rope(),
            {"query": _turned, "key": _turned, "dim": 128,
             "keep": lambda b, h, i, j: (j <= i) | (j < 210), "scalars": {"prefix_length": 210}},
        ),
        # Blocks are skipped by what a tensor holds, and values change as well.
        (
            "rope_documents",
            causal() & document_mask() & rope()
            & Variant("values", value=channel_scale, params=[Tensor("v_scale", "f32", 2)]),
            {"query": _turned, "key": _turned, "dim": 128,
             "value": lambda x, b, i: x * _on(V_SCALE, x)[:, None],
             "keep": lambda b, h, i, j: (
                 (j <= i) & (_on(DOCUMENTS, i)[b][i] == _on(DOCUMENTS, i)[b][j])
             ),
             "tensors": {"document": DOCUMENTS, "v_scale": V_SCALE}},
        ),
        (
            "streaming_all",
            streaming_llm(sinks=3, window=60) & soft_cap() & attention_sinks()
            & Variant("gated", output=gated, params=[Tensor("gate", "f32", 2)]),
            {"query": _turned, "key": _turned, "state": _with_sink, "finish": gated_on_tensors,
             "bend": lambda s, b, h, i, j: 1.5 * (s / 1.5).tanh(),
             "keep": lambda b, h, i, j: (j <= i) & ((j < 3) | (i - j < 60)),
             "scalars": {"logits_soft_cap": 1.5, "shift": 0.3},
             "tensors": {"sink": SINK, "gate": GATE}},
        ),
    )
}  # fmt: skip
"""Vector hooks, with keys that lie in every way."""


def page_size_of(name: str) -> int | None:
    """Tokens per page of a case; None: ragged."""
    return 16 if name in PAGED else CASES[name].page_size


def dense(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, b: int, case: VariantCase
) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse of one request, (length, heads, dim), the last query at the last key; lse is 0
    without softmax. Products take rows of the dtype of q, so transformed rows are rounded to it."""
    dtype = q.dtype
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))
    at = torch.arange(k.shape[1], device=q.device)
    if case.query is not None:
        q = case.query(q, b, at[k.shape[1] - q.shape[1] :]).to(dtype).double()
    if case.key is not None:
        k = case.key(k, b, at).to(dtype).double()
    if case.value is not None:
        v = case.value(v, b, at).to(dtype).double()
    k, v = (x.repeat_interleave(HEADS // KV_HEADS, 0) for x in (k, v))
    i = torch.arange(q.shape[1], device=q.device)[:, None] + k.shape[1] - q.shape[1]
    j = torch.arange(k.shape[1], device=q.device)[None, :]
    h = torch.arange(HEADS, device=q.device)[:, None, None]
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if case.bend is not None:
        scores = case.bend(scores, b, h, i, j)
    if case.keep is not None:
        hidden = ~case.keep(b, h, i, j).expand(scores.shape)
        scores = scores.masked_fill(hidden, -torch.inf if case.softmax else 0)
    lse, p = torch.zeros_like(q[..., 0]), scores
    if case.softmax:
        lse = scores.logsumexp(-1)
        if case.state is not None:
            lse = case.state(lse, b, h[..., 0], i[:, 0])
        p = (scores - lse.nan_to_num(neginf=0.0)[..., None]).exp()
    out = p @ v
    if case.finish is not None:
        out = case.finish(out, b, h, i, torch.arange(v.shape[-1], device=q.device))
    return out.transpose(0, 1), lse.transpose(0, 1)


def outputs(
    name: str,
    phase: str,
    device: torch.device,
    dtype: torch.dtype,
    *,
    schedule: str | None = None,
    with_plan: bool = True,
    page_size: int | None = -1,
    batch_invariant: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor]:
    """(out, lse, their dense counterparts) of one case; lse is None without softmax.

    Args:
        name: of CASES.
        phase: of ROW_LENGTHS.
        device, dtype: of q, k and v.
        schedule: kernel family, or None.
        with_plan: tensors are given to plan(), else to run().
        page_size: None: ragged; -1: that of the case.
        batch_invariant: as of `BatchAttention`.
    """
    case, (q_len, kv_len) = CASES[name], ROW_LENGTHS[phase]
    rows, keys = ([0, *itertools.accumulate(x)] for x in (q_len, kv_len))
    q = random(0, rows[-1], HEADS, case.dim).to(device, dtype)
    k, v = (random(s, keys[-1], KV_HEADS, case.dim).to(device, dtype) for s in (1, 2))
    given = {**case.tensors, **case.of_lengths(q_len, kv_len)}
    tensors = {name: x.to(device) for name, x in given.items()}
    batch = BatchAttention(
        HEADS,
        KV_HEADS,
        case.dim,
        dtype=dtype,
        variant=case.variant,
        device=device,
        schedule=schedule,
        batch_invariant=batch_invariant,
    )
    if page_size == -1:
        page_size = page_size_of(name)
    kv_format, cache = RaggedKV(keys), (k, v)
    if page_size is not None:
        kv_format, cache = _pages(k, v, keys, page_size)
    planned = tensors if with_plan else None
    batch.plan(rows, kv_format, scalars=case.scalars, tensors=planned)
    later = None if with_plan else tensors
    result = batch.run(q, *cache, return_lse=case.softmax, tensors=later)
    out, lse = result if case.softmax else (result, None)
    wanted = [
        dense(q[begin:end], k[keys[b] : keys[b + 1]], v[keys[b] : keys[b + 1]], b, case)
        for b, (begin, end) in enumerate(itertools.pairwise(rows))
    ]
    return out, lse, torch.cat([x for x, _ in wanted]), torch.cat([x for _, x in wanted])


def _pages(
    k: torch.Tensor, v: torch.Tensor, keys: list[int], size: int
) -> tuple[PagedKV, tuple[torch.Tensor, ...]]:
    """The same keys in pages of `size`, the pages of a request from the back to the front."""
    lengths = np.diff(keys)
    pages = -(-lengths // size)
    indptr = np.concatenate([[0], np.cumsum(pages)])
    cache = k.new_zeros(int(indptr[-1]), 2, size, *k.shape[1:])
    indices: list[int] = []
    for b, count in enumerate(pages.tolist()):
        own = list(range(int(indptr[b]), int(indptr[b]) + count))[::-1]
        indices += own
        for n, page in enumerate(own):
            rows = slice(keys[b] + size * n, min(keys[b] + size * n + size, keys[b + 1]))
            used = rows.stop - rows.start
            cache[page, 0, :used], cache[page, 1, :used] = k[rows], v[rows]
    last = (lengths - size * (pages - 1)).clip(min=1).tolist()  # of no page: not looked at
    return PagedKV(indptr.tolist(), indices, last, size), (cache,)


def kernels(arch: str) -> list[KernelSpec]:
    """Every kernel that the cases take on a GPU, `ampere_tile` included."""
    specs = []
    for name, case in CASES.items():
        on_rows = name in ROW_CASES
        group, dim = HEADS // KV_HEADS, case.dim
        for page_size in PAGE_SIZES if on_rows else (page_size_of(name),):
            problem = Problem(arch, "bf16", dim, dim, group, case.variant, page_size)
            for q_len, _ in ROW_LENGTHS.values():
                rows = max(q_len) * HEADS // KV_HEADS
                tiles = tiles_per_sm(np.array(q_len), rows, KV_HEADS, H200.sms)
                specs.append(choose(problem, rows=rows, tiles_per_sm=tiles))
                if on_rows and arch == "sm_90a":
                    specs.append(choose(problem, rows=rows, schedule="hopper_tile"))
            specs.append(choose(problem, rows=None, schedule="ampere_tile"))
    return list(dict.fromkeys(specs))
