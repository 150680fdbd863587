"""Decode (sections C, Q; MLA: D, DH), real continuous-batching steps (T) and a mixed batch (X)."""

from __future__ import annotations

from cute_attn.workloads import load_steps
from perf.cases.case import Case, lengths


def decode() -> list[Case]:
    """Section C: one token per request over a paged cache."""
    found = []
    shapes = [((32, 8), 16), ((32, 8), 1), ((32, 8), 64), ((64, 8), 16), ((32, 32), 16)]
    for (heads, kv_heads), page_size in shapes:
        for kind in ("c1024", "c8192", "u1-8192", "z2048"):
            for batch in (1, 4, 16, 64, 256):
                cfg = f"{heads}/{kv_heads} p{page_size} {kind} b{batch}"
                found.append(_decode(cfg, kind, batch, heads, kv_heads, 128, page_size))
    for dim in (64, 256):
        cfg = f"32/8 d{dim} p16 c8192 b64"
        found.append(_decode(cfg, "c8192", 64, 32, 8, dim, 16))
    return found


def _decode(
    cfg: str, kind: str, batch: int, heads: int, kv_heads: int, dim: int, page_size: int
) -> Case:
    own = tuple(lengths(kind, batch))
    return Case("C", cfg, (1,) * batch, own, heads, kv_heads, dim, page_size, True)


def few_tokens() -> list[Case]:
    """Section Q: a few tokens per request, as in speculative decoding."""
    found = []
    for tokens in (1, 2, 4, 8, 16):
        cfg = f"64/8 q{tokens} b16 c8192"
        found.append(Case("Q", cfg, (tokens,) * 16, (8192,) * 16, 64, 8, 128, 16, True))
    return found


def latent() -> list[Case]:
    """Sections D and DH: decode of multi-head latent attention in its absorbed form; 128 heads as
    the peers, and fewer, as of tensor-parallel ranks, or more tokens."""
    found = []
    for heads, tokens in ((128, 1), (16, 1), (32, 1), (64, 1), (128, 2), (128, 4), (16, 4)):
        for page_size in (64, 1) if tokens == 1 else (64,):
            for kind in ("c1024", "c8192"):
                for batch in (1, 16, 64, 128):
                    cfg = f"p{page_size} {kind} b{batch}"
                    sec, cfg = ("D", f"mla {cfg}")
                    if (heads, tokens) != (128, 1):
                        sec, cfg = "DH", f"{cfg[:3]} h{heads} q{tokens}{cfg[3:]}"
                    q_lens, kv_lens = (tokens,) * batch, tuple(lengths(kind, batch))
                    found.append(
                        Case(sec, cfg, q_lens, kv_lens, heads, 1, 576, page_size, True, None, 512)
                    )
    return found


def mixed() -> list[Case]:
    """Section X: one prefill chunk and many decodes, and either alone."""
    chunk, decodes = ((2048,), (8192,)), ((1,) * 128, (4096,) * 128)
    parts = {
        "2048@8192 + 128x4096": (chunk[0] + decodes[0], chunk[1] + decodes[1]),
        "2048@8192": chunk,
        "128x4096": decodes,
    }
    return [Case("X", cfg, *lens, 32, 8, 128, 16, True) for cfg, lens in parts.items()]


def steps() -> list[Case]:
    """Section T: real continuous-batching steps, 32/8 heads, page size 16, causal."""
    return [
        Case("T", step.name, step.q_lens, step.kv_lens, 32, 8, 128, 16, True)
        for step in load_steps()
    ]
