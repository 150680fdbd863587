"""Shared ranges and what requests have for themselves: one launch, in turn, or side by side."""

from __future__ import annotations

import itertools

import pytest

from cute_attn.scheduler import CostModel, Geometry, RequestBatch, level_sms

TILES = Geometry(tile_q=128, tile_kv=128, group=4, num_kv_heads=8)
COST = CostModel.for_kernel(schedule="hopper_tile")
SMS = 132


def sms_of(prefix: int, requests: int, own: int, *, num_sms: int = SMS) -> int | None:
    """Of requests that share a prefix, one query token each."""
    return level_sms(
        RequestBatch.from_lengths([requests], [prefix]),
        RequestBatch.from_lengths([1] * requests, [own] * requests),
        TILES,
        COST,
        num_sms=num_sms,
        decode_blocks_per_sm=3,
    )


@pytest.mark.parametrize(
    ("prefix", "requests", "measured"),
    # The fastest numbers of a sweep on an H200, and what is nearly as fast.
    [
        (1024, 64, range(56, 81)),
        (2048, 256, range(40, 65)),
        (8192, 64, range(90, 105)),
        (8192, 256, range(88, 100)),
        (32768, 64, range(112, 113)),
    ],
)
def test_near_what_was_measured(prefix: int, requests: int, measured: range) -> None:
    assert sms_of(prefix, requests, 128) in measured


def test_sms_of_few_long_ranges_are_a_multiple_of_their_tiles() -> None:
    for prefix in (8192, 16384, 32768):
        sms = sms_of(prefix, 64, 128)
        assert sms is not None and sms % 16 == 0, prefix  # two query tiles under eight KV heads


def test_decode_follows_where_no_share_of_the_sms_would_do() -> None:
    assert sms_of(1 << 15, 64, 16) == sms_of(1 << 14, 100, 64) == SMS


def test_few_items_join_prefill() -> None:
    assert sms_of(1 << 17, 8, 64) is None


def test_any_device() -> None:
    for num_sms, prefix, requests, own in itertools.product(
        (1, 2, 68, 132), (16, 4096, 100_000), (17, 300), (1, 5000)
    ):
        sms = sms_of(prefix, requests, own, num_sms=num_sms)
        assert sms is None or 1 <= sms <= num_sms
