"""Prefill cases: dense, paged, windows, MLA's head dims, chunks, head dims between, and pages.

Sections A, B, W, M and K are the peers'; A16, H and P are compared with ourselves, F with what is
published.
"""

from __future__ import annotations

from dataclasses import replace

from perf.cases.case import Case, lengths

PREFILL_TOKENS = 16384
PREFILL_HEADS = {64: 32, 128: 16, 256: 8}
PREFILL_LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
WINDOWS = (128, 512, 1024)
CHUNK_ROWS = 256
CHUNK_LENGTHS = (8192, 16384, 32768, 131072)
# Head dims of section H, each with the one of section A whose rate is the measure: the same heads
# make the same number of tiles.
BETWEEN = {80: 128, 96: 128, 112: 128, 192: 256}


def dense(sec: str, dim: int, heads: int, is_causal: bool, length: int) -> Case:
    """16k tokens in equal sequences, as many KV heads as query heads."""
    cfg = f"d{dim} {'causal' if is_causal else 'full  '} s{length}"
    same = (length,) * (PREFILL_TOKENS // length)
    return Case(sec, cfg, same, same, heads, heads, dim, None, is_causal)


def prefill_dense() -> list[Case]:
    """Section A: dense bf16."""
    return [
        dense("A", dim, heads, is_causal, length)
        for dim, heads in PREFILL_HEADS.items()
        for is_causal in (False, True)
        for length in PREFILL_LENGTHS
    ]


def prefill_fp16() -> list[Case]:
    """Section A16: some cases of section A in fp16."""
    return [
        replace(case, sec="A16", dtype="fp16")
        for case in prefill_dense()
        if max(case.q_lens) == 4096 or (case.head_dim, max(case.q_lens)) == (128, 16384)
    ]


def prefill_fp8() -> list[Case]:
    """Section F: the cases of section A from 1k tokens on, q, k and v in e4m3."""
    return [
        replace(case, sec="F", dtype="e4m3")
        for case in prefill_dense()
        if max(case.q_lens) in (1024, 4096, 8192, 16384)
    ]


def prefill_paged() -> list[Case]:
    """Section B: 16 prompts over a paged cache, 32/8 heads, causal."""
    found = []
    for page_size in (16, 64, 1):
        for kind in ("c1024", "u512-1024", "z1024"):
            own = tuple(lengths(kind, 16))
            cfg = f"b16 {kind} p{page_size}"
            found.append(Case("B", cfg, own, own, 32, 8, 128, page_size, True))
    return found


def windows() -> list[Case]:
    """Section W: a row sees the last 128 to 1024 keys; 16 heads, head_dim 128."""
    found = []
    for batch, length in ((4, 4096), (1, 16384)):
        for window in WINDOWS:
            cfg = f"b{batch} s{length} d128 window{window}"
            same = (length,) * batch
            found.append(Case("W", cfg, same, same, 16, 16, 128, None, True, window=window))
    return found


def latent_prefill() -> list[Case]:
    """Section M: head dims (192, 128), as MLA prefills; two sequences, 64 heads."""
    found = []
    for length in (2048, 8192):
        for is_causal in (False, True):
            cfg = f"b2 s{length} 64 heads (192,128) {'causal' if is_causal else 'full'}"
            same = (length,) * 2
            case = Case("M", cfg, same, same, 64, 64, 192, None, is_causal, value_dim=128)
            found.append(case)
    return found


def chunks() -> list[Case]:
    """Section K: the last 256 rows of one long prompt over a cache of pages of 16."""
    return [
        Case("K", f"{h}/{kv} q256 kv{n}", (CHUNK_ROWS,), (n,), h, kv, 128, 16, True)
        for h, kv in ((8, 1), (64, 8))
        for n in CHUNK_LENGTHS
    ]


def head_dims() -> list[Case]:
    """Section H: head dims between the powers of two, and those they are held against."""
    own = BETWEEN | {like: like for like in BETWEEN.values()}
    return [
        dense("H", dim, PREFILL_HEADS[like], is_causal, length)
        for is_causal in (False, True)
        for length in (4096, 16384)
        for dim, like in own.items()
    ]


def pages() -> list[Case]:
    """Section P: one causal batch with ragged KV and over pages of 64, 16 and 1; 32/8 heads."""
    found = []
    for batch, length in ((16, 1024), (4, 4096)):
        same = (length,) * batch
        for page_size in (None, 64, 16, 1):
            layout = "ragged" if page_size is None else f"p{page_size}"
            cfg = f"b{batch} c{length} {layout}"
            found.append(Case("P", cfg, same, same, 32, 8, 128, page_size, True))
    return found


def prefill() -> list[Case]:
    """All prefill cases, by section."""
    return [
        *prefill_dense(),
        *prefill_fp16(),
        *prefill_fp8(),
        *prefill_paged(),
        *windows(),
        *latent_prefill(),
        *chunks(),
        *head_dims(),
        *pages(),
    ]
