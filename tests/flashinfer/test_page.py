"""Places of new tokens, and appending them to a cache."""

from __future__ import annotations

import pytest
import torch

import cute_attn.flashinfer as flashinfer
from tests.flashinfer.cases import Cache, indptr, int32, random


def test_places_of_new_tokens() -> None:
    appended, total = indptr([2, 0, 3]), int32(9, 4, 3)
    requests, positions = flashinfer.get_batch_indices_positions(appended, total, 7)
    assert requests.tolist() == [0, 0, 2, 2, 2, -1, -1] and requests.dtype == torch.int32
    assert positions.tolist() == [7, 8, 0, 1, 2, 0, 0] and positions.dtype == torch.int32
    given = torch.empty(5).int(), torch.empty(5).int()
    got = flashinfer.get_batch_indices_positions(appended, total, 5, *given)
    assert got[0] is given[0] and got[1] is given[1]
    assert torch.equal(given[0], requests[:5]) and torch.equal(given[1], positions[:5])
    with pytest.raises(ValueError, match=r"positions has shape \(4,\): nnz is 4"):
        flashinfer.get_batch_indices_positions(appended, total, 5, given[0], given[1][:4])
    lengths = flashinfer.get_seq_lens(int32(0, 3, 3, 4), int32(2, 0, 5), 5)
    assert lengths.tolist() == [12, 0, 5]


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("pair", [False, True])
def test_append(layout: str, pair: bool) -> None:
    filled = Cache([9, 5], 2, 16, 4, layout=layout)
    empty = torch.full_like(filled.whole, float("nan"))
    where = flashinfer.get_batch_indices_positions(int32(0, 9, 14), int32(9, 5), 15)
    pad = torch.zeros(1, 2, 16)
    rows = (torch.cat([*own, pad]) for own in (filled.keys, filled.values))
    target = (empty[:, 0], empty[:, 1]) if pair else empty
    begin, indices, last = filled.index
    flashinfer.append_paged_kv_cache(*rows, *where, target, indices, begin, last, layout)
    torch.testing.assert_close(empty, filled.whole, equal_nan=True, atol=0, rtol=0)
    with pytest.raises(NotImplementedError, match=r"paged_kv_cache is torch\.float8_e5m2"):
        fp8 = empty.to(torch.float8_e5m2)
        flashinfer.append_paged_kv_cache(pad, pad, *where, fp8, indices, begin, last, layout)


def test_append_latent_rows() -> None:
    ckv, kpe = random(0, 3, 512), random(1, 3, 64)
    caches = torch.zeros(2, 4, 512), torch.zeros(2, 4, 64)
    where = flashinfer.get_batch_indices_positions(int32(0, 3), int32(5), 3)
    index = int32(1, 0), int32(0, 2), int32(1)
    flashinfer.append_paged_mla_kv_cache(ckv, kpe, *where, *caches, *index)
    for cache, rows in zip(caches, (ckv, kpe), strict=True):
        assert torch.equal(cache[1, 2:], rows[:2]) and torch.equal(cache[0, 0], rows[2])
        assert cache.count_nonzero() == rows.numel()
