"""`BatchAttention.explain()` of one launch; of two: `test_side_by_side.py`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cute_attn import BatchAttention, PagedKV, RaggedKV


def test_a_batch_on_the_cpu() -> None:
    batch = BatchAttention(
        8, 2, 64, head_dim_vo=32, dtype=torch.float32, variant="sliding_window", device="cpu"
    )
    with pytest.raises(RuntimeError, match=r"explain\(\) before plan\(\)"):
        batch.explain()
    batch.plan([0, 1, 2], RaggedKV([0, 1000, 1300]), scalars={"window_left": 99})
    explanation = batch.explain()
    (launch,) = explanation.launches
    assert launch.name == "CPU executor" and launch.plan is batch.last_plan
    # Keys 900 to 999 and 200 to 299, from the begin of their blocks of 64 on.
    keys = {(i.request, i.key_begin, i.key_end) for b in launch.blocks for i in b.items}
    assert {request: min(b for r, b, _ in keys if r == request) for request, *_ in keys} == {
        0: 896,
        1: 192,
    }
    assert explanation.kv_bytes == 2 * (104 + 108) * (64 + 32) * 4
    assert "CPU executor" in str(explanation)

    batch.plan([0, 7], RaggedKV([0, 7]))
    assert [item["request"] for item in batch.explain().rows()] == [0, 0]
    assert len(list(explanation.rows())) == launch.num_items, "of the step that was explained"


@pytest.mark.parametrize(
    ("head_dim", "group", "name"), [(128, 4, "ampere_decode"), (128, 32, "hopper_tile")]
)
def test_a_launch_has_its_kernels_name_and_grid(
    head_dim: int, group: int, name: str, fake_gpu: Any
) -> None:
    batch = fake_gpu.batch(2 * group, 2, head_dim)
    batch.plan([0, 1, 2], PagedKV([0, 50, 60], [0] * 60, [16, 3], 16))
    (launch,) = batch.explain().launches
    spec = batch.kernels[0].spec
    assert (launch.name, launch.blocks_per_sm) == (name, spec.tile.blocks_per_sm)
    assert launch.num_sms == 4 and len(launch.blocks) == 4 * spec.tile.blocks_per_sm
    assert launch.kv_bytes == (50 * 16 + 9 * 16 + 3) * 2 * 512


def test_a_merge_kernel_is_no_launch_of_its_own(fake_gpu: Any) -> None:
    batch = fake_gpu.batch(8, 2, 128, schedule="ampere_tile")
    batch.plan([0, 30], PagedKV([0, 2000], [0] * 2000, [16], 16))
    assert len(batch.kernels) == 2
    (launch,) = batch.explain().launches
    assert launch.name == "ampere_tile" and launch.merge_us > 0
