"""Tile places and KV ranges against definitions spelled out with loops."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cute_attn.abi import UNBOUNDED, kv_block_range, locate_tile
from cute_attn.abi.plan import RequestRecord, pack_meta


def record(**fields: int) -> RequestRecord:
    values = dict.fromkeys(RequestRecord._fields, 0) | fields
    return RequestRecord(**values)


@given(
    q_len=st.integers(1, 200),
    group=st.integers(1, 8),
    tile_q=st.sampled_from((16, 64, 128)),
    num_kv_heads=st.integers(1, 9),
    section_heads=st.integers(1, 9),
)
def test_tile_order(
    q_len: int, group: int, tile_q: int, num_kv_heads: int, section_heads: int
) -> None:
    """Sections of heads; in a section the last query tile first; its heads side by side."""
    q_tiles = -(-q_len * group // tile_q)
    expected = [
        (head, q_tile)
        for first in range(0, num_kv_heads, section_heads)
        for q_tile in reversed(range(q_tiles))
        for head in range(first, min(first + section_heads, num_kv_heads))
    ]
    own = record(q_len=q_len, meta=pack_meta(0, 0, section_heads))
    got = [
        locate_tile(own, local, tile_q=tile_q, group=group, num_kv_heads=num_kv_heads)
        for local in range(len(expected))
    ]
    assert got == expected


@given(
    row_begin=st.integers(0, 300),
    num_rows=st.integers(1, 64),
    group=st.integers(1, 8),
    kv_len=st.integers(0, 300),
    q_pos=st.integers(-100, 300),
    kv_pos=st.integers(0, 200),
    tile_kv=st.sampled_from((16, 64)),
    window_left=st.sampled_from((UNBOUNDED, 0, 1, 50)),
    window_right=st.sampled_from((UNBOUNDED, 0, 10)),
)
def test_kv_range(
    row_begin: int,
    num_rows: int,
    group: int,
    kv_len: int,
    q_pos: int,
    kv_pos: int,
    tile_kv: int,
    window_left: int,
    window_right: int,
) -> None:
    """The tightest range of blocks that holds every key visible to some row."""
    tokens = {(row_begin + r) // group for r in range(num_rows)}
    seen = {
        key // tile_kv
        for key in range(kv_len)
        for token in tokens
        if -window_left <= (kv_pos + key) - (q_pos + token) <= window_right
    }
    begin, end = kv_block_range(
        record(kv_len=kv_len, q_pos=q_pos, kv_pos=kv_pos),
        row_begin,
        num_rows,
        tile_kv=tile_kv,
        group=group,
        window_left=window_left,
        window_right=window_right,
    )
    assert begin >= 0
    assert (begin, end) == (min(seen), max(seen) + 1) if seen else begin == end
