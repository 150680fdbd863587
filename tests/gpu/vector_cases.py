"""Cases of vector hooks, with keys that lie in every way."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from cute_attn import (
    Llama3Scaling,
    Variant,
    YarnScaling,
    attention_sinks,
    causal,
    document_mask,
    prefix_lm,
    qk_norm,
    rope,
    sigmoid_attention,
    soft_cap,
    streaming_llm,
)
from cute_attn.variants import Tensor, functions
from tests.gpu.score_cases import (
    DOCUMENTS,
    GATE,
    SINK,
    gated,
    gated_on_tensors,
)
from tests.gpu.variant_case import (
    KV_HEADS,
    LONGEST,
    Dense,
    VariantCase,
    on,
    random,
    seen,
)

WEIGHTS = 1 + 0.3 * random(7, 2, 128)
V_SCALE = 1 + 0.5 * random(8, KV_HEADS, 128)
# Positions of some other order, as far as 10^5.
PLACES = (random(9, 3, LONGEST).argsort(-1) * 251).int()
# Time, height and width of frames of 8 by 8, and of text behind four of them.
_PLACE = torch.arange(LONGEST)
SECTIONS = torch.stack(
    [
        torch.where(_PLACE < 256, own, _PLACE - 220).expand(3, LONGEST)
        for own in (_PLACE // 64, _PLACE // 8 % 8, _PLACE % 8)
    ]
).int()


def turned(
    x: torch.Tensor,
    positions: torch.Tensor,
    *,
    layout: str = "half",
    theta: float = 10000.0,
    dim: int | None = None,
    scaled: Callable[[torch.Tensor], torch.Tensor] = lambda frequency: frequency,
) -> torch.Tensor:
    """Rotary embedding, as complex numbers times e^(i position theta^(-2 k / dim))."""
    dim = dim or x.shape[-1]
    plain = theta ** (-torch.arange(0, dim, 2, dtype=torch.float64, device=x.device) / dim)
    frequency = scaled(plain)
    angle = positions.double()[..., None] * frequency
    head = x[..., :dim]
    shape = (*head.shape[:-1], 2, dim // 2) if layout == "half" else (*head.shape[:-1], dim // 2, 2)
    axis = -2 if layout == "half" else -1
    a, b = head.reshape(shape).unbind(axis)
    z = torch.complex(a, b) * torch.polar(torch.ones_like(angle), angle)
    pairs = torch.stack([z.real, z.imag], axis).reshape(head.shape)
    return torch.cat([pairs, x[..., dim:]], -1)


def _as_llama3_does(frequency: torch.Tensor) -> torch.Tensor:
    """By wavelength, as the models' reference code; for a context of 64, factor 8, 1 and 4."""
    wavelength = 2 * math.pi / frequency
    smooth = (64 / wavelength - 1) / 3
    mixed = (1 - smooth) * frequency / 8 + smooth * frequency
    frequency = torch.where(wavelength > 64, frequency / 8, frequency)
    return torch.where((wavelength >= 16) & (wavelength <= 64), mixed, frequency)


def _as_yarn_does(frequency: torch.Tensor) -> torch.Tensor:
    """Equations 17 and 19 to 23 of the paper; for a context of 64, factor 4, 32 and 1."""
    count = len(frequency)
    first, last = (
        2 * count * math.log(64 / (n * 2 * math.pi)) / (2 * math.log(1e4)) for n in (32, 1)
    )
    first, last = max(math.floor(first), 0), min(math.ceil(last), 2 * count - 1)
    ramp = (torch.arange(count, device=frequency.device) - first) / (last - first)
    ramp = ramp.clamp(0, 1)
    return frequency * (1 - ramp) + frequency / 4 * ramp


def by_sections(
    x: Any, b: Any, h: Any, pos: Any, *, section_positions: Any, theta: float = 1e4
) -> Any:
    """Rotary embedding of images and videos: pairs have the time, the height or the width."""
    pairs = x.halves()
    section = torch.where(pairs.index < 16, 0, torch.where(pairs.index < 40, 1, 2))
    cosine, sine = functions.turn(
        section_positions[section, b, pos], theta ** -(pairs.index / pairs.count)
    )
    return pairs.join(
        pairs.first * cosine - pairs.second * sine, pairs.second * cosine + pairs.first * sine
    )


