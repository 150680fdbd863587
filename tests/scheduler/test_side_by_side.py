"""How many SMs prefill gets beside decode."""

from __future__ import annotations

import numpy as np
import pytest

from cute_attn.scheduler import CostModel, Geometry, RequestBatch, plan_batch, prefill_sms

GEOMETRY = Geometry(128, 128, 4, 8, window_right=0)
COST = CostModel.for_kernel(128, 128, schedule="hopper_tile")


def sms(
    prefill: tuple[int, int], decodes: int, keys: int, geometry: Geometry = GEOMETRY
) -> int | None:
    """Of 132, for one prefill of (query tokens, keys) and `decodes` of `keys` each."""
    q_len, kv_len = prefill
    return prefill_sms(
        RequestBatch.from_lengths([q_len], [kv_len]),
        RequestBatch.from_lengths([1] * decodes, [keys] * decodes),
        geometry,
        COST,
        num_sms=132,
        decode_blocks_per_sm=3,
    )


def test_more_work_gets_more_sms() -> None:
    by_prefill = [sms((q, q + 4000), 64, 8000) for q in (64, 500, 2000, 4000, 6000)]
    assert None not in by_prefill and by_prefill == sorted(set(by_prefill))
    by_decode = [sms((4000, 4000), 64, keys) for keys in (2000, 8000, 40_000)]
    assert None not in by_decode and by_decode == sorted(set(by_decode), reverse=True)
    assert min(by_prefill + by_decode) >= 1 and max(by_prefill + by_decode) <= 131


def test_a_balance() -> None:
    """2,000 rows over 40k keys are 2 ms of the whole device, 40 decodes of 16k 0.6 ms."""
    found = sms((2000, 40_000), 40, 16_000)
    assert found is not None and 95 <= found <= 115


@pytest.mark.parametrize(("decodes", "keys"), [(1, 1000), (16, 1000), (0, 0), (40, 0)])
def test_little_decode_is_not_worth_a_launch(decodes: int, keys: int) -> None:
    assert sms((2000, 8000), decodes, keys) is None


def test_little_decode_for_its_prefill() -> None:
    assert sms((2000, 2000), 48, 2000) is not None
    assert sms((8000, 8000), 48, 2000) is None


def test_keys_outside_the_window_do_not_count() -> None:
    band = Geometry(128, 128, 4, 8, window_left=1023, window_right=0)
    assert sms((4000, 4000), 16, 50_000, band) is None
    assert sms((4000, 4000), 16, 50_000) is not None


def test_no_prefill() -> None:
    none = RequestBatch.from_lengths([], [])
    decode = RequestBatch.from_lengths([1] * 64, [9000] * 64)
    options = {"num_sms": 132, "decode_blocks_per_sm": 3}
    assert prefill_sms(none, decode, GEOMETRY, COST, **options) is None


def test_a_selection_keeps_names_and_positions() -> None:
    whole = RequestBatch([0, 5, 6], [5, 1, 2], [0, 9, 20], [9, 11, 3], [1, 2, 3], [4, 5, 6])
    part = whole.select(np.array([True, False, True])).select(np.array([False, True]))
    assert part.ids is not None and part.ids.tolist() == [2]
    assert part.table.T.tolist() == [[6, 2, 20, 3, 3, 6]]
    plan = plan_batch(part, GEOMETRY, 4)
    assert plan.view.requests[0, 7] & 0xFFFFF == 2
    for ids, message in (([1], "ids has 1 entries"), ([0, 1, -1], "ids are"), ([0, 1, 2.0], "ids")):
        with pytest.raises((ValueError, TypeError), match=message):
            RequestBatch([0] * 3, [1] * 3, [0] * 3, [1] * 3, ids=ids)
