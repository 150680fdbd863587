"""Tensor maps of paged K and V whose boxes hold all columns: what a box brings, and where to."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch

from cute_attn.api.tensor_maps import grouped_kv_map, page_groups
from cute_attn.codegen.smem_tile import SmemTile

PAGES, HEADS = 5, 3


def pools(page_size: int, dim: int) -> dict[str, torch.Tensor]:
    """(pages, page_size, heads, dim) views of pools; every element has a value of its own."""

    def numbers(*shape: int) -> torch.Tensor:
        return torch.arange(math.prod(shape)).reshape(shape)

    padded = numbers(PAGES, page_size * HEADS * dim + 64)[:, : page_size * HEADS * dim]
    return {
        "nhd": numbers(PAGES, page_size, HEADS, dim),
        "hnd": numbers(PAGES, HEADS, page_size, dim).transpose(1, 2),
        "k and v": numbers(PAGES, 2, page_size, HEADS, dim)[:, 1],
        "k and v of a token": numbers(PAGES, page_size, 2, HEADS, dim)[:, :, 1],
        "padded pages": padded.unflatten(1, (page_size, HEADS, dim)),
        "one page": numbers(1, page_size, HEADS, dim),
        "every other page": numbers(2 * PAGES, page_size, HEADS, dim)[::2],
    }


@pytest.mark.parametrize("name", pools(16, 64))
@pytest.mark.parametrize(
    ("page_size", "dim"), [(16, 64), (48, 128), (64, 192), (16, 256), (32, 96)]
)
def test_a_box_is_rows_of_a_tile(name: str, page_size: int, dim: int) -> None:
    values = pools(page_size, dim)[name]
    groups = page_groups(values)
    assert (groups == 0) == (name == "padded pages")
    box_rows = math.gcd(page_size, 128) if groups else 8
    # The same strides in 16-bit elements; the values are numbers, to be told apart.
    view = torch.empty_strided(values.shape, values.stride(), dtype=torch.bfloat16, device="meta")
    spec = grouped_kv_map(view, box_rows)
    assert spec.box_bytes == box_rows * dim * 2
    flat = torch.as_strided(values, (values.untyped_storage().nbytes() // 8,), (1,), 0)
    steps = (1, *(stride // 2 for stride in spec.strides_bytes))
    tile = SmemTile(box_rows, dim, by_groups=True)
    for page, head, first in ((0, 0, 0), (values.shape[0] - 1, HEADS - 1, page_size - box_rows)):
        row, group = (0, page * groups + first // 8) if groups else (first, page)
        begin = (0, row, 0, head, group)
        for place, inner in enumerate(product(*(range(n) for n in reversed(spec.box)))):
            at = [b + i for b, i in zip(begin, reversed(inner), strict=True)]
            assert all(i < n for i, n in zip(at, spec.dims, strict=True))
            offset = values.storage_offset() + sum(i * s for i, s in zip(at, steps, strict=True))
            column = inner[2] * tile.panel + inner[4]
            tile_row = inner[0] * 8 + inner[3]
            assert flat[offset] == values[page, first + tile_row, head, column]
            pieces = tile.panel // 8  # what the swizzle makes of the place
            piece = (column // 8 ^ tile_row * pieces // 8) % pieces
            begin_of_row = place // tile.panel * tile.panel
            assert tile.offset(tile_row, column) == begin_of_row + piece * 8 + column % 8


def test_pages_past_the_pool_are_outside_the_map() -> None:
    """Boxes past the end of a request ask for page num_pages: zeros."""
    for name, values in pools(16, 128).items():
        view = torch.empty_strided(
            values.shape, values.stride(), dtype=torch.bfloat16, device="meta"
        )
        spec = grouped_kv_map(view, 16 if page_groups(view) else 8)
        assert values.shape[0] * (page_groups(view) or 1) >= spec.dims[4], name


def test_a_pool_without_pages_has_a_map() -> None:
    view = torch.empty(0, 16, 2, 128, dtype=torch.bfloat16)
    assert grouped_kv_map(view, 16).dims[4] >= 1
