"""Appending to a paged cache: new rows in their places, rotated if wanted, everything else as it
was."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from cute_attn import BlockTableKV, DeviceKV, PagedKV, RoPE, append_paged_kv
from cute_attn.formats import KVFormat
from tests.gpu.batches import DTYPES, indptr, nans
from tests.gpu.check import BOUNDS
from tests.gpu.specs import APPENDS

pytestmark = pytest.mark.gpu

LENGTHS = [40, 1, 0, 129, 1000]
HEADS = 3


def rotated(x: torch.Tensor, positions: torch.Tensor, rope: RoPE) -> torch.Tensor:
    """Rotary embedding in float64 (Su et al., RoFormer, eq. 34).

    Args:
        x: (tokens, heads, dim) float64.
        positions: (tokens,).
    """
    half = x.shape[-1] // 2
    powers = -torch.arange(half, device=x.device, dtype=torch.float64) / half
    angles = (positions.double() / rope.scale)[:, None, None] * rope.theta**powers
    cos, sin = angles.cos(), angles.sin()
    if rope.style == "half_split":
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)


@pytest.mark.parametrize(("dtype", "dim", "style"), APPENDS, ids=str)
@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_append(
    dtype: str,
    dim: int,
    style: str | None,
    layout: str,
    page_size: int,
    device: torch.device,
    record: Callable[..., None],
) -> None:
    generator = torch.Generator(device).manual_seed(page_size)
    rope = RoPE(style, theta=500000.0, scale=2.0) if style else None
    counts = [-(-n // page_size) for n in LENGTHS]
    total = sum(counts) + 4
    order = torch.randperm(total, generator=generator, device=device)
    inner = (page_size, HEADS) if layout == "NHD" else (HEADS, page_size)
    cache = nans((total, 2, *inner, dim), DTYPES[dtype], device)
    last = [n - (c - 1) * page_size if c else 0 for n, c in zip(LENGTHS, counts, strict=True)]
    kv_format: KVFormat
    if page_size == 3:
        table = torch.zeros(len(counts), max(counts), dtype=torch.int32, device=device)
        for row, own in zip(table, order[: sum(counts)].split(counts), strict=True):
            row[: len(own)] = own.int()
        kv_format = BlockTableKV(table, LENGTHS, page_size)
    elif page_size == 1:
        lists = (torch.tensor(x, dtype=torch.int32, device=device) for x in (indptr(counts), last))
        begin, last_len = lists
        kv_format = DeviceKV.from_paged(begin, order.int(), last_len, page_size)
    else:
        kv_format = PagedKV(indptr(counts), order.int(), last, page_size)

    # A random half of all positions is new; some rows are padding.
    request = torch.cat([torch.full((n,), i, device=device) for i, n in enumerate(LENGTHS)])
    position = torch.cat([torch.arange(n, device=device) for n in LENGTHS])
    chosen = torch.randperm(len(request), generator=generator, device=device)[: len(request) // 2]
    request, position = request[chosen].int(), position[chosen].int()
    padding = torch.rand(len(request), generator=generator, device=device) < 0.1
    rows = torch.randn(2, len(request), 2 * HEADS, dim, generator=generator, device=device)
    key, value = (x[:, :HEADS] for x in rows.to(DTYPES[dtype]))  # strided
    append_paged_kv(
        key,
        value,
        torch.where(padding, -1, request).int(),
        position,
        cache,
        None,
        kv_format,
        kv_layout=layout,
        rope=rope,
    )

    starts = torch.tensor(indptr(counts), device=device)
    pages = order[(starts[request] + position // page_size)[~padding]]
    slots = (position % page_size)[~padding]
    k, v = (x if layout == "NHD" else x.transpose(1, 2) for x in (cache[:, 0], cache[:, 1]))
    want_k = key.double()[~padding]
    if rope:
        want_k = rotated(want_k, position[~padding], rope)
        err = float((k[pages, slots].double() - want_k).norm() / want_k.norm())
        assert err <= BOUNDS[dtype]
        # The worst element, relative to what its pair can reach.
        assert (k[pages, slots].double() - want_k).abs().max() <= 2**-7 * want_k.abs().max()
    else:
        err = float((k[pages, slots] != key[~padding]).sum())
        assert err == 0
    assert torch.equal(v[pages, slots], value[~padding])
    k[pages, slots] = torch.nan
    v[pages, slots] = torch.nan
    assert cache.isnan().all(), "slots that were not appended to have changed"
    record("G", f"append {dtype} d{dim} {style} {layout} p{page_size}", err=err)


def test_rope_is_exact_at_far_positions(device: torch.device) -> None:
    """A float32 product position * frequency is off by whole turns here."""
    dim = 64
    position = torch.tensor([2**20 + 1, 2**24 + 3, 2**30 + 7], dtype=torch.int32, device=device)
    page_size = 2**29
    key = torch.randn(3, 1, dim, device=device).half()
    # One request, all of whose slots are the same memory.
    cache, other = torch.zeros(2, 1, dim, device=device, dtype=torch.float16)
    k, v = (x.as_strided((4, page_size, 1, dim), (0, 0, dim, 1)) for x in (cache, other))
    kv_format = PagedKV([0, 4], torch.zeros(4, dtype=torch.int32), [page_size], page_size)
    rope = RoPE("half_split")
    for i in range(3):
        rows = slice(i, i + 1)
        index = torch.zeros(1, dtype=torch.int32, device=device)
        append_paged_kv(key[rows], key[rows], index, position[rows], k, v, kv_format, rope=rope)
        want = rotated(key[rows].double(), position[rows], rope)
        assert (cache.double() - want[0]).abs().max() <= 2e-3 * want.abs().max()
