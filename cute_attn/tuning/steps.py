"""The steps that `cute-attn tune` measures where it is not told which: where tiles differ."""

from __future__ import annotations

import random
from collections.abc import Iterable

from cute_attn.tuning.step import TuneStep
from cute_attn.variants import Variant, causal, full, sliding_window

_MASKS: dict[str, Variant] = {
    "causal": causal(),
    "full": full(),
    "window": causal() & sliding_window(),
}
_WINDOW = 512


def default_steps() -> list[TuneStep]:
    """Prefill, few query rows per request and decode; head dims, groups, pages, both dtypes."""
    return [*_prefill(), *_few_rows(), *_decode()]


def _step(
    kind: str,
    q_lens: Iterable[int],
    kv_lens: Iterable[int],
    lengths: str,
    *,
    dim: int,
    heads: tuple[int, int],
    page_size: int | None = None,
    dtype: str = "bf16",
    mask: str = "causal",
    value_dim: int | None = None,
) -> TuneStep:
    pages = "ragged" if page_size is None else f"p{page_size}"
    width = f"d{dim}" if value_dim is None else f"d{dim}x{value_dim}"
    name = f"{kind} {width} {dtype} {heads[0]}/{heads[1]} {pages} {mask} {lengths}"
    return TuneStep(
        name=name,
        q_lens=tuple(q_lens),
        kv_lens=tuple(kv_lens),
        num_qo_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=dim,
        page_size=page_size,
        dtype=dtype,
        variant=_MASKS[mask],
        scalars=(("window_left", _WINDOW - 1),) if mask == "window" else (),
        value_dim=value_dim,
    )


def _same(count: int, q_len: int, kv_len: int) -> tuple[list[int], list[int], str]:
    lengths = f"{count} x {q_len}" + (f" at {kv_len}" if kv_len != q_len else "")
    return [q_len] * count, [kv_len] * count, lengths


_PREFILL = (
    # head_dim, value_dim, heads, page size, dtype, mask, (requests, query tokens, keys). Requests
    # have few tiles up to 512 tokens, and padding decides: lengths there are 1.4 times apart.
    (64, None, (32, 8), None, "bf16", "causal", ((64, 128, 128), (48, 176, 176), (32, 352, 352),
     (32, 512, 512), (8, 2048, 2048))),
    (64, None, (32, 8), 16, "fp16", "causal", ((64, 128, 128), (48, 176, 176), (32, 352, 352),
     (32, 512, 512), (8, 2048, 2048))),
    (64, None, (16, 16), None, "bf16", "window", ((8, 1024, 1024), (2, 8192, 8192))),
    (80, None, (16, 16), None, "fp16", "full", ((32, 256, 256), (24, 512, 512), (16, 1024, 1024),
     (2, 4096, 4096))),
    (96, None, (32, 8), None, "bf16", "causal", ((64, 128, 128), (48, 176, 176), (24, 352, 352),
     (16, 1024, 1024))),
    (112, None, (16, 8), None, "bf16", "causal", ((32, 176, 176), (32, 256, 256),
     (16, 1024, 1024))),
    (128, None, (32, 8), 1, "fp16", "causal", ((64, 128, 128), (48, 176, 176), (24, 352, 352),
     (16, 1024, 1024))),
    (128, None, (32, 4), 64, "bf16", "causal", ((64, 128, 128), (16, 512, 512), (8, 256, 8192))),
    (128, None, (16, 16), None, "bf16", "window", ((8, 1024, 1024), (4, 2048, 2048),
     (2, 8192, 8192))),
    (192, None, (16, 4), None, "bf16", "causal", ((32, 256, 256), (8, 2048, 2048))),
    (192, 128, (16, 16), None, "bf16", "causal", ((32, 256, 256), (24, 352, 352), (8, 2048, 2048))),
    (256, None, (16, 8), 16, "bf16", "causal", ((32, 128, 128), (24, 176, 176), (24, 352, 352),
     (16, 1024, 1024))),
)  # fmt: skip

_FEW_ROWS = (
    # head_dim, heads, page size, dtype, (requests, query tokens, keys)
    (64, (32, 4), 16, "bf16", ((16, 4, 2048), (128, 4, 1024))),
    (96, (32, 8), None, "bf16", ((16, 8, 2048), (128, 8, 512))),
    (128, (64, 8), 64, "fp16", ((16, 4, 2048), (128, 4, 512))),
    (256, (16, 4), 16, "bf16", ((16, 8, 2048), (64, 8, 1024))),
)

_DECODE = (
    # head_dim, heads, page size, dtype, (requests, keys)
    (64, (32, 8), 16, "bf16", ((16, 1024), (64, 2048), (256, 512))),
    (64, (16, 16), None, "fp16", ((16, 1024), (128, 512))),
    (128, (32, 4), 1, "bf16", ((4, 4096), (64, 2048), (256, 512))),
    (128, (16, 16), 16, "fp16", ((8, 2048), (128, 512))),
    (256, (16, 8), 16, "bf16", ((16, 2048), (128, 1024))),
    (256, (16, 2), 64, "fp16", ((16, 2048), (128, 1024))),
)


def _prefill() -> list[TuneStep]:
    return [
        _step("prefill", *_same(*lengths), dim=dim, value_dim=value_dim, heads=heads,
              page_size=page, dtype=dtype, mask=mask)
        for dim, value_dim, heads, page, dtype, mask, steps in _PREFILL
        for lengths in steps
    ]  # fmt: skip


def _few_rows() -> list[TuneStep]:
    return [
        _step("few", *_same(*lengths), dim=dim, heads=heads, page_size=page, dtype=dtype)
        for dim, heads, page, dtype, steps in _FEW_ROWS
        for lengths in steps
    ]


def _decode() -> list[TuneStep]:
    found = []
    rng = random.Random(0)
    for dim, heads, page, dtype, steps in _DECODE:
        for count, keys in steps:
            lens = [rng.randint(keys // 2, keys * 3 // 2) for _ in range(count)]
            lengths = f"{count} x {keys // 2}-{keys * 3 // 2}"
            found.append(
                _step("decode", [1] * count, lens, lengths, dim=dim, heads=heads, page_size=page,
                      dtype=dtype)
            )  # fmt: skip
    return found
