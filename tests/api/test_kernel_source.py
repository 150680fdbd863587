"""Where a batch takes its kernels from, all of them: `bundle=` of `BatchAttention`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cute_attn import DeviceKV, PagedKV
from cute_attn.api.kernel_source import COMPILED
from tests.api.conftest import FakeSource

PAGE = 16


class Counting(FakeSource):
    """Notes what it is asked for."""

    def __init__(self, gpu: Any) -> None:
        super().__init__(gpu)
        self.asked: list[str] = []

    def check_device(self, arch: str, name: str) -> None:
        self.asked.append(f"{arch} {name}")

    def attention(self, spec: Any) -> Any:
        self.asked.append(spec.schedule)
        return super().attention(spec)

    def small(self, generated: Any) -> Any:
        self.asked.append(generated.name.split("_bf16")[0].split("_t")[0])
        return super().small(generated)


def paged(*lengths: int) -> PagedKV:
    pages = [-(-n // PAGE) for n in lengths]
    indptr = [sum(pages[:i]) for i in range(len(pages) + 1)]
    last = [n - (p - 1) * PAGE for n, p in zip(lengths, pages, strict=True)]
    return PagedKV(indptr, list(range(indptr[-1])), last, PAGE)


def test_all_kernels_come_from_it(fake_gpu: Any) -> None:
    source = Counting(fake_gpu)
    batch = fake_gpu.batch(8, 2, 128, source=source)
    assert source.asked == ["sm_90a GPU -1 (fake)"]
    batch.plan([0, 1, 2], paged(20, 33))
    batch.plan([0, 100, 101], paged(200, 33))
    assert source.asked[1:] == ["ampere_decode", "hopper_tile"]


def test_a_merge_comes_from_it(fake_gpu: Any) -> None:
    source = Counting(fake_gpu)
    batch = fake_gpu.batch(4, 1, 128, schedule="ampere_tile", source=source)
    batch.plan([0, 20], paged(8000))
    assert source.asked[1:] == ["ampere_tile", "merge"]


def test_decodes_beside_prefill_come_from_it(fake_gpu: Any) -> None:
    source = Counting(fake_gpu)
    batch = fake_gpu.batch(8, 2, 128, source=source)
    batch.plan([0, 1, 101, 102], paged(56_000, 160, 56_000))
    assert len(batch.kernels) == 2
    assert source.asked == ["sm_90a GPU -1 (fake)", "hopper_tile", "ampere_decode"]


def test_the_device_planner_comes_from_it(fake_gpu: Any) -> None:
    source = Counting(fake_gpu)
    batch = fake_gpu.batch(8, 2, 128, source=source, cuda_graph=True, max_requests=4, max_pages=64)
    batch.plan([0, 1, 2], paged(20, 33))
    tables = (torch.tensor(x, dtype=torch.int32) for x in ([0, 2, 5], range(5), [4, 1]))
    batch.plan_on_device(DeviceKV.from_paged(*tables, PAGE))
    assert source.asked[1:] == ["ampere_decode", "plan_decode"]


def test_a_refusal_leaves_the_plan_as_it_was(fake_gpu: Any) -> None:
    class OnlyDecodes(FakeSource):
        def attention(self, spec: Any) -> Any:
            if spec.schedule != "ampere_decode":
                raise ValueError("no such kernel")
            return super().attention(spec)

    batch = fake_gpu.batch(8, 2, 128, source=OnlyDecodes(fake_gpu))
    batch.plan([0, 1], paged(20))
    plan = batch.last_plan
    with pytest.raises(ValueError, match="no such kernel"):
        batch.plan([0, 100], paged(200))
    assert batch.last_plan is plan


def test_the_compiler_takes_any_gpu() -> None:
    COMPILED.check_device("sm_90a", "GPU 0")
