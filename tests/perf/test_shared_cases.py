"""The benchmark's decodes that share keys."""

from __future__ import annotations

import numpy as np
import pytest

from cute_attn.scheduler import sharing
from perf.cases import shared
from perf.cases.shared import SharedCase

CASES = {
    case.cfg: case
    for case in [*shared.parallel_generation(), *shared.shared_prefix(), *shared.trace_prefixes()]
}


def test_names_are_unique() -> None:
    assert len(CASES) == len(shared.all_shared()) == 36


@pytest.mark.parametrize("case", CASES.values(), ids=str)
def test_page_tables_fit_the_lengths(case: SharedCase) -> None:
    pages = -(-np.array(case.kv_len) // shared.PAGE_SIZE)
    assert pages.tolist() == [len(table) for table in case.tables]
    assert case.kv.kv_len.tolist() == list(case.kv_len)


@pytest.mark.parametrize(
    "cfg",
    [
        "azure-chat 1246, n8",
        "azure-chat 1246, n32",
        "mooncake 9924, n4",
        "prefix 1024 + 128, b16",
        "prefix 32768 + 128, b64",
        "mooncake-4000",
    ],
)
def test_auto_is_no_worse_by_prediction(cfg: str) -> None:
    case = CASES[cfg]
    flat, auto = (shared.planned(case, share, "cpu") for share in ("never", "auto"))
    us = shared.predicted_us(auto, case) + (auto.levels is not None) * sharing.STEP_US
    assert us <= shared.predicted_us(flat, case) / 0.99
    assert shared.read_bytes(auto, case) <= shared.read_bytes(flat, case) == case.flat_bytes


def test_a_long_prefix_pays() -> None:
    case = CASES["prefix 32768 + 128, b64"]
    flat, auto = (shared.planned(case, share, "cpu") for share in ("never", "auto"))
    assert shared.read_bytes(auto, case) == shared.KEY_BYTES * (32768 + 64 * 128)
    assert shared.predicted_us(flat, case) > 20 * shared.predicted_us(auto, case)
