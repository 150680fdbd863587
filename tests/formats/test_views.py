"""Named strides of caches of every layout, checked by reading memory through them; gathering."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle
import pytest
import torch

from cute_attn.formats import (
    BlockSparseKV,
    BlockTableKV,
    PagedKV,
    RaggedKV,
    Strides,
    as_numpy,
    gather_kv,
    kv_views,
    paged_views,
    ragged_views,
)

PAGES, SIZE, HEADS, DIM = 7, 5, 3, 8


def paged_cache(form: str, layout: str, rng: np.random.Generator) -> tuple[Any, Any, Any]:
    """(cache as given, k, v), k and v in the given layout."""
    shape = (SIZE, HEADS) if layout == "NHD" else (HEADS, SIZE)
    if form == "one":
        cache = rng.standard_normal((PAGES, 2, *shape, DIM))
        return cache, cache[:, 0], cache[:, 1]
    if form == "pair":
        k, v = (rng.standard_normal((PAGES, *shape, DIM)) for _ in range(2))
        return (k, v), k, v
    # Slices of larger arrays: k and v have different strides, v another head_dim.
    k = rng.standard_normal((2 * PAGES, shape[0], shape[1] + 1, DIM + 4))[::2, :, :-1, :DIM]
    v = rng.standard_normal((PAGES, shape[0] + 2, shape[1], 2 * DIM))[:, :-2, :, : DIM // 2]
    return (k, v), k, v


def read(view: Any, strides: Strides, page: int, token: int, head: int) -> Any:
    """One row, fetched as a kernel does: base address and element strides."""
    base = view.base if view.base is not None else view
    flat = np.lib.stride_tricks.as_strided(view, (1,), (view.itemsize,))
    address = flat.__array_interface__["data"][0]
    offset = page * strides.page + token * strides.token + head * strides.head
    start = (address - base.__array_interface__["data"][0]) // view.itemsize + offset
    return base.reshape(-1)[start : start + view.shape[-1]]


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("form", ["one", "pair", "strided"])
def test_paged_strides(form: str, layout: str) -> None:
    cache, k, v = paged_cache(form, layout, np.random.default_rng(0))
    views = paged_views(cache, layout)
    assert (views.num_pages, views.page_size, views.num_kv_heads) == (PAGES, SIZE, HEADS)
    assert (views.head_dim_qk, views.head_dim_vo) == (k.shape[-1], v.shape[-1])
    for given, view, strides in ((k, views.k, views.k_strides), (v, views.v, views.v_strides)):
        for page, token, head in ((0, 0, 0), (6, 4, 2), (3, 1, 2)):
            expected = given[page, token, head] if layout == "NHD" else given[page, head, token]
            assert np.array_equal(view[page, token, head], expected)
            assert np.array_equal(read(view, strides, page, token, head), expected)


def test_torch_and_numpy_strides_agree() -> None:
    cache = torch.zeros(PAGES, 2, HEADS, SIZE, DIM, dtype=torch.bfloat16)
    views = paged_views(cache, "HND")
    array = paged_views(np.zeros((PAGES, 2, HEADS, SIZE, DIM), np.float16), "HND")
    assert views.k_strides == array.k_strides == Strides(2 * HEADS * SIZE * DIM, DIM, SIZE * DIM)
    assert views.v.data_ptr() == cache[:, 1].data_ptr(), "a view, not a copy"


def test_strides_are_exact_beyond_32_bits() -> None:
    # A view of memory that does not exist; only its strides are looked at.
    shape, strides = (1 << 20, 16, 8, 128), (1 << 17, 16 * 128, 2 * 128, 2)
    k = np.lib.stride_tricks.as_strided(np.zeros(1, np.float16), shape, strides)
    assert paged_views((k, k)).k_strides.page * ((1 << 20) - 1) == (1 << 36) - (1 << 16)


def test_ragged_strides() -> None:
    k = np.arange(10 * 3 * 8.0).reshape(10, 3, 8)
    views = ragged_views(k, k)
    assert views.k_strides == Strides(0, 24, 8)
    views = ragged_views(k.swapaxes(0, 1), k.swapaxes(0, 1), "HND")
    assert views.k_strides == Strides(0, 24, 8)
    assert np.shares_memory(views.k, k)


@pytest.mark.parametrize(
    ("cache", "layout", "error", "message"),
    [
        (np.zeros((3, 4, 5, 8)), "NHD", ValueError, r"shape \(3, 4, 5, 8\).*\(pages, 2"),
        (np.zeros((3, 3, 4, 5, 8)), "NHD", ValueError, r"\(pages, 2"),
        ((np.zeros((3, 4, 5, 8)),) * 3, "NHD", ValueError, "tuple of 3"),
        ((np.zeros((3, 4, 5, 8)),) * 2, "NDH", ValueError, "kv_layout is 'NDH'"),
        ((np.zeros((3, 4, 8)),) * 2, "HND", ValueError, r"pages, num_kv_heads, page_size"),
        (
            (np.zeros((3, 4, 5, 8)), np.zeros((3, 4, 6, 8))),
            "NHD",
            ValueError,
            r"v \(3, 4, 6, 8\); only head_dim may differ",
        ),
        (
            (np.zeros((3, 4, 5, 8)), np.zeros((3, 4, 5, 8), np.float32)),
            "NHD",
            TypeError,
            "k is float64 and v is float32",
        ),
        ((np.zeros((3, 4, 5, 16))[..., ::2],) * 2, "NHD", ValueError, "must be contiguous"),
    ],
)
def test_bad_caches(cache: Any, layout: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        paged_views(cache, layout)


def test_a_cache_that_does_not_fit_the_format() -> None:
    paged = PagedKV([0, 2], [0, 6], [1], SIZE)
    shape = (PAGES, SIZE, HEADS, DIM)
    kv_views(paged, np.zeros(shape), np.zeros(shape))
    with pytest.raises(ValueError, match="page 6 but the cache has 6 pages"):
        kv_views(paged, np.zeros((6, *shape[1:])), np.zeros((6, *shape[1:])))
    with pytest.raises(ValueError, match="pages of 3 keys but page_size is 5"):
        kv_views(paged, np.zeros(shape), np.zeros(shape), "HND")
    with pytest.raises(ValueError, match="k has 4 rows but the format describes 5"):
        kv_views(RaggedKV([0, 5]), np.zeros((4, 1, 8)), np.zeros((4, 1, 8)))
    with pytest.raises(ValueError, match="v is None"):
        kv_views(RaggedKV([0, 5]), np.zeros((5, 1, 8)))
    with pytest.raises(ValueError, match="k has 24 rows but num_cols is 20"):
        sparse = BlockSparseKV([0, 1], [0], (4, 4), 4, 20)
        kv_views(sparse, np.zeros((24, 1, 8)), np.zeros((24, 1, 8)))


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("form", ["one", "pair", "strided"])
@pytest.mark.parametrize("table", ["csr", "padded"])
def test_gather_paged(form: str, layout: str, table: str) -> None:
    cache, k, v = paged_cache(form, layout, np.random.default_rng(1))
    if table == "csr":
        paged: Any = PagedKV([0, 3, 3, 5], [4, 0, 6, 2, 2], [2, 0, 5], SIZE)
    else:
        paged = BlockTableKV([[4, 0, 6], [9, 9, 9], [2, 2, -1]], [12, 0, 10], SIZE)
    views = kv_views(paged, cache, None, layout)
    for request, pages in enumerate(([4, 0, 6], [], [2, 2])):
        length = int(paged.kv_len[request])
        keys, values = gather_kv(paged, views, request)
        expected = oracle.gather_paged(k, v, pages, length, layout)
        assert np.array_equal(keys, expected[0])
        assert np.array_equal(values, expected[1])
        part = gather_kv(paged, views, request, 3, 9)[0]
        assert np.array_equal(part, expected[0][3:9])


def test_gather_ragged_and_block_sparse() -> None:
    rng = np.random.default_rng(2)
    k, v = rng.standard_normal((20, 2, 8)), rng.standard_normal((20, 2, 4))
    ragged = RaggedKV([0, 7, 20])
    keys, values = gather_kv(ragged, kv_views(ragged, k, v), 1, 2, 100)
    assert np.array_equal(keys, k[9:20])
    assert np.array_equal(values, v[9:20])
    sparse = BlockSparseKV([0, 2, 3], [3, 1, 4], (8, 4), 16, 20)
    for layout in ("NHD", "HND"):
        given = (k, v) if layout == "NHD" else (k.swapaxes(0, 1), v.swapaxes(0, 1))
        views = kv_views(sparse, *given, layout)
        assert np.shares_memory(views.k, k), "column blocks are views"
        assert views.k_strides == Strides(4 * 16, 16, 8)
        keys, values = gather_kv(sparse, views, 0)
        rows = [12, 13, 14, 15, 4, 5, 6, 7]
        assert np.array_equal(keys, k[rows])
        assert np.array_equal(values, v[rows])


def test_gather_takes_tensors() -> None:
    cache = torch.randn(PAGES, 2, SIZE, HEADS, DIM, dtype=torch.bfloat16)
    paged = PagedKV([0, 2], [3, 1], [2], SIZE)
    keys, values = gather_kv(paged, kv_views(paged, cache), 0)
    assert keys.dtype == np.float32
    expected = oracle.gather_paged(cache[:, 0], cache[:, 1], [3, 1], 7)
    assert np.array_equal(keys, expected[0])
    assert np.array_equal(values, expected[1])
    assert as_numpy(torch.ones(2, requires_grad=True)).tolist() == [1, 1]