def _by_sections(x: torch.Tensor, b: int, positions: torch.Tensor) -> torch.Tensor:
    """Of each way of turning the whole row, its section."""
    places = on(SECTIONS, x)[:, b, positions.clamp(min=0)]
    time, height, width = (turned(x, own) for own in places)
    pair = torch.arange(x.shape[-1], device=x.device) % (x.shape[-1] // 2)
    return torch.where(pair < 16, time, torch.where(pair < 40, height, width))


def _llama3(x: torch.Tensor, b: int, positions: torch.Tensor) -> torch.Tensor:
    return turned(x, positions, scaled=_as_llama3_does)


def _yarn(x: torch.Tensor, b: int, positions: torch.Tensor) -> torch.Tensor:
    return (0.1 * math.log(4) + 1) * turned(x, positions, scaled=_as_yarn_does)


def rms(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, x.shape[-1:], on(weight, x).double(), eps)


def channel_scale(x: Any, b: Any, h: Any, pos: Any, *, v_scale: Any) -> Any:
    return x * v_scale[h, x.index]


def _vectors(variant: Variant, page_size: int | None, **rest: Any) -> VariantCase:
    keep = rest.pop("keep", seen)
    return VariantCase(variant, keep, page_size=page_size, **rest)


def _turned(x: torch.Tensor, b: int, positions: torch.Tensor) -> torch.Tensor:
    return turned(x, positions)


def _turned_far(x: torch.Tensor, b: int, positions: torch.Tensor) -> torch.Tensor:
    return turned(x, positions, theta=500000.0)


def _partly(x: torch.Tensor, b: int, positions: torch.Tensor) -> torch.Tensor:
    return turned(x, positions, layout="interleaved", dim=32)


def _at_places(x: torch.Tensor, b: int, positions: torch.Tensor) -> torch.Tensor:
    return turned(x, on(PLACES, x)[b, positions.clamp(min=0)])


def _with_sink(lse: torch.Tensor, b: int, h: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return torch.logaddexp(lse, on(SINK, lse)[h])


def _norm_then_turned(n: int) -> Dense:
    return lambda x, b, i: turned(rms(x, WEIGHTS[n, : x.shape[-1]], 0.01), i)


NORM = {"q_norm_weight": WEIGHTS[0], "k_norm_weight": WEIGHTS[1]}
VECTOR_CASES = {
    f"{name}_{page_size or 'ragged'}": _vectors(variant, page_size, **rest)
    for page_size in (None, 1, 16)
    for name, variant, rest in (
        (
            "rope",
            causal() & rope(),
            {"query": _turned_far, "key": _turned_far, "scalars": {"rope_theta": 5e5}, "dim": 128},
        ),
        (
            "rope_live",
            (causal() & rope()).live(),
            {"query": _turned_far, "key": _turned_far, "scalars": {"rope_theta": 5e5}},
        ),
        ("rope_partly", causal() & rope(layout="interleaved", rotary_dim=32),
         {"query": _partly, "key": _partly}),
        (
            "rope_llama3",
            causal() & rope(scaling=Llama3Scaling(8.0, 1.0, 4.0, original_max_position=64)),
            {"query": _llama3, "key": _llama3, "dim": 128},
        ),
        (
            "rope_yarn",
            causal() & rope(scaling=YarnScaling(4.0, original_max_position=64)),
            {"query": _yarn, "key": _yarn, "dim": 128},
        ),
        (
            "rope_sections",
            causal()
            & Variant(
                "sections", query=by_sections, key=by_sections,
                params=[Tensor("section_positions", "i32", 3)],
            ),
            {"query": _by_sections, "key": _by_sections, "dim": 128,
             "tensors": {"section_positions": SECTIONS}},
        ),
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
            {"value": lambda x, b, i: x * on(V_SCALE, x)[:, None], "dim": 128,
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
             "value": lambda x, b, i: x * on(V_SCALE, x)[:, None],
             "keep": lambda b, h, i, j: (
                 (j <= i) & (on(DOCUMENTS, i)[b][i] == on(DOCUMENTS, i)[b][j])
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
