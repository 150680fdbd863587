"""Steps of prefill and decode: two launches that share the GPU, and when there is one."""

from __future__ import annotations

import itertools
from typing import Any
from unittest import mock

import pytest
import torch

from cute_attn import PagedKV, causal, document_mask, soft_cap
from cute_attn.scheduler import ARRIVALS_BYTES, RequestBatch

BF16 = torch.bfloat16
PAGES = [3500, 10, 3500]  # of 16 tokens, all of them page 0
Q_LENS = [1, 100, 1]


def step(q_lens: list[int], pages: list[int]) -> tuple[list[int], PagedKV]:
    """Requests of whole pages."""
    rows, entries = [0], [0]
    for q_len, count in zip(q_lens, pages, strict=True):
        rows.append(rows[-1] + q_len)
        entries.append(entries[-1] + count)
    return rows, PagedKV(entries, [0] * entries[-1], [16] * len(pages), 16)


def run(batch: Any, rows: int) -> torch.Tensor:
    q = torch.zeros(rows, 8, 128, dtype=BF16)
    batch.run(q, torch.zeros(1, 2, 16, 2, 128, dtype=BF16), return_lse=True)
    return q


def test_two_launches_share_the_sms(fake_gpu: Any) -> None:
    batch = fake_gpu.batch(8, 2, 128)
    batch.plan(*step(Q_LENS, PAGES))
    prefill_plan, decode_plan = batch.plans
    assert batch.last_plan is prefill_plan
    assert (prefill_plan.num_requests, decode_plan.num_requests) == (1, 2)
    # Hooks and tensors know requests by their place in the step.
    ids = [plan.view.requests[: plan.num_requests, 7] & 0xFFFFF for plan in batch.plans]
    assert ids[0].tolist() == [1] and sorted(ids[1].tolist()) == [0, 2]

    q = run(batch, 102)
    prefill, decode = fake_gpu.launches
    assert prefill.name.startswith("hopper_tile") and decode.name.startswith("ampere_decode")
    assert [kernel.name for kernel in batch.kernels] == [prefill.name, decode.name]
    assert not prefill.overlap and decode.overlap and decode.params["beside"] == 1
    per_sm = batch.kernels[1].spec.tile.blocks_per_sm
    assert 1 <= prefill.grid <= 3 and decode.grid == (4 - prefill.grid) * per_sm
    assert decode.params["q"] == q.data_ptr()
    for name in ("out", "lse", "page_table", "num_pages", "scale_log2"):
        assert prefill.params[name] == decode.params[name] != 0
    for name in ("plan", "arrivals", "partial_out", "partial_lse"):
        assert prefill.params[name] != decode.params[name]


def test_ranges_of_tensors_are_made_once_for_both_launches(fake_gpu: Any) -> None:
    """Ahead of the first: the second one does not wait for its predecessor."""
    batch = fake_gpu.batch(8, 2, 128, variant=causal() & document_mask())
    document = torch.zeros(3, 1 << 16, dtype=torch.int32)
    batch.plan(*step(Q_LENS, PAGES), tensors={"document": document})
    run(batch, 102)
    names = [launch.name.split("_bf16")[0] for launch in fake_gpu.launches]
    assert names[0].startswith("ranges_document_")
    assert names[1:] == ["hopper_tile", "ampere_decode"]
    assert len({launch.params["document_ranges"] for launch in fake_gpu.launches}) == 1


def test_live_scalars_are_sent_once_for_both_launches(fake_gpu: Any) -> None:
    batch = fake_gpu.batch(8, 2, 128, variant=(causal() & soft_cap()).live())
    batch.plan(*step(Q_LENS, PAGES), scalars={"logits_soft_cap": 7.0})
    assert len(batch.plans) == 2 and fake_gpu.uploads == 3
    run(batch, 102)
    assert len({launch.params["logits_soft_cap"] for launch in fake_gpu.launches}) == 1


@pytest.mark.parametrize("q_lens", [[1, 1, 1], [100, 9, 30]])
def test_requests_of_one_kind_are_not_taken_apart(fake_gpu: Any, q_lens: list[int]) -> None:
    batch = fake_gpu.batch(8, 2, 128)
    with mock.patch.object(RequestBatch, "select", autospec=True) as select:
        batch.plan(*step(q_lens, PAGES))
    assert len(batch.plans) == 1 and not select.called


