"""Tensors of steps: what `BatchAttention` takes on the CPU as well."""

from __future__ import annotations

import pytest
import torch

from cute_attn import BatchAttention
from cute_attn.api.tune_tensors import step_tensors
from cute_attn.tuning import TuneStep

CPU = torch.device("cpu")


@pytest.mark.parametrize("page_size", [None, 1, 16])
def test_a_step_runs_with_its_tensors(page_size: int | None) -> None:
    step = TuneStep("some", (3, 1, 20), (5, 40, 20), 4, 2, 64, page_size, "fp16")
    made = step_tensors(step, CPU, count=2)
    assert made.q.shape == (24, 4, 64) and made.q.dtype is torch.float16
    assert len(made.caches) == 2 and not made.caches[0][0].equal(made.caches[1][0])
    assert made.q.equal(step_tensors(step, CPU).q)
    batch = BatchAttention(4, 2, 64, dtype=made.q.dtype, device=CPU)
    batch.plan(made.qo_indptr, made.kv_format)
    assert not batch.run(made.q, *made.caches[0]).isnan().any()


def test_values_may_be_narrower() -> None:
    step = TuneStep("some", (2,), (4,), 2, 2, 192, value_dim=128)
    assert [x.shape[-1] for x in step_tensors(step, CPU).caches[0]] == [192, 128]
