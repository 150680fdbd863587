"""Section U: steps that the tuner has not seen, of kernels that it has."""

from __future__ import annotations

import random

from perf.cases.case import Case

_WINDOW = 512


def held_out() -> list[Case]:
    """Ten steps between and beside those of `cute_attn.tuning.default_steps`."""
    return [
        _case("d64 prompts", [150] * 40, None, (32, 8), 64, None),
        _case("d64 fp16 p16", [384] * 24, None, (32, 8), 64, 16, dtype="fp16"),
        _case("d80 fp16 full", [640] * 16, None, (16, 16), 80, None, dtype="fp16", causal=False),
        _case("d96 prompts", [160] * 48, None, (32, 8), 96, None),
        _case("d128 fp16 p1", [192] * 48, None, (32, 8), 128, 1, dtype="fp16"),
        _case("d128 window", [1536] * 6, None, (16, 16), 128, None, window=_WINDOW),
        _case("d192x128", [320] * 24, None, (16, 16), 192, None, value_dim=128),
        _case("d256 p16", [192] * 24, None, (16, 8), 256, 16),
        _case("d96 few tokens", [6] * 96, [640] * 96, (32, 8), 96, None),
        _case("d64 decode", [1] * 96, _uniform(96, 1000, 2600), (32, 8), 64, 16),
    ]


def _uniform(count: int, low: int, high: int) -> list[int]:
    rng = random.Random(1)
    return [rng.randint(low, high) for _ in range(count)]


def _case(
    cfg: str,
    q_lens: list[int],
    kv_lens: list[int] | None,
    heads: tuple[int, int],
    dim: int,
    page_size: int | None,
    *,
    dtype: str = "bf16",
    causal: bool = True,
    window: int | None = None,
    value_dim: int | None = None,
) -> Case:
    return Case(
        "U",
        cfg,
        tuple(q_lens),
        tuple(kv_lens or q_lens),
        *heads,
        dim,
        page_size,
        causal,
        window,
        value_dim,
        dtype,
    )