def test_both_launches_are_explained(fake_gpu: Any) -> None:
    batch = fake_gpu.batch(8, 2, 128)
    with pytest.raises(RuntimeError, match=r"explain\(\) before plan\(\)"):
        batch.explain()
    explanation = batch.plan(*step(Q_LENS, PAGES)).explain()
    prefill, decode = explanation.launches
    assert (prefill.name, decode.name) == ("hopper_tile", "ampere_decode")
    assert (prefill.plan, decode.plan) == batch.plans
    assert prefill.num_sms + decode.num_sms == 4
    assert decode.blocks_per_sm == batch.kernels[1].spec.tile.blocks_per_sm
    # Keys of 256 bytes and as many of values, of each of two KV heads.
    assert decode.kv_bytes == 2 * 3500 * 16 * 2 * 512
    assert prefill.distinct_kv_bytes == 10 * 16 * 2 * 512
    assert "hopper_tile" in str(explanation) and "ampere_decode" in str(explanation)


def test_one_workspace_holds_both(fake_gpu: Any) -> None:
    size = fake_gpu.batch(8, 2, 128).workspace_size(16)
    raw = torch.zeros(size + 128, dtype=torch.uint8)
    memory = raw[-raw.data_ptr() % 128 :][:size]
    batch = fake_gpu.batch(8, 2, 128, workspace=memory).plan(*step(Q_LENS, PAGES))
    run(batch, 102)
    base, ranges = memory.data_ptr(), []
    for launch, kernel in zip(fake_gpu.launches, batch.kernels, strict=True):
        tile = kernel.spec.tile
        slots = 2 * (4 * tile.blocks_per_sm - 1)
        for name, bytes_per_slot in (
            ("arrivals", 4), ("partial_out", tile.q * 128 * 4), ("partial_lse", tile.q * 4),
        ):  # fmt: skip
            begin = launch.params[name] - base
            ranges.append((begin, begin + slots * bytes_per_slot))
            assert (begin < ARRIVALS_BYTES) == (name == "arrivals")
    ranges.sort()
    assert ranges[0][0] >= 0 and ranges[-1][1] <= size
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ranges))

    small = fake_gpu.batch(8, 2, 128, workspace=memory[: size - 256])
    with pytest.raises(ValueError, match=rf"workspace has {size - 256} bytes.*needs {size}"):
        # 16 packed rows, and many tiles: the kernel with the most partial rows.
        small.plan(*step([4, 100, *[1] * 9], [*PAGES, *[3500] * 8]))


def test_later_steps_of_one_kind_are_one_launch(fake_gpu: Any) -> None:
    batch = fake_gpu.batch(8, 2, 128).plan(*step(Q_LENS, PAGES))
    for q_lens in ([1, 1, 1], [40, 100, 90]):
        batch.plan(*step(q_lens, PAGES))
        fake_gpu.launches.clear()
        run(batch, sum(q_lens))
        (launch,) = fake_gpu.launches
        assert launch.overlap and launch.params.get("beside", 0) == 0
        assert len(batch.plans) == len(batch.kernels) == 1
        assert batch.last_plan.num_requests == 3


@pytest.mark.parametrize(
    ("q_lens", "pages", "options"),
    [
        ([1, 100, 1], [20, 10, 20], {}),  # decode is done in no time
        (Q_LENS, PAGES, {"cuda_graph": True}),
        (Q_LENS, PAGES, {"schedule": "hopper_tile"}),
    ],
    ids=["little decode", "graph", "forced"],
)
def test_one_launch(
    q_lens: list[int], pages: list[int], options: dict[str, Any], fake_gpu: Any
) -> None:
    batch = fake_gpu.batch(8, 2, 128, **options).plan(*step(q_lens, pages))
    run(batch, 102)
    (launch,) = fake_gpu.launches
    assert launch.name.startswith("hopper_tile") and launch.grid == 4 and launch.overlap
    assert len(batch.plans) == 1
