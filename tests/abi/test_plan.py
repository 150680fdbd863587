"""The plan buffer: sections do not overlap, views write through, the meta word packs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cute_attn.abi import PlanLayout, PlanView
from cute_attn.abi.plan import (
    HEADER_FIELDS,
    MAX_BATCH,
    MAX_LEVELS,
    MAX_LISTED_ROUNDS,
    MAX_SECTION_HEADS,
    RequestRecord,
    pack_meta,
)


@given(st.integers(1, 500), st.integers(0, 5000))
def test_sections_follow_one_another(num_blocks: int, max_requests: int) -> None:
    layout = PlanLayout(num_blocks, max_requests)
    buffer = np.zeros(layout.used_size(max_requests), np.int32)
    view = PlanView(buffer, layout)
    for section in (view.header, view.starts, view.cuts, view.splits, view.requests):
        section += 1
    assert buffer.max() == 1, "two sections overlap"
    padding = layout.requests - layout.cuts_end
    assert np.count_nonzero(buffer == 0) == padding < 8, "only the padding is outside"
    assert view.cuts.shape == (num_blocks + 1, 6)
    assert view.starts.shape == (num_blocks, 16)
    assert view.splits.shape == (num_blocks, 4)
    assert view.requests.shape == (max_requests + 1, 8)
    assert layout.places(max_requests) == layout.used_size(max_requests) == buffer.size
    assert layout.used_size(max_requests, MAX_LISTED_ROUNDS) == layout.size


@given(st.integers(2, 500), st.integers(0, 50), st.integers(1, MAX_LISTED_ROUNDS))
def test_places_lie_behind_the_records(num_blocks: int, num_requests: int, rounds: int) -> None:
    layout = PlanLayout(num_blocks, 50)
    buffer = np.zeros(layout.used_size(num_requests, rounds), np.int32)
    PlanView(buffer, layout).set(places=layout.places(num_requests))
    view = PlanView(buffer, layout)
    assert view.requests.shape == (num_requests + 1, 8)
    assert view.places.shape == (rounds, num_blocks)
    view.places[:] = 0xFFFF
    assert (view.requests == 0).all() and (view.cuts == 0).all()
    assert view.get("places") == layout.places(num_requests), "the header is not overwritten"


@given(st.integers(1, 500))
def test_vector_loads_are_aligned(num_blocks: int) -> None:
    """Kernels read starts as 64-byte, splits as 16-byte, cuts as 24-byte and records as 32-byte
    structs."""
    layout = PlanLayout(num_blocks, 3)
    assert 4 * layout.starts % 64 == 0
    assert 4 * layout.cuts % 8 == 0
    assert 4 * layout.splits % 16 == 0
    assert 4 * layout.requests % 32 == 0


def test_offsets_do_not_depend_on_the_batch() -> None:
    small, large = PlanLayout(132, 1), PlanLayout(132, 4096)
    assert (small.cuts, small.splits, small.requests) == (large.cuts, large.splits, large.requests)


def test_a_view_of_the_used_prefix() -> None:
    layout = PlanLayout(8, 100)
    view = PlanView(np.zeros(layout.used_size(3), np.int32), layout)
    assert view.requests.shape == (4, 8)


def test_header_by_name() -> None:
    layout = PlanLayout(2, 1)
    view = PlanView(np.zeros(layout.size, np.int32), layout)
    view.set(group=7, tile_q=64)
    assert (view.get("group"), view.get("tile_q")) == (7, 64)
    assert view.header[HEADER_FIELDS.index("group")] == 7
    assert len(HEADER_FIELDS) == 16


@pytest.mark.parametrize("buffer", [np.zeros(500, np.int64), np.zeros((5, 100), np.int32)])
def test_wrong_buffer(buffer: np.ndarray) -> None:
    with pytest.raises(TypeError, match="1-D int32"):
        PlanView(buffer, PlanLayout(1, 1))


@given(
    st.integers(0, MAX_BATCH - 1),
    st.integers(0, MAX_LEVELS - 1),
    st.integers(1, MAX_SECTION_HEADS),
)
def test_meta_word(batch: int, level: int, section_heads: int) -> None:
    meta = int(np.int32(pack_meta(batch, level, section_heads)))
    record = RequestRecord(0, 0, 0, 0, 0, 0, 0, meta)
    assert (record.batch, record.level, record.section_heads) == (batch, level, section_heads)
