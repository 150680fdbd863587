"""Launches that start before their predecessor has ended, and need what it wrote."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.serving import EVERYTHING, assert_chain, serving_attention, serving_batch

pytestmark = pytest.mark.gpu

LINKS = 12
BATCHES = {
    "decode": [(1, 900), (1, 20_000), (1, 1), (1, 3000), (1, 64)],
    "prefill": [(700, 700), (1, 40), (130, 9000), (1, 12_000)],
    "everything": EVERYTHING,
    "side by side": [(700, 700), *[(1, 12_000)] * 9],
}


@pytest.mark.parametrize("captured", [False, True], ids=["stream", "graph"])
@pytest.mark.parametrize(
    ("schedule", "page_size"), [(None, 16), (None, 0), (None, 3), ("ampere_tile", 16)]
)
@pytest.mark.parametrize("name", BATCHES)
def test_a_chain_gives_the_bits_of_single_calls(
    schedule: str | None, name: str, page_size: int, captured: bool, device: torch.device
) -> None:
    """The output of a call is the queries of the next, with nothing between them."""
    batch = serving_batch(BATCHES[name], device, page_size=page_size)
    wrapper = serving_attention(device, schedule=schedule)
    wrapper.plan(batch.qo_indptr, batch.kv_format)
    assert_chain([wrapper.run] * LINKS, batch, captured=captured)
